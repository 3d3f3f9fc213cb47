"""What a dupefilter warns about: servers and settings, when it opens; full filters, later."""

import logging

import pytest
import redis
from scrapy import Request
from support.dupefilters import Make, UrlFingerprinter, shut, stats
from support.loops import in_loop

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.model.generations import Config


@in_loop
async def test_eviction_is_warned_about(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        scheduled = make()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert "maxmemory-policy is allkeys-lru" in caplog.text
    caplog.clear()
    crawled = make(BLOOM_REMEMBER="crawled")
    assert not caplog.records
    await shut(scheduled, crawled)


@in_loop
async def test_claims_that_nothing_takes_over_under_scheduled_are_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    crawled = make(BLOOM_REMEMBER="crawled")
    for number in range(5):
        assert not crawled.request_seen(Request(f"https://example.com/{number}"))
    scheduled = make()
    assert "5 requests are claimed" in caplog.text
    await shut(crawled, scheduled)


@in_loop
async def test_another_fingerprinter_than_the_filters_is_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    made = [make(BLOOM_REMEMBER="crawled") for _ in range(2)]
    assert not caplog.records
    made.append(make(REQUEST_FINGERPRINTER_CLASS=UrlFingerprinter))
    assert "fingerprints of 'scrapy.utils.request.RequestFingerprinter'" in caplog.text
    assert "UrlFingerprinter" in caplog.text
    await shut(*made)


def test_changed_settings_are_applied_once_and_said_in_a_line(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(BLOOM_RECRAWL_AFTER="2 months")
    changed = {
        "BLOOM_CAPACITY": 20_000,
        "BLOOM_ERROR_RATE": "1e-3",
        "BLOOM_RECRAWL_AFTER": "1 year",
    }
    with caplog.at_level(logging.INFO):
        make(**changed)
        (line,) = [r.getMessage() for r in caplog.records if "settings of the" in r.getMessage()]
        caplog.clear()
        make(**changed)
    assert "BLOOM_CAPACITY = 20,000 (was 10,000)" in line
    assert "BLOOM_ERROR_RATE = 0.001 (was 1e-05)" in line
    assert "BLOOM_RECRAWL_AFTER = 1 year (was 2 months)" in line
    assert "from the next generation on" in line
    assert "settings of the" not in caplog.text


def test_windows_that_are_too_short_are_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """For the pages in Scrapy's cache, and for any crawl, before it forgets."""
    cache = {"HTTPCACHE_ENABLED": True, "BLOOM_RECRAWL_AFTER": "10 hours", "BLOOM_KEY": "short"}
    make(**cache, HTTPCACHE_EXPIRATION_SECS=18_000)
    assert "HTTPCACHE" not in caplog.text
    assert "less than an hour" not in caplog.text
    make(**cache, HTTPCACHE_EXPIRATION_SECS=18_001)
    assert "Set HTTPCACHE_EXPIRATION_SECS to 18000 at most" in caplog.text
    make(BLOOM_RECRAWL_AFTER="2 seconds")
    assert "BLOOM_RECRAWL_AFTER = 2 seconds is less than an hour" in caplog.text


def test_a_longer_window_is_warned_about_and_a_shorter_one_refused(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """So spiders that share a filter cannot change each other's window at each start."""

    def change(window: str | None) -> str:
        """Open under a window; return the warning about the change, if there is one."""
        caplog.clear()
        make(BLOOM_KEY="all", BLOOM_RECRAWL_AFTER=window)
        return "".join(r.getMessage() for r in caplog.records if "settings of" in r.getMessage())

    assert not change("2 months")
    for new, old in (("6 months", "2 months"), (None, "6 months")):
        text = change(new)
        assert f"BLOOM_RECRAWL_AFTER = {new or 'never'} (was {old})" in text
        assert "Times hold from now on, sizes from the next " in text
        assert "give each a BLOOM_KEY of its own" in text
        assert not change(new)
        for shorter in (old, "2 days"):
            with pytest.raises(FilterMismatchError) as caught:
                change(shorter)
            for part in (
                f'is stored with BLOOM_RECRAWL_AFTER = "{new or "never"}"',
                f'and BLOOM_RECRAWL_AFTER = "{shorter}" and BLOOM_ROTATE_EVERY = "',
                "earlier: run 'scrapy bloom settings --apply' once to let it, or set ",
                f'BLOOM_RECRAWL_AFTER = "{new or "never"}"',
                "to use the filter as it is, or another BLOOM_KEY for a new one",
            ):
                assert part in str(caught.value)
        assert not change(new)


def test_what_an_earlier_run_was_given_does_not_count(make: Make) -> None:
    def config(**settings: object) -> Config:
        filters = make(**settings).filters
        assert filters
        assert filters.default.config
        return filters.default.config

    usual = config()
    once = config(BLOOM_ERROR_RATE="50%", BLOOM_GROWTH=3, BLOOM_MAX_MEMORY="1 GiB")
    assert (once.error_rate, once.growth, once.max_memory) == (0.5, 3, 1 << 30)
    assert config() == usual
    assert config(BLOOM_RECRAWL_AFTER=None) == usual


def test_a_worker_that_connects_again_undoes_no_settings(make: Make, client: redis.Redis) -> None:
    """Those of a run count when it begins."""
    worker = make(BLOOM_RECRAWL_AFTER="2 months", BLOOM_CAPACITY=500)
    make(BLOOM_RECRAWL_AFTER="6 months")
    assert worker._crawl is not None
    complete(worker._crawl.server.reopen())
    found = BloomFilter(client, "shop:bloom").look()
    assert found is not None
    config = found.rings[0].config
    assert (config.window, config.capacity) == ("6 months", 10_000)


def test_a_filter_that_outgrows_its_capacity_is_warned_about_once_and_forgets_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 2, "BLOOM_ERROR_RATE": 1e-9}
    dupefilter = make(**options)
    requests = [Request(f"https://example.com/{i}") for i in range(100)]
    with caplog.at_level(logging.INFO):
        assert not any(dupefilter.request_seen(request) for request in requests)
    again = make()
    assert all(again.request_seen(request) for request in requests)
    assert "bloom/unrecorded" not in stats(dupefilter)
    assert caplog.text.count("is filled to 80% of its 20 URLs (predicted") == 1
    assert caplog.text.count("holds more URLs than BLOOM_CAPACITY = 10 and grows, now to 40") == 1
    dupefilter.close("finished")
    assert stats(dupefilter)["bloom/layers"] > 2
    assert 0 < stats(dupefilter)["bloom/estimated_error_rate"] < 1e-9
    assert stats(dupefilter)["bloom/generations"] == 1
    assert 0 < stats(dupefilter)["bloom/fill_ratio"] <= 1


#: Room for ten URLs.
FULL = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 1, "BLOOM_ERROR_RATE": 1e-9, "BLOOM_GROWTH": 0}


def test_a_full_filter_is_warned_about_and_hides_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make(**FULL)
    requests = [Request(f"https://example.com/{i}") for i in range(20)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests), "not twice in a run"
    assert stats(dupefilter)["bloom/unrecorded"] == 10
    assert caplog.text.count("is filled to 80% of its 10 URLs (predicted") == 1
    assert caplog.text.count("cannot grow because of BLOOM_GROWTH = 0") == 1
    caplog.clear()
    make(**FULL)
    assert "holds 10 of 10 URLs, and BLOOM_GROWTH = 0" in caplog.text


def test_a_full_filter_with_a_window_rotates_early_and_says_so(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make(**FULL, BLOOM_RECRAWL_AFTER="2 years", BLOOM_ROTATE_EVERY="1 year")
    requests = [Request(f"https://example.com/{i}") for i in range(30)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests), "not twice in a run"
    assert caplog.text.count("the filter rotated early") == 1
    assert stats(dupefilter)["bloom/rotations"] == 1
    assert stats(dupefilter)["bloom/unrecorded"] == 10
