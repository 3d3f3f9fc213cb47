"""Heartbeats, and taking over the claims of dead workers, in the background thread.

A worker's claims are its own as long as its heartbeat goes on. A worker that opens a filter, or has
nothing left to do, looks for free claims: those of dead workers, those of failed URLs that are due
again, and those whose queue has lost them.

The crawl's thread sends messages (``idle``, ``resume``, ``go_on``, ``leave_claims``) through
``WriteBehind.post``, and receives a ``ReclaimerStatus``: no attribute is shared.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.claim_sweep import ClaimSweep, Reclaimed
from scrapy_bloom.crawl.claims.worker_view import WorkerView
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import Runtime

logger = logging.getLogger(__name__)

#: Claims looked at when the crawl opens, in all blocks of a filter together, about.
FEW = 2_048
#: Seconds between looks while the crawl is idle.
IDLE_SECONDS = 0.5
#: Seconds after which all claims are looked at again: failed URLs may be due.
LOOK_SECONDS = 600.0
#: Seconds that workers get to send a heartbeat after an outage.
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ReclaimerStatus:
    """What the crawl's thread knows of the reclaimer.

    Args:
        has_looked: whether there was a look at all claims since the start.
        is_looking: whether one is under way.
        has_peers: whether there are, or were, other workers.
        may_end: number of the idle period in which there was nothing left to take over or to wait
            for; 0 for none.
    """

    has_looked: bool = False
    is_looking: bool = False
    has_peers: bool = False
    may_end: int = 0


class Reclaimer:
    """What one worker does for claims, its own and those of others.

    Args:
        me: this worker; ``until`` is of no meaning.
        spider: name of its spider.
        found: is called with the claims that were taken over.
        dropped: is called with a window and the fields of claims that were ended without being
            crawled, because their requests are not stored.
        wanted: is called when there is more to take over; ``go_on`` takes it over.
        looked: is called with each new status.
        runtime: time and chance.
    """

    def __init__(
        self,
        me: Worker,
        spider: str,
        *,
        found: Callable[[Reclaimed], object],
        dropped: Callable[[str, Collection[str]], object],
        wanted: Callable[[], object],
        looked: Callable[[ReclaimerStatus], object],
        runtime: Runtime | None = None,
    ) -> None:
        self._me, self._spider = me, spider
        self._found, self._wanted, self._looked = found, wanted, looked
        runtime = runtime or Runtime()
        self._clock = runtime.monotonic
        self._claims = ClaimSweep(me, dropped=dropped, look_soon=self.look_soon, runtime=runtime)
        self.status = ReclaimerStatus(has_peers=bool(me.shared_queue))
        #: Number of the crawl's idle period; 0 if it is not idle.
        self._idle = 0
        #: Whether the crawl takes more.
        self._wants_more = False
        #: Whether the crawl has not taken yet what was found for it.
        self._is_passing_on = False
        #: Whether this worker leaves claims behind.
        self._leaves = False
        self._next_heartbeat = self._next_look = self._next_idle = 0.0
        self._sweep: Iterator[Reclaimed] | None = None
        #: Whether the last look was one of an idle crawl.
        self._is_idle_look = False
        #: Since when the crawl is idle, on the server's clock; 0 if it is not.
        self._idle_since = 0
        #: Heartbeats at the beginning of the idle period: a worker with a later one is alive.
        self._proven: dict[str, dict[str, int]] = {}
        self._distrusts_until = 0.0

    # -- messages of the crawl --

    def idle(self, number: int) -> None:
        """The crawl has nothing to do, in an idle period of this number: may it end?"""
        self._idle = number

    def resume(self) -> None:
        """The crawl has something to do."""
        self._idle = 0

    def go_on(self) -> None:
        """The crawl has taken what was found, and takes more."""
        self._wants_more, self._is_passing_on = True, False

    def leave_claims(self) -> None:
        """The crawl ends with claims that it will not settle."""
        self._leaves = True

    # -- the background thread --

    def begin(self, filters: Filters) -> None:
        """Show that this worker is alive; look at few claims at once, at more of them in ``run``.

        Called when the crawl opens: where there is nothing to take over, as for most crawls, an
        idle spider then need not wait for the first look.
        """
        self.heartbeat(filters)
        # Before the first link is asked about: these claims would make it "seen".
        views = self._claims.views
        lost = [window for window in filters.by_window if views[window].has_lost_workers]
        self._claims.drop_unkept(filters, lost)
        for window, bloom in filters.by_window.items():
            view = views[window]
            if view.dead:
                return
            blocks = bloom.header.blocks if bloom.header else 1
            starts = dict.fromkeys(range(blocks), "0")
            look = partial(claim_protocol.scan_many, cursors=starts, count=max(1, FEW // blocks))
            pages = bloom.run(look).values()
            claims = [claim for page in pages for claim in page.claims]
            if any(page.cursor != "0" or page.damaged for page in pages):
                return
            if any(view.is_free(claim) or view.is_to_be_awaited(claim) for claim in claims):
                return
        self._next_look = self._clock() + LOOK_SECONDS
        self._update(has_looked=True)

    def run(self, filters: Filters) -> float:
        """Beat if it is due, and go on looking; return the seconds until there is more to do."""
        is_idle, now = bool(self._idle), self._clock()
        if not is_idle:
            self._proven.clear()
        is_due = now >= min(self._next_heartbeat, self._next_look)
        if self._sweep is None and (is_due or (is_idle and now >= self._next_idle)):
            self._begin(filters, is_idle=is_idle)
        elif now >= self._next_heartbeat:
            self.heartbeat(filters, is_idle=is_idle)
        if self._sweep is not None:
            self._go_on()
            # Not on what was found before it was idle.
            if self._sweep is None and is_idle and self._is_idle_look:
                self._judge()
        wait = max(0.0, min(self._next_heartbeat, self._next_look) - self._clock())
        return min(wait, IDLE_SECONDS) if is_idle or self._sweep is not None else wait

    def _begin(self, filters: Filters, *, is_idle: bool) -> None:
        """Begin a look at all claims, if there is a reason."""
        self._next_idle = self._clock() + IDLE_SECONDS
        self.heartbeat(filters, is_idle=is_idle)
        if self._has_reason(is_idle=is_idle):
            self._next_look = self._clock() + LOOK_SECONDS
            self._claims.is_waiting, self._is_idle_look = False, is_idle
            self._sweep = self._claims.look(filters)
            self._update(is_looking=True)
        elif is_idle:
            self._judge()

    def recovered(self) -> None:
        """Give the others time to come back, before their silence says anything."""
        self._distrusts_until = self._clock() + GRACE_SECONDS
        # A look that was cut short is begun anew.
        self._next_heartbeat = self._next_look = 0.0
        self._sweep = None
        self._update(is_looking=False)

    def look_soon(self) -> None:
        """Look at all claims as soon as there is time, and before the crawl ends: some are free."""
        self._next_look = 0.0
        self._update(has_looked=False)

    def end(self, filters: Filters) -> None:
        """Leave: nobody has to wait for a sign of life any more."""
        leaves = self._leaves or self._is_passing_on or bool(self._claims.lost)
        for bloom in filters.by_window.values():
            if leaves:
                self._beat(bloom, 0, self._me.describe())
            else:
                _, entries = bloom.run(claim_protocol.heartbeat)
                self._beat(bloom, "", entries.get(self._me.id, ""))

    # -- workers --

    def heartbeat(self, filters: Filters, *, is_idle: bool = False) -> None:
        """Show that this worker is alive, and see who else is."""
        self._next_heartbeat = self._clock() + self._me.heartbeat
        for window, bloom in filters.by_window.items():
            now, entries = self._beat(bloom, self._me.life, self._me.describe())
            self._claims.views[window] = self._view_of(
                now, workers.parse_all(entries), is_idle=is_idle
            )
        if any(view.others for view in self._claims.views.values()):
            self._update(has_peers=True)

    def _beat(
        self, bloom: BloomFilter, life: int | str, description: str
    ) -> tuple[int, dict[str, str]]:
        """Store this worker's entry: for ``life`` seconds, 0 if it stopped, "" to remove it."""
        me = self._me.id
        beat = partial(claim_protocol.heartbeat, worker=me, life=life, description=description)
        return bloom.run(beat)

    def _view_of(self, now: int, everybody: dict[str, Worker], *, is_idle: bool) -> WorkerView:
        everybody.pop(self._me.id, None)
        self._idle_since = (self._idle_since or now) if is_idle else 0
        clock = self._clock()
        return WorkerView(
            self._me,
            self._spider,
            everybody,
            now,
            idle_since=self._idle_since,
            unknown={owner: clock - met for owner, met in self._claims.met.items()},
            trusts_silence=clock >= self._distrusts_until,
            lost=self._claims.lost,
        )

    def _has_reason(self, *, is_idle: bool) -> bool:
        """Whether there may be something to take over."""
        if self._clock() >= self._next_look or any(
            view.dead for view in self._claims.views.values()
        ):
            return True
        return is_idle and (bool(self._me.shared_queue) or bool(self._claims.met))

    # -- claims --

    def _go_on(self) -> None:
        """Take over the next claims; at the end of all, take note."""
        assert self._sweep is not None  # noqa: S101 - asked before
        if not self._wants_more:
            self._wanted()
            return
        found = next(self._sweep, None)
        if self._claims.met:
            self._update(has_peers=True)
        if found is not None:
            self._wants_more, self._is_passing_on = False, True
            self._found(found)
            return
        self._sweep = None
        # Unless some have become free behind this look.
        self._update(is_looking=False, has_looked=self._next_look > 0)

    # -- the end of a crawl --

    def _judge(self) -> None:
        """Let the crawl end, unless it will soon be clear that somebody is dead."""
        waiting = self._claims.is_waiting
        for window, view in self._claims.views.items():
            kin = [w for w in view.others.values() if workers.is_of(w.id, self._spider)]
            proven = self._proven.setdefault(window, {w.id: w.until for w in kin})
            waiting |= any(workers.may_be_dead(worker, proven) for worker in kin)
        if not waiting:
            number, self._idle = self._idle, 0
            self._update(may_end=number)

    def _update(self, **changes: bool | int) -> None:
        """Send the crawl's thread a new status, if it is new."""
        status = replace(self.status, **changes)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            self._looked(status)
