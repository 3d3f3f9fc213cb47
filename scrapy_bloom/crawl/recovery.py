"""Sends heartbeats, takes over the claims of dead workers, and lets the idle spider close.

A worker's claims are its own as long as it sends heartbeats. A worker that opens a filter, or is
idle, looks for free claims: those of dead workers, those of failed URLs that are due again, and
those whose queue has lost their requests. Of other spiders' claims, it takes over those in which
its own spider has a request.

All workers together load the server with about as much as a few do: of many, each asks less often,
and begins a look at a random moment.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from math import inf

from scrapy import Request

from scrapy_bloom.bloom.errors import BloomError, shown, tagged
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context, wait_for
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.liveness import Heartbeats
from scrapy_bloom.crawl.server import Watcher
from scrapy_bloom.crawl.sweep import ClaimSweep
from scrapy_bloom.crawl.tracker import set_claims

logger = logging.getLogger(__name__)

#: Seconds between looks at the other workers while the crawl is idle, at least.
IDLE_SECONDS = 0.5
#: Such looks of all workers in a second, at most; and looks at all claims that they begin.
IDLE_LOOKS_PER_SECOND, LOOKS_PER_SECOND = 40, 10
#: Seconds between looks at all claims: failed URLs may be due.
LOOK_SECONDS = 600.0
#: Seconds until the crawl is asked again whether it has room for more requests.
ROOM_SECONDS = 0.5
#: Seconds until an idle crawl looks again whether all is written.
WRITE_SECONDS = 0.01


class Recovery(Watcher):
    """Keeps this worker's claims alive, and takes over those of dead workers.

    Args:
        context: what all parts use.
        claims: of the crawl.
    """

    def __init__(self, context: Context, claims: Claims) -> None:
        self._engine, self._clock, self._report = context.engine, context.clock, context.report
        self._server, self._jobs = context.server, context.jobs
        self._claims, self._me = claims, claims.me
        self._heartbeats = Heartbeats(context, self._me)
        self._views = self._heartbeats.views
        self._sweep = ClaimSweep(context, self._me, self._heartbeats)
        self._restorer = Restorer(context, claims)
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
        self._server.watch(self)

    # -- what the crawl asks for, and notes --

    def may_close(self) -> bool:
        """Whether the idle spider may close; if not, the engine is woken later."""
        if not self._server.is_up:
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
        self._heartbeats.distrust_silence()
        self.look_soon()

    # -- the beginning and the end --

    async def begin(self) -> None:
        """Send the first heartbeat, and end claims without a request of workers that have ended.

        Called when the crawl opens: these claims would make links "seen".
        """
        await self._beat()
        await self._drop_unkept(
            [name for name, view in self._views.items() if view.has_lost_workers]
        )
        self._must_look = self._is_looking = True
        self._plan_look()

    async def end(self) -> None:
        """Remove this worker's entry or, if it may leave claims, note that it has stopped."""
        for window in self._server.filters.by_window:
            may_leave = await self._sweep.may_have_own(window)
            await (self._heartbeats.stop if may_leave else self._heartbeats.leave)(window)

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
        next_idle = self._next_idle if self._idle is not None else inf
        return max(0.0, min(self._heartbeats.due, self._next_look, next_idle) - self._clock())

    @property
    def _idle(self) -> int | None:
        """Which idle period it is, as long as the spider waits for an answer; None for none."""
        count = self._claims.tracker.handed_out_count
        return count if self._idle_at == count and not self._may_end else None

    async def _beat(self) -> None:
        """Send a heartbeat."""
        if await self._heartbeats.send(is_idle=self._idle is not None):
            self._has_peers = True

    async def _step(self) -> None:
        """Send a heartbeat; look, if it is time to."""
        if self._seconds > 0:
            return
        idle = self._idle
        await self._beat()
        pause = max(IDLE_SECONDS, self._heartbeats.total / IDLE_LOOKS_PER_SECOND)
        self._next_idle = self._clock() + pause
        may_find = self._may_find(is_idle=idle is not None)
        if may_find:
            self._plan_look()
        if self._next_look <= self._clock():
            await self._look(idle)
        elif not may_find:
            self._judge(idle)

    def _plan_look(self) -> None:
        """Have a look begin at a random moment, unless one will soon."""
        now = self._clock()
        # Of many workers, each waits longer. One that is alone has nobody to wait for.
        others = self._heartbeats.total - 1
        longest = min(self._me.heartbeat, 2 * others / LOOKS_PER_SECOND)
        if self._next_look > now + longest:
            self._next_look = now + random.uniform(0, longest)  # noqa: S311 - no secret

    def _may_find(self, *, is_idle: bool) -> bool:
        """Whether there may be free claims, so that a look has to come before the crawl ends."""
        views = self._views.values()
        was_proven = self._is_proven
        self._is_proven = is_idle and not any(view.may_lose_workers for view in views)
        has_dead = any(view.has_left_claims for view in views)
        if has_dead or (is_idle and not (was_proven and self._is_proven)):
            # The last look may not have found what a worker has just left.
            self._has_looked = False
        awaits = self._claims.awaits_other_spiders
        may_have_lost = bool(self._me.shared_queue or self._heartbeats.met or awaits)
        return self._must_look or has_dead or (is_idle and may_have_lost and not self._has_looked)

    async def _look(self, idle: int | None) -> None:
        """Look at all claims; take over those that are free, and put their requests back."""
        # Until all is written, claims of what came out of a queue look as if they were left there.
        while idle is not None and idle == self._idle and self._jobs and self._server.is_up:
            await asyncio.sleep(WRITE_SECONDS)
            await self._keep_alive()
        await self._heartbeats.read_again()
        self._must_look, self._next_look = False, self._clock() + LOOK_SECONDS
        self._is_looking = True
        self._sweep.begin()
        windows, is_clean = [*self._server.filters.by_window], idle is not None
        await self._drop_unkept(windows)
        self._heartbeats.awaited.clear()
        for window in windows:
            is_clean &= not await self._take_over(window)
        self._has_peers |= bool(self._heartbeats.met)
        is_clean &= self._idle == idle and not self._sweep.is_waiting
        self._has_looked = is_clean and not self._must_look
        if not self._must_look:  # else claims that this look has passed have become free
            self._is_looking = False
            self._answer()
        # What a look found before the crawl was idle says nothing about the end.
        self._judge(idle)

    async def _drop_unkept(self, windows: Iterable[str]) -> None:
        """End free claims without a request; the pages that wait for these are crawled again."""
        for window in windows:
            begun = self._clock()
            if fields := await self._sweep.drop_unkept(window):
                self._report.dropped(len(fields))
                self._claims.dropped(window, fields, begun)
                self.look_soon()  # these pages will be free soon

    async def _take_over(self, window: str) -> bool:
        """Take over the free claims of a filter; return whether there were any."""
        sweep, has_found = self._sweep, False
        dead, cursors = {one.id for one in self._views[window].dead}, sweep.blocks(window)
        while cursors:
            pages, cursors = await sweep.scan(window, cursors)
            for block, page in pages.items():
                await self._keep_alive()
                for part in sweep.free_parts(window, page):
                    await self._has_room()
                    if requests := await sweep.take_over(window, block, part):
                        has_found, self._idle_at = True, -1
                        self._restorer.put_back(window, block, requests)
        await sweep.remove(window, dead)
        return has_found

    async def _keep_alive(self) -> None:
        """Send a heartbeat if it is due, during a look."""
        if self._clock() >= self._heartbeats.due:
            await self._beat()

    async def _has_room(self) -> None:
        """Wait until the crawl has room for more requests."""
        while not self._engine.has_room():
            await asyncio.sleep(ROOM_SECONDS)
            await self._keep_alive()

    # -- the end of a crawl --

    def _judge(self, idle: int | None) -> None:
        """Let the crawl end if it is idle still, unless a worker may soon turn out to be dead."""
        if idle is None or self._idle != idle or self._jobs:
            return
        views = self._views.values()
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


