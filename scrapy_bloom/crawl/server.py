"""The filters of a crawl, and their server as one crawl sees it: up or down, which process it is.

A crawl has the default filter and one for each other window, on one connection.

The server is UP until a call fails; then DOWN, until the writer has reached it and written what was
missed. Each change begins an *epoch*. A server that was restarted, or replaced by a replica, may
have lost its last writes: pages that began in an earlier epoch are crawled again.

Of a cluster, a part may be DOWN. Then lookups go on in the other parts, so that each failure, and
each restart that is noticed, begins an epoch: claims on links were made after the first one.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from scrapy.exceptions import NotConfigured
from scrapy.settings import BaseSettings
from scrapy.utils.project import data_path

from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.connection import Connection, connect, connect_scrapy_redis
from scrapy_bloom.bloom.client.routes import slot_of
from scrapy_bloom.bloom.errors import BloomError, shown, slots_of
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import EXTEND
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Wait
from scrapy_bloom.bloom.protocol.session import FilterSession, touches
from scrapy_bloom.fingerprinter import Key
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings

T = TypeVar("T")
#: Is called with a filter's key, its window, an event, and the ring that changed.
Notify = Callable[[str, str, str, Ring], object]
#: Seconds between attempts to reach the server: the first one, and at most.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.1, 5.0
#: The same at most, of a cluster.
CLUSTER_RETRY_SECONDS = 0.5
#: Seconds of uptime after which the intervals between attempts begin small again.
RECOVERED_AFTER_SECONDS = 10.0
#: Times that a server may be another process in a row until it is not identified any more.
MAX_REFUSALS = 4


@dataclass
class Filters:
    """The filters of a crawl.

    Attributes:
        by_window: the filter of each window, the default one first.
        connection: what they share.
        left: windows that the settings no longer have.
    """

    by_window: dict[str, BloomFilter]
    connection: Connection
    left: Collection[str] = ()

    @property
    def default(self) -> BloomFilter:
        """The filter of all requests that no other window is named for."""
        return self.by_window[DEFAULT]

    @property
    def forgetting(self) -> dict[str, BloomFilter]:
        """The filters, once they are open, that forget."""
        return {
            window: bloom
            for window, bloom in self.by_window.items()
            if bloom.config is not None and bloom.config.schedule is not None
        }

    @property
    def round_trips(self) -> int:
        """Times that any of them sent commands and waited for the replies."""
        return sum(bloom.round_trips for bloom in self.by_window.values())

    def stay_quick(self) -> None:
        """From now on, do not wait for a host name to be resolved: rather fail at once."""
        for bloom in self.by_window.values():
            bloom.may_connect = not self.connection.resolves

    def find_server(self) -> None:
        """Find the server again, blocking: it may have moved, or a name has to be resolved."""
        self.connection.restart()
        default = self.default
        default.may_connect, quick = True, default.may_connect
        try:
            default.server_id()
        finally:
            default.may_connect = quick

    def noted_windows(self, names: Sequence[str]) -> set[str]:
        """Note in the main filter which windows there are; return all that were noted before.

        Raises:
            StorageError: the server does not answer.
        """
        return self.default.run(partial(deletion.note_windows, names=names))

    def close(self) -> None:
        """Close the connection; the filters stay on the server."""
        self.connection.close()


def connect_filters(
    settings: BloomSettings,
    scrapy_settings: BaseSettings,
    *,
    on_difference: str = EXTEND,
    left: Collection[str] = (),
    fingerprinter: str = "",
    notify: Notify | None = None,
) -> Filters:
    """Return the filters that the settings describe; nothing is sent before their first use.

    Args:
        settings: ours.
        scrapy_settings: Scrapy's.
        on_difference: what happens to filters that are stored with other settings; see
            ``BloomFilter``.
        left: windows that the settings no longer have; their filters stay as they are stored.
        fingerprinter: import path of the class that makes the fingerprints.
        notify: is called with what happens to the filters.

    Raises:
        ConfigurationError: the address or a client argument is wrong.
        StorageError: the embedded server does not start.
    """
    connection, windows = _connect(settings, scrapy_settings), settings.windows
    parameters = {
        DEFAULT: settings.parameters(),
        **{name: settings.parameters(window) for name, window in windows.others.items()},
        **{name: {"run": settings.options.run} for name in left},
    }
    blooms = {}
    for name, given in parameters.items():
        key = settings.key if name == DEFAULT else f"{settings.key}:{name}"
        blooms[name] = BloomFilter(
            connection.client,
            key,
            **given,
            on_difference=on_difference,
            notify=notify and partial(notify, key, name),
            fingerprinter=fingerprinter,
            label=connection.address,
            words=WORDS,
            timeout=settings.timeout,
        )
    if len(blooms) == 1:
        blooms[DEFAULT].keep_connection()
    return Filters(blooms, connection, left)


def _connect(settings: BloomSettings, scrapy_settings: BaseSettings) -> Connection:
    timeout, params = settings.timeout, settings.redis_params
    if settings.redis_url is None:
        return connect_scrapy_redis(scrapy_settings, timeout=timeout, params=params, words=WORDS)
    data_dir = data_directory("bloom")
    return connect(
        settings.redis_url, timeout=timeout, params=params, data_dir=data_dir, words=WORDS
    )


def data_directory(name: str) -> Path:
    """Return a directory in the project's ``.scrapy``; without a project, in the current one's."""
    try:
        return Path(data_path(name))
    except NotConfigured:
        return Path(".scrapy", name)  # settings by SCRAPY_SETTINGS_MODULE, and no scrapy.cfg


class Watcher:
    """Hears what becomes of the server."""

    def failed(self, error: BloomError, *, is_first: bool) -> None:
        """A call failed; ``is_first`` if the server was up before."""

    def back(self) -> None:
        """The server is up again."""


class Server:
    """The server of a crawl's filters.

    Args:
        filters: are open.
        timeout: seconds that an operation may take.
        clock: returns seconds.
    """

    def __init__(
        self, filters: Filters, timeout: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.filters, self._timeout, self._clock = filters, timeout, clock
        self._watchers: list[Watcher] = []
        #: Runs operations without blocking; None where nothing but blocking is possible.
        self._driver: AsyncDriver | None = None
        #: Of connections that were closed.
        self._async_round_trips = 0
        #: Whether there is no outage.
        self.is_up = True
        #: In an outage, the hash slots that cannot be used; None for all.
        self._lost: set[int] | None = None
        #: Outages, and restarts without one, since the crawl began.
        self.epoch = 0
        #: The epoch that began with the last restart: pages of earlier ones are crawled again.
        self.restarted = 0
        #: The server's process, or all primaries of a cluster, separated by commas; "" if unknown.
        self.id = ""
        #: Whether it names another process each time: then it is not identified any more.
        self.is_unsteady = False
        #: Times that it was another process, since it confirmed a page.
        self._refusals = 0
        #: Failed attempts in a row, and when the server was last reached.
        self._failures, self._reached = 0, float("-inf")

    def watch(self, watcher: Watcher) -> None:
        """Tell somebody what becomes of the server, after all others."""
        self._watchers.append(watcher)

    def session(self, window: str) -> FilterSession:
        """Return the session of a window's filter."""
        return self.filters.by_window[window].session

    def block_of(self, key: Key) -> int:
        """Return the block of its window's filter that a URL is in."""
        return self.session(key[0]).hasher.block(key[1])

    # -- operations --

    def use_asyncio(self) -> None:
        """Run operations without blocking from now on, if the client can."""
        client = self.filters.connection.open_async()
        if client is not None:
            address = self.filters.connection.address
            self._driver = AsyncDriver(client, address, self._timeout, WORDS)

    async def run(
        self,
        window: str,
        operation: Callable[[FilterSession], Operation[T]],
        *,
        on_all_blocks: bool = False,
    ) -> T:
        """Run an operation on a window's filter; it blocks where there is no asyncio.

        Raises:
            StorageError: the server did not answer; whether anything was changed is unknown.
        """
        bloom = self.filters.by_window[window]
        if self._driver is None:
            return bloom.run(operation, on_all_blocks=on_all_blocks)
        return await self._driver.run(operation(bloom.session), on_all_blocks=on_all_blocks)

    async def wait(self, wait: Wait) -> Acknowledged:
        """Wait until replicas have what all clients wrote before. Raises as ``run``."""
        calls = touches(bloom.session for bloom in self.filters.by_window.values())
        if self._driver is None:
            return self.filters.default.wait(calls, wait)
        return await self._driver.wait(calls, wait)

    async def ask_id(self) -> str:
        """Return what names the server's process: another one may have lost what was written last.

        Raises as ``run``.
        """
        if self._driver is None:
            return self.filters.default.server_id()
        return await self._driver.server_id()

    async def reopen(self) -> None:
        """Open the filters again: the server may be another process, which has lost them.

        Raises:
            BloomError: the server cannot be used.
        """
        if self._driver is None:
            self.filters.connection.restart()
        else:
            await asyncio.to_thread(self.filters.find_server)
        for window in self.filters.by_window:
            await self.run(window, lambda session: session.open(writable=True), on_all_blocks=True)

    def leave_loop(self) -> None:
        """Block from now on: the event loop is closed."""
        self._driver = None

    async def close_asyncio(self) -> None:
        """Close the connections that do not block; what follows blocks."""
        driver, self._driver = self._driver, None
        if driver is not None:
            self._async_round_trips += driver.round_trips
            with suppress(Exception):  # it is not used any more
                await driver.close()

    @property
    def async_round_trips(self) -> int:
        """Times that commands were sent and their replies awaited without blocking."""
        return self._async_round_trips + (self._driver.round_trips if self._driver else 0)

    # -- up or down --

    def serves(self, key: Key) -> bool:
        """Whether the lookup of a URL uses the filters."""
        if self.is_up:
            return True
        if self._lost is None:
            return False
        return slot_of(self.session(key[0]).keys.ring(self.block_of(key))) not in self._lost

    def fail(self, error: Exception, unanswered: Collection[Key] = ()) -> None:
        """Note that a call failed; each failure while lookups go on begins an epoch.

        Args:
            error: of the call.
            unanswered: the URLs that were looked up and have no verdict because of it.
        """
        as_ours = error if isinstance(error, BloomError) else BloomError(shown(error))
        slots, is_first = slots_of(as_ours), self.is_up
        self.epoch += is_first or self._lost is not None
        if is_first:
            self.is_up, self._lost = False, set()
        if not slots:
            self._lost = None
        elif self._lost is not None:
            self._lost |= slots
        if any(map(self.serves, unanswered)):
            # It is not about their node alone, and their next lookup would fail again.
            self._lost = None
        for watcher in self._watchers:
            watcher.failed(as_ours, is_first=is_first)

    def recover(self) -> None:
        """End the outage."""
        self.is_up, self._lost, self._reached = True, None, self._clock()
        for watcher in self._watchers:
            watcher.back()

    def next_retry(self) -> float:
        """Note a failed attempt; return the seconds until the next one."""
        if self._clock() - self._reached > RECOVERED_AFTER_SECONDS:
            self._failures, self._reached = 0, float("inf")
        self._failures += 1
        # Most nodes of a cluster answer: an attempt is short, and a replica takes over soon.
        most = CLUSTER_RETRY_SECONDS if self.is_many else LAST_RETRY_SECONDS
        return min(most, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 10))

    # -- which process it is --

    @property
    def is_many(self) -> bool:
        """Whether it is a cluster of several primaries."""
        return "," in self.id

    def identify(self, server_id: str, *, has_replayed: bool = False) -> bool:
        """Note which process the server is; return whether it is another one than before.

        Args:
            server_id: as ``ask_id`` returns it.
            has_replayed: whether the one before may have got something that was queued in an outage
                that goes on: pages that began in it may have lost links, too.
        """
        if self.is_unsteady:
            return False
        is_other = bool(self.id) and server_id != self.id
        self.id = server_id
        if is_other:
            self.epoch += self.is_up or self._lost is not None or has_replayed
            self.restarted = self.epoch
        return is_other

    def confirmed(self) -> None:
        """Note that pages were confirmed."""
        self._refusals = 0

    def refused(self) -> bool:
        """Note that it was another process than before; return whether it is so each time."""
        self._refusals += 1
        if self._refusals == MAX_REFUSALS:
            # A proxy in front of several servers, for instance: INFO is of one, scripts run on all.
            self.id, self.is_unsteady = "", True
        return self.is_unsteady
