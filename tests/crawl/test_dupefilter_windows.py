"""Windows of ``BloomDupeFilter``: of the run, lasting, named, and in runs."""

import logging
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from support.dupefilters import URL, Make, shut, spider_of, stats
from support.loops import in_loop

from scrapy_bloom import FilterMismatchError
from scrapy_bloom.crawl.identity import MAX_KEYS

# -- the run --


def test_the_run_window_lasts_for_this_run(make: Make) -> None:
    hub = Request(URL, meta={"bloom_recrawl_after": "run"})
    first = make()
    assert not first.request_seen(hub)
    assert first.request_seen(hub)
    assert stats(first)["bloom/run/new"] == 1
    assert stats(first)["bloom/run/seen"] == 1
    assert not make().request_seen(hub)


def test_start_requests_are_not_stored(make: Make) -> None:
    start = Request(URL, meta={"is_start_request": True})
    assert not make().request_seen(start)
    second = make()
    assert not second.request_seen(start)
    assert second.request_seen(Request(URL))


def test_a_copied_is_start_request_does_not_make_a_start_request(make: Make) -> None:
    """``meta=response.meta`` copies the flag; depth gives the copy away."""
    copied = Request(URL, meta={"is_start_request": True, "depth": 1})
    assert not make().request_seen(copied)
    assert make().request_seen(copied)


def test_sitemaps_behind_a_start_request_are_hubs_too(make: Make) -> None:
    """robots.txt -> sitemap index -> sitemap: the second run must read them all."""

    class Sitemap(SitemapSpider):
        name = "sitemap"

        def parse(self, response: Response) -> None: ...

    for _ in range(2):
        dupefilter = make(Sitemap)
        spider: Any = spider_of(dupefilter)
        nested = Request(URL, callback=spider._parse_sitemap, meta={"depth": 2})
        assert not dupefilter.request_seen(nested)
        assert dupefilter.request_seen(nested)
    assert not dupefilter.request_seen(Request(URL + "&d=1", callback=spider.parse))
    assert make(Sitemap).request_seen(Request(URL + "&d=1", callback=spider.parse))


def test_an_unknown_window_is_warned_about_and_nothing_is_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    wrong = ["daily", "daily", "1 week", 7, ["unhashable"], {}]
    for number, window in enumerate(wrong):
        request = Request(f"{URL}&d={number}", meta={"bloom_recrawl_after": window})
        assert not dupefilter.request_seen(request)
        assert make(BLOOM_START_RECRAWL_AFTER="1 day").request_seen(request)
    assert caplog.text.count('meta["bloom_recrawl_after"] of ') == 1 + len(wrong)
    assert 'is \'daily\', and the settings have "run", "default", "never" (it' in caplog.text
    assert 'settings have "run", "default", "never", "1 day" (no setting has the' in caplog.text
    assert "To have another one, name it in BLOOM_RECRAWL_RULES, too" in caplog.text


def test_an_unknown_window_leaves_the_request_to_the_rules(make: Make) -> None:
    dupefilter = make(**WINDOWS)
    page = Request("https://example.com/page/1", meta={"bloom_recrawl_after": "2 days"})
    assert not dupefilter.request_seen(page)
    assert stats(dupefilter)["bloom/1-day/new"] == 1


def test_a_meta_key_that_is_not_known_is_warned_about_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make(**WINDOWS)
    for number in range(3):
        url = f"https://example.com/page/{number}"
        meta = {"bloom_recrawl_afer": "run", "bloom_colour": "red", "depth": 1}
        assert not dupefilter.request_seen(Request(url, meta=meta))
    assert stats(dupefilter)["bloom/1-day/new"] == 3
    assert caplog.text.count("unknown-meta-key") == 2
    assert "such key; did you mean bloom_recrawl_after? [" in caplog.text
    assert "such key; there are bloom_key, bloom_version, " in caplog.text


