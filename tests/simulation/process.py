"""A crawler process that is Scrapy's own, without a reactor, in a simulated world."""

import asyncio
import gc
import logging
import random
import secrets
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import redis
import redis.asyncio
import scrapy_redis.connection
from scrapy import crawler
from scrapy.core import downloader, engine
from scrapy.extensions import corestats
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.utils import asyncio as scrapy_asyncio
from scrapy.utils.asyncio import AsyncioLoopingCall

from scrapy_bloom.bloom.client import transport
from scrapy_bloom.bloom.client.connect import Connection
from scrapy_bloom.bloom.client.pools import AsyncPools, Pools, Sending
from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.protocol import claims
from scrapy_bloom.crawl import owners, server
from scrapy_bloom.crawl.owners import Worker
from simulation.loop import SimulatedLoop
from simulation.site import Site, SiteError, short
from simulation.spiders import Handler, Pages, Pipeline, Storage
from simulation.world import KilledError, World

#: Seconds that the package waits for the server.
TIMEOUT = 2.0
#: How often a second SIGINT comes after the first, and after how many seconds.
TWICE, TWICE_AFTER = 0.4, (0.0, 0.01, 0.3, 2.0)
#: Exceptions that runs bring about; the last one of a JOBDIR that was left by ``kill -9``.
EXPECTED = (BloomError, SiteError, ConnectionError, struct.error)
#: Of clients: nothing is sent by them.
UNUSED, UNUSED_ASYNC = redis.ConnectionPool(), redis.asyncio.ConnectionPool()
#: Of all processes.
SETTINGS: dict[str, Any] = {
    "TWISTED_REACTOR_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "MEMUSAGE_ENABLED": False,
    "LOG_ENABLED": False,
    "LOGSTATS_INTERVAL": 0,
    "DOWNLOAD_HANDLERS": {
        **dict.fromkeys(("http", "https"), Handler),
        **dict.fromkeys(("data", "file", "ftp", "s3")),
    },
    "ITEM_PIPELINES": {Pipeline: 1},
    "FEED_STORAGES": {"simulated": Storage},
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "BLOOM_TIMEOUT": TIMEOUT,
}


class _Process(crawler.AsyncCrawlerProcess):
    """Scrapy's own process, on the loop of a simulated one."""

    def __init__(self, world: World, settings: dict[str, Any]) -> None:
        self._world = world
        super().__init__(settings)

    def _close_loop(self) -> None:
        if self._world.is_ending:
            self._reactorless_loop = None  # killed: nothing of it happens any more
        else:
            super()._close_loop()


class Process:
    """One process of Scrapy's, from its start to its end.

    Args:
        world: the world.
        site: the site.
        name: of the process.
        settings: Scrapy's, besides those of all processes.
        domain: the argument of its spider; None without.

    Attributes:
        must_stop: whether it was stopped, or killed.
        owner: of its claims; "" if it has made none.
        scheduled: URLs of requests that its scheduler was offered.
        items: URLs whose items it has delivered.
        pages: those that it has crawled.
        domain: the argument of its spider.
        dont_filter: of its start request.
        unpicklable: what no queue can store; None where that would be an error.
        again: when it gets the next SIGINT.
        is_clean: whether it has ended, and not by a kill or a second SIGINT.
    """

    def __init__(
        self,
        world: World,
        site: Site,
        name: str,
        settings: dict[str, Any],
        domain: str | None = None,
    ) -> None:
        self.domain = domain
        if domain is not None:
            site.spiders[name] = domain
        self.world, self.site, self.name, self.rng = world, site, name, world.rng
        self.must_stop, self.owner, self.is_clean = False, "", False
        self.scheduled, self.items, self.pages = set[str](), set[str](), set[str]()
        self.dont_filter = settings["SIMULATED_DONT_FILTER"]
        is_shared = settings.get("SCHEDULER", "").startswith("scrapy_redis.")
        self.unpicklable = None if is_shared else (lambda: True)
        self._settings = {**SETTINGS, **settings, "SIMULATED_PROCESS": self}
        self._process: _Process | None = None
        self._signals, self.again = 0, float("inf")
        self._task = world.spawn(self._main, self)

    # -- what its parts report --

    def crawled(self, response: Response) -> None:
        """Note that a page's callback or errback is done."""
        if response.status == 200:
            self.pages.add(response.url)
        if not self.site.is_plain:
            self.site.crawled(response, self.name)

    def delivered(self, url: str) -> None:
        """Store an item, or raise."""
        if not self.site.is_plain:
            try:
                self.site.store(url)
            except ConnectionError:
                self.world.log(f"{self.name}: the pipeline raises for {short(url)}")
                raise
            self.world.log(f"{self.name}: delivers the item of {short(url)}")
        self.items.add(url)

    def make_loop(self) -> SimulatedLoop:
        """Return its event loop."""
        asyncio.set_event_loop(loop := SimulatedLoop(self.world))
        self._task.loop = loop
        return loop

    # -- its life --

    @property
    def is_running(self) -> bool:
        """Whether any part of it runs, or anything that it has sent is under way."""
        return self.world.runs(self)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self.must_stop = True
        self.world.log(f"{self.name}: KILLED")
        self.world.kill(self)

    def stop(self) -> None:
        """Send SIGINT, to Scrapy's own handlers."""
        self.again, process = float("inf"), self._process
        if process is None or self._signals == 2:
            return
        if not all(one._engine and one._engine.running for one in process.crawlers):
            # While a spider is opened, one that comes lets Scrapy 2.19 wait for ever in the end.
            self.again = self.world.now + 0.1
            return
        self.must_stop = True
        self._signals += 1
        if self._signals == 1 and self.rng.random() < TWICE:
            self.again = self.world.now + self.rng.choice(TWICE_AFTER)
        self.world.log(f"{self.name}: SIGINT {self._signals}")
        handlers = process._signal_shutdown_reactorless, process._signal_kill_reactorless
        handlers[self._signals - 1](signal.SIGINT, None)

    def _main(self) -> None:
        if self.must_stop:
            return
        self._process = process = _Process(self.world, self._settings)
        arguments = {} if self.domain is None else {"domain": self.domain}
        crawling = process.crawl(Pages, **arguments)
        (crawled,) = process.crawlers
        process.start(install_signal_handlers=False)
        reason = crawled.stats.get_value("finish_reason") if crawled._stats else None
        # A SIGINT while the spider is being closed ends Scrapy 2.19 before that is done.
        self._process, self.is_clean = None, self._signals < 2 and reason is not None
        self.world.log(f"{self.name}: closed ({reason})")
        if not crawling.cancelled() and (error := crawling.exception()) is not None:
            self.world.log(f"{self.name}: cannot start: {error!s:.60}")
            if not isinstance(error, EXPECTED):
                self.world.found.append(f"{self.name} ends with {error!r}")
        self._task.loop.drop()


