"""kill -9 of a crawler between any two script calls: of claims, of confirmations, of a takeover."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.utils.request import fingerprint

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.driver import Driver

spawn = multiprocessing.get_context("spawn")
#: Page n links to pages 2n and 2n + 1, and to page 1; page 1 is where the crawl starts.
PAGES = 15
#: Calls between two kills; `make chaos` looks at each of them.
STRIDE = int(os.environ.get("KILL_STRIDE", "13"))
#: BLOOM_BATCH -> calls after which a crawl is under way.
CALLS_BEFORE = {0: 30, 64: 12}
CONCURRENCY = 4


class TreeSpider(Spider):
    """Follows all links. Page 2 is not remembered, page 3 is asked for with dont_filter."""

    name = "tree"

    def parse(self, response: Any) -> Iterator[Request]:
        for href in response.css("a::attr(href)").getall():
            meta = {"bloom_recrawl_after": "run"} if href == "/2" else {}
            yield response.follow(
                href, meta=meta, dont_filter=href == "/3" and response.url.endswith("/1")
            )


class Tree(ThreadingHTTPServer):
    """The site; counts what is fetched."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.hits = Counter[int]()
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Page(BaseHTTPRequestHandler):
    server: Tree

    def do_GET(self) -> None:
        number = int(self.path.strip("/"))
        with self.server.lock:
            self.server.hits[number] += 1
        links = [1, *(n for n in (2 * number, 2 * number + 1) if n <= PAGES)]
        body = "".join(f'<a href="/{n}">{n}</a>' for n in links).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with Tree() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def crawl(calls: int, settings: dict[str, Any], start: str) -> None:
    """Crawl, and be killed after so many script calls, of whichever thread; -1 for never."""
    lock = threading.Lock()
    exchange_one, exchange = Driver.exchange, Driver._exchange
    exchange_async = AsyncDriver._exchange

    def count() -> None:
        nonlocal calls
        with lock:
            if calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            calls -= 1

    def counted_one(self: Driver, frame: bytes) -> Any:
        count()
        return exchange_one(self, frame)

    def counted(self: Driver, wave: Any) -> Any:
        count()
        return exchange(self, wave)

    async def counted_async(self: AsyncDriver, wave: Any, replies: Any) -> None:
        count()
        await exchange_async(self, wave, replies)

    Driver.exchange, Driver._exchange = counted_one, counted
    AsyncDriver._exchange = counted_async
    process = CrawlerProcess(settings)
    process.crawl(TreeSpider, start_urls=[start])
    process.start()


def bear_crawlers(pipe: Connection) -> None:
    """Fork a crawler for each job, and say how it ended: to start a process takes long."""
    for job in iter(pipe.recv, None):
        child = os.fork()
        if child == 0:
            try:
                crawl(*job)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        pipe.send(os.waitstatus_to_exitcode(status))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Connection]:
    mine, its = spawn.Pipe()
    process = spawn.Process(target=bear_crawlers, args=(its,))
    process.start()
    yield mine
    mine.send(None)
    process.join()


class Crawls:
    """Crawls of the tree by processes that may be killed."""

    def __init__(self, tree: Tree, nursery: Connection, url: str) -> None:
        self.tree, self.nursery, self.url = tree, nursery, url
        self.settings = {
            "BLOOM_REDIS_URL": url,
            "BLOOM_BLOCKS": 2,
            "BLOOM_CAPACITY": 100,
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "LOG_ENABLED": False,
            "TELNETCONSOLE_ENABLED": False,
        }

    def run(self, calls: int = -1, batch: int = 64) -> bool:
        """Crawl; return whether it was killed."""
        settings = {**self.settings, "BLOOM_BATCH": batch}
        self.nursery.send((calls, settings, f"{self.tree.url}/1"))
        exit_code = self.nursery.recv()
        assert exit_code in (0, -signal.SIGKILL)
        return exit_code != 0

    def begin(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
        self.tree.hits.clear()

    def fingerprint(self, page: int) -> bytes:
        return fingerprint(Request(f"{self.tree.url}/{page}"))

    def check(self, kills: int) -> None:
        """Every page was fetched; again at most what was under way, and not yet confirmed."""
        hits = self.tree.hits
        assert set(hits) == set(range(1, PAGES + 1)), "a page is hidden"
        # Each crawl starts with page 1 (with dont_filter, as Scrapy has it), which asks for page 3
        # in the same way; page 2 is remembered for a run only.
        assert all(hits[page] <= 1 + kills for page in hits if page > 3)
        with redis.Redis.from_url(self.url) as client:
            bloom = BloomFilter(client, "tree:bloom")
            recorded = [n for n in range(1, PAGES + 1) if self.fingerprint(n) in bloom]
            assert recorded == [1, *range(4, PAGES + 1)]
            assert bloom.info().claims == 0
            assert not client.keys("*:heartbeats")


@pytest.fixture
def crawls(tree: Tree, nursery: Connection, redis_url: str) -> Crawls:
    return Crawls(tree, nursery, redis_url)


@pytest.mark.parametrize("batch", [0, 64])
@pytest.mark.parametrize("is_takeover", [False, True], ids=["crawl", "takeover"])
def test_kill_nine_between_any_two_calls_hides_no_page(
    crawls: Crawls, batch: int, is_takeover: bool
) -> None:
    killed_before = (CALLS_BEFORE[batch],) * is_takeover
    for calls in range(0, 400, STRIDE):
        crawls.begin()
        assert all(crawls.run(before, batch) for before in killed_before)
        killed = crawls.run(calls, batch)
        assert not crawls.run()
        crawls.check(kills=1 + len(killed_before))
        if not killed:
            break
    assert calls > CALLS_BEFORE[batch] / 2
    assert not killed
