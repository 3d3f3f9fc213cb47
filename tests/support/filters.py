"""A filter as most tests of the library use it."""

from typing import Any

import redis

from scrapy_bloom import BloomFilter

URLS = [f"https://example.com/{i}" for i in range(1000)]


def small(client: redis.Redis, **options: Any) -> BloomFilter:
    options = {"capacity": 10_000, "error_rate": 1e-6, **options}
    return BloomFilter(client, "shop:bloom", **options)
