"""A crawler process: all of the product but its connection, in an engine of fifty lines."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinter, request_from_dict
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from scrapy_bloom.bloom.client import driver
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.model import hashing
from scrapy_bloom.bloom.protocol import ring_store
from scrapy_bloom.crawl import filters
from scrapy_bloom.crawl.claims import pace, record_when_crawled, workers
from scrapy_bloom.crawl.claims.workers import Process
from scrapy_bloom.crawl.deduplicator import Deduplicator
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.lifecycle import Lifecycle
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import Runtime
from scrapy_bloom.crawl.stats import Stats
from scrapy_bloom.settings import BloomSettings
from simulation.client import (
    SimulatedClient,
    SimulatedCluster,
    SimulatedEvent,
    SimulatedThread,
    exchange,
)
from simulation.site import Site, short
from simulation.world import Task, World

#: Requests that are downloaded at a time, and seconds that a download takes.
CONCURRENCY, DOWNLOAD_SECONDS = 3, 0.2
#: Seconds that an item stays in its pipeline.
PIPELINE_SECONDS = 0.1
#: Seconds between two looks of an idle engine.
IDLE_SECONDS = 5.0
TIMEOUT = 2.0
#: Tries of a page. It fails with each request that it yields and that is not stored: with those of
#: a chain of them, five would be too few, and it would not be tried again in its window.
MAX_ATTEMPTS = 20
#: What workers do that are many: they take turns, and seldom read which workers there are.
CROWD = {"FEW": -100, "IDLE_LOOKS_PER_SECOND": 1, "READ_PER_SECOND": 0.05}


class Pages(Spider):
    """Follows all links."""

    def parse(self, response: Response) -> None:
        """Only its name counts: the engine reads the site."""


class Crawl:
    """One process, from its start to its end.

    Args:
        world: the world.
        site: the site.
        name: of the process.
        settings: Scrapy's.
        spider: its number; it begins with the start page of this number.
        shared_queue: requests of all processes, as they are stored; None for a queue in memory.

    Attributes:
        must_stop: whether it ends what is under way and closes, as after Ctrl-C; or was killed.
    """

    def __init__(
        self,
        world: World,
        site: Site,
        name: str,
        settings: dict[str, Any],
        *,
        spider: int = 0,
        shared_queue: list[dict[str, Any]] | None = None,
    ) -> None:
        self._world, self._site, self.name, self.spider = world, site, name, spider
        self._settings, self._shared_queue = settings, shared_queue
        self.must_stop = False
        self._life: Lifecycle | None = None
        self._tasks: list[Task] = [world.spawn(name, self._main)]
        #: Functions for the crawl's thread.
        self._messages: list[Callable[[], object]] = []
        self._under_way: list[Request] = []
        self._queue: list[Request] = []

    @property
    def is_running(self) -> bool:
        """Whether any part of it runs."""
        return any(map(self._world.is_running, self._tasks))

    @property
    def owner(self) -> str:
        """Owner of its claims; "" if it has not opened the filter."""
        policy = getattr(self._life, "policy", None)
        return policy.claims.owner if policy is not None else ""

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self.must_stop = True
        self._world.log(f"{self.name}: KILLED")
        self._world.end(self._tasks)

    # -- the product's surroundings --

    def _runtime(self) -> Runtime:
        world = self._world

        def start_thread(target: Callable[[], None]) -> Any:
            thread = SimulatedThread(world, f"{self.name}'s thread", target)
            self._tasks.append(thread.task)
            return thread

        return Runtime(
            monotonic=lambda: world.now,
            sleep=world.wait,
            token=world.token,
            event=lambda: SimulatedEvent(world),  # type: ignore[arg-type, return-value]
            start_thread=start_thread,
            in_main=self._messages.append,
        )

    def _crawler(self) -> Any:
        settings = Settings(
            {"BLOOM_TIMEOUT": TIMEOUT, "SIMULATED": self._connect, **self._settings}
        )
        crawler: Any = SimpleNamespace(settings=settings, spidercls=Pages)
        crawler.spider = Pages(f"pages{self.spider}")
        crawler.signals = SignalManager(crawler)
        crawler.stats = MemoryStatsCollector(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
        crawler.request_fingerprinter = RequestFingerprinter()
        crawler.engine = self
        return crawler

    def _connect(self) -> Connection:
        kind = SimulatedCluster if self._world.nodes > 1 else SimulatedClient
        client = kind(self._world, self.name, TIMEOUT)
        return Connection(client, "simulated", resolves=False)

    def _main(self) -> None:
        world, crawler = self._world, self._crawler()
        report = Report(Stats(crawler.stats))
        own = BloomSettings.from_scrapy(crawler.settings, crawler.spider.name)
        identity = Identity(crawler, own, report)
        self._spider = crawler.spider
        life = Lifecycle(crawler, own, identity, report=report, runtime=self._runtime())
        self._life = life
        self._deduplicator = Deduplicator(life, identity, report)
        # A queue of its own, as Scrapy's scheduler in memory.
        self._slot = SimpleNamespace(scheduler=self, nextcall=SimpleNamespace(schedule=bool))
        self.downloader = self.scraper = self
        try:
            life.open()
        except BloomError as error:
            world.log(f"{self.name}: cannot start: {error!s:.60}")
            life.close()
            return
        self._crawl()
        world.log(f"{self.name}: closes")
        life.close()
        world.log(f"{self.name}: closed")

    # -- the engine --

    def crawl(self, request: Request) -> None:
        """Schedule a request."""
        self.enqueue_request(request)

    def __len__(self) -> int:
        return len(self._queue) + len(self._shared_queue or ())

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request that is new."""
        if not request.dont_filter and not self._deduplicator.decide(request).is_new:
            return False
        if self._shared_queue is None:
            self._queue.append(request)
        else:
            stored = request.to_dict(spider=self._spider)
            self._shared_queue.append(copy.deepcopy(stored))
        return True

    def next_request(self) -> Request | None:
        """Return any request of the queue."""
        queue: list[Any] = self._queue if self._shared_queue is None else self._shared_queue
        if not queue:
            return None
        request = queue.pop(self._world.rng.randrange(len(queue)))
        is_stored = self._shared_queue is not None
        return request_from_dict(request, spider=self._spider) if is_stored else request

    def fetch(self, request: Request) -> Any:
        """Return the page, or the request that it redirects to."""
        return self._site.fetch(request, self.name, self.spider)

    def enqueue_scrape(self, result: Any, request: Request) -> Deferred[None]:
        """Pass a page to its callback."""
        self._process(result, request)
        return succeed(None)

    def handle_spider_error(self, failure: Failure, request: Request) -> None:
        """See Scrapy's scraper."""

    def _crawl(self) -> None:
        url = self._site.starts[self.spider]
        start = Request(url, callback=self._spider.parse, dont_filter=True)
        start.meta["is_start_request"] = True
        self.crawl(start)
        while True:
            self._read_messages()
            if self.must_stop and not self._under_way:
                return
            while len(self._under_way) < CONCURRENCY and not self.must_stop:
                request = self.next_request()
                if request is None:
                    break
                self._under_way.append(request)
            if self._under_way:
                self._world.wait(DOWNLOAD_SECONDS)
                number = self._world.rng.randrange(len(self._under_way))
                self._finish(self._under_way.pop(number))
                continue
            if not len(self) and self._deduplicator.may_close():
                return
            self._world.wait(IDLE_SECONDS, lambda: bool(self._messages))

    def _read_messages(self) -> None:
        while self._messages:
            self._messages.pop(0)()

    def _finish(self, request: Request) -> None:
        result = self.fetch(request)
        if isinstance(result, Request):
            self.crawl(result)
        else:
            self.enqueue_scrape(result, request)

    def _process(self, response: Response, request: Request) -> None:
        """Do with a page's links what ``outputs.py`` does."""
        deduplicator = self._deduplicator
        note = deduplicator.yields(request)
        links = self._site.parse(response, self._spider.parse)
        lookups = [(link, deduplicator.prepare(link, request)) for link in links]
        if note is not None:
            for link, _ in lookups:
                note(link)
            if self._site.has_item(response):
                note("an item")
        waiting = {one.key: one for _, one in lookups if one is not None and one.verdict is None}
        if waiting:
            _run(deduplicator.decide_many([*waiting.values()]))
        for link, lookup in lookups:
            known = waiting.get(lookup.key, lookup) if lookup is not None else None
            if known is not None and known.is_duplicate:
                deduplicator.count_seen(known)
                continue
            self.crawl(link)
        if self._site.raises and self._site.has_item(response):
            self._store(response, request)
        self._site.crawled(response, self.name, self.spider)

    def _store(self, response: Response, request: Request) -> None:
        """Pass a page's item to a pipeline."""
        self._world.wait(PIPELINE_SECONDS)
        try:
            self._site.store(response.url)
        except ConnectionError as error:
            self._world.log(f"{self.name}: the pipeline raises for {short(response.url)}")
            self._deduplicator.item_failed(request, error)


