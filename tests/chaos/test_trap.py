"""The trap that `BLOOM_REMEMBER = "crawled"` is for: what a killed crawler had in its queue."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.crawling import crawl, options
from support.paths import PROJECT
from support.servers import Server

from chaos.trial import REMEMBER
from scrapy_bloom import BloomFilter
from scrapy_bloom.settings import SETTINGS

#: BLOOM_TIMEOUT where the server is to time out, and where it is not, however busy the machine is.
TIMEOUT, PATIENCE = 0.4, 30.0
CONCURRENT_REQUESTS = 8
#: Seconds that a page takes until the crawler is killed.
SLOW = 0.2
#: Lasting pages after which the crawler is killed, of the 148 that there are.
KILLED_AFTER = 40
MODES = [
    "scheduled",
    pytest.param(
        "crawled",
        marks=pytest.mark.skipif("BLOOM_REMEMBER" not in SETTINGS, reason="not there yet"),
    ),
]


def settings(redis_url: str, remember: str, timeout: float) -> dict[str, str]:
    common = {
        "BLOOM_REDIS_URL": redis_url,
        "BLOOM_TIMEOUT": str(timeout),
        "CONCURRENT_REQUESTS": str(CONCURRENT_REQUESTS),
    }
    return common | {name: str(value) for name, value in REMEMBER[remember].items()}


@pytest.mark.parametrize("remember", MODES)
def test_a_killed_crawler_hides_nothing_that_it_had_not_crawled(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path, remember: str
) -> None:
    """Marked at scheduling, all that waited in its queue is never fetched: this is the trap."""
    asked = settings(redis_url, remember, PATIENCE)
    with slow(web):
        kill_a_crawl(site, web, asked)
    unconfirmed = site.truth().lasting - recorded(site, web, redis_url)
    for _ in range(3):
        crawl("links", web, tmp_path, **asked)
    expected = site.truth().crawl()
    hidden = expected - web.hits().keys()
    again = lasting(site, web) - Counter(lasting(site, web).keys())
    if remember == "crawled":
        assert not hidden
        # However many the machine left unconfirmed, each is fetched once more.
        assert again <= Counter(unconfirmed)
    else:
        print(f"{len(hidden)} of {len(expected)} pages hidden by one kill -9")  # noqa: T201
        assert hidden
        assert not again


@contextmanager
def slow(web: SiteServer) -> Iterator[None]:
    """Make every page take its time."""
    count: Callable[[str], None] = web.count

    def count_slowly(url: str) -> None:
        count(url)
        time.sleep(SLOW)

    web.count = count_slowly  # type: ignore[method-assign]
    try:
        yield
    finally:
        web.count = count  # type: ignore[method-assign, assignment]


def recorded(site: Site, web: SiteServer, redis_url: str) -> set[str]:
    """Return the pages that are in the filter."""
    with redis.Redis.from_url(redis_url) as client:
        bloom = BloomFilter(client, "links:bloom")
        return {
            path for path in site.truth().lasting if fingerprint(Request(web.url + path)) in bloom
        }


def kill_a_crawl(site: Site, web: SiteServer, asked: dict[str, str]) -> None:
    """Start a crawl, and kill -9 it when it has come some way."""
    crawler = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "crawl", "links", *options(web, asked)],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while lasting(site, web).total() < KILLED_AFTER:
            assert crawler.poll() is None, "it ended before it could be killed"
            time.sleep(0.001)
    finally:
        crawler.kill()
        assert crawler.wait() == -signal.SIGKILL


def lasting(site: Site, web: SiteServer) -> Counter[str]:
    """Return how often each page was fetched that is to be fetched once."""
    hits = web.hits()
    return Counter({page: hits[page] for page in site.truth().lasting if page in hits})


@pytest.mark.parametrize("remember", MODES)
def test_a_page_is_fetched_whose_claim_came_when_the_server_stood_still(
    site: Site, web: SiteServer, any_binary: str, tmp_path: Path, remember: str
) -> None:
    """The very first claim of a crawl is not answered in time; nobody knows its outcome."""
    with Server(any_binary) as server:
        stall_when_fetched(web, "/", server)
        crawl("links", web, tmp_path, **settings(server.url, remember, TIMEOUT))
        assert web.hits().keys() == site.truth().crawl()
        if remember == "crawled":
            before = web.hits()
            crawl("links", web, tmp_path, **settings(server.url, remember, PATIENCE))
            assert (web.hits() - before).keys() <= site.truth().hubs | {"/robots.txt"}


def stall_when_fetched(web: SiteServer, page: str, server: Server) -> None:
    """Stop the server before a page is answered, for longer than a claim waits."""
    count: Callable[[str], None] = web.count

    def count_and_stall(url: str) -> None:
        count(url)
        if url == page and web.hits()[page] == 1:
            os.kill(server.process.pid, signal.SIGSTOP)
            Timer(3 * TIMEOUT, os.kill, (server.process.pid, signal.SIGCONT)).start()

    web.count = count_and_stall  # type: ignore[method-assign]