def test_any_number_of_meta_keys_takes_no_memory(make: Make) -> None:
    dupefilter = make()
    for number in range(3 * MAX_KEYS):
        dupefilter.request_seen(Request(URL, meta={f"key {number}": 1}))
    assert len(dupefilter._identity._keys) <= MAX_KEYS


@pytest.mark.parametrize(
    ("settings", "meta", "is_advised"),
    [
        ({}, {}, True),
        ({"BLOOM_RECRAWL_RULES": [(r"/list$", "run")]}, {}, False),
        ({"BLOOM_REMEMBER": "items"}, {}, False),
        ({}, {"bloom_recrawl_after": "run"}, False),
    ],
)
@in_loop
async def test_what_is_named_already_is_not_advised_to_be_named(
    settings: dict[str, Any],
    meta: dict[str, str],
    is_advised: bool,
    make: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = Request("https://example.com/page/1")
    for _ in range(2):
        caplog.clear()
        dupefilter = make(**{"BLOOM_REMEMBER": "scheduled", **settings})
        with caplog.at_level(logging.INFO):
            dupefilter.request_seen(Request("https://example.com/list", meta=meta))
            dupefilter.request_seen(page)
            await shut(dupefilter)
    assert "nothing was new" in caplog.text
    assert ("name them by" in caplog.text) is is_advised


# -- windows of rules --

WINDOWS = {"BLOOM_RECRAWL_RULES": [(r"/page/\d+", "1 day")]}


def test_start_requests_go_before_rules_so_that_every_run_begins(make: Make) -> None:
    start = Request("https://example.com/page/1", meta={"is_start_request": True})
    for _ in range(2):
        assert not make(**WINDOWS).request_seen(start)
    assert not make(**WINDOWS, BLOOM_START_RECRAWL_AFTER="1 day").request_seen(start)
    assert make(**WINDOWS, BLOOM_START_RECRAWL_AFTER="default").request_seen(start), (
        "the rule counts"
    )


def test_a_url_taken_under_run_is_seen_in_every_window_and_not_stored(make: Make) -> None:
    listing = Request(URL, meta={"bloom_recrawl_after": "24 hours"})
    dupefilter = make(**WINDOWS)
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_recrawl_after": "run"}))
    assert dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(listing)
    other = make(**WINDOWS)
    assert not other.request_seen(listing)
    assert not other.request_seen(Request(URL))


def test_flushing_clears_the_filters_of_all_windows(make: Make) -> None:
    dupefilter = make(**WINDOWS, SCHEDULER_FLUSH_ON_START=True)
    requests = [Request(URL, meta={"bloom_recrawl_after": "24 hours"}), Request(URL)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    dupefilter.clear()
    assert not any(dupefilter.request_seen(request) for request in requests)


# -- runs --


def test_a_window_in_runs_is_rotated_by_the_first_worker_of_a_run(make: Make) -> None:
    options = {"BLOOM_RECRAWL_AFTER": "1 run"}
    monday = [make(**options, BLOOM_RUN="monday") for _ in range(2)]
    assert not monday[0].request_seen(Request(URL))
    assert monday[1].request_seen(Request(URL))
    tuesday = [make(**options, BLOOM_RUN="tuesday") for _ in range(2)]
    assert not tuesday[0].request_seen(Request(URL))
    assert tuesday[1].request_seen(Request(URL))
    assert monday[0].request_seen(Request(URL)), "an old worker rotates nothing back"
    assert make(**options, BLOOM_RUN="monday").request_seen(Request(URL))


def test_a_window_in_runs_that_is_not_set_any_more_forgets_nothing(make: Make) -> None:
    runs = {"BLOOM_RECRAWL_AFTER": "1 run"}
    assert not make(**runs, BLOOM_RUN="a").request_seen(Request(URL))
    assert make().request_seen(Request(URL))
    with pytest.raises(FilterMismatchError, match="settings --apply"):
        make(**runs, BLOOM_RUN="b")