def _run(coroutine: Any) -> None:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Let the product connect to the world, and draw its ids from the world's seed.

    In half of all runs, the processes act as if they were many.
    """

    def connect(_: object, scrapy_settings: Any) -> Connection:
        connection: Connection = scrapy_settings["SIMULATED"]()
        return connection

    def own() -> Process:
        # Each process is on a machine of its own: others see by its silence that it is dead.
        return Process(world.current, 1, "", 0)

    chosen = SimpleNamespace(token_hex=world.token, randbelow=world.rng.randrange)
    with (
        mock.patch.object(filters, "_connect", connect),
        mock.patch.object(driver, "RedisCluster", SimulatedCluster),
        mock.patch.object(Driver, "_exchange", exchange),
        mock.patch.object(Driver, "exchange", return_value=None),
        mock.patch.object(Process, "own", own),
        mock.patch.object(workers, "secrets", chosen),
        mock.patch.object(ring_store, "secrets", chosen),
        mock.patch.object(hashing, "secrets", chosen),
        mock.patch.object(record_when_crawled, "MAX_ATTEMPTS", MAX_ATTEMPTS),
        mock.patch.multiple(pace, **(CROWD if world.rng.random() < 0.5 else {"FEW": pace.FEW})),
    ):
        random.seed(world.rng.random())
        yield
