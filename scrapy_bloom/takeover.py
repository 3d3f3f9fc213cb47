"""Heartbeats, and taking over the claims of workers that are dead, in the writer's thread.

A worker's claims are its own as long as it shows that it is alive. Whoever opens a filter, or has
nothing left to do, looks for claims that nobody will settle any more: those of the dead, those of
failed URLs that are due again, and those whose queue has lost them.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from scrapy_bloom import pending, workers
from scrapy_bloom.filters import Filters
from scrapy_bloom.pending import Claim, Page
from scrapy_bloom.workers import Worker

logger = logging.getLogger(__name__)

#: Claims looked at, and taken over, at once at most.
PAGE = 128
#: Seconds between looks while the crawl has nothing to do and waits.
IDLE_INTERVAL = 0.5
#: Seconds after which all claims are looked at again: failed URLs may be due.
LOOK_INTERVAL = 600.0
#: Seconds after which what an empty queue should have is lost.
ORPHANED_AFTER = 5
#: Seconds that workers get to come back, after the server does.
GRACE = 15.0


@dataclass(frozen=True, slots=True)
class Found:
    """Claims that were taken over in one filter.

    Args:
        window: the filter's window.
        block: the claims' block.
        requests: field of the claim -> request as JSON.
    """

    window: str
    block: int
    requests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Crew:
    """All workers of a filter, as one of them sees them.

    Args:
        me: the worker that looks.
        spider: name of its spider: claims of other spiders are not its own to crawl.
        others: by id.
        now: Unix time in seconds on the server.
        queue: owner of what is in this worker's queue, if that outlives workers; else "".
        idle_since: since when that queue is empty, and nothing is under way here; 0 if it is not.
        unknown: owners without an entry, and for how many seconds they have been known.
        trusts_silence: whether workers that are silent count as dead.
    """

    me: Worker
    spider: str
    others: Mapping[str, Worker]
    now: int
    queue: str = ""
    idle_since: int = 0
    unknown: Mapping[str, float] | None = None
    trusts_silence: bool = True

    def is_dead(self, worker: Worker) -> bool:
        """Whether a worker's claims are to be taken over."""
        if worker.until == 0:
            # What its queue still has is not lost; what is left when that is empty, is.
            return bool(self.idle_since) or not worker.queue or worker.queue != self.me.queue
        return worker.process.is_gone or (self.trusts_silence and worker.until <= self.now)

    @property
    def dead(self) -> list[Worker]:
        """Workers whose claims are to be taken over."""
        return [w for w in self.others.values() if self._is_kin(w.id) and self.is_dead(w)]

    def is_free(self, claim: Claim) -> bool:
        """Whether nobody will settle a claim any more."""
        owner = claim.owner
        if not self._is_kin(owner) or owner == self.me.id:
            return False
        if claim.failed:
            return claim.time <= self.now
        if owner.startswith("q"):
            if owner == self.queue:
                # Whoever took it out of the queue before has said so by now, or is dead.
                waited = self.idle_since and self.now - self.idle_since >= ORPHANED_AFTER
                return bool(waited) and claim.time <= self.idle_since
            return not any(w.queue == owner and not self.is_dead(w) for w in self.others.values())
        worker = self.others.get(owner)
        if worker is None:
            return (self.unknown or {}).get(owner, 0.0) >= 2 * self.me.heartbeat
        return self.is_dead(worker)

    def is_to_be_awaited(self, claim: Claim) -> bool:
        """Whether it will soon be clear what becomes of a claim."""
        owner = claim.owner
        if not self._is_kin(owner) or claim.failed or owner == self.me.id:
            return False
        return owner == self.queue or (owner.startswith("w") and owner not in self.others)

    def _is_kin(self, owner: str) -> bool:
        return workers.is_of(owner, self.spider)


