"""Windows of ``BloomDupeFilter``: of the run, lasting, named, and in runs."""

from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from support.dupefilters import URL, Make, spider_of, stats

from scrapy_bloom import ConfigurationError

# -- the run --


def test_the_run_window_lasts_for_this_run(make: Make) -> None:
    hub = Request(URL, meta={"bloom_window": "run"})
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


def test_start_requests_can_be_remembered_like_all_others(make: Make) -> None:
    start = Request(URL, meta={"is_start_request": True})
    assert not make(BLOOM_START_WINDOW="lasting").request_seen(start)
    assert make(BLOOM_START_WINDOW="lasting").request_seen(start)


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
    for number, window in enumerate(["daily", "daily", "weekly", 7, ["unhashable"], {}]):
        request = Request(f"{URL}&d={number}", meta={"bloom_window": window})
        assert not dupefilter.request_seen(request)
        assert make().request_seen(request)
    assert caplog.text.count("meta['bloom_window'] of ") == 1 + 6
    assert "is 'daily', and there are 'run', 'lasting' (BLOOM_WINDOWS has more)" in caplog.text


# -- named windows --

WINDOWS = {"BLOOM_WINDOWS": {"listing": "1 day"}, "BLOOM_WINDOW_RULES": [(r"/page/\d+", "listing")]}


def test_a_named_window_is_a_filter_of_its_own(make: Make, client: redis.Redis) -> None:
    dupefilter = make(**WINDOWS)
    listing = Request(URL, meta={"bloom_window": "listing"})
    assert not dupefilter.request_seen(listing)
    assert dupefilter.request_seen(listing)
    assert not dupefilter.request_seen(Request(URL)), "the lasting filter does not know it"
    assert make(**WINDOWS).request_seen(listing)
    assert client.exists("{shop:bloom:listing:0}:header")
    assert stats(dupefilter)["bloom/listing/new"] == 1
    assert stats(dupefilter)["bloom/listing/seen"] == 1
    assert stats(dupefilter)["bloom/new"] == 1
    assert stats(dupefilter)["bloom/listing/generations"] == 1


def test_rules_name_the_window_by_the_url(make: Make) -> None:
    dupefilter = make(**WINDOWS)
    page = "https://example.com/page/7"
    assert not dupefilter.request_seen(Request(page))
    assert dupefilter.request_seen(Request(page, meta={"bloom_window": "listing"}))
    assert not dupefilter.request_seen(Request(page, meta={"bloom_window": "lasting"}))
    assert stats(dupefilter)["bloom/new"] == 1


def test_start_requests_go_before_rules_so_that_every_run_begins(make: Make) -> None:
    start = Request("https://example.com/page/1", meta={"is_start_request": True})
    for _ in range(2):
        assert not make(**WINDOWS).request_seen(start)
    assert not make(**WINDOWS, BLOOM_START_WINDOW="listing").request_seen(start)
    assert make(**WINDOWS, BLOOM_START_WINDOW="lasting").request_seen(start), "the rule counts"


def test_a_url_taken_under_run_is_seen_in_every_window_and_not_stored(make: Make) -> None:
    listing = Request(URL, meta={"bloom_window": "listing"})
    dupefilter = make(**WINDOWS)
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_window": "run"}))
    assert dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(listing)
    other = make(**WINDOWS)
    assert not other.request_seen(Request(URL))
    assert not other.request_seen(listing)


def test_flushing_clears_the_filters_of_all_windows(make: Make) -> None:
    dupefilter = make(**WINDOWS, SCHEDULER_FLUSH_ON_START=True)
    requests = [Request(URL), Request(URL, meta={"bloom_window": "listing"})]
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


def test_a_stored_window_in_runs_needs_the_id_of_the_run(make: Make) -> None:
    make(BLOOM_RECRAWL_AFTER="2 runs", BLOOM_RUN="a")
    with pytest.raises(ConfigurationError, match="2 runs, counts runs, and BLOOM_RUN is not set"):
        make()
