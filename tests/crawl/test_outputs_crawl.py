"""A page's links are looked up together: otherwise, crawls go as with Scrapy's own filter.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter

import pytest
from support.counting import COUNTING, PAGES, REMEMBER, assert_ended_well, plain, spider
from support.odd_site import Done, LabOf, page, tree
from support.polling import until

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
def test_without_a_reactor_all_is_the_same(lab_of: LabOf, remember: str) -> None:
    """From Scrapy 2.19 on; older ones do not know the setting."""
    done = lab_of(tree(PAGES)).crawl(
        COUNTING, BLOOM_REMEMBER=remember, TWISTED_REACTOR_ENABLED=False
    )
    assert "bloom/async_round_trips" in done.stats
    assert_complete(done)


SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}


def test_scheduled_works_under_another_reactor(lab_of: LabOf) -> None:
    done = lab_of(tree(PAGES)).crawl(COUNTING, BLOOM_REMEMBER="scheduled", **SELECT)
    assert "bloom/async_round_trips" not in done.stats
    assert_complete(done)


@pytest.mark.parametrize("remember", ["crawled", "items"])
def test_claims_are_refused_under_another_reactor(lab_of: LabOf, remember: str) -> None:
    with lab_of(tree(PAGES)).start(BLOOM_REMEMBER=remember, **SELECT) as crawl:
        until(lambda: crawl.is_over, "it is refused")
    assert f'BLOOM_REMEMBER = "{remember}" needs asyncio' in crawl.log
    assert "remove TWISTED_REACTOR from the settings" in crawl.log
    assert "Crawled (" not in crawl.log


def assert_complete(done: Done) -> None:
    """Each page was crawled once; duplicates were dropped and counted; nothing is left."""
    assert done.hits == Counter(tree(PAGES).keys())
    assert done.stats["dupefilter/filtered"] == done.stats["test/dropped"]
    assert_ended_well(done)
