"""Sends heartbeats and takes over the claims of dead workers, in the background thread.

A worker's claims are its own as long as it sends heartbeats. A worker that opens a filter, or is
idle, looks for free claims: those of dead workers, those of failed URLs that are due again, and
those whose queue has lost their requests. Of other spiders' claims, it takes over those in which
its own spider has a request. Workers that look for the same claims take turns, and
a look that finds nothing counts for all of them (``begin_look.lua``).

The crawl's thread posts messages (``idle``, ``resume``, ``go_on``) by ``WriteBehind.post``, and
receives ``ReclaimerEvents``: the threads share no attribute.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Protocol

from scrapy_bloom.crawl.claims import pace
from scrapy_bloom.crawl.claims.claim_sweep import ClaimSweep, Reclaimed
from scrapy_bloom.crawl.claims.heartbeats import Heartbeats
from scrapy_bloom.crawl.claims.pace import IDLE_SECONDS, LOOK_SECONDS, LookTurns
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import InMain, Runtime

#: Seconds that workers get to send a heartbeat after an outage.
GRACE_SECONDS = 15.0


class Due(Enum):
    """The look at all claims that has to come before the crawl may end."""

    NONE = "none"
    ANY = "of any worker that looks for the same claims"
    OWN = "of this worker: it knows of claims that are free"


@dataclass(frozen=True, slots=True)
class ReclaimerStatus:
    """What the crawl's thread knows of the reclaimer.

    Args:
        is_looking: whether a look at all claims is due or under way.
        has_peers: whether there are, or were, other workers.
        may_end: number of the idle period at whose end there was nothing left to take over or to
            wait for; 0 for none.
    """

    is_looking: bool = True
    has_peers: bool = False
    may_end: int = 0


class ReclaimerEvents(Protocol):
    """Receives what happens; always in the crawl's thread."""

    def found(self, found: Reclaimed) -> None:
        """These claims were taken over."""

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        """These claims, free since a moment, were ended: their requests are not stored."""

    def wanted(self) -> None:
        """There is more to take over: ``go_on`` takes it over."""

    def looked(self, status: ReclaimerStatus) -> None:
        """The status has changed."""


