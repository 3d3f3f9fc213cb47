"""Re-crawling: real crawls of a site through half a year that passes on the server's clock.

Only the server's clock moves; the crawling processes keep the real one, which must not matter.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from example_site.build import Site, Truth
from example_site.serve import SiteServer
from support.clock import MovedServer
from support.crawling import crawl, options, run_scrapy

#: Crawls in a month, counted from January 2027 on, under settings; returns what was fetched.
CrawlIn = Callable[..., Counter[str]]


@pytest.fixture
def crawl_in(web: SiteServer, moved: MovedServer, tmp_path: Path) -> CrawlIn:
    def run(month: int, **settings: str) -> Counter[str]:
        moved.set_time(datetime(2027 + month // 12, 1 + month % 12, 15, 12, tzinfo=UTC))
        before = web.hits()
        crawl("links", web, tmp_path, BLOOM_REDIS_URL=moved.url, **settings)
        return web.hits() - before

    return run


def fetches(truth: Truth, *groups: frozenset[str]) -> Counter[str]:
    """Return what a crawl fetches, each once: the listings, as always, and groups of pages."""
    return Counter(truth.hubs | {"/robots.txt"} | frozenset().union(*groups))


def test_pages_are_crawled_again_five_months_after_they_were_first_seen(
    site: Site, crawl_in: CrawlIn
) -> None:
    """Being seen in between prolongs nothing."""
    truth = site.truth()
    old = truth.lasting
    due = dict.fromkeys((0, 5), old)
    for month in (0, 2, 4, 5, 7):
        if month == 2:
            truth = site.publish(3).truth()
            new = truth.lasting - old
            assert len(new) == 3
            due |= dict.fromkeys((2, 7), new)
        found = crawl_in(month, BLOOM_RECRAWL_AFTER="5 months")
        assert found == fetches(truth, due.get(month, frozenset())), month


def test_a_window_that_one_run_is_given_changes_nothing_for_the_next_one(
    site: Site, web: SiteServer, moved: MovedServer, crawl_in: CrawlIn
) -> None:
    """An experiment deletes nothing; a text without a unit is an error.

    With another period, the generations that are there count until their own expiry.
    """
    truth, months = site.truth(), {"BLOOM_RECRAWL_AFTER": "5 months"}
    assert crawl_in(0, **months) == fetches(truth, truth.lasting)
    before = web.hits()
    given = {"BLOOM_REDIS_URL": moved.url, "BLOOM_RECRAWL_AFTER": "2"}
    told = run_scrapy("crawl", "links", *options(web, given)).stderr
    assert "BLOOM_RECRAWL_AFTER" in told
    assert '"2 days" or "2 months"' in told
    assert web.hits() == before
    assert crawl_in(1, BLOOM_RECRAWL_AFTER="2 days") == fetches(truth)
    assert crawl_in(2, **months) == fetches(truth)
    assert crawl_in(3, BLOOM_RECRAWL_AFTER="2 months") == fetches(truth, truth.lasting)
    assert crawl_in(4, **months) == fetches(truth)
    assert crawl_in(9, **months) == fetches(truth, truth.lasting)


def test_a_filter_that_never_forgot_counts_as_seen_when_it_gets_a_window(
    site: Site, crawl_in: CrawlIn
) -> None:
    truth, never = site.truth(), {"BLOOM_RECRAWL_AFTER": "never"}
    assert crawl_in(0, **never) == fetches(truth, truth.lasting)
    assert crawl_in(30, BLOOM_RECRAWL_AFTER="2 months") == fetches(truth)
    assert crawl_in(31, **never) == fetches(truth)
    assert crawl_in(50, **never) == fetches(truth)
