"""Applies queued writes; reconnects after a failure, and replays what was missed.

One task of the crawl's event loop does it. Nothing else writes what is queued. The first job waits
a moment for others, so that a page's are applied together. Where there is no asyncio, what is
queued is written, blocking, when the crawl asks for it.

While the server is away, the crawl goes on, closes, or is paused.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from math import inf

from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.errors import BloomError, ServerFullError, slots_of, tagged
from scrapy_bloom.crawl.apply_jobs import JobApplier
from scrapy_bloom.crawl.context import Context, wait_for
from scrapy_bloom.crawl.jobs import REPLAYED, Job, freeing_first, group
from scrapy_bloom.crawl.server import Watcher
from scrapy_bloom.settings import CLOSE

logger = logging.getLogger(__name__)

#: Seconds in which jobs are collected: a ``kill -9`` loses them, and those of the round before.
FLUSH_SECONDS = 0.002
#: Seconds between attempts to reach the server while the crawl closes.
LAST_SECONDS = 0.02
#: Jobs applied together at most.
MAX_BATCH = 500
#: Jobs that wait for the server at most; beyond, the crawl is paused.
MAX_OFFLINE = 500_000
#: Reason with which the spider is closed under BLOOM_ON_REDIS_ERROR = "close".
CLOSED_WITHOUT_SERVER = "bloom_redis_unavailable"

_POLICIES = {
    True: "The spider is closed, unless the server is back at once (BLOOM_ON_REDIS_ERROR)",
    False: "Until it is back, this process keeps the URLs that it has seen",
}
#: What the log adds if a part of a cluster has failed.
_OTHER_NODES = ", as far as their blocks are on that node"


class Writer(Watcher):
    """Applies queued writes.

    Args:
        context: what all parts use.
        applier: applies jobs of one kind.
    """

    def __init__(self, context: Context, applier: JobApplier) -> None:
        self._jobs, self._server, self._local = context.jobs, context.server, context.local
        self._engine, self._report, self._clock = context.engine, context.report, context.clock
        self._applier = applier
        self._closes_spider = context.settings.on_redis_error == CLOSE
        self._is_closing_spider = self._is_paused = False
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        #: When it gives up; until then it tries.
        self._deadline = inf
        #: Whether anything may have been written in this outage, and how many jobs of it.
        self._has_replayed, self._replayed = False, 0
        #: When the server may be tried again, in an outage.
        self._retry_at = -inf
        self._server.watch(self)

    def start(self) -> None:
        """Apply jobs from now on, without blocking."""
        self._task = asyncio.ensure_future(self._run())

    def leave_loop(self) -> None:
        """Forget the task, whose event loop is closed."""
        self._task = None

    def pause_if_full(self) -> None:
        """Pause the crawl if too many jobs wait for the server."""
        if len(self._jobs) >= MAX_OFFLINE and not self._is_paused:
            self._is_paused = True
            self._report.paused(MAX_OFFLINE)
            self._engine.pause()

    def write_now(self, seconds: float) -> None:
        """Apply what is queued, blocking, for so many seconds; in an outage, if it is time to."""
        if self._jobs and self._clock() >= self._retry_at:
            self._deadline = self._clock() + seconds
            complete(self._round(inf))

    async def finish(self, seconds: float) -> int:
        """Apply what is queued, for so many seconds; return the number of jobs left."""
        self._deadline = self._clock() + seconds
        self._closing.set()
        self._jobs.wake.set()
        if self._task is not None:
            # A call that is under way at the end may take a time-out more.
            await asyncio.wait({self._task}, timeout=2 * seconds + 1)
            self._task.cancel()
        if self._task is None or self._task.cancelled():
            await self._round(inf)  # nothing else will
        return len(self._jobs)

    async def _run(self) -> None:
        while not self._has_ended:
            if self._server.is_up:
                await self._jobs.wake.wait()
                await asyncio.sleep(FLUSH_SECONDS)
            else:
                # A new job does not shorten the time between attempts.
                left = self._retry_at - self._clock()
                if left > 0 and await wait_for(self._closing, left):
                    await asyncio.sleep(min(left, LAST_SECONDS))
            self._jobs.wake.clear()
            # Not those that come during the round: they would be few at a time.
            await self._round(len(self._jobs))
            if self._jobs:
                self._jobs.wake.set()

    @property
    def _has_ended(self) -> bool:
        if not self._closing.is_set():
            return False
        return self._is_late() or (self._server.is_up and not self._jobs)

    def _is_late(self) -> bool:
        return self._clock() > self._deadline

    async def _round(self, most: float) -> None:
        """Apply so many jobs; in an outage, reconnect first, and apply all."""
        try:
            if self._server.is_up:
                await self._apply(most)
            else:
                await self._server.reopen()
                await self._applier.identify_server(has_replayed=self._has_replayed)
                # Not sooner: what ends now may have been written before the outage.
                self._has_replayed = True
                await self._apply(inf)
                self._server.recover()
        except BloomError as error:
            self._note(error)
        except Exception as error:
            logger.exception(
                tagged("background-failed", "Bloom filter: queued writes cannot be applied")
            )
            self._note(BloomError(f"{type(error).__name__}: {error}"))

    async def _apply(self, most: float) -> None:
        """Apply jobs, until none is left or it is late.

        Raises:
            BloomError: the server failed. Jobs that were under way are applied again later: a
                second time changes nothing.
        """
        size = MAX_BATCH
        while self._jobs and most > 0 and not self._is_late():
            jobs = self._jobs.first_batch(int(min(size, most)))
            try:
                unrecorded = await self._applier.apply(jobs)
            except ServerFullError:
                if not await self._free_memory():
                    raise
                continue
            except BloomError:
                raise
            except Exception:
                if len(jobs) > 1:
                    size = 1  # one of them is the cause: the others are applied without it
                    continue
                logger.exception(
                    tagged("job-failed", "Bloom filter: %s cannot be applied"), jobs[0]
                )
                self._jobs.take(jobs)
                continue
            most -= len(jobs)
            self._jobs.take(jobs)
            self._written(jobs, unrecorded)

    async def _free_memory(self) -> bool:
        """Apply the jobs that give memory back on a full server; return whether there were any."""
        freeing, others = freeing_first(self._jobs.take_all())
        is_freed = False
        try:
            for _, jobs in groupby(freeing.copy(), group):
                same = list(jobs)
                for start in range(0, len(same), MAX_BATCH):
                    batch = same[start : start + MAX_BATCH]
                    await self._applier.apply(batch)
                    del freeing[: len(batch)]
                    is_freed = True
        except ServerFullError:
            pass  # a filter has to grow first; the others may have made room for it
        finally:
            self._jobs.put_back(freeing + others)
        return is_freed

    def _written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        """Forget here what a filter has recorded; keep what it has no room for."""
        is_replay = jobs[0].kind in REPLAYED
        if is_replay:
            self._report.count("recorded_late", count=len(jobs))
            self._replayed += len(jobs)
        if is_replay or unrecorded:
            keys = [(job.window, job.item) for job in jobs]
            self._local.recorded(keys, unrecorded, is_up=self._server.is_up)
        if unrecorded:
            self._report.count("unrecorded", jobs[0].window, count=len(unrecorded))

    # -- outages --

    def failed(self, error: BloomError, *, is_first: bool) -> None:
        """Go on without the server, and look for it soon."""
        if is_first:
            self._has_replayed, self._replayed = False, 0
            part = _OTHER_NODES if slots_of(error) and not self._closes_spider else ""
            self._report.server_failed(error, f"{_POLICIES[self._closes_spider]}{part}")
        self._jobs.wake.set()

    def back(self) -> None:
        """Use the server again."""
        for window, bloom in self._server.filters.by_window.items():
            self._local.connected(window, bloom.session.now)
        self._local.server_is_used()
        self._report.server_back(self._server.filters.connection.label, self._replayed)
        if self._is_paused:
            self._is_paused = False
            self._engine.unpause()

    def _note(self, error: BloomError) -> None:
        """Note why an attempt failed; close the spider if that is the policy."""
        if self._server.is_up:
            self._server.fail(error)
        else:
            self._report.server_missing(error)
            if self._closes_spider and not (self._is_closing_spider or self._closing.is_set()):
                self._is_closing_spider = True
                self._engine.close_spider(CLOSED_WITHOUT_SERVER)
        self._retry_at = self._clock() + self._server.next_retry()
