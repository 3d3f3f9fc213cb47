"""Windows of ``BloomDupeFilter``: of the run, lasting, named, and in runs."""

from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from support.dupefilters import URL, Make, spider_of, stats

# -- start requests --


def test_start_requests_are_not_stored(make: Make) -> None:
    """``meta=response.meta`` copies the mark; depth gives the copy away."""
    start = Request(URL, meta={"is_start_request": True})
    copied = Request(f"{URL}&d=1", meta={"is_start_request": True, "depth": 1})
    first, second = make(), make()
    assert not first.request_seen(start)
    assert not first.request_seen(copied)
    assert not second.request_seen(start)
    assert second.request_seen(Request(URL))
    assert second.request_seen(copied)


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


def test_an_unknown_window_is_warned_about_once_and_nothing_is_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    wrong = ["daily", "daily", "1 week", 7, ["unhashable"], {}]
    for number, window in enumerate(wrong):
        request = Request(f"{URL}&d={number}", meta={"bloom_recrawl_after": window})
        assert not dupefilter.request_seen(request)
        assert make().request_seen(request)
    lines = [one for one in caplog.messages if "bloom_recrawl_after" in one]
    assert len(lines) == 1 + len(wrong), "once in each crawl"
    assert "'daily'" in lines[0]
    assert "BLOOM_RECRAWL_RULES" in lines[3], "no rule has 1 week"
    ruled = make(**WINDOWS)
    page = Request("https://example.com/page/1", meta={"bloom_recrawl_after": "2 days"})
    assert not ruled.request_seen(page)
    assert stats(ruled)["bloom/1-day/new"] == 1, "the rule counts"


# -- windows of rules --

WINDOWS = {"BLOOM_RECRAWL_RULES": [(r"/page/\d+", "1 day")]}


def test_start_requests_go_before_rules_so_that_every_run_begins(make: Make) -> None:
    start = Request("https://example.com/page/1", meta={"is_start_request": True})
    for _ in range(2):
        assert not make(**WINDOWS).request_seen(start)


def test_a_request_names_its_window(make: Make) -> None:
    page = Request("https://example.com/other", meta={"bloom_recrawl_after": "1 day"})
    first = make(**WINDOWS)
    assert not first.request_seen(page)
    assert stats(first)["bloom/1-day/new"] == 1
    assert make(**WINDOWS).request_seen(page)
    assert not make(**WINDOWS).request_seen(Request("https://example.com/other"))


def test_pages_of_the_window_run_are_new_in_each_run_and_once(make: Make) -> None:
    page = Request("https://example.com/list", meta={"bloom_recrawl_after": "run"})
    for _ in range(2):
        dupefilter = make()
        assert [dupefilter.request_seen(page) for _ in range(2)] == [False, True]
        assert stats(dupefilter)["bloom/run/new"] == 1
        assert stats(dupefilter)["bloom/run/seen"] == 1
