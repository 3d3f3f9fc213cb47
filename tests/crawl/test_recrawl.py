"""Re-crawling: real crawls of a site through a year that passes on the server's clock.

Only the server's clock moves; the crawling processes keep the real one, which must not matter.
"""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from example_site.build import Site, Truth
from example_site.serve import SiteServer
from support.clock import MovedServer
from support.crawling import crawl, options, run_scrapy


class Crawls:
    """Crawls of the site at times of the server's clock, under the same settings.

    Args:
        web: the site's server.
        moved: the server with the filter.
        directory: for the crawls' stats.
    """

    def __init__(self, web: SiteServer, moved: MovedServer, directory: Path) -> None:
        self.web = web
        self.moved = moved
        self.directory = directory
        self.settings = {"BLOOM_REDIS_URL": moved.url}

    def use(self, **settings: Any) -> None:
        """Add settings of Scrapy for all crawls from now on."""
        self.settings |= settings

    def at(self, when: datetime, **settings: str) -> Counter[str]:
        """Set the clock, crawl, and return what the site's server counted."""
        self.moved.set_time(when)
        return self.now(**settings)

    def now(self, **settings: str) -> Counter[str]:
        before = self.web.hits()
        crawl("links", self.web, self.directory, **self.settings, **settings)
        return self.web.hits() - before

    def spider(self, file: Path) -> Counter[str]:
        """Crawl with the spider in a file."""
        before = self.web.hits()
        done = run_scrapy("runspider", str(file), *options(self.web, self.settings))
        assert done.returncode == 0, done.stderr
        assert "ERROR" not in done.stderr
        return self.web.hits() - before


@pytest.fixture
def crawls(web: SiteServer, moved: MovedServer, tmp_path: Path) -> Crawls:
    return Crawls(web, moved, tmp_path)


def day(month: int, number: int = 15, hour: int = 12) -> datetime:
    """Return a moment in a month; months are counted from January 2027 on."""
    return datetime(2027 + month // 12, 1 + month % 12, number, hour, tzinfo=UTC)


def month_of(when: datetime) -> int:
    return (when.year - 2027) * 12 + when.month - 1


def fetches(truth: Truth, *groups: frozenset[str]) -> Counter[str]:
    """Return what a crawl fetches, each once: the listings, as always, and groups of pages."""
    return Counter(truth.hubs | {"/robots.txt"} | frozenset().union(*groups))


# -- one crawl a month --


def test_pages_are_crawled_again_five_months_after_they_were_first_seen(
    site: Site, crawls: Crawls
) -> None:
    """A crawl on the 15th of 13 months. Being seen in between prolongs nothing."""
    crawls.use(BLOOM_RECRAWL_AFTER="5 months")
    truth = site.truth()
    old = truth.lasting
    due = dict.fromkeys((0, 5, 10), old)
    for month in range(13):
        if month == 2:
            truth = site.publish(3).truth()
            new = truth.lasting - old
            assert len(new) == 3
            due |= dict.fromkeys((2, 7, 12), new)
        assert crawls.at(day(month)) == fetches(truth, due.get(month, frozenset())), month


def test_a_window_that_one_run_is_given_does_not_wipe_the_filter(
    site: Site, crawls: Crawls
) -> None:
    """A forgotten unit, or an experiment: no page is fetched again, then or later."""
    truth = site.truth()
    assert crawls.at(day(0)) == fetches(truth, truth.lasting)
    for window, told in (("2", "it has no unit: write"), ("2 days", "forgets URLs earlier: set")):
        before = crawls.web.hits()
        given = crawls.settings | {"BLOOM_RECRAWL_AFTER": window}
        done = run_scrapy("crawl", "links", *options(crawls.web, given))
        assert told in done.stderr
        assert crawls.web.hits() == before
    # A longer one, and then none: the filter forgets nothing any more.
    assert crawls.at(day(1)) == fetches(truth)
    crawls.use(BLOOM_KEY="of months", BLOOM_RECRAWL_AFTER="2 months")
    assert crawls.now() == fetches(truth, truth.lasting)
    crawls.settings.pop("BLOOM_RECRAWL_AFTER")
    assert crawls.at(day(2)) == fetches(truth)
    assert crawls.at(day(40)) == fetches(truth)


# -- crawls that take weeks --


class PassingDays:
    """Days pass on the server's clock while the site is crawled: some with each page it serves.

    The site's server moves the clock before it answers, so a crawl cannot run ahead of its time.

    Args:
        web: the site's server.
        moved: the server with the filter.
        pages: pages after which a crawl has come to its last day.

    Attributes:
        log: crawl, URL and time of each page that was served.
    """

    def __init__(self, web: SiteServer, moved: MovedServer, pages: int) -> None:
        self.log: list[tuple[int, str, datetime]] = []
        self._count = web.count
        self._moved = moved
        self._pages = pages
        self._lock = Lock()
        web.count = self._serve  # type: ignore[method-assign]

    def begin(self, number: int, start: datetime, end: datetime) -> None:
        """Set the clock to the first day of a crawl."""
        self._number, self._now, self._end = number, start, end
        self._step = (end - start) / self._pages
        self._moved.set_time(start)

    def _serve(self, url: str) -> None:
        with self._lock:
            self._now = min(self._now + self._step, self._end)
            self._moved.set_time(self._now)
            self.log.append((self._number, url, self._now))
        self._count(url)


# A page is taken, by the server's clock, between the beginning of the crawl and its fetch. It is
# due from the fifth month after that on. Crawl n begins in month n.


def test_a_window_that_ends_during_a_crawl_fetches_pages_once_on_each_side_of_its_end(
    site: Site, crawls: Crawls
) -> None:
    """With a window of a month, a crawl over its end meets pages that are due again."""
    truth = site.truth()
    # A day passes in less than the time for which answers are kept, or a batch is collected. Pages
    # are taken when scheduled: how many have been settled by the month's end would be chance.
    crawls.use(
        BLOOM_RECRAWL_AFTER="1 month",
        BLOOM_ROTATE_EVERY="1 month",
        BLOOM_REMEMBER="scheduled",
        BLOOM_CACHE_SIZE=0,
        BLOOM_BATCH=0,
    )
    days = PassingDays(crawls.web, crawls.moved, pages=len(truth.crawl()))
    days.begin(0, day(0, 20), day(1, 10))
    fetched = crawls.now()
    assert fetched.keys() == truth.crawl()
    twice = {url for url, times in fetched.items() if times > 1}
    assert twice
    assert twice <= truth.lasting
    for url in twice:
        assert [month_of(when) for _, page, when in days.log if page == url] in ([0, 1], [1, 1])
