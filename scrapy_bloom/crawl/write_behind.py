"""Queued writes, and the background thread: it reconnects after failures and replays.

The crawl queues jobs, which are applied in their order, many at a time: by the event loop while the
server is up, otherwise by the thread. When a call fails, in either, the thread tries to reach the
server again and again, and then writes what was missed. Messages of the crawl for the periodic task
run in the thread too, so that they share no state.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Protocol

from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.errors import BloomError, slots_of, tagged
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.crawl.apply_jobs import JobApplier, LedgerWriter, Replicas
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.flush import Flush
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, run_blocking
from scrapy_bloom.crawl.loop_writer import LoopWriter
from scrapy_bloom.crawl.opening import OPENING_SECONDS, Opening
from scrapy_bloom.crawl.runtime import InMain, Runtime
from scrapy_bloom.crawl.server_state import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, ServerState

logger = logging.getLogger(__name__)

#: Seconds in which the thread collects jobs: what a ``kill -9`` loses of them.
FLUSH_SECONDS = 0.02
#: Seconds between runs of the thread without a periodic task.
LONG_SECONDS = 3600.0


class Events(Protocol):
    """Receives events, always in the crawl's thread."""

    def server_failed(self, error: BloomError, epoch: int) -> None:
        """A call failed; an epoch begins."""

    def server_missing(self, error: BloomError) -> None:
        """Another attempt to reach the server failed."""

    def server_back(self, filters: Filters) -> None:
        """The server is up, and these filters are connected to it."""

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        """Jobs were applied, except that some items could not be recorded."""

    def server_restarted(self, epoch: int) -> None:
        """The server is another process than before, and may have lost its last writes."""

    def repeated(self, jobs: Sequence[Job]) -> None:
        """These pages will be crawled again, because the claims on their links may be lost."""

    def server_unsteady(self) -> None:
        """The server names another process each time: restarts are not noticed any more."""

    def unreplicated(self, pages: int, acknowledged: Acknowledged) -> None:
        """So many pages were recorded, and too few replicas have the claims on their links."""


class PeriodicTask(Protocol):
    """Runs in the thread between jobs."""

    def run(self, filters: Filters) -> float:
        """Run; return the seconds until the next run."""

    def recovered(self) -> None:
        """The server was down, and is up."""

    def look_soon(self) -> None:
        """There are claims to take over."""

    def end(self, filters: Filters) -> None:
        """Run for the last time."""


