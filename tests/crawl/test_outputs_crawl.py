"""A page's links are looked up together: otherwise, crawls go as with Scrapy's own filter.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter
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
