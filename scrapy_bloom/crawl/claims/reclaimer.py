"""Sends heartbeats and takes over the claims of dead workers, in the background thread.

A worker's claims are its own as long as it sends heartbeats. A worker that opens a filter, or is
idle, looks for free claims: those of dead workers, those of failed URLs that are due again, and
those whose queue has lost their requests.

The crawl's thread posts messages (``idle``, ``resume``, ``go_on``) by ``WriteBehind.post``, and
receives ``ReclaimerEvents``: the threads share no attribute.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import WorkerEntries
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.claim_sweep import ClaimSweep, Reclaimed
from scrapy_bloom.crawl.claims.worker_view import WorkerView
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import InMain, Runtime

logger = logging.getLogger(__name__)

#: Seconds between looks at all claims while the crawl is idle.
IDLE_SECONDS = 0.5
#: Seconds between looks at all claims otherwise: failed URLs may be due.
LOOK_SECONDS = 600.0
#: Seconds that workers get to send a heartbeat after an outage.
GRACE_SECONDS = 15.0
#: Seconds from now of an entry's ``until`` beyond which it is removed if there are too many.
OLD_SECONDS = 86_400


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
    """

    def __init__(
        self,
        me: Worker,
        spider: str,
        events: ReclaimerEvents,
        in_main: InMain,
        runtime: Runtime | None = None,
    ) -> None:
        self._me, self._spider = me, spider
        self._events, self._in_main = events, in_main
        runtime = runtime or Runtime()
        self._clock = runtime.monotonic
        self._claims = ClaimSweep(me, dropped=self._drop, look_soon=self.look_soon, runtime=runtime)
        self.status = ReclaimerStatus(has_peers=bool(me.shared_queue))
        #: Number of the crawl's idle period; 0 if it is not idle.
        self._idle = 0
        #: Whether the crawl takes more.
        self._wants_more = False
        self._next_heartbeat = self._next_look = self._next_idle = 0.0
        self._sweep: Iterator[Reclaimed] | None = None
        #: Whether the last look began while the crawl was idle.
        self._is_idle_look = False
        #: Since when the crawl is idle, on the server's clock; 0 if it is not.
        self._idle_since = 0
        #: Window -> worker -> ``until`` when the idle period began: later ones show that it lives.
        self._proven: dict[str, dict[str, int]] = {}
        self._distrusts_until = 0.0
        #: Whether there were too many workers.
        self._is_crowded = False

    # -- messages of the crawl --

    def idle(self, number: int) -> None:
        """Note that the crawl is idle, for the time of this number."""
        self._idle = number

    def resume(self) -> None:
        """Note that the crawl has something to do."""
        self._idle = 0

    def go_on(self) -> None:
        """Note that the crawl takes more."""
        self._wants_more = True

    # -- the background thread --

    def begin(self, filters: Filters) -> None:
        """Send the first heartbeat, and end claims without a request of workers that have ended.

        Called when the crawl opens: these claims would make links "seen". Where there is nothing to
        take over, an idle spider need not wait for the first look.
        """
        self.heartbeat(filters)
        views = self._claims.views
        windows = [window for window, view in views.items() if view.has_lost_workers]
        self._claims.drop_unkept(filters, windows)
        if not self._claims.may_find(filters):
            self._next_look = self._clock() + LOOK_SECONDS
            self._update(is_looking=False)

    def run(self, filters: Filters) -> float:
        """Send a heartbeat if it is due, and go on looking; return seconds until the next run."""
        is_idle, now = bool(self._idle), self._clock()
        if not is_idle:
            self._proven.clear()
        is_due = now >= min(self._next_heartbeat, self._next_look)
        if self._sweep is None and (is_due or (is_idle and now >= self._next_idle)):
            self._begin_look(filters, is_idle=is_idle)
        elif now >= self._next_heartbeat:
            self.heartbeat(filters, is_idle=is_idle)
        if self._sweep is not None:
            self._go_on()
            # What a look found before the crawl was idle says nothing about the end.
            if self._sweep is None and is_idle and self._is_idle_look:
                self._judge()
        wait = max(0.0, min(self._next_heartbeat, self._next_look) - self._clock())
        return min(wait, IDLE_SECONDS) if is_idle or self._sweep is not None else wait

    def recovered(self) -> None:
        """Look again after an outage; workers without a heartbeat do not count as dead yet."""
        self._distrusts_until = self._clock() + GRACE_SECONDS
        self._next_heartbeat = 0.0
        self._sweep = None
        self.look_soon()

    def look_soon(self) -> None:
        """Look at all claims as soon as possible, and before the crawl ends: some are free."""
        self._next_look = 0.0
        self._update(is_looking=True)

    def end(self, filters: Filters) -> None:
        """Remove this worker's entry or, if it leaves claims, note that it has stopped."""
        for bloom in filters.by_window.values():
            if self._claims.has_own(bloom):
                self._beat(bloom, 0, self._me.describe())
            else:
                bloom.run(partial(claim_protocol.remove_workers, entries={self._me.id: ""}))

    # -- workers --

    def heartbeat(self, filters: Filters, *, is_idle: bool = False) -> None:
        """Send a heartbeat to each filter, and read the entries of the other workers."""
        self._next_heartbeat = self._clock() + self._me.heartbeat
        for window, bloom in filters.by_window.items():
            found = self._beat(bloom, self._me.life, self._me.describe())
            others = workers.parse_all(found.entries)
            others.pop(self._me.id, None)
            view = self._view_of(found, others, is_idle=is_idle)
            self._claims.views[window] = view
            if others:
                self._update(has_peers=True)
            if found.is_partial:
                self._reduce(bloom, found, others)

    def _reduce(
        self, bloom: BloomFilter, found: WorkerEntries, others: Mapping[str, Worker]
    ) -> None:
        """Remove damaged and old entries: there are more than there can be workers."""
        if not self._is_crowded:
            self._is_crowded = True
            logger.warning(
                "Bloom filter %r: there are %s workers, more than %s. Does anything else write to "
                "its keys? Claims of workers are taken over as they are found; old and damaged "
                "entries are removed",
                bloom.key,
                f"{found.total:,}",
                f"{claim_protocol.MAX_WORKERS:,}",
            )
        old = {
            name: entry
            for name, entry in found.entries.items()
            if name != self._me.id
            and (name not in others or abs(others[name].until - found.now) > OLD_SECONDS)
        }
        if old:
            bloom.run(partial(claim_protocol.remove_workers, entries=old))

    def _beat(self, bloom: BloomFilter, life: int, description: str) -> WorkerEntries:
        """Store this worker's entry: for ``life`` seconds, 0 if it stopped."""
        me = self._me.id
        beat = partial(claim_protocol.heartbeat, worker=me, life=life, description=description)
        return bloom.run(beat)

    def _view_of(
        self, found: WorkerEntries, others: dict[str, Worker], *, is_idle: bool
    ) -> WorkerView:
        self._idle_since = (self._idle_since or found.now) if is_idle else 0
        clock = self._clock()
        return WorkerView(
            self._me,
            self._spider,
            others,
            found.now,
            idle_since=self._idle_since,
            unknown={owner: clock - met for owner, met in self._claims.met.items()},
            trusts_silence=clock >= self._distrusts_until,
            lost=self._claims.lost,
            is_partial=found.is_partial,
        )

    # -- claims --

    def _begin_look(self, filters: Filters, *, is_idle: bool) -> None:
        """Begin a look at all claims, if there may be free ones."""
        self._next_idle = self._clock() + IDLE_SECONDS
        self.heartbeat(filters, is_idle=is_idle)
        claims = self._claims
        is_due = self._clock() >= self._next_look
        may_have_lost = bool(self._me.shared_queue) or bool(claims.met)
        if is_due or any(v.dead for v in claims.views.values()) or (is_idle and may_have_lost):
            self._next_look = self._clock() + LOOK_SECONDS
            claims.is_waiting, self._is_idle_look = False, is_idle
            self._sweep = claims.look(filters)
            self._update(is_looking=True)
        elif is_idle:
            self._judge()

    def _go_on(self) -> None:
        """Take over the next claims; note the end of the look."""
        assert self._sweep is not None  # noqa: S101 - a look is under way
        if not self._wants_more:
            self._in_main(self._events.wanted)
            return
        found = next(self._sweep, None)
        if self._claims.met:
            self._update(has_peers=True)
        if found is not None:
            self._wants_more = False
            self._in_main(partial(self._events.found, found))
            return
        self._sweep = None
        # Unless claims that this look has passed have become free.
        self._update(is_looking=self._next_look <= 0)

    def _drop(self, window: str, fields: Collection[str], begun: float) -> None:
        self._in_main(partial(self._events.dropped, window, fields, begun))

    # -- the end of a crawl --

    def _judge(self) -> None:
        """Let the crawl end, unless a worker may soon turn out to be dead."""
        waiting = self._claims.is_waiting
        for window, view in self._claims.views.items():
            if view.is_partial or view.now - self._idle_since > self._me.life:
                continue  # a worker with the same heartbeat has shown by now whether it lives
            kin = [w for w in view.others.values() if workers.is_of(w.id, self._spider)]
            proven = self._proven.setdefault(window, {w.id: w.until for w in kin})
            waiting |= any(workers.may_be_dead(worker, proven) for worker in kin)
        if not waiting:
            number, self._idle = self._idle, 0
            self._update(may_end=number)

    def _update(self, **changes: bool | int) -> None:
        """Send the crawl's thread a new status, if it has changed."""
        status = replace(self.status, **changes)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            self._in_main(partial(self._events.looked, status))
