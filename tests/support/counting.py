"""Spiders for ``odd_site`` that count signals or memory, and what crawls of them leave."""

from collections import Counter
from typing import Any

import pytest

from support.odd_site import PLAIN_SCRAPY, Done, Lab

REMEMBER = pytest.mark.parametrize("remember", ["scheduled", "crawled"])
PAGES = 60

#: Counts signals.
COUNTING = """
import asyncio
from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest

class CountingSpider(OddSpider):
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.on_scheduled, signals.request_scheduled)
        crawler.signals.connect(self.on_dropped, signals.request_dropped)
        return self

    def on_scheduled(self, request):
        self.crawler.stats.inc_value("test/scheduled")

    def on_dropped(self, request):
        self.crawler.stats.inc_value("test/dropped")

"""
#: Notes the most memory that the process had, in KiB.
MEASURED = """
import resource

class MeasuredSpider(OddSpider):
    def closed(self, reason):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.crawler.stats.set_value("peak", peak)
"""


def spider(body: str) -> str:
    """Return a CountingSpider with these methods and attributes."""
    return COUNTING + "".join(f"    {line}\n" for line in body.strip().splitlines())


def plain(lab: Lab, code: str = COUNTING, **settings: Any) -> tuple[Counter[str], dict[str, Any]]:
    """Crawl with Scrapy's own filter; return what was fetched, and the stats."""
    before = lab.site.hits()
    with lab.start(code, **PLAIN_SCRAPY, **settings) as crawl:
        stats = crawl.wait()
    return lab.site.hits() - before, stats


def assert_ended_well(done: Done) -> None:
    """There is no error in the log, and no claim is left."""
    assert "ERROR" not in done.log
    assert done.stats["finish_reason"] == "finished"
    assert not done.claims, done.log
    assert not done.workers