class WriteBehind:
    """Queued writes, and the background thread.

    Args:
        connect: makes filters for one thread.
        in_main: schedules a function in the crawl's thread.
        events: receives events.
        claims: whose claims the jobs make and end.
        task: runs between jobs.
        replicas: how long pages wait for replicas.
        ledger: keeps the requests of pages that are recorded.
        runtime: time and threads.
    """

    def __init__(
        self,
        connect: Callable[[], Filters],
        in_main: InMain,
        events: Events,
        *,
        claims: ClaimOwner | None = None,
        task: PeriodicTask | None = None,
        replicas: Replicas | None = None,
        ledger: LedgerWriter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._connect = connect
        self._in_main = in_main
        self._events = events
        self._task = task
        self._runtime = runtime = runtime or Runtime()
        self.server = ServerState(runtime.monotonic)
        self._applier = JobApplier(
            claims or ClaimOwner(),
            self.server,
            runtime.token,
            restarted=lambda epoch: self._notify(partial(events.server_restarted, epoch)),
            repeated=lambda jobs: self._notify(partial(events.repeated, jobs)),
            # In the thread, if this is not it.
            freed=lambda: None if task is None else self.post(task.look_soon),
            unsteady=lambda: self._notify(events.server_unsteady),
            replicas=replicas,
            unreplicated=lambda *what: self._notify(partial(events.unreplicated, *what)),
            ledger=ledger,
        )
        self._flushing = Flush(
            self._applier, lambda *what: self._notify(partial(events.written, *what))
        )
        self.queue = self._flushing.queue
        #: To be run before the first job.
        self.check_replicas = self._applier.check_replicas
        #: Applies jobs while the server is up; None if the thread does.
        self.loop_writer: LoopWriter | None = None
        #: Of the thread.
        self.round_trips = 0
        self._messages: deque[Callable[[], object]] = deque()
        self._wake = runtime.event()
        self._stopping = runtime.event()
        self._thread: Thread | None = None
        #: When the thread has to end; until then it tries.
        self._deadline = float("inf")
        self._filters: Filters | None = None

    # -- called by the crawl's thread --

    def put(self, job: Job) -> None:
        """Queue a job; jobs are applied in their order."""
        self.queue.append(job)
        if self.loop_writer is None or self.server.is_down:
            self.wake()
        else:
            self.loop_writer.wake()

    def use(
        self, filters: Filters, driver: AsyncDriver | None, failed: Callable[[Exception], object]
    ) -> None:
        """Apply jobs in the event loop from now on, with a driver that can.

        Args:
            filters: are connected.
            driver: for their server, without blocking; None if there is none.
            failed: is called with an error of the server's.
        """
        self._leave_loop()
        if driver is not None:

            def failed_now(error: Exception) -> None:
                if self.loop_writer is writer:  # else the server has been found again since
                    failed(error)

            self.loop_writer = writer = LoopWriter(filters, driver, self._flushing, failed_now)
            if self.queue:
                # Put there between the end of an outage and this call: no other job may come.
                self.loop_writer.wake()

    def _leave_loop(self) -> None:
        writer, self.loop_writer = self.loop_writer, None
        if writer is not None:
            writer.stop()

    def post(self, message: Callable[[], object]) -> None:
        """Run a function in the thread, before the periodic task."""
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Let the thread look at once whether there is anything to do."""
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._thread = self._runtime.start_thread(self._run)

    def fail(self, *, is_partial: bool = False) -> int:
        """Note that the server failed the crawl: the thread reconnects; return the epoch.

        Args:
            is_partial: as of ``ServerState.fail``.
        """
        epoch = self.server.fail(is_partial=is_partial)
        self.wake()
        return epoch

    def stop(self, timeout: float) -> int:
        """Apply what is queued, for so many seconds; return the number of jobs left."""
        if self._thread is None and not self.queue and self._task is None:
            return 0
        self._leave_loop()
        self._deadline = self._runtime.monotonic() + timeout
        self._stopping.set()
        self.wake()
        assert self._thread is not None  # noqa: S101 - wake started it
        # The call that is under way at the end may take a time-out more.
        self._thread.join(2 * timeout + 1)
        return len(self.queue)

    # -- the thread --

    def _run(self) -> None:
        try:
            wait = 0.0
            while not self._has_ended():
                self._wait(min(wait, max(0.0, self._deadline - self._runtime.monotonic())))
                wait = self._step()
        finally:
            self._disconnect()

    def _wait(self, seconds: float) -> None:
        if self.server.is_down:
            # A new job does not shorten the time between attempts. (The outage may have begun after
            # the step that returned the seconds.)
            if self._stopping.wait(min(seconds, LAST_RETRY_SECONDS)):
                self._runtime.sleep(min(seconds, FLUSH_SECONDS))
            return
        self._wake.wait(seconds)
        self._wake.clear()
        # Jobs are collected for a moment, so that a page's are applied together.
        self._stopping.wait(FLUSH_SECONDS)

    def _has_ended(self) -> bool:
        if not self._stopping.is_set():
            return False
        if self._runtime.monotonic() > self._deadline:
            return True
        if self.server.is_down or self.queue:
            return False
        with suppress(BloomError):
            self._read_messages()
            if self._task is not None:
                self._task.end(self._connected())
        return True

    def _step(self) -> float:
        """Apply what is queued; return the seconds until something is due."""
        try:
            if self.server.is_down:
                self._reconnect()
            filters = self._connected()
            self._flush(filters)
            self._read_messages()
            seconds = LONG_SECONDS if self._task is None else self._task.run(filters)
        except BloomError as error:
            return self._failed(error)
        except Exception as error:
            logger.exception(
                tagged("background-failed", "Bloom filter: the background thread failed")
            )
            return self._failed(BloomError(f"{type(error).__name__}: {error}"))
        # The crawl's thread may have noticed an outage that this one has not.
        return FIRST_RETRY_SECONDS if self.server.is_down else seconds

    def _read_messages(self) -> None:
        while self._messages:
            self._messages.popleft()()

    def _failed(self, error: BloomError) -> float:
        """Note that a call failed; return the seconds until the next attempt."""
        if self.server.is_down:
            self._notify(partial(self._events.server_missing, error))
        else:
            epoch = self.server.fail(is_partial=bool(slots_of(error)))
            self._notify(partial(self._events.server_failed, error, epoch))
        self._disconnect()
        return self.server.next_retry()

    def _flush(self, filters: Filters) -> None:
        is_late = lambda: self._runtime.monotonic() > self._deadline  # noqa: E731
        with self._flushing.lock:
            run_blocking(self._flushing.steps(float("inf"), is_late=is_late), filters)

    # -- the server --

    def _connected(self) -> Filters:
        if self._filters is None:
            self._filters = self._open()
        return self._filters

    def _open(self) -> Filters:
        filters = self._connect()
        # During an outage, there is another attempt soon.
        patience = 0.0 if self.server.is_down else OPENING_SECONDS
        opening = Opening(
            patience,
            lambda: self.server.is_down or self._stopping.is_set(),
            runtime=self._runtime,
        )
        try:
            for bloom in filters.by_window.values():
                opening.run(bloom.open)
            opening.run(lambda: run_blocking(self._applier.identify_server(), filters))
        except BaseException:
            filters.close()
            raise
        return filters

    def _disconnect(self) -> None:
        if self._filters is not None:
            self.round_trips += self._filters.round_trips
            self._filters.close()
            self._filters = None

    def _reconnect(self) -> None:
        """Connect again and write what was missed; or raise."""
        self._disconnect()
        self._flush(self._connected())
        # The crawl gets filters of its own: those it has may be in any state.
        theirs = self._open()
        self.server.recover()
        if self._task is not None:
            self._task.recovered()
        if not self._notify(partial(self._events.server_back, theirs)):
            theirs.close()

    def _notify(self, event: Callable[[], object]) -> bool:
        try:
            self._in_main(event)
        except RuntimeError:
            # The crawl is over, and its event loop closed.
            return False
        return True