# -- clients --


class _Client(redis.Redis):
    """Sends commands through the world, as the functions below do."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(connection_pool=UNUSED)
        self.world, self.name = world, name

    def info(self, section: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Return what the world answers."""
        return _exchange(self, [("INFO", section)])[0]

    def close(self) -> None:
        """There is nothing to close."""


class _AsyncClient(redis.asyncio.Redis):
    """The same, without blocking."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(connection_pool=UNUSED_ASYNC)
        self.world, self.name = world, name

    async def aclose(self, *_: Any, **__: Any) -> None:
        """There is nothing to close."""


def owner_of(claim: str | bytes) -> str:
    """Return the owner in a claim, without the arguments of its spider."""
    text = claim.decode() if isinstance(claim, bytes) else claim
    return text.partition(" ")[0].partition(".")[0]


def _commands(sending: Sending) -> list[Any]:
    return [one.by_text if sending.by_text else one.command for one in sending.calls]


def _exchange(client: _Client, commands: Any) -> list[Any]:
    """Return the replies to commands."""
    try:
        return client.world.send(client.name, commands)
    except redis.TimeoutError:
        client.world.wait(TIMEOUT)
        raise


async def _exchange_async(client: _AsyncClient, commands: Any) -> list[Any]:
    """Return the replies to commands.

    A task of the world is the way to the server and back. It is there if the caller is cancelled,
    or its process killed: what is under way may still be carried out. Of two batches, any may be
    the first, because each has a connection of its own.
    """
    world, loop = client.world, asyncio.get_running_loop()
    if world.is_ending:
        raise KilledError
    done = loop.create_future()

    def send() -> None:
        replies, error = list[Any](), None
        try:
            replies = world.send(client.name, commands)
        except redis.TimeoutError:
            return  # the package gives up at some time
        except redis.ConnectionError as lost:
            error = lost
        if done.done() or loop.is_closed():
            return
        if error is None:
            done.set_result(replies)
        else:
            done.set_exception(error)

    world.spawn(send, world.process, is_network=True)
    return await done  # type: ignore[no-any-return]


class _QueueClient:
    """The server of scrapy-redis's queue: it never fails."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if self._world.is_ending:
            raise KilledError
        return getattr(self._world.client, name)


class _Log(logging.Handler):
    """Notes exceptions that processes log and that are not the simulator's own."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is None or isinstance(error, EXPECTED):
            return
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if not files or any("scrapy_bloom" in file or "simulation" in file for file in files):
            self._world.found.append(f"it logs: {record.getMessage()}: {error!r}"[:200])


def _tasks(loop: Any = None) -> list[asyncio.Task[Any]]:
    """Return a loop's tasks in the order in which they were made, not by their addresses."""
    running = loop or asyncio.get_running_loop()
    return [task for task in running.tasks if not task.done()]


