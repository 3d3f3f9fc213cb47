"""Dupefilters through Scrapy's interface, without a crawl."""

from collections.abc import Callable
from typing import Any

from scrapy import Spider

from scrapy_bloom import BloomDupeFilter

URL = "https://example.com/a?b=1&c=2"
#: Makes an open dupefilter on an empty server, for a class of spiders and settings.
Make = Callable[..., BloomDupeFilter]


def stats(dupefilter: BloomDupeFilter) -> dict[str, Any]:
    assert dupefilter.crawler.stats
    return dupefilter.crawler.stats.get_stats()


def spider_of(dupefilter: BloomDupeFilter) -> Spider:
    assert dupefilter.crawler.spider
    return dupefilter.crawler.spider


async def shut(*dupefilters: BloomDupeFilter) -> None:
    """Close dupefilters in a running event loop, which those that make claims need."""
    for dupefilter in dupefilters:
        if (closing := dupefilter._close()) is not None:
            await closing
