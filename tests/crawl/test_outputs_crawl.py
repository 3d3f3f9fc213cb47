"""A page's links are looked up together: otherwise, crawls go as with Scrapy's own filter.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from support.counting import COUNTING, PAGES, REMEMBER, assert_ended_well, plain, spider
from support.odd_site import LabOf, page, tree

# -- as Scrapy does --


@REMEMBER
def test_the_same_pages_are_fetched_as_by_scrapy_alone(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    hits, stats = plain(lab)
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember)
    assert done.hits == hits == Counter(lab.site.pages.keys())
    for stat in ("scheduler/enqueued", "dupefilter/filtered", "test/dropped"):
        assert done.stats[stat] == stats[stat]
    assert_ended_well(done)


@REMEMBER
def test_a_duplicate_is_counted_logged_and_signalled(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember, DUPEFILTER_DEBUG=True)
    count = done.stats["dupefilter/filtered"]
    assert count == done.stats["test/dropped"] > PAGES
    assert done.log.count("Filtered duplicate request: <GET") == count
    assert done.stats["bloom/seen"] == count
    assert done.stats["bloom/new"] == PAGES


def test_receivers_that_connect_during_the_crawl_get_signals(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page("/a", "/")})
    # Its from_crawler connects nothing.
    code = "from scrapy_bloom.crawl import outputs\n" + spider("""
@classmethod
def from_crawler(cls, crawler, *args, **kwargs):
    return super(CountingSpider, cls).from_crawler(crawler, *args, **kwargs)

async def parse(self, response):
    self.crawler.signals.connect(self.on_dropped, signals.request_dropped)
    await asyncio.sleep(2 * outputs.RECEIVERS_SECONDS)
    for request in super().parse(response):
        yield request
""")
    done = lab.crawl(code)
    assert done.hits == Counter(["/", "/a"])
    assert done.stats["test/dropped"] == done.stats["dupefilter/filtered"] >= 1


def test_the_first_duplicate_only_is_logged_without_debug(lab_of: LabOf) -> None:
    done = lab_of(tree(PAGES)).crawl(COUNTING)
    assert done.log.count("Filtered duplicate request: <GET") == 1
    assert done.log.count("no more duplicates will be shown") == 1


def test_duplicates_of_the_run_before_do_not_come_as_far_as_the_scheduler(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    lab.crawl(COUNTING)
    done = lab.crawl(COUNTING)
    assert done.hits == Counter(["/"])
    assert done.stats["test/scheduled"] == 1
    assert done.stats["test/dropped"] == done.stats["dupefilter/filtered"] == 2


def test_a_page_takes_a_round_trip_and_not_one_a_link(lab_of: LabOf) -> None:
    links = [f"/{number}" for number in range(50)]
    lab = lab_of({"/": page(*links)} | {link: page() for link in links})
    done = lab.crawl(COUNTING, BLOOM_REMEMBER="scheduled")  # otherwise, pages are settled so too
    assert done.hits == Counter(["/", *links])
    assert 1 <= done.stats["bloom/async_round_trips"] <= 10


@pytest.mark.parametrize("cache", [0, 200_000])
@REMEMBER
def test_pages_that_link_the_same_at_the_same_time_get_it_fetched_once(
    lab_of: LabOf, remember: str, cache: int
) -> None:
    links = [f"/{number}" for number in range(30)]
    pages = {link: page(*links) for link in links}
    lab = lab_of({"/": page(*links[:10])} | pages)
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember, BLOOM_CACHE_SIZE=cache)
    assert done.hits == Counter(["/", *links])
    assert done.stats["bloom/new"] == len(links)
    assert done.recorded == set(links)
    assert_ended_well(done)


# -- settings --


@REMEMBER
@pytest.mark.parametrize("batch", [0, 1, 2, 4_096])
def test_any_batch_will_do(lab_of: LabOf, batch: int, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_BATCH=batch, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.recorded == lab.site.pages.keys() - {"/"}
    if remember == "scheduled":  # otherwise, pages are settled so
        assert ("bloom/async_round_trips" in done.stats) is (batch > 0)
    assert_ended_well(done)


@REMEMBER
@pytest.mark.parametrize(
    "reactor",
    [
        {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
        {"TWISTED_REACTOR_ENABLED": False},  # from Scrapy 2.19 on; older ones do not know it
    ],
    ids=["select", "none"],
)
def test_any_reactor_will_do(lab_of: LabOf, reactor: dict[str, Any], remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember, **reactor)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["dupefilter/filtered"] == done.stats["test/dropped"]
    is_without = "TWISTED_REACTOR" in reactor
    assert ("bloom/async_round_trips" in done.stats) is not is_without
    assert_ended_well(done)


@REMEMBER
def test_two_workers_with_scrapy_redis_fetch_every_page_once_in_total(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of(tree(PAGES))
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_IDLE_BEFORE_CLOSE": 2,
        "REDIS_URL": lab.redis_url,
        "BLOOM_START_RECRAWL_AFTER": "default",
        "BLOOM_REMEMBER": remember,
    }
    with ExitStack() as stack:
        crawls = [stack.enter_context(lab.start(COUNTING, **settings)) for _ in range(2)]
        for crawl in crawls:
            crawl.wait()
            assert "ERROR" not in crawl.log
    assert lab.site.hits() == Counter(lab.site.pages.keys())
    assert lab.recorded() == lab.site.pages.keys()
    assert not lab.claims()
