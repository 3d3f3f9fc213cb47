"""A page's links are looked up together: otherwise, crawls go as with Scrapy's own filter.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter
from typing import Any

import pytest
from support.counting import COUNTING, PAGES, assert_ended_well, plain, spider
from support.odd_site import LabOf, page, tree
from support.polling import until

# -- as Scrapy does --

SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
STATS = ("scheduler/enqueued", "dupefilter/filtered", "test/dropped")


@pytest.fixture(scope="module")
def expected(lab_of: LabOf) -> tuple[Counter[str], dict[str, Any]]:
    """What Scrapy alone fetches, and its stats."""
    return plain(lab_of(tree(PAGES)))


@pytest.mark.parametrize(
    ("settings", "is_batched"),
    [
        ({}, True),
        # From Scrapy 2.19 on; older ones do not know the setting.
        ({"TWISTED_REACTOR_ENABLED": False}, True),
        ({"BLOOM_REMEMBER": "scheduled", **SELECT}, False),
    ],
)
def test_the_same_pages_are_fetched_as_by_scrapy_alone(
    lab_of: LabOf,
    expected: tuple[Counter[str], dict[str, Any]],
    settings: dict[str, Any],
    is_batched: bool,
) -> None:
    lab, (hits, stats) = lab_of(tree(PAGES)), expected
    done = lab.crawl(COUNTING, **settings)
    assert done.hits == hits == Counter(lab.site.pages.keys())
    assert [done.stats[stat] for stat in STATS] == [stats[stat] for stat in STATS]
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert bool(done.stats["bloom/async_round_trips"]) is is_batched
    assert_ended_well(done)


def test_claims_are_refused_under_another_reactor(lab_of: LabOf) -> None:
    with lab_of(tree(PAGES)).start(**SELECT) as crawl:
        until(lambda: crawl.is_over, "it is refused")
    assert "needs asyncio" in crawl.log
    assert "TWISTED_REACTOR" in crawl.log
    assert "Crawled (" not in crawl.log


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


# -- what a page yields --


def test_callbacks_that_block_the_crawl_are_no_outage(lab_of: LabOf) -> None:
    lab = lab_of(tree(6))
    code = spider("""
def parse(self, response):
    import time
    for request in self.links(response):
        yield request
        time.sleep(0.2)
""")
    # A page blocks for longer than that: its links are gathered without a turn of the loop.
    done = lab.crawl(code, BLOOM_TIMEOUT=0.3)
    assert done.hits == Counter(lab.site.pages.keys())
    assert "bloom/outages" not in done.stats
    assert_ended_well(done)


# -- what is new and is not scheduled --

IGNORING = """
def on_scheduled(self, request):
    if request.url.endswith("/refused") and self.settings.getbool("IGNORES"):
        raise IgnoreRequest
"""


def test_what_a_handler_refuses_is_not_claimed_in_the_end(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/refused"), "/a": page("/refused"), "/refused": page()})
    done = lab.crawl(spider(IGNORING), IGNORES=True)
    assert done.hits == Counter(["/", "/a"])
    assert done.recorded == {"/a"}
    assert_ended_well(done)
    assert lab.crawl(spider(IGNORING)).hits == Counter(["/", "/refused"])
