"""An open dupefilter without a crawl: it is asked about pages, also while its server is down."""

import time
from collections.abc import Iterable
from typing import Any, Self

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, BloomFilter
from scrapy_bloom.bloom.protocol.claims import NewClaim
from scrapy_bloom.crawl.offers import Offers
from scrapy_bloom.crawl.ops import Op, OpKind
from support.loops import eventually
from support.servers import Server

#: BLOOM_TIMEOUT of workers, and the seconds that a lookup may take on a busy machine.
TIMEOUT, IN_TIME = 1.0, 10.0


class Shop(Spider):
    name = "shop"


class FakeEngine:
    """The methods of Scrapy's engine that a filter calls; notes the calls."""

    _slot = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def unpause(self) -> None:
        self.calls.append("unpause")

    async def close_spider_async(self, *, reason: str) -> None:
        self.calls.append(reason)


class Worker:
    """An open dupefilter, in a running event loop; closed at the end of a ``with`` block.

    Args:
        url: of the server.
        settings: of the crawler.
    """

    def __init__(self, url: str, **settings: object) -> None:
        given = {
            "BLOOM_REDIS_URL": url,
            "BLOOM_CAPACITY": 10_000,
            "BLOOM_TIMEOUT": TIMEOUT,
            **settings,
        }
        crawler: Any = get_crawler(Shop, given)
        crawler.spider = crawler._create_spider("shop")
        self.stats = crawler.stats
        self.dupefilter = BloomDupeFilter.from_crawler(crawler)
        self.dupefilter.open()
        assert self.dupefilter._crawl is not None
        self.crawl = self.dupefilter._crawl
        self.server, self.ops = self.crawl._context.server, self.crawl._writer._ops
        crawler.engine = self.engine = FakeEngine()
        self._times_back = 0
        self.server.outage.ended.append(self.back)

    @property
    def offers(self) -> Offers:
        """What follows its requests through the scheduler."""
        assert self.crawl._offers is not None
        return self.crawl._offers

    def back(self) -> None:
        """Count the ends of outages."""
        self._times_back += 1

    @property
    def round_trips(self) -> int:
        """Blocking, and without blocking."""
        return sum(self.server.round_trips)

    def sees(self, number: int) -> bool:
        """Look a page up; the answer must come in time."""
        begin = time.monotonic()
        is_seen = self.dupefilter.request_seen(page(number))
        assert time.monotonic() - begin < IN_TIME
        return is_seen

    def stat(self, name: str) -> int:
        self.dupefilter._monitor.flush()
        count: int = self.stats.get_value(f"bloom/{name}", 0)
        return count

    def is_back(self) -> bool:
        """Whether the crawl uses the server again after all outages."""
        return self.server.outage.is_up and self._times_back >= self.stat("outages")

    async def found_again(self) -> None:
        """Wait until the crawl uses the server again."""
        await eventually(self.is_back, "the server is found again")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the dupefilter; a second time does nothing."""
        if (closing := self.dupefilter._close()) is not None:
            await closing


def page(number: int) -> Request:
    return Request(f"https://example.com/{number}")


def put(worker: Worker, kind: OpKind, *numbers: int) -> None:
    """Queue an op for each of some pages."""
    for number in numbers:
        key = worker.crawl._context.identity.key(page(number))
        worker.crawl._writer.put(Op(kind, NewClaim(key, "nonce", "{}")))


def confirm(worker: Worker, *numbers: int) -> None:
    """Queue that pages were crawled, which have claims."""
    put(worker, OpKind.CONFIRM, *numbers)


def keep(worker: Worker, number: int) -> None:
    """Queue the claim of a request that is not looked up."""
    key = "default", b"once:%d" % number
    worker.crawl._writer.put(Op(OpKind.KEEP, NewClaim(key, "nonce", "{}")))


async def look_up(worker: Worker, numbers: Iterable[int]) -> set[int]:
    """Look pages up as the links of a page; return those that are seen."""
    ours = worker.crawl._duplicates.lookups
    requests = {number: page(number) for number in numbers}
    lookups = {number: ours.prepare(one) for number, one in requests.items()}
    await ours.look_up([one for one in lookups.values() if one and one.verdict is None])
    return {
        number
        for number, lookup in lookups.items()
        if (lookup and lookup.is_duplicate) or worker.dupefilter.request_seen(requests[number])
    }


def recorded(server: Server, spider: str = "shop") -> int:
    """Return how many pages are recorded."""
    with server.client() as client:
        return len(BloomFilter(client, f"{spider}:bloom"))


def claimed(server: Server) -> int:
    """Return how many pages are claimed."""
    with server.client() as client:
        return sum(client.hlen(key) for key in client.scan_iter("*:claims:*"))


def marked(server: Server, remember: str) -> int:
    """Return how many pages other workers leave alone; they are recorded or claimed, never both."""
    counts = recorded(server), claimed(server)
    assert counts[remember == "scheduled"] == 0
    return sum(counts)
