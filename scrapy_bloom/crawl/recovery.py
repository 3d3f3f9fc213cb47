"""Sends heartbeats, takes over the claims of dead workers, and lets the idle spider close.

A worker's claims are its own as long as it sends heartbeats. A worker that opens a filter, or is
idle, looks for free claims: those of dead workers, those of failed URLs that are due again, and
those whose queue has lost their requests. Of other spiders' claims, it takes over those in which
its own spider has a request. Of many workers, each begins a look at a random moment (``pace.py``).
"""

import asyncio
import logging
import random
from collections.abc import Collection
from math import inf

from scrapy_bloom.bloom.errors import BloomError, tagged
from scrapy_bloom.crawl import pace
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.heartbeats import Heartbeats
from scrapy_bloom.crawl.jobs import JobQueue
from scrapy_bloom.crawl.pace import LOOK_SECONDS, ROOM_SECONDS
from scrapy_bloom.crawl.restorer import Restorer
from scrapy_bloom.crawl.runtime import wait_for
from scrapy_bloom.crawl.server import Server, Watcher
from scrapy_bloom.crawl.sweep import ClaimSweep

logger = logging.getLogger(__name__)

#: Seconds that workers get to send a heartbeat after an outage.
GRACE_SECONDS = 15.0


class Recovery(Watcher):
    """Keeps this worker's claims alive, and takes over those of dead workers.

    Args:
        context: what all parts use.
        server: of the filters.
        claims: of the crawl.
        jobs: are written later.
        failover: whether the spider is being closed.

    Attributes:
        heartbeats: of this worker.
    """

    def __init__(
        self,
        context: Context,
        server: Server,
        claims: Claims,
        jobs: JobQueue,
        failover: Failover,
    ) -> None:
        assert context.spider is not None  # noqa: S101 - it is checked before
        self._engine, self._clock, self._report = context.engine, context.clock, context.report
        self._server, self._claims, self._me = server, claims, claims.me
        self._jobs, self._failover = jobs, failover
        self._restorer = Restorer(context, server, claims, jobs)
        self._sweep = ClaimSweep(context, self._me, server, self._drop)
        self.heartbeats = Heartbeats(context, self._me, server, self._sweep)
        #: Is set when a step is due now.
        self._wake = asyncio.Event()
        #: Whether there are, or were, other workers.
        self._has_peers = bool(self._me.shared_queue)
        #: Whether a look has to begin before the crawl may end; when one is due; and when it is
        #: that the idle worker sends its next heartbeat.
        self._must_look, self._next_idle = False, 0.0
        self._next_look = self._clock() + LOOK_SECONDS
        #: Whether a look is due or under way, and whether the idle spider waits for its end.
        self._is_looking, self._is_awaited = False, False
        #: How many requests had been handed out when the spider was found idle; -1 if it was not.
        self._idle_at = -1
        #: Whether there was nothing left to take over, or to wait for, in this idle period.
        self._may_end = False
        #: Whether the other workers have shown since the crawl is idle that they live, and whether
        #: a look that began after that has found nothing.
        self._is_proven, self._has_looked = False, False
        server.watch(self)

    # -- what the crawl asks, and what it is told --

    def may_close(self) -> bool:
        """Whether the idle spider may close; if not, the engine is woken later."""
        if not self._server.is_up or self._failover.is_closing:
            return True
        if not self._is_looking:
            if not (self._has_peers or self._claims.awaits_other_spiders):
                return True
            is_same = self._idle_at == self._claims.tracker.handed_out_count
            if is_same and self._may_end:
                self._idle_at = -1
                return True
            if not is_same:
                self._idle_at = self._claims.tracker.handed_out_count
                self._may_end = self._is_proven = False
                self._wake.set()
        self._is_awaited = True
        return False

    def look_soon(self) -> None:
        """Look at all claims as soon as possible, and before the crawl ends: some are free."""
        self._must_look, self._next_look = True, 0.0
        self._has_looked, self._is_looking = False, True
        self._wake.set()

    def back(self) -> None:
        """Look again after an outage; workers without a heartbeat do not count as dead yet."""
        self.heartbeats.distrusts_until = self._clock() + GRACE_SECONDS
        self.heartbeats.due = 0.0
        self.look_soon()

    def _drop(self, window: str, fields: Collection[str], begun: float) -> None:
        """Note claims, free since a moment, that were ended: their requests are not stored."""
        self._report.dropped(len(fields))
        self._claims.settler.dropped(window, fields, begun)
        # Pages of this worker that wait for these requests will be free soon.
        self.look_soon()

    # -- the beginning --

    async def begin(self) -> None:
        """Send the first heartbeat, and end claims without a request of workers that have ended.

        Called when the crawl opens: these claims would make links "seen". Where there is nothing to
        take over, an idle spider need not wait for the first look.
        """
        await self._beat()
        windows = [window for window, view in self._sweep.views.items() if view.has_lost_workers]
        await self._sweep.drop_unkept(windows)
        if await self._sweep.may_find():
            self._must_look = self._is_looking = True
            self._plan_look()

    # -- the task --

    async def run(self) -> None:
        """Send heartbeats, look, take over and put back, until the task is cancelled."""
        while True:
            if self._server.is_up:
                try:
                    await self._step()
                except BloomError as error:
                    self._server.fail(error)
                except Exception as error:
                    line = "Bloom filter: claims of other workers cannot be taken over"
                    logger.exception(tagged("background-failed", line))
                    self._server.fail(error)
            await wait_for(self._wake, self._seconds)
            self._wake.clear()

    @property
    def _seconds(self) -> float:
        """Seconds until the next step is due."""
        if not self._server.is_up:
            return LOOK_SECONDS
        next_idle = self._next_idle if self._is_idle else inf
        return max(0.0, min(self.heartbeats.due, self._next_look, next_idle) - self._clock())

    @property
    def _is_idle(self) -> bool:
        """Whether the spider is idle, and waits for an answer whether it may close."""
        return not self._may_end and self._idle_at == self._claims.tracker.handed_out_count

    async def _beat(self, *, reads: bool = False) -> None:
        """Send a heartbeat."""
        is_idle = self._is_idle
        if not is_idle:
            self.heartbeats.idle_since = 0
        if await self.heartbeats.send(is_idle=is_idle, reads=reads):
            self._has_peers = True

    async def _step(self) -> None:
        """Send a heartbeat; look, if it is time to."""
        if self._seconds > 0:
            return
        is_idle, idle_at = self._is_idle, self._idle_at
        await self._beat()
        total, heartbeat = self.heartbeats.total, self._me.heartbeat
        self._next_idle = self._clock() + pace.idle_seconds(total, heartbeat)
        may_find = self._may_find(is_idle=is_idle)
        if may_find:
            self._plan_look()
        if self._next_look <= self._clock():
            await self._look(idle_at, is_idle=is_idle)
        elif not may_find:
            self._judge(idle_at, is_idle=is_idle)

    def _plan_look(self) -> None:
        """Have a look begin at a random moment, unless one will soon."""
        now = self._clock()
        longest = pace.look_seconds(self.heartbeats.total, self._me.heartbeat)
        if self._next_look > now + longest:
            self._next_look = now + random.uniform(0, longest)  # noqa: S311 - no secret

    def _may_find(self, *, is_idle: bool) -> bool:
        """Whether there may be free claims, so that a look has to come before the crawl ends."""
        views = self._sweep.views.values()
        was_proven = self._is_proven
        self._is_proven = is_idle and not any(view.may_lose_workers for view in views)
        has_dead = any(view.has_left_claims for view in views)
        if has_dead or (is_idle and not (was_proven and self._is_proven)):
            # The last look may not have found what a worker has just left.
            self._has_looked = False
        awaits = self._claims.awaits_other_spiders
        may_have_lost = bool(self._me.shared_queue or self._sweep.met or awaits)
        return self._must_look or has_dead or (is_idle and may_have_lost and not self._has_looked)

    async def _look(self, idle_at: int, *, is_idle: bool) -> None:
        """Look at all claims; take over those that are free, and put their requests back."""
        await self.heartbeats.read_changed(is_idle=is_idle)
        self._must_look, self._next_look = False, self._clock() + LOOK_SECONDS
        self._sweep.is_waiting, self._is_looking = False, True
        windows, is_clean = [*self._server.filters.by_window], is_idle
        await self._sweep.drop_unkept(windows)
        self._sweep.awaited.clear()
        for window in windows:
            is_clean &= not await self._take_over(window)
        self._has_peers |= bool(self._sweep.met)
        is_still = self._is_idle and self._idle_at == idle_at
        clean = is_clean and is_still and not self._sweep.is_waiting
        self._has_looked = clean and not self._must_look
        if not self._must_look:  # else claims that this look has passed have become free
            self._is_looking = False
            self._answer()
        # What a look found before the crawl was idle says nothing about the end.
        self._judge(idle_at, is_idle=is_idle)

    async def _take_over(self, window: str) -> bool:
        """Take over the free claims of a filter; return whether there were any."""
        sweep, has_found = self._sweep, False
        dead, cursors = {one.id for one in sweep.views[window].dead}, sweep.blocks(window)
        while cursors:
            pages, cursors = await sweep.scan(window, cursors)
            for block, page in pages.items():
                await self._keep_alive()
                for part in sweep.free_parts(window, page):
                    await self._has_room()
                    if (found := await sweep.take_over(window, block, part)) is not None:
                        has_found, self._idle_at = True, -1
                        self._restorer.put_back(found)
        await sweep.remove(window, dead)
        return has_found

    async def _keep_alive(self) -> None:
        """Send a heartbeat if it is due, during a look."""
        if self._clock() >= self.heartbeats.due:
            await self._beat(reads=True)  # a look must not take a new worker for an unknown one

    async def _has_room(self) -> None:
        """Wait until the crawl has room for more requests."""
        while not self._engine.has_room():
            await asyncio.sleep(ROOM_SECONDS)
            await self._keep_alive()

    # -- the end of a crawl --

    def _judge(self, idle_at: int, *, is_idle: bool) -> None:
        """Let the crawl end if it is idle still, unless a worker may soon turn out to be dead."""
        is_still = is_idle and self._is_idle and self._idle_at == idle_at
        if not is_still or self._jobs:
            return
        views = self._sweep.views.values()
        if not (self._sweep.is_waiting or any(view.may_lose_workers for view in views)):
            self._may_end = True
            self._answer()

    def _answer(self) -> None:
        """Wake the engine if the idle spider waits for the end of a look.

        Not otherwise: each look of the engine sends one more ``spider_idle``.
        """
        if self._is_awaited and not self._is_looking:
            self._is_awaited = False
            self._engine.look()
