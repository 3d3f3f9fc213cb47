"""A crawler process: the product as it is, in an event loop of its own and a small engine."""

import asyncio
import logging
import random
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scrapy import Spider
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinter
from support.ends import UNWRITTEN

from scrapy_bloom.bloom.client import async_driver, driver
from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.model import hashing, sizing
from scrapy_bloom.bloom.protocol import ring_store
from scrapy_bloom.crawl import (
    claims,
    context,
    outputs,
    recovery,
    server,
    workers,
)
from scrapy_bloom.crawl.context import Runtime
from scrapy_bloom.crawl.workers import Process
from simulation.client import (
    AsyncSimulatedClient,
    SimulatedClient,
    exchange,
    talk,
)
from simulation.engine import Engine
from simulation.loop import SimulatedLoop
from simulation.site import Site, SiteError
from simulation.world import World

TIMEOUT = 2.0
#: Tries of a page. It fails with each request that it yields and that is not stored: with those of
#: a chain of them, five would be too few, and it would not be tried again in its window.
MAX_ATTEMPTS = 20
#: Steps of a time-out that does not block: each costs two turns of the loop.
TIMEOUT_STEPS = 8
#: Exceptions that runs bring about; the last one of a JOBDIR that was left by ``kill -9``.
EXPECTED = (BloomError, SiteError, ConnectionError, struct.error)
#: Blocks of the filters that rules lead to: to look through 16 of them takes most of a run's time.
RULES_BLOCKS = 2
#: What workers do that are many: they wait before a look.
CROWD = {"IDLE_LOOKS_PER_SECOND": 1, "LOOKS_PER_SECOND": 1}


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
        must_stop: whether it was stopped, or killed.
        owner: of its claims; "" if it has made none.
        has_unwritten: whether it has logged that it could not write all.
        slot: which of the processes that differ it is.
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
        self._settings, self._shared_queue, self.slot = settings, shared_queue, spider
        self.must_stop, self.owner, self.has_unwritten = False, "", False
        self._engine: Engine | None = None
        self._task = world.spawn(self._main, self)

    @property
    def is_running(self) -> bool:
        """Whether any part of it runs, or anything that it has sent is under way."""
        return self._world.runs(self)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self.must_stop = True
        self._world.log(f"{self.name}: KILLED")
        self._world.kill(self)

    def stop(self) -> None:
        """End what is under way and close, as after Ctrl-C."""
        self.must_stop = True
        if self._engine is not None and not self._task.loop.is_closed():
            self._task.loop.call_soon_threadsafe(self._engine.stop)

    def _main(self) -> None:
        self._task.loop = loop = SimulatedLoop(self._world)
        crawler = self._crawler()
        crawler.engine = self._engine = Engine(
            crawler,
            self._world,
            self._site,
            self.name,
            spider=self.spider,
            shared_queue=self._shared_queue,
        )
        if not self.must_stop:
            loop.run_until_complete(self._engine.run())
        loop.drop()

    def _crawler(self) -> Any:
        settings = Settings(
            {"BLOOM_TIMEOUT": TIMEOUT, "SIMULATED": self._connect, **self._settings}
        )
        crawler: Any = SimpleNamespace(settings=settings, spidercls=Pages, crawling=True)
        crawler.spider = Pages(f"pages{self.spider}")
        crawler.spider.crawler = crawler
        crawler.signals = SignalManager(crawler)
        crawler.stats = MemoryStatsCollector(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
        crawler.request_fingerprinter = RequestFingerprinter()
        crawler.get_downloader_middleware = lambda _: None
        return crawler

    def _connect(self) -> Connection:
        world, name = self._world, self.name
        return Connection(
            SimulatedClient(world, name, TIMEOUT),
            "simulated",
            resolves=False,
            _make_async=lambda: AsyncSimulatedClient(world, name),
        )


class _Log(logging.Handler):
    """Notes what a process says that it could not write, and exceptions that are not its own."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if UNWRITTEN in str(record.msg):
            self._world.process.has_unwritten = True
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if record.levelno < logging.ERROR:
            return
        if error is not None and not isinstance(error, EXPECTED) and _is_of_ours(error):
            self._world.found.append(f"it logs: {record.getMessage()}: {error!r}"[:200])


def _is_of_ours(error: BaseException) -> bool:
    """Whether an exception has passed through the product, or a part of the simulator."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return not files or any("scrapy_bloom" in file or "simulation" in file for file in files)


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
        return Process(world.process.name, 1, "", 0)

    def named(make: Any) -> Any:
        def name(*of: str) -> str:
            world.process.owner = owner = make(*of)
            return owner  # type: ignore[no-any-return]

        return name

    def runtime() -> Runtime:
        return Runtime(lambda: world.now, world.wait, world.token)

    async def in_thread(blocking: Callable[[], object]) -> None:
        blocking()

    chosen = SimpleNamespace(token_hex=world.token, randbelow=world.rng.randrange)
    clock = SimpleNamespace(monotonic=lambda: world.now, perf_counter=time.perf_counter)
    patches: list[tuple[Any, str, Any]] = [
        (server, "_connect", connect),
        (driver, "time", clock),
        (Driver, "_exchange", exchange),
        (Driver, "exchange", lambda *_: None),
        (async_driver, "STEPS", TIMEOUT_STEPS),
        (AsyncDriver, "_talk", talk),
        (outputs, "time", clock),
        (Process, "own", own),
        (workers, "secrets", chosen),
        (workers, "worker_id", named(workers.worker_id)),
        (ring_store, "secrets", chosen),
        (hashing, "secrets", chosen),
        (sizing, "DEFAULT_BLOCKS", RULES_BLOCKS),
        (claims, "MAX_ATTEMPTS", MAX_ATTEMPTS),
        (context, "Runtime", runtime),
        (asyncio, "to_thread", in_thread),
    ]
    if world.rng.random() < 0.5:
        patches += [(recovery, name, value) for name, value in CROWD.items()]
    log, hooks = _Log(world), sys.get_asyncgen_hooks()
    logging.getLogger().addHandler(log)
    try:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(mock.patch.object(*patch))
            random.seed(world.rng.random())
            yield
            world.close()
    finally:
        logging.getLogger().removeHandler(log)
        sys.set_asyncgen_hooks(*hooks)