def _nothing(*_: object) -> None:
    """Do nothing: this concerns the process that simulates."""


def _of_scrapy(world: World) -> list[tuple[Any, str, Any]]:
    """Return what lets Scrapy go by the world's time and order."""
    sleeps, clock = AsyncioLoopingCall._to_sleep, SimpleNamespace(monotonic=lambda: world.now)
    close_really = engine.ExecutionEngine.close_spider_async

    def close(one: Any, *, reason: str = "cancelled") -> Any:
        world.process.must_stop |= reason != "finished"
        return close_really(one, reason=reason)

    names = ["configure_logging", "log_scrapy_info", "get_spider_loader"]
    names += ["install_shutdown_handlers", "install_reactor_import_hook"]
    return [
        *((crawler, name, _nothing) for name in names),
        (crawler, "set_asyncio_event_loop", lambda _: world.process.make_loop()),
        (engine.ExecutionEngine, "close_spider_async", close),
        (engine, "time", lambda: float(world.time)),
        (downloader, "monotonic", clock.monotonic),
        (corestats, "monotonic", clock.monotonic),
        (scrapy_asyncio, "time", clock),
        # Rounding may leave a moment in which no time passes.
        (AsyncioLoopingCall, "_to_sleep", lambda call: max(0.001, sleeps(call))),
        (asyncio, "all_tasks", _tasks),
        # Of one crawler's settings nobody needs a copy, which takes a tenth of a run's time.
        (Settings, "copy", lambda settings: settings),
        (scrapy_redis.connection, "from_settings", lambda _: _QueueClient(world)),
    ]


def _of_package(world: World) -> list[tuple[Any, str, Any]]:
    """Return what lets the package connect to the world, with its time and random numbers."""
    name_really = Worker.own

    def own(*args: Any, **kwargs: Any) -> Worker:
        worker = name_really(*args, **kwargs)
        world.process.owner = owner_of(worker.id)
        return worker

    def connect(*_: object, **__: object) -> Connection:
        process = world.process
        client, other = _Client(world, process.name), _AsyncClient(world, process.name)
        return Connection(client, "simulated", lambda: other)

    really = Pools.exchange

    def exchange(one: Pools, sending: Sending, deadline: float) -> list[Any]:
        if not isinstance(one.client, _Client):  # the oracle's
            return really(one, sending, deadline)
        return _exchange(one.client, _commands(sending))

    async def exchange_async(one: AsyncPools, sending: Sending) -> list[Any]:
        return await _exchange_async(one.client, _commands(sending))

    async def in_thread(blocking: Any, *args: Any) -> Any:
        return blocking(*args)

    now = lambda: world.now  # noqa: E731
    clock = SimpleNamespace(monotonic=now, perf_counter=time.perf_counter, sleep=world.wait)
    chosen = SimpleNamespace(
        token_hex=world.token,
        token_bytes=lambda size: bytes.fromhex(world.token(size)),
        randbelow=world.rng.randrange,
        randbits=world.rng.getrandbits,
    )
    instead = {id(time): clock, id(secrets): chosen, id(time.monotonic): clock.monotonic}
    instead |= {id(getattr(secrets, name)): new for name, new in vars(chosen).items()}
    modules = [one for name, one in sys.modules.items() if name.startswith("scrapy_bloom.")]
    return [
        *(
            (module, name, instead[id(value)])
            for module in modules
            for name, value in vars(module).items()
            if id(value) in instead
        ),
        (server, "connect", connect),
        (Pools, "exchange", exchange),
        (AsyncPools, "exchange", exchange_async),
        (Worker, "own", own),
        (owners, "_place", lambda: world.place),
        (owners, "os", SimpleNamespace(getpid=lambda: int(world.process.name[1:]))),
        (owners, "_started", lambda pid: 1 if world.lives(f"p{pid}") else -1),
        (transport, "SLICE_SECONDS", TIMEOUT / 4),
        (transport, "MIN_SLICES", 2),
        # A page fails with each request that it yields and that is not stored: a chain of them
        # would use up the attempts that there are.
        (claims, "MAX_ATTEMPTS", 20),
        (asyncio, "to_thread", in_thread),
    ]


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Let Scrapy and the package run in the world."""
    log, hooks = _Log(world), sys.get_asyncgen_hooks()
    logging.getLogger().addHandler(log)
    gc.disable()  # it would close generators of killed processes at any time
    try:
        with ExitStack() as stack:
            for patch in (*_of_scrapy(world), *_of_package(world)):
                stack.enter_context(mock.patch.object(*patch))
            random.seed(world.rng.random())
            yield
            world.close()
    finally:
        logging.getLogger().removeHandler(log)
        sys.set_asyncgen_hooks(*hooks)
        with mock.patch.object(sys, "unraisablehook", _nothing):
            gc.collect()
        gc.enable()