class Restorer:
    """Puts requests back that were taken over from other workers.

    Args:
        context: what all parts use.
        claims: of the crawl.
    """

    def __init__(self, context: Context, claims: Claims) -> None:
        self._engine, self._report, self._server = context.engine, context.report, context.server
        self._keeps_headers, self._put = context.settings.keep_headers, context.jobs.put
        self._spider, self._tracker, self._settler = claims.spider, claims.tracker, claims.settler

    def put_back(self, window: str, block: int, requests: Mapping[str, str]) -> None:
        """Schedule the requests of a block's claims, by their fields."""
        for name, text in requests.items():
            request = self._read(window, block, name, text)
            if request is None:
                self._drop(window, block, name)
                continue
            self._settler.length += len(text)
            try:
                was_offered = self._tracker.restore(request, self._engine.crawl)
            except Exception:
                line = "Bloom filter: pending request %s cannot be scheduled"
                logger.exception(tagged("not-scheduled", line), shown(request))
                continue  # its claim stays, and the next run tries again
            self._report.count("taken_over", window)
            if not was_offered:
                self._settler.settle(self._tracker.claims_of(request), JobKind.RELEASE)

    def _read(self, window: str, block: int, name: str, text: str) -> Request | None:
        reason = "it is not the request that was claimed"
        try:
            request = request_codec.load(text, self._spider, keeps_headers=self._keeps_headers)
            claims = self._tracker.claims_of(request)
            for key in claims:
                if (window, name) == (key[0], field_of(key[1])):
                    set_claims(request, {**claims, key: len(text)})
                    if self._server.block_of(key) != block:  # of a header that was lost
                        self._put(Job(JobKind.CLAIM, *key, text))
                        self._drop(window, block, name)
                    return request
        except ValueError as error:
            reason = str(error)
        self._report.count("not_restored", window)
        self._report.warn_once(
            "not-restored",
            f"a pending request of another run cannot be put back: {reason}. Has the spider "
            "changed? Its URL is crawled when it is found again (bloom/not_restored counts them)",
        )
        return None

    def _drop(self, window: str, block: int, name: str) -> None:
        self._put(Job(JobKind.DROP, window, name.encode(), block=block))
