"""A crawler process that is Scrapy's own, without a reactor, in a simulated world."""

import asyncio
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import scrapy_redis.connection
from scrapy import Spider, crawler
from scrapy.core import downloader, engine
from scrapy.downloadermiddlewares import robotstxt
from scrapy.extensions import corestats
from scrapy.http import Response
from scrapy.utils import asyncio as scrapy_asyncio
from scrapy.utils.asyncio import AsyncioLoopingCall
from twisted.internet.defer import Deferred

from simulation.loop import SimulatedLoop
from simulation.process import EXPECTED, TIMEOUT, Crawl
from simulation.site import short
from simulation.web_site import WebSite
from simulation.web_spiders import Handler, Pipeline, Storage
from simulation.world import KilledError, World

#: The stat that counts requests that are not stored.
NOT_KEPT = "bloom/not_kept"
#: How often a second SIGINT comes after the first, and after how many seconds.
TWICE, TWICE_AFTER = 0.4, (0.0, 0.01, 0.3, 2.0)
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


class WebCrawl(Crawl):
    """One process of Scrapy's, from its start to its end.

    Args:
        world: the world.
        site: the site.
        name: of the process.
        settings: Scrapy's, besides those of all processes.
        spider: its number; it begins with the start page of this number.
        spidercls: its class.

    Attributes:
        items: URLs whose items it has delivered.
        pages: those that it has crawled.
        unpicklable: what no queue can store; None where that would be an error.
        dont_filter: of its start request.
        again: when it gets the next SIGINT.
        is_clean: whether it has ended, and not by a kill or a second SIGINT.
    """

    def __init__(
        self,
        world: World,
        site: WebSite,
        name: str,
        settings: dict[str, Any],
        *,
        spider: int,
        spidercls: type[Spider],
    ) -> None:
        self.world, self.site, self.rng = world, site, world.rng
        self.start_url = site.starts[spider]
        self.items, self.pages = set[str](), set[str]()
        is_shared = settings.get("SCHEDULER", "").startswith("scrapy_redis.")
        self.unpicklable = None if is_shared else (lambda: True)
        connect, number = self._connect, spider
        # By functions: settings are copied, and all that they refer to.
        own = {"SIMULATED": lambda: connect(), "SIMULATED_PROCESS": lambda: self}  # noqa: PLW0108

        class Named(spidercls):  # type: ignore[misc, valid-type]
            name = f"pages{number}"

        Named.__module__ = spidercls.__module__
        self._spidercls = Named
        self._process: _Process | None = None
        self.dont_filter = True
        self._signals, self.again, self.is_clean = 0, float("inf"), False
        super().__init__(world, site, name, {**SETTINGS, **settings, **own}, spider=spider)

    # -- what its parts report --

    def crawled(self, response: Response) -> None:
        """Note that a page's callback is done."""
        self.pages.add(response.url)
        if not self.site.is_plain:
            self.site.crawled(response, self.name, self.spider)

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
        asyncio.set_event_loop(loop := SimulatedLoop(self.world, begins_in_order=True))
        self._task.loop = loop
        return loop

    # -- its life --

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
        crawling = process.crawl(self._spidercls)
        (crawled,) = process.crawlers
        process.start(install_signal_handlers=False)
        self._process, self.is_clean = None, self._signals < 2
        if crawled._stats and self.site.is_stored_whole and crawled.stats.get_value(NOT_KEPT):
            self.world.found.append(f"{self.name} has not stored requests that could be")
        reason = crawled.stats.get_value("finish_reason") if crawled._stats else None
        if reason not in (None, "finished"):
            self.must_stop = True
        self.world.log(f"{self.name}: closed ({reason})")
        if not crawling.cancelled() and (error := crawling.exception()) is not None:
            self.world.log(f"{self.name}: cannot start: {error!s:.60}")
            if not isinstance(error, EXPECTED):
                self.world.found.append(f"{self.name} ends with {error!r}")
        self._task.loop.drop()


class _QueueClient:
    """The server of scrapy-redis's queue: it never fails."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if self._world.is_ending:
            raise KilledError
        return getattr(self._world.client, name)


def _tasks(loop: Any = None) -> list[asyncio.Task[Any]]:
    """Return a loop's tasks in the order in which they were made, not by their addresses."""
    running = loop or asyncio.get_running_loop()
    return [task for task in running.tasks if not task.done()]


def _shared(deferred: Deferred[Any]) -> asyncio.Future[Any]:
    """Return a future for the result of a Deferred which has several.

    Scrapy 2.19 lets the second request that waits for robots.txt go, whatever that says.
    """
    future = asyncio.get_running_loop().create_future()

    def give(result: Any) -> Any:
        if not future.done():
            future.set_result(result)
        return result

    deferred.addCallback(give)
    return future


@contextmanager
def simulated_scrapy(world: World) -> Iterator[None]:
    """Let Scrapy go by the world's time and order, and leave this process's signals alone."""

    def nothing(*_: object) -> None:
        """What concerns the process that simulates."""

    def to_sleep(call: Any) -> float:
        return max(0.001, sleeps(call))  # rounding may leave a moment in which no time passes

    sleeps = AsyncioLoopingCall._to_sleep
    clock = SimpleNamespace(monotonic=lambda: world.now)
    patches: list[tuple[Any, str, Any]] = [
        *((crawler, name, nothing) for name in ("configure_logging", "log_scrapy_info")),
        (crawler, "get_spider_loader", nothing),
        (crawler, "install_shutdown_handlers", nothing),
        (crawler, "install_reactor_import_hook", nothing),
        (crawler, "set_asyncio_event_loop", lambda _: world.process.make_loop()),
        (engine, "time", lambda: float(world.time)),
        (downloader, "monotonic", clock.monotonic),
        (corestats, "monotonic", clock.monotonic),
        (scrapy_asyncio, "time", clock),
        (robotstxt, "maybe_deferred_to_future", _shared),
        (AsyncioLoopingCall, "_to_sleep", to_sleep),
        (asyncio, "all_tasks", _tasks),
        (scrapy_redis.connection, "from_settings", lambda _: _QueueClient(world)),
    ]
    gc.disable()  # it would close generators of killed processes at any time
    try:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(mock.patch.object(*patch))
            yield
    finally:
        with mock.patch.object(sys, "unraisablehook", nothing):
            gc.collect()
        gc.enable()