class Reclaimer:
    """Keeps this worker's claims alive, and takes over those of dead workers.

    Args:
        me: this worker; ``until`` is not used.
        spider: name of its spider.
        events: receives what happens.
        in_main: schedules a function in the crawl's thread.
        runtime: clock and random numbers.
        cooldown: seconds that a failed URL waits; 0 if that is not known.
    """

    def __init__(
        self,
        me: Worker,
        spider: str,
        events: ReclaimerEvents,
        in_main: InMain,
        runtime: Runtime | None = None,
        *,
        cooldown: int = 0,
    ) -> None:
        self._me = me
        self._events, self._in_main = events, in_main
        runtime = runtime or Runtime()
        self._clock = runtime.monotonic
        self._claims = ClaimSweep(
            me,
            spider,
            dropped=self._drop,
            look_soon=self.look_soon,
            cooldown=cooldown,
            runtime=runtime,
        )
        self._heartbeats = Heartbeats(me, spider, self._claims, runtime)
        self.status = ReclaimerStatus(has_peers=bool(me.shared_queue))
        #: Number of the crawl's idle period; 0 if it is not idle.
        self._idle = 0
        #: Whether requests of the crawl were stored with other spiders' claims.
        self._is_awaiting = False
        #: Whether the crawl takes more.
        self._wants_more = False
        self._due = Due.ANY
        self._next_look = self._next_idle = 0.0
        self._sweep: Iterator[Reclaimed] | None = None
        self._turns = LookTurns(me, spider)
        #: Whether the last look began while the crawl was idle, and has found nothing so far.
        self._is_idle_look, self._is_clean = False, False
        #: Whether the other workers have shown since the crawl is idle that they live, and whether
        #: a look that began after that has found nothing.
        self._is_proven, self._has_looked = False, False

    # -- messages of the crawl --

    def idle(self, number: int, *, is_awaiting: bool) -> None:
        """Note that the crawl is idle, for the time of this number.

        Args:
            number: of the idle period.
            is_awaiting: whether requests of the crawl were stored with other spiders' claims.
        """
        self._idle, self._is_proven, self._is_awaiting = number, False, is_awaiting

    def resume(self) -> None:
        """Note that the crawl has something to do."""
        self._idle = self._heartbeats.idle_since = 0
        self._is_idle_look = self._is_clean = False

    def go_on(self) -> None:
        """Note that the crawl takes more."""
        self._wants_more = True

    # -- the background thread --

    def begin(self, filters: Filters) -> None:
        """Send the first heartbeat, and end claims without a request of workers that have ended.

        Called when the crawl opens: these claims would make links "seen". Where there is nothing to
        take over, an idle spider need not wait for the first look.
        """
        self._beat(filters, is_idle=False)
        views = self._claims.views
        windows = [window for window, view in views.items() if view.has_lost_workers]
        self._claims.drop_unkept(filters, windows)
        if self._due is Due.ANY and not self._claims.may_find(filters):
            self._looked()

    def run(self, filters: Filters) -> float:
        """Send a heartbeat if it is due, and go on looking; return seconds until the next run."""
        is_idle, now = bool(self._idle), self._clock()
        is_due = now >= min(self._heartbeats.due, self._next_look)
        if self._sweep is None and (is_due or (is_idle and now >= self._next_idle)):
            self._consider(filters, is_idle=is_idle)
        elif now >= self._heartbeats.due:
            self._beat(filters, is_idle=is_idle)
        if self._sweep is not None:
            self._go_on(filters, is_idle=is_idle)
        now = self._clock()
        next_look = self._next_look if self._sweep is None else now + IDLE_SECONDS
        next_idle = self._next_idle if self._idle and self._sweep is None else next_look
        return max(0.0, min(self._heartbeats.due, next_look, next_idle) - now)

    def recovered(self) -> None:
        """Look again after an outage; workers without a heartbeat do not count as dead yet."""
        self._heartbeats.distrusts_until = self._clock() + GRACE_SECONDS
        self._heartbeats.due = 0.0
        self._sweep = None
        self.look_soon()

    def look_soon(self) -> None:
        """Look at all claims as soon as possible, and before the crawl ends: some are free."""
        self._due, self._next_look = Due.OWN, 0.0
        self._has_looked = False
        self._update(is_looking=True)

    def end(self, filters: Filters) -> None:
        """Leave the workers."""
        self._heartbeats.end(filters)

    def _beat(self, filters: Filters, *, is_idle: bool) -> None:
        """Send a heartbeat."""
        reads = self._sweep is not None  # a look must not take a new worker for an unknown one
        if self._heartbeats.send(filters, is_idle=is_idle, reads=reads):
            self._update(has_peers=True)

    # -- looks at all claims --

    def _consider(self, filters: Filters, *, is_idle: bool) -> None:
        """Send a heartbeat; if there may be free claims, look, or leave the look to another."""
        self._beat(filters, is_idle=is_idle)
        self._next_idle = self._clock() + pace.idle_seconds(
            self._heartbeats.total, self._me.heartbeat
        )
        pause = self._pause(is_idle=is_idle)
        if pause is None:
            if is_idle:
                self._judge()
            return
        turn = self._turns.take(filters, pause, clean=is_idle)
        if turn.is_mine:
            self._begin_look(filters, is_idle=is_idle)
        elif turn.is_done:
            self._looked()
            if is_idle:
                self._has_looked, self._claims.is_waiting = True, False
                self._judge()
        else:
            self._wait(pause, is_idle=is_idle)

    def _pause(self, *, is_idle: bool) -> float | None:
        """Return the seconds since the last look of any worker after which one is due; or None."""
        if self._due is Due.OWN:
            self._turns.demand_new()
            return 0.0
        is_urgent = is_idle or self._due is Due.ANY
        pause = pace.pause_seconds(self._heartbeats.total, is_urgent=is_urgent)
        views = self._claims.views.values()
        was_proven = self._is_proven
        self._is_proven = is_idle and not any(view.may_lose_workers for view in views)
        has_dead = any(view.has_left_claims for view in views)
        if has_dead or (is_idle and not (was_proven and self._is_proven)):
            # A look that has begun already may not have found what a worker has just left.
            self._turns.demand_new()
            self._has_looked = False
        if has_dead:
            return pause
        if self._due is Due.ANY:
            return pause
        claims = self._claims
        may_have_lost = bool(self._me.shared_queue or claims.met or self._is_awaiting)
        if is_idle and may_have_lost and not self._has_looked:
            return pause
        if self._clock() < self._next_look:
            return None
        # Else this worker's own last look would do for ever.
        self._turns.demand_new()
        return LOOK_SECONDS

    def _wait(self, pause: float, *, is_idle: bool) -> None:
        """Leave the look to another worker, for the time being."""
        if pause == LOOK_SECONDS:
            self._next_look = self._clock() + LOOK_SECONDS
            if is_idle:
                self._judge()
            return
        total, heartbeat = self._heartbeats.total, self._me.heartbeat
        again = self._clock() + pace.retry_seconds(total, heartbeat, pause)
        self._next_idle = min(self._next_idle, again)
        if self._next_look <= self._clock():
            self._next_look = again

    def _begin_look(self, filters: Filters, *, is_idle: bool) -> None:
        self._heartbeats.read_changed(filters, is_idle=is_idle)
        self._due, self._next_look = Due.NONE, self._clock() + LOOK_SECONDS
        self._claims.is_waiting, self._is_idle_look, self._is_clean = False, is_idle, is_idle
        self._sweep = self._claims.look(filters)
        self._update(is_looking=True)

    def _go_on(self, filters: Filters, *, is_idle: bool) -> None:
        """Take over the next claims; note the end of the look."""
        assert self._sweep is not None  # noqa: S101 - a look is under way
        if not self._wants_more:
            self._in_main(self._events.wanted)
            return
        found = next(self._sweep, None)
        if self._claims.met:
            self._update(has_peers=True)
        if found is not None:
            self._wants_more = self._is_clean = False
            self._in_main(partial(self._events.found, found))
            return
        self._sweep = None
        self._end_look(filters)
        # What a look found before the crawl was idle says nothing about the end.
        if is_idle and self._is_idle_look:
            self._judge()

    def _end_look(self, filters: Filters) -> None:
        clean = self._is_clean and not self._claims.is_waiting
        self._has_looked = clean and self._due is Due.NONE
        # Unless claims that this look has passed have become free.
        self._update(is_looking=self._due is not Due.NONE)
        # What this worker waits for, another one has to know as well.
        self._turns.end(filters, clean=clean and not self._claims.awaited)

    def _looked(self) -> None:
        """Note that no look is due for a while."""
        self._due, self._next_look = Due.NONE, self._clock() + LOOK_SECONDS
        self._update(is_looking=False)

    def _drop(self, window: str, fields: Collection[str], begun: float) -> None:
        self._in_main(partial(self._events.dropped, window, fields, begun))

    # -- the end of a crawl --

    def _judge(self) -> None:
        """Let the crawl end, unless a worker may soon turn out to be dead."""
        views = self._claims.views.values()
        if not (self._claims.is_waiting or any(view.may_lose_workers for view in views)):
            number, self._idle = self._idle, 0
            self._update(may_end=number)

    def _update(self, **changes: bool | int) -> None:
        """Send the crawl's thread a new status, if it has changed."""
        status = replace(self.status, **changes)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            self._in_main(partial(self._events.looked, status))
