"""The crawl's event loop does all: its threads, one that is closed, idle, or none."""

import asyncio
import time

import pytest
from support.odd_site import DENIED, PLAIN_SCRAPY, LabOf, page
from support.outages import killed, stalled
from support.polling import until
from support.servers import Server
from support.workers import Worker, claimed, keep, recorded

from scrapy_bloom.crawl import outage


@pytest.mark.usefixtures("short_retries")
def test_without_asyncio_an_outage_is_made_up_for(lasting_server: Server) -> None:
    """As under another reactor: the next decisions try again."""
    worker = Worker(lasting_server.url, BLOOM_REMEMBER="scheduled")
    assert not worker.sees(0)
    with killed(lasting_server):
        assert not any(worker.sees(number) for number in range(1, 4))
    until(lambda: worker.sees(4) and worker.is_back(), "it is found again")
    worker.dupefilter.close("finished")
    assert recorded(lasting_server) == 5
    assert worker.stat("outages") == 1


@pytest.mark.usefixtures("short_retries")
def test_without_asyncio_a_request_waits_for_one_time_out_only(lasting_server: Server) -> None:
    """It fails, and the server is looked for by the next one."""
    worker = Worker(lasting_server.url, BLOOM_REMEMBER="scheduled")
    assert not worker.sees(0)
    with stalled(lasting_server):
        for attempts in range(2):
            time.sleep(2 * outage.FIRST_RETRY)
            assert not worker.sees(attempts + 1)
            assert worker.server.outage.failures == attempts
    worker.dupefilter.close("finished")
    assert recorded(lasting_server) == 3


def test_what_is_queued_when_the_loop_is_closed_is_written(own_server: Server) -> None:
    async def crawl() -> Worker:
        worker = Worker(own_server.url, BLOOM_REMEMBER="crawled")
        assert not worker.sees(0)
        keep(worker, 1)
        return worker

    worker = asyncio.run(crawl())
    worker.dupefilter.close("finished")
    assert claimed(own_server) == 2


# -- an idle spider --

IDLE = """
import threading
from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider

class IdleSpider(OddSpider):
    idles = 0

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.on_idle, signals.spider_idle)
        return self

    def on_idle(self):
        self.crawler.stats.inc_value("test/idles")
        self.idles += 1
        if self.idles <= 2:
            url = f"{self.settings['SITE_URL']}/{self.idles}"
            self.crawler.engine.crawl(Request(url, dont_filter=True))
            raise DontCloseSpider

    def parse(self, response):
        for thread in threading.enumerate():
            if not thread.name.startswith(("asyncio_", "PoolThread-")):  # executors, for names
                self.crawler.stats.inc_value(f"thread/{thread.name}")
        return self.links(response)
"""


def test_an_idle_spider_is_closed_and_a_crawl_has_no_thread_of_its_own(lab_of: LabOf) -> None:
    """It is signalled again while the crawl looks for workers that have died.

    A second run finds the claim of what has failed: it is not due.
    """
    lab = lab_of({path: page() for path in ("/a", "/1", "/2")} | {"/denied": DENIED})
    lab.site.pages["/"] = page("/a", "/denied")
    with lab.start(IDLE, **PLAIN_SCRAPY) as crawl:
        idles = crawl.wait()["test/idles"]
    for _ in range(2):
        done = lab.crawl(IDLE)
        assert idles <= done.stats["test/idles"] <= 3 * idles
        assert done.stats["finish_reason"] == "finished"
        assert {name for name in done.stats if "thread/" in name} == {"thread/MainThread"}
