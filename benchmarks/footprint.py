"""``python -m benchmarks.footprint URL SIZE...``: one process that prints how much memory it takes.

It has imported Scrapy and made a crawler; after so many different URLs its dupefilter was asked
about, it prints a JSON object: what was done -> bytes. URL is the server's; "" is for Scrapy's own
dupefilter, which needs none. Nothing here imports redis-py before it is measured.
"""

import asyncio
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import Settings

from benchmarks.rss import memory

#: What scrapy-bloom imports that Scrapy does not.
IMPORTS = ("mmh3", "redis", "scrapy_bloom")
SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "BLOOM_REMEMBER": "scheduled",
    "BLOOM_CAPACITY": 2_000_000,
    "BLOOM_ERROR_RATE": 1e-9,  # so that any false positive is an error
}
#: Links that are asked about together.
BATCH = 256
START, OPENED = "Scrapy's own filter, empty", "filter opened"


class _Links(Spider):
    name = "links"


def imported(name: str) -> str:
    """Return how the step of an import is called."""
    return f"import {name}"


def met_urls(size: int) -> str:
    """Return how the step is called at which so many URLs have been met."""
    return f"{size:,} URLs"


async def _scrapys(crawler: Crawler, sizes: Sequence[int]) -> dict[str, int]:
    dupefilter = RFPDupeFilter.from_crawler(crawler)
    steps, met = {START: memory()}, 0
    for size in sizes:
        for number in range(met, size):
            dupefilter.request_seen(_request(number))
        met = size
        steps[met_urls(size)] = memory()
    return steps


async def _ours(crawler: Crawler, sizes: Sequence[int]) -> dict[str, int]:
    steps, met = {START: memory()}, 0
    for name in IMPORTS:
        importlib.import_module(name)
        steps[imported(name)] = memory()
    dupefilter: Any = importlib.import_module("scrapy_bloom").BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    decider = dupefilter._crawl.decider  # noqa: SLF001 - what ``outputs.py`` calls
    steps[OPENED] = memory()
    for size in sizes:
        for start in range(met, size, BATCH):
            requests = [_request(number) for number in range(start, min(start + BATCH, size))]
            lookups = [decider.prepare(request) for request in requests]
            await decider.decide_many(lookups)
            if any(map(dupefilter.request_seen, requests)):
                raise RuntimeError("new URLs count as seen: the filter is too small, or not empty")
        met = size
        steps[met_urls(size)] = memory()
    closing = dupefilter.close()
    if closing is not None:
        await closing.asFuture(asyncio.get_running_loop())
    return steps


def _request(number: int) -> Request:
    return Request(f"https://www.example.com/catalogue/{number % 97}/product-{number}.html")


def main() -> None:
    url, *sizes = sys.argv[1:]
    process = CrawlerProcess(Settings({**SETTINGS, "BLOOM_REDIS_URL": url}))
    crawler = process.create_crawler(_Links)
    crawler._apply_settings()  # noqa: SLF001 - what a crawl begins with
    steps = asyncio.run((_ours if url else _scrapys)(crawler, list(map(int, sizes))))
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
