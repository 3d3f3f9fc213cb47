"""How far a reader has to go: files, and calls between them, on the way of one new URL."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from support.servers import Server

import scrapy_bloom
from scrapy_bloom import BloomDupeFilter

PACKAGE = str(Path(scrapy_bloom.__file__).parent)


def profile(function: Callable[[], object]) -> tuple[set[str], int]:
    """Return the files of the package that a call passes, and its calls from file to file."""
    files, hops = set[str](), 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal hops
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        files.add(name)
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        hops += caller.startswith(PACKAGE) and caller != name

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files, hops


@pytest.mark.parametrize(
    ("remember", "files", "hops"), [("scheduled", 10, 15), ("crawled", 13, 24)]
)
def test_one_new_url_passes_few_files(
    server: Server, client: redis.Redis, remember: str, files: int, hops: int
) -> None:
    settings = {"BLOOM_REDIS_URL": server.url, "BLOOM_REMEMBER": remember}
    crawler = get_crawler(Spider, settings)
    crawler.spider = crawler._create_spider("shop")

    async def crawl() -> tuple[set[str], int]:
        dupefilter = BloomDupeFilter.from_crawler(crawler)
        dupefilter.open()
        for number in range(200):  # the first one of a block computes what its calls have in common
            dupefilter.request_seen(Request(f"https://example.com/first/{number}"))
        new = [Request(f"https://example.com/{number}") for number in range(5)]
        # The garbage collector may run anything in between.
        results = [profile(partial(dupefilter.request_seen, one)) for one in new]
        result = min(results, key=lambda found: (len(found[0]), found[1]))
        closing = dupefilter._close()
        if closing is not None:
            await closing
        return result

    passed, calls = asyncio.run(crawl())
    assert len(passed) <= files, sorted(passed)
    assert calls <= hops
