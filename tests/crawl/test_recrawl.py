"""Re-crawling: real crawls of a site through half a year that passes on the server's clock.

Only the server's clock moves; the crawling processes keep the real one, which must not matter.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.clock import MovedServer
from support.odd_site import Lab, page, serve

OLD = ("/a", "/b")


@pytest.fixture
def lab(moved: MovedServer, tmp_path: Path) -> Iterator[Lab]:
    """A site whose crawls remember in a server with a clock of its own."""
    pages = {"/": page(*OLD), "/a": page("/", "/b"), "/b": page("/a")}
    with serve(pages) as site, Lab(site, moved.url, tmp_path) as lab:
        yield lab


#: Crawls in a month, counted from January 2027 on, with a window; returns what was fetched beyond
#: the start page, which each run reads.
CrawlIn = Callable[[int, str], Counter[str]]


@pytest.fixture
def crawl_in(lab: Lab, moved: MovedServer) -> CrawlIn:
    def crawl(month: int, window: str) -> Counter[str]:
        moved.set_time(datetime(2027 + month // 12, 1 + month % 12, 15, 12, tzinfo=UTC))
        before = lab.site.hits()
        with lab.start(BLOOM_RECRAWL_AFTER=window) as running:
            running.wait()
        return lab.site.hits() - before - Counter(["/"])

    return crawl


def test_pages_are_crawled_again_five_months_after_they_were_first_seen(
    lab: Lab, crawl_in: CrawlIn
) -> None:
    """Being seen in between prolongs nothing."""
    due = {0: OLD, 2: ("/new",), 5: OLD, 7: ("/new",)}
    for month in (0, 2, 4, 5, 7):
        if month == 2:
            lab.site.pages |= {"/": page(*OLD, "/new"), "/new": page(*OLD)}
        assert crawl_in(month, "5 months") == Counter(due.get(month, ())), month


def test_a_window_that_one_run_is_given_changes_nothing_for_the_next_one(
    lab: Lab, crawl_in: CrawlIn
) -> None:
    """An experiment deletes nothing; a text without a unit is an error.

    With another period, the generations that are there count until their own expiry.
    """
    assert crawl_in(0, "5 months") == Counter(OLD)
    assert '"2 days" or "2 months"' in lab.refused(BLOOM_RECRAWL_AFTER="2")
    windows = [(1, "2 days"), (2, "5 months"), (3, "2 months"), (4, "5 months"), (9, "5 months")]
    found = {month: crawl_in(month, window) for month, window in windows}
    assert found == {1: {}, 2: {}, 3: Counter(OLD), 4: {}, 9: Counter(OLD)}


def test_a_filter_that_never_forgot_counts_as_seen_when_it_gets_a_window(crawl_in: CrawlIn) -> None:
    assert crawl_in(0, "never") == Counter(OLD)
    for month, window in [(30, "2 months"), (31, "never"), (50, "never")]:
        assert not crawl_in(month, window)
