"""What a dupefilter warns about: servers and settings, when it opens; full filters, later."""

import logging

import pytest
import redis
from scrapy import Request
from support.dupefilters import Make, UrlFingerprinter, stats


def test_eviction_is_warned_about(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        make()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert "maxmemory-policy is allkeys-lru" in caplog.text
    caplog.clear()
    make(BLOOM_REMEMBER="crawled")
    assert not caplog.records


def test_an_http_cache_that_never_expires_is_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(HTTPCACHE_ENABLED=True)
    assert "HTTPCACHE_EXPIRATION_SECS = 0 never expires" in caplog.text
    caplog.clear()
    policy = "scrapy.extensions.httpcache.RFC2616Policy"
    for good in ({"HTTPCACHE_EXPIRATION_SECS": 3600}, {"HTTPCACHE_POLICY": policy}):
        make(BLOOM_REMEMBER="crawled", HTTPCACHE_ENABLED=True, **good)
    assert not caplog.records


def test_another_fingerprinter_than_the_filters_is_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(BLOOM_REMEMBER="crawled")
    make(BLOOM_REMEMBER="crawled")
    assert not caplog.records
    make(REQUEST_FINGERPRINTER_CLASS=UrlFingerprinter)
    assert "fingerprints of 'scrapy.utils.request.RequestFingerprinter'" in caplog.text
    assert "UrlFingerprinter" in caplog.text


def test_changed_settings_are_applied_once_and_said_in_a_line(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make()
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
    assert "BLOOM_CAPACITY = 20000 (was 10000)" in line
    assert "BLOOM_ERROR_RATE = 0.001 (was 1e-05)" in line
    assert "BLOOM_RECRAWL_AFTER = 1 year (was None)" in line
    assert "from the next generation on" in line
    assert "settings of the" not in caplog.text


def test_the_log_says_how_many_urls_all_generations_take(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make(BLOOM_RECRAWL_AFTER="3 months")
        assert "made for 30,000 URLs in all, 10,000 a period of 1 month)" in caplog.text
        make(BLOOM_KEY="other")
        assert "blocks, made for 10,000)" in caplog.text


def test_pages_in_the_cache_for_longer_than_the_filter_remembers_them(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cache = {"HTTPCACHE_ENABLED": True, "BLOOM_RECRAWL_AFTER": "10 hours", "BLOOM_KEY": "short"}
    make(**cache, HTTPCACHE_EXPIRATION_SECS=18_000)
    assert "HTTPCACHE" not in caplog.text
    make(**cache, HTTPCACHE_EXPIRATION_SECS=18_001)
    assert "Set HTTPCACHE_EXPIRATION_SECS to 18000 at most" in caplog.text


def test_spiders_that_change_each_others_window_are_warned(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def change(window: str) -> str:
        """Open under a window; return the warning about the change, if there is one."""
        caplog.clear()
        make(BLOOM_KEY="all", BLOOM_RECRAWL_AFTER=window)
        return "".join(r.getMessage() for r in caplog.records if "settings of" in r.getMessage())

    assert not change("2 months")
    for new, old in (("1 week", "2 months"), ("2 months", "1 week")):
        text = change(new)
        assert f"BLOOM_RECRAWL_AFTER = {new} (was {old})" in text
        assert "remembers those seen since 20" in text
        assert "give each spider a BLOOM_KEY of its own" in text
        assert not change(new)


def test_a_change_of_sizes_is_no_reason_to_warn(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(BLOOM_RECRAWL_AFTER="1 week")
    make(BLOOM_RECRAWL_AFTER="1 week", BLOOM_CAPACITY=20_000)
    assert "settings of" not in caplog.text


def test_a_filter_that_outgrows_its_capacity_is_warned_about_once_and_forgets_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 2, "BLOOM_ERROR_RATE": 1e-9}
    dupefilter = make(**options)
    requests = [Request(f"https://example.com/{i}") for i in range(100)]
    with caplog.at_level(logging.INFO):
        assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(make().request_seen(request) for request in requests)
    assert "bloom/unrecorded" not in stats(dupefilter)
    assert caplog.text.count("is filled to 80% of its 20 URLs (predicted") == 1
    assert caplog.text.count("holds more URLs than BLOOM_CAPACITY = 10 and grows, now to 40") == 1
    dupefilter.close("finished")
    assert stats(dupefilter)["bloom/layers"] > 2
    assert 0 < stats(dupefilter)["bloom/estimated_error_rate"] < 1e-9
    assert stats(dupefilter)["bloom/generations"] == 1
    assert 0 < stats(dupefilter)["bloom/fill_ratio"] <= 1


def test_a_full_filter_is_warned_about_and_hides_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 1, "BLOOM_ERROR_RATE": 1e-9, "BLOOM_GROWTH": 0}
    dupefilter = make(**options)
    requests = [Request(f"https://example.com/{i}") for i in range(20)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests), "not twice in a run"
    assert stats(dupefilter)["bloom/unrecorded"] == 10
    assert caplog.text.count("is filled to 80% of its 10 URLs (predicted") == 1
    assert caplog.text.count("cannot grow because of BLOOM_GROWTH = 0") == 1
    caplog.clear()
    make(**options)
    assert "holds 10 of 10 URLs, and BLOOM_GROWTH = 0" in caplog.text


def test_a_full_filter_with_a_window_rotates_early_and_says_so(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 1, "BLOOM_ERROR_RATE": 1e-9, "BLOOM_GROWTH": 0}
    dupefilter = make(**options, BLOOM_RECRAWL_AFTER="2 years", BLOOM_ROTATE_EVERY="1 year")
    requests = [Request(f"https://example.com/{i}") for i in range(30)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests), "not twice in a run"
    assert caplog.text.count("the filter rotated early") == 1
    assert stats(dupefilter)["bloom/rotations"] == 1
    assert stats(dupefilter)["bloom/unrecorded"] == 10