class Takeover:
    """What one worker does for claims, its own and those of others.

    Args:
        me: this worker; ``until`` is of no meaning.
        spider: name of its spider.
        queue: owner of what is in its queue, if that outlives workers; else "".
        found: is called with what was taken over, in the writer's thread.
        wanted: is called when there is more, to find out whether the crawl is hungry.
        looked: is called when that is done, or the crawl may end.
    """

    def __init__(
        self,
        me: Worker,
        spider: str,
        queue: str,
        *,
        found: Callable[[Found], object],
        wanted: Callable[[], object],
        looked: Callable[[], object],
    ) -> None:
        self._me, self._spider, self._queue = me, spider, queue
        self._found, self._wanted, self._looked = found, wanted, looked
        #: Whether more can be crawled: set by the crawl when it has dealt with what was found.
        self.is_hungry = False
        #: Whether the crawl has nothing to do, and asks whether it may end.
        self.is_idle = False
        #: Whether it may: set when there is nothing to be taken over or waited for.
        self.may_end = False
        #: Claims this worker has and will not settle: set by the crawl at its end.
        self.is_leaving_claims = False
        #: Whether there was a look at all claims since the start.
        self.has_looked = False
        #: Whether one is under way.
        self.is_looking = False
        #: Whether there are, or were, other workers.
        self.has_company = bool(queue)
        self._next_beat = self._next_look = 0.0
        self._crews: dict[str, Crew] = {}
        self._sweep: Iterator[Found | None] | None = None
        self._is_waiting = False
        #: Since when the crawl has nothing to do, on the server's clock; 0 if it has.
        self._idle_since = 0
        #: When owners without an entry were first met.
        self._met: dict[str, float] = {}
        #: Signs of life when the crawl had nothing to do any more: who shows another one is alive.
        self._proven: dict[str, dict[str, int]] = {}
        self._distrusts_until = 0.0

    def run(self, filters: Filters) -> float:
        """Beat if it is due, and go on looking; return the seconds until there is more to do."""
        now = time.monotonic()
        if now >= self._next_beat or (self.is_idle and self._sweep is None):
            self.beat(filters)
        if self._sweep is None and self._has_reason():
            self._is_waiting = False
            self._next_look = time.monotonic() + LOOK_INTERVAL
            self._sweep, self.is_looking = self._look(filters), True
        if self._sweep is not None and self.is_hungry:
            self._go_on()
        elif self._sweep is not None:
            self._wanted()
        if self.is_idle and self._sweep is None:
            self._judge()
        wait = max(0.0, self._next_beat - time.monotonic())
        return min(wait, IDLE_INTERVAL) if self.is_idle or self._sweep is not None else wait

    def recovered(self) -> None:
        """Give the others time to come back, before their silence says anything."""
        self._distrusts_until = time.monotonic() + GRACE
        self._next_beat = 0.0
        self._sweep, self.is_looking = None, False

    def end(self, filters: Filters) -> None:
        """Leave: nobody has to wait for a sign of life any more."""
        for bloom in filters.by_window.values():
            if self.is_leaving_claims:
                bloom.run(
                    partial(
                        pending.beat, worker=self._me.id, life=0, description=self._me.describe()
                    )
                )
            else:
                _, entries = bloom.run(pending.beat)
                entry = entries.get(self._me.id, "")
                bloom.run(partial(pending.beat, worker=self._me.id, life="", description=entry))

    # -- workers --

    def beat(self, filters: Filters) -> None:
        """Show that this worker is alive, and see who else is."""
        self._next_beat = time.monotonic() + self._me.heartbeat
        for window, bloom in filters.by_window.items():
            now, entries = bloom.run(
                partial(
                    pending.beat,
                    worker=self._me.id,
                    life=self._me.life,
                    description=self._me.describe(),
                )
            )
            self._crews[window] = self._crew(now, workers.parse_all(entries))
        self.has_company |= any(crew.others for crew in self._crews.values())

    def _crew(self, now: int, everybody: dict[str, Worker]) -> Crew:
        everybody.pop(self._me.id, None)
        self._idle_since = (self._idle_since or now) if self.is_idle else 0
        clock = time.monotonic()
        return Crew(
            self._me,
            self._spider,
            everybody,
            now,
            self._queue,
            self._idle_since,
            {owner: clock - met for owner, met in self._met.items()},
            clock >= self._distrusts_until,
        )

    def _has_reason(self) -> bool:
        """Whether there may be something to take over."""
        if time.monotonic() >= self._next_look or any(crew.dead for crew in self._crews.values()):
            return True
        return self.is_idle and (bool(self._queue) or bool(self._met))

    # -- claims --

    def _go_on(self) -> None:
        """Take over the next claims; at the end of all, take note."""
        assert self._sweep is not None  # noqa: S101 - asked before
        for found in self._sweep:
            if found is not None:
                self.is_hungry = False
                self._found(found)
                return
        self._sweep, self.is_looking = None, False
        self.has_looked = True
        self._looked()

    def _look(self, filters: Filters) -> Iterator[Found | None]:
        """Look at all claims; yield what was taken over, page by page."""
        for window, bloom in filters.by_window.items():
            crew = self._crews[window]
            blocks = bloom.header.blocks if bloom.header else 0
            for block in range(blocks):
                cursor = ""
                while cursor != "0":
                    page = bloom.run(
                        partial(pending.scan, block=block, cursor=cursor or "0", count=PAGE)
                    )
                    cursor = page.cursor
                    yield from self._take_over(bloom.run, window, crew, block, page)
            for worker in crew.dead:
                self._forget(bloom.run, worker)

    def _take_over(
        self, run: Callable[..., Mapping[str, str]], window: str, crew: Crew, block: int, page: Page
    ) -> Iterator[Found]:
        for claim in page.claims:
            if crew.is_to_be_awaited(claim):
                self._is_waiting = True
                if claim.owner != self._queue:
                    self.has_company = True
                    self._met.setdefault(claim.owner, time.monotonic())
        free = [claim for claim in page.claims if crew.is_free(claim)]
        kept = [claim for claim in free if claim.length]
        # Nobody can crawl the others from here: to be found again, they have to be new.
        for claim in free:
            if not claim.length:
                run(
                    partial(
                        pending.release_fields, fields={block: [claim.field]}, owner=claim.owner
                    )
                )
        if page.damaged:
            run(partial(pending.release_fields, fields={block: page.damaged}))
        for start in range(0, len(kept), PAGE):
            part = kept[start : start + PAGE]
            requests = run(
                partial(
                    pending.adopt,
                    block=block,
                    claims=part,
                    owner=self._queue or self._me.id,
                    nonce=secrets.token_hex(4),
                )
            )
            if requests:
                yield Found(window, block, requests)

    def _forget(self, run: Callable[..., object], worker: Worker) -> None:
        entry = f"{worker.until} {worker.describe()}"
        run(partial(pending.beat, worker=worker.id, life="", description=entry))

    # -- the end of a crawl --

    def _judge(self) -> None:
        """Let the crawl end, unless it will soon be clear that somebody is dead."""
        waiting = self._is_waiting
        for window, crew in self._crews.items():
            kin = [w for w in crew.others.values() if workers.is_of(w.id, self._spider)]
            proven = self._proven.setdefault(window, {w.id: w.until for w in kin})
            waiting |= any(workers.may_be_dead(worker, proven) for worker in kin)
        if not waiting:
            self.is_idle = False
            self._proven.clear()
            self.may_end = True
            self._looked()
