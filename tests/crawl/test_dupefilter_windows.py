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
    ruled = make(**WINDOWS)
    page = Request("https://example.com/page/1", meta={"bloom_recrawl_after": "2 days"})
    assert not ruled.request_seen(page)
    assert stats(ruled)["bloom/1-day/new"] == 1, "the rule counts"


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
