"""Re-crawling: real crawls of a site through a year that passes on the server's clock.

Only the server's clock moves; the crawling processes keep the real one, which must not matter.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from example_site.build import Site, Truth
from example_site.serve import SiteServer
from support.clock import MovedServer
from support.crawling import LISTING, crawl, options, run_scrapy


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


def test_a_pause_makes_no_difference(site: Site, crawls: Crawls) -> None:
    """Pages are due by the calendar, whatever crawls there were, and also after years."""
    crawls.use(BLOOM_RECRAWL_AFTER="5 months")
    truth = site.truth()
    for when, due in (
        (day(0, 31), True),
        (day(4, 31, 23), False),
        (day(5, 1, 0), True),
        (day(9, 28), False),
        (day(60), True),
    ):
        assert crawls.at(when) == fetches(truth, truth.lasting if due else frozenset()), when


def test_staggered_blocks_are_crawled_again_one_after_the_other(site: Site, crawls: Crawls) -> None:
    """All stories come within a month, between four and five months after they were seen."""
    crawls.use(BLOOM_RECRAWL_AFTER="5 months", BLOOM_STAGGER="True")
    truth = site.truth()
    assert crawls.at(day(0)) == fetches(truth, truth.lasting)
    assert crawls.at(day(4)) == fetches(truth)
    # By the 1st of June those blocks are through that begin their months late in the month.
    early = crawls.at(day(5, 1))
    late = crawls.at(day(5, 15))
    for crawled in (early, late):
        assert fetches(truth) < crawled < fetches(truth, truth.lasting)
    again = early + late - fetches(truth) - fetches(truth)
    assert max(again.values()) == 1
    # What only stories link is not met if it is due after they were fetched.
    assert truth.stories <= again.keys() <= truth.lasting


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


# -- runs instead of months --


@pytest.mark.parametrize(
    ("window", "runs"),
    [
        pytest.param("1 run", {"a": True, "b": True, "c": True}, marks=pytest.mark.slow),
        ("2 runs", {"a": True, "b": False, "c": True, "d": False, "e": True}),
    ],
)
def test_windows_in_runs_count_ids_of_runs(
    site: Site, crawls: Crawls, window: str, runs: dict[str, bool]
) -> None:
    """Each new id is a run; the same one again, even an earlier one, goes on in the last run."""
    crawls.use(BLOOM_RECRAWL_AFTER=window)
    truth = site.truth()
    years = count(1)
    for name, due in runs.items():
        expected = fetches(truth, truth.lasting if due else frozenset())
        assert crawls.now(BLOOM_RUN=name) == expected, name
        if due:
            # A year is no run.
            assert crawls.at(day(12 * next(years)), BLOOM_RUN=name) == fetches(truth), name
    assert crawls.now(BLOOM_RUN="a") == fetches(truth)


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


def test_crawls_from_the_20th_to_the_10th_fetch_each_page_once_a_window(
    site: Site, crawls: Crawls
) -> None:
    """Twelve crawls, each over the end of a month, at which pages fall due in the middle of it."""
    truth, months = site.truth(), 12
    # A crawl of a second is over before the writer has written: pages are taken when scheduled.
    # Answers are kept for 5 seconds, in which here many days pass.
    crawls.use(BLOOM_RECRAWL_AFTER="5 months", BLOOM_REMEMBER="scheduled", BLOOM_CACHE_SIZE=0)
    days = PassingDays(crawls.web, crawls.moved, pages=len(truth.hubs))
    for month in range(months):
        days.begin(month, day(month, 20), day(month + 1, 10))
        fetched = crawls.now()
        assert max(fetched.values()) == 1, "a page was fetched twice in a crawl"
        assert fetched.keys() <= truth.crawl()
        if month < 4:
            assert fetched == fetches(truth, frozenset() if month else truth.lasting)
        else:
            assert fetches(truth) <= fetched
    by_page = defaultdict(list)
    for number, url, when in days.log:
        by_page[url].append((number, month_of(when)))
    for url in truth.lasting:
        check_not_early(by_page[url])
    for url in truth.stories:  # which each crawl meets: they are on the listings
        check_not_late(by_page[url], months)
    again = [by_page[url][1] for url in truth.stories]
    assert {number for number, _ in again} > {4}, "none fell due before, or while, a crawl ran"


# A page is taken, by the server's clock, between the beginning of the crawl and its fetch. It is
# due from the fifth month after that on. Crawl n begins in month n.


def check_not_early(fetched: Sequence[tuple[int, int]]) -> None:
    """Check the crawls and months in which a page was fetched against when it was due."""
    for (number, _), (_, month) in pairwise(fetched):
        assert number + 5 <= month, fetched


def check_not_late(fetched: Sequence[tuple[int, int]], crawls: int) -> None:
    """Check that the first crawl that began when a page was due was not without it."""
    for (_, month), (number, _) in pairwise([*fetched, (crawls, 0)]):
        assert number <= month + 5, fetched


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


# -- windows of rules --

#: Like the magazine's spider, but its requests say nothing about windows.
PLAIN_SPIDER = """
from magazine.spiders.links import LinksSpider
from scrapy import Request

class PlainSpider(LinksSpider):
    name = "plain"

    def follow(self, url):
        return Request(url, callback=self.parse)
"""


def test_rules_give_listings_a_window_of_a_day(site: Site, crawls: Crawls, tmp_path: Path) -> None:
    """A second crawl on the same day looks at the start page only, one of the next day at all."""
    spider = tmp_path / "plain.py"
    spider.write_text(PLAIN_SPIDER)
    crawls.use(
        BLOOM_RECRAWL_AFTER="5 months",
        BLOOM_RECRAWL_RULES=json.dumps([[LISTING, "1 day"]]),
    )
    known = site.truth()
    assert crawls.spider(spider) == Counter(known.crawl())

    truth = site.publish(3).truth()
    crawls.moved.set_time(day(0, 15, 23))
    new = truth.lasting - known.lasting  # the start page has them
    assert crawls.spider(spider) == Counter({"/", "/robots.txt"} | new)

    crawls.moved.set_time(day(0, 16, 12))
    assert crawls.spider(spider) == fetches(truth)

    # After five months all is due, though the listings have been looked at every day.
    crawls.moved.set_time(day(5, 1, 0))
    assert crawls.spider(spider) == Counter(truth.crawl())
