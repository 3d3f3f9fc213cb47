"""A page's links are looked up together on a server that fails, is slow, or is cleared."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.counting import COUNTING, PAGES, REMEMBER, assert_ended_well, spider
from support.odd_site import Lab, LabOf, page, tree
from support.polling import until
from support.proxy import PASS, Fault, Kind, Proxy

from scrapy_bloom import BloomFilter


@contextmanager
def proxied(lab: Lab) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy to the server of a lab, and the address of the lab's database there."""
    address, _, database = lab.redis_url.rpartition("/")
    with Proxy(int(address.rpartition(":")[2])) as proxy:
        yield proxy, proxy.url.removesuffix("/0") + f"/{database}"


@REMEMBER
@pytest.mark.parametrize("kind", [Kind.HANG, Kind.RESET_REQUEST, Kind.DROP_REPLY])
def test_no_page_is_hidden_by_a_server_that_fails_midway(
    lab_of: LabOf, kind: Kind, remember: str
) -> None:
    lab = lab_of(tree(PAGES))
    with proxied(lab) as (proxy, url):
        lab.site.hold_after(15)
        settings = {
            "BLOOM_REDIS_URL": url,
            "BLOOM_TIMEOUT": 0.5,
            "BLOOM_REMEMBER": remember,
        }
        with lab.start(COUNTING, **settings) as crawl:
            until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
            proxy.fault = Fault(kind)
            lab.site.hold_after(15)
            until(lambda: proxy.struck or crawl.is_over, "the server is missed")
            proxy.fault = PASS
            back = proxy.requests + 10  # a crawl that ends waits no longer than BLOOM_TIMEOUT
            until(lambda: proxy.requests > back or crawl.is_over, "the server is used again")
            lab.site.release()
            stats = crawl.wait()
    assert stats["finish_reason"] == "finished"
    assert lab.site.hits() == Counter(lab.site.pages.keys())
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()


STOPPED = """
import os
from signal import SIGTERM

""" + spider("""
async def start(self):
    yield self.at("/")
    yield self.at("/other")

async def parse(self, response):
    lookups = self.crawler.engine._slot.scheduler.df._crawl.connections.lookups
    if response.url.endswith("/other"):
        while not lookups.in_flight:
            await asyncio.sleep(0)
        self.stopping = asyncio.ensure_future(self.stop(lookups))
    for request in super().parse(response):
        yield request

async def stop(self, lookups):
    while not lookups._waiting:
        await asyncio.sleep(0)
    print("a page waits:", lookups._round is not None)
    os.kill(os.getpid(), SIGTERM)
""")


@REMEMBER
def test_one_signal_ends_a_crawl_in_which_a_page_waits_for_the_answer_to_another(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/other": page("/c")})
    with proxied(lab) as (proxy, url):
        settings = {
            "BLOOM_REDIS_URL": url,
            "BLOOM_REMEMBER": remember,
        }
        lab.site.hold_after(0)
        with lab.start(STOPPED, **settings) as crawl:
            until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
            proxy.fault = Fault(Kind.DELAY, seconds=0.3)
            lab.site.release()
            stats = crawl.wait()
            assert "a page waits: True" in crawl.log
            assert "ERROR" not in crawl.log
    assert stats["finish_reason"] == "shutdown"


@REMEMBER
def test_callbacks_that_block_the_crawl_are_no_outage(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(12))
    code = spider("""
def parse(self, response):
    import time
    for request in self.links(response):
        yield request
        time.sleep(0.2)
""")
    # A page blocks for longer than that: its links are gathered without a turn of the loop.
    done = lab.crawl(code, BLOOM_REMEMBER=remember, BLOOM_TIMEOUT=0.3)
    assert done.hits == Counter(lab.site.pages.keys())
    assert "bloom/outages" not in done.stats
    assert_ended_well(done)


@REMEMBER
def test_links_are_new_again_after_another_process_has_cleared_the_filter(
    lab_of: LabOf, remember: str
) -> None:
    """Answers in the cache are used while they are fresh: here for 0.2 s instead of 5."""
    lab = lab_of(
        {"/": page("/a", "/late"), "/a": page(), "/late": page("/slow"), "/slow": page("/a")}
    )
    impatient = "from scrapy_bloom.crawl import deduplicator\ndeduplicator.FRESH_SECONDS = 0.2\n"
    code = impatient + spider("""
async def parse(self, response):
    if response.url.endswith("/late"):
        await asyncio.sleep(2 * deduplicator.FRESH_SECONDS)
    for request in self.links(response):
        yield request
""")
    lab.site.hold_after(2)
    with lab.start(code, BLOOM_REMEMBER=remember, CONCURRENT_REQUESTS=1) as crawl:
        until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
        if remember == "crawled":
            until(lambda: "/a" in lab.recorded(), "the page is recorded")
        BloomFilter(lab.client, "odd:bloom").clear()
        lab.site.release()
        crawl.wait()
    assert lab.site.hits() == Counter({"/": 1, "/a": 2, "/late": 1, "/slow": 1})
