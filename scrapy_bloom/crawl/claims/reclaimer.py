"""Heartbeats, and taking over the claims of workers that are dead, in the writer's thread.

A worker's claims are its own as long as it shows that it is alive. Whoever opens a filter, or has
nothing left to do, looks for claims that nobody will settle any more: those of the dead, those of
failed URLs that are due again, and those whose queue has lost them.
"""

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import claims as claim_protocol
from scrapy_bloom.bloom.protocol.claims import ClaimPage, StoredClaim
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters

logger = logging.getLogger(__name__)

#: Claims looked at, and taken over, at once at most.
PAGE = 128
#: Claims of a block looked at in one call where only their heads are of interest.
SCAN = 1_000
#: Claims looked at when the crawl opens, in all blocks of a filter together, about.
FEW = 2_048
#: Characters of requests that are asked for at once, about.
MAX_REPLY = 1 << 18
#: Seconds between looks while the crawl has nothing to do and waits.
IDLE_INTERVAL = 0.5
#: Seconds after which all claims are looked at again: failed URLs may be due.
LOOK_INTERVAL = 600.0
#: Seconds after which what an empty queue should have is lost.
ORPHANED_AFTER = 5
#: Seconds that workers get to come back, after the server does.
GRACE = 15.0


@dataclass(frozen=True, slots=True)
class Reclaimed:
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
class WorkerView:
    """All workers of a filter, as one of them sees them.

    Args:
        me: the worker that looks.
        spider: name of its spider: claims of other spiders are not its own to crawl.
        others: by id.
        now: Unix time in seconds on the server.
        idle_since: since when its queue is empty, and nothing is under way here; 0 if it is not.
        unknown: owners without an entry, and for how many seconds they have been known.
        trusts_silence: whether workers that are silent count as dead.
        lost: nonces of its own calls that may have taken over claims, and never said of what.
    """

    me: Worker
    spider: str
    others: Mapping[str, Worker]
    now: int
    idle_since: int = 0
    unknown: Mapping[str, float] = field(default_factory=dict)
    trusts_silence: bool = True
    lost: Collection[str] = ()

    def is_dead(self, worker: Worker) -> bool:
        """Whether a worker's claims are to be taken over."""
        if worker.until == 0:
            # What its queue still has is not lost; what is left when that is empty, is.
            is_in_queue = worker.jobdir and worker.jobdir == self.me.jobdir
            return bool(self.idle_since) or not is_in_queue
        return worker.process.is_gone or (self.trusts_silence and worker.until <= self.now)

    @property
    def dead(self) -> list[Worker]:
        """Workers whose claims are to be taken over."""
        return [w for w in self.others.values() if self._is_kin(w.id) and self.is_dead(w)]

    @property
    def has_lost_workers(self) -> bool:
        """Whether workers are dead or have stopped."""
        return bool(self.dead) or any(w.until == 0 for w in self.others.values())

    def is_free(self, claim: StoredClaim) -> bool:
        """Whether nobody will settle a claim any more."""
        owner = claim.owner
        if not self._is_kin(owner):
            return False
        if owner == self.me.id:
            return claim.nonce in self.lost
        if claim.failed:
            return claim.time <= self.now
        if owner.startswith("q"):
            return self._has_left_queue(claim)
        if owner in self.others:
            return self.is_dead(self.others[owner])
        return self.unknown.get(owner, 0.0) >= 2 * self.me.heartbeat

    def is_unkept_lost(self, claim: StoredClaim) -> bool:
        """Whether a claim without its request is to be ended.

        Also if its worker has stopped and left its queue in a JOBDIR: what JSON cannot hold, Scrapy
        most often cannot pickle. What it can is fetched twice if it is found again.
        """
        worker = self.others.get(claim.owner)
        has_stopped = worker is not None and worker.until == 0 and self._is_kin(claim.owner)
        return has_stopped or self.is_free(claim)

    def _has_left_queue(self, claim: StoredClaim) -> bool:
        if claim.owner == self.me.shared_queue:
            # Whoever took it out of the queue before has said so by now, or is dead.
            waited = self.idle_since and self.now - self.idle_since >= ORPHANED_AFTER
            return bool(waited) and claim.time <= self.idle_since
        served = {worker.queue for worker in self.others.values() if not self.is_dead(worker)}
        return claim.owner not in served

    def is_to_be_awaited(self, claim: StoredClaim) -> bool:
        """Whether it will soon be clear what becomes of a claim."""
        return claim.owner == self.me.shared_queue or self.is_unknown(claim)

    def is_unknown(self, claim: StoredClaim) -> bool:
        """Whether a claim is a worker's who has no entry."""
        owner = claim.owner
        is_workers = owner.startswith("w") and owner != self.me.id and self._is_kin(owner)
        return is_workers and owner not in self.others

    def _is_kin(self, owner: str) -> bool:
        return workers.is_of(owner, self.spider)


class Reclaimer:
    """What one worker does for claims, its own and those of others.

    Args:
        me: this worker; ``until`` is of no meaning.
        spider: name of its spider.
        found: is called with what was taken over, in the writer's thread.
        dropped: is called with a window and the fields of claims that were ended without being
            crawled, because they have no request.
        wanted: is called when there is more, to find out whether the crawl is hungry.
        looked: is called when that is done, or the crawl may end.
    """

    def __init__(
        self,
        me: Worker,
        spider: str,
        *,
        found: Callable[[Reclaimed], object],
        dropped: Callable[[str, Collection[str]], object],
        wanted: Callable[[], object],
        looked: Callable[[], object],
    ) -> None:
        self._me, self._spider = me, spider
        self._found, self._wanted, self._looked = found, wanted, looked
        self._dropped = dropped
        #: Whether more can be crawled: set by the crawl when it has dealt with what was found.
        self.wants_more = False
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
        self.has_peers = bool(me.shared_queue)
        self._next_beat = self._next_look = self._next_idle = 0.0
        self._crews: dict[str, WorkerView] = {}
        self._sweep: Iterator[Reclaimed] | None = None
        #: Whether the last look met claims whose fate will be clear soon, and whether it was one of
        #: an idle crawl.
        self._is_waiting = self._is_idle_look = False
        #: Since when the crawl has nothing to do, on the server's clock; 0 if it has.
        self._idle_since = 0
        #: When owners without an entry were first met.
        self._met: dict[str, float] = {}
        #: Nonces of calls whose replies did not come.
        self._lost: set[str] = set()
        #: Signs of life when the crawl had nothing to do any more: who shows another one is alive.
        self._proven: dict[str, dict[str, int]] = {}
        self._distrusts_until = 0.0

    def begin(self, filters: Filters) -> None:
        """Show that this worker is alive; look at few claims at once, at more of them in ``run``.

        Called when the crawl opens: where there is nothing to take over, as for most crawls, an
        idle spider then need not wait for the first look.
        """
        self.heartbeat(filters)
        # Before the first link is asked about: these claims would make it "seen".
        self.drop_unkept(filters, [w for w in filters.by_window if self._crews[w].has_lost_workers])
        for window, bloom in filters.by_window.items():
            crew = self._crews[window]
            if crew.dead:
                return
            blocks = bloom.header.blocks if bloom.header else 1
            starts = dict.fromkeys(range(blocks), "0")
            look = partial(claim_protocol.scan_many, cursors=starts, count=max(1, FEW // blocks))
            pages = bloom.run(look).values()
            claims = [claim for page in pages for claim in page.claims]
            if any(page.cursor != "0" or page.damaged for page in pages):
                return
            if any(crew.is_free(claim) or crew.is_to_be_awaited(claim) for claim in claims):
                return
        self.has_looked = True
        self._next_look = time.monotonic() + LOOK_INTERVAL

    def run(self, filters: Filters) -> float:
        """Beat if it is due, and go on looking; return the seconds until there is more to do."""
        is_idle, now = self.is_idle, time.monotonic()  # the crawl may change it at any time
        if not is_idle:
            self._proven.clear()
        is_due = now >= min(self._next_beat, self._next_look)
        if self._sweep is None and (is_due or (is_idle and now >= self._next_idle)):
            self._begin(filters, is_idle=is_idle)
        elif now >= self._next_beat:
            self.heartbeat(filters, is_idle=is_idle)
        if self._sweep is not None:
            self._go_on()
            # Not on what was found before it was idle.
            if self._sweep is None and is_idle and self._is_idle_look:
                self._judge()
        wait = max(0.0, min(self._next_beat, self._next_look) - time.monotonic())
        return min(wait, IDLE_INTERVAL) if is_idle or self._sweep is not None else wait

    def _begin(self, filters: Filters, *, is_idle: bool) -> None:
        """Begin a look at all claims, if there is a reason."""
        self._next_idle = time.monotonic() + IDLE_INTERVAL
        self.heartbeat(filters, is_idle=is_idle)
        if self._has_reason(is_idle=is_idle):
            self._next_look = time.monotonic() + LOOK_INTERVAL
            self._is_waiting, self._is_idle_look = False, is_idle
            self._sweep, self.is_looking = self._look(filters), True
        elif is_idle:
            self._judge()

    def be_busy(self) -> None:
        """The crawl has something to do: what was found out about its end counts no more."""
        self.is_idle = self.may_end = False

    def recovered(self) -> None:
        """Give the others time to come back, before their silence says anything."""
        self._distrusts_until = time.monotonic() + GRACE
        # A look that was cut short is begun anew.
        self._next_beat = self._next_look = 0.0
        self._sweep, self.is_looking = None, False

    def look_soon(self) -> None:
        """Look at all claims as soon as there is time, and before the crawl ends: some are free."""
        self._next_look, self.has_looked = 0.0, False

    def end(self, filters: Filters) -> None:
        """Leave: nobody has to wait for a sign of life any more."""
        for bloom in filters.by_window.values():
            if self.is_leaving_claims:
                bloom.run(
                    partial(
                        claim_protocol.heartbeat,
                        worker=self._me.id,
                        life=0,
                        description=self._me.describe(),
                    )
                )
            else:
                _, entries = bloom.run(claim_protocol.heartbeat)
                entry = entries.get(self._me.id, "")
                bloom.run(
                    partial(
                        claim_protocol.heartbeat, worker=self._me.id, life="", description=entry
                    )
                )

    # -- workers --

    def heartbeat(self, filters: Filters, *, is_idle: bool = False) -> None:
        """Show that this worker is alive, and see who else is."""
        self._next_beat = time.monotonic() + self._me.heartbeat
        for window, bloom in filters.by_window.items():
            now, entries = bloom.run(
                partial(
                    claim_protocol.heartbeat,
                    worker=self._me.id,
                    life=self._me.life,
                    description=self._me.describe(),
                )
            )
            self._crews[window] = self._crew(now, workers.parse_all(entries), is_idle=is_idle)
        self.has_peers |= any(crew.others for crew in self._crews.values())

    def _crew(self, now: int, everybody: dict[str, Worker], *, is_idle: bool) -> WorkerView:
        everybody.pop(self._me.id, None)
        self._idle_since = (self._idle_since or now) if is_idle else 0
        clock = time.monotonic()
        return WorkerView(
            self._me,
            self._spider,
            everybody,
            now,
            idle_since=self._idle_since,
            unknown={owner: clock - met for owner, met in self._met.items()},
            trusts_silence=clock >= self._distrusts_until,
            lost=self._lost,
        )

    def _has_reason(self, *, is_idle: bool) -> bool:
        """Whether there may be something to take over."""
        if time.monotonic() >= self._next_look or any(crew.dead for crew in self._crews.values()):
            return True
        return is_idle and (bool(self._me.shared_queue) or bool(self._met))

    # -- claims --

    def _go_on(self) -> None:
        """Take over the next claims; at the end of all, take note."""
        assert self._sweep is not None  # noqa: S101 - asked before
        if not self.wants_more:
            self._wanted()
            return
        found = next(self._sweep, None)
        if found is not None:
            self.wants_more = False
            self._found(found)
            return
        self._sweep, self.is_looking = None, False
        self.has_looked = self._next_look > 0  # else some have become free behind this look
        self._looked()

    def _look(self, filters: Filters) -> Iterator[Reclaimed]:
        """Look at all claims; yield what was taken over, page by page."""
        self.drop_unkept(filters, [*filters.by_window])
        for window, bloom in filters.by_window.items():
            dead = {worker.id for worker in self._crews[window].dead}
            for block in range(bloom.header.blocks if bloom.header else 0):
                cursor = ""
                while cursor != "0":
                    page = bloom.run(
                        partial(claim_protocol.scan, block=block, cursor=cursor or "0", count=PAGE)
                    )
                    cursor = page.cursor
                    self._note_unknown(self._crews[window], page)
                    yield from self._take_over(bloom, window, block, page)
            for worker in self._crews[window].dead:
                if worker.id in dead:  # all the while
                    entry = f"{worker.until} {worker.describe()}"
                    bloom.run(
                        partial(
                            claim_protocol.heartbeat, worker=worker.id, life="", description=entry
                        )
                    )

    def drop_unkept(self, filters: Filters, windows: Collection[str]) -> None:
        """End all free claims that have no request: nothing can be crawled for them.

        The pages that yielded these requests are free as well, or are start pages. They yield them
        again, and by then they have to be new: so this comes before anything is taken over.
        """
        for window in windows:
            fields = self._drop_unkept(filters.by_window[window], self._crews[window])
            if fields:
                self._dropped(window, fields)
                # Pages of this worker that wait for them will be free soon: look once more.
                self._is_waiting = True
                self.look_soon()

    def _drop_unkept(self, bloom: BloomFilter, crew: WorkerView) -> set[str]:
        dropped = set[str]()
        cursors = dict.fromkeys(range(bloom.header.blocks if bloom.header else 0), "0")
        while cursors:
            pages = bloom.run(partial(claim_protocol.scan_many, cursors=cursors, count=SCAN))
            gone: dict[str, dict[int, list[str]]] = defaultdict(dict)
            for block, page in pages.items():
                for claim in page.claims:
                    if not claim.length and crew.is_unkept_lost(claim):
                        gone[claim.owner].setdefault(block, []).append(claim.field)
                if page.damaged:
                    gone[""][block] = list(page.damaged)
            for owner, fields in gone.items():
                bloom.run(partial(claim_protocol.release_fields, fields=fields, owner=owner))
                dropped.update(*fields.values())
            cursors = {block: page.cursor for block, page in pages.items() if page.cursor != "0"}
        return dropped

    def _note_unknown(self, crew: WorkerView, page: ClaimPage) -> None:
        for claim in page.claims:
            self._is_waiting |= crew.is_to_be_awaited(claim)
            if crew.is_unknown(claim):
                self.has_peers = True
                self._met.setdefault(claim.owner, time.monotonic())

    def _take_over(
        self, bloom: BloomFilter, window: str, block: int, page: ClaimPage
    ) -> Iterator[Reclaimed]:
        free = [claim for claim in page.claims if self._crews[window].is_free(claim)]
        for claims in _bounded([claim for claim in free if claim.length]):
            nonce = secrets.token_hex(4)
            reassign = partial(
                claim_protocol.reassign,
                block=block,
                claims=claims,
                owner=self._me.shared_queue or self._me.id,
                nonce=nonce,
            )
            try:
                requests = bloom.run(reassign)
            except BloomError:
                # Perhaps they are this worker's by now, and it was not told of what.
                self._lost.add(nonce)
                raise
            if requests:
                yield Reclaimed(window, block, requests)

    # -- the end of a crawl --

    def _judge(self) -> None:
        """Let the crawl end, unless it will soon be clear that somebody is dead."""
        waiting = self._is_waiting
        for window, crew in self._crews.items():
            kin = [w for w in crew.others.values() if workers.is_of(w.id, self._spider)]
            proven = self._proven.setdefault(window, {w.id: w.until for w in kin})
            waiting |= any(workers.may_be_dead(worker, proven) for worker in kin)
        if not waiting:
            self.is_idle, self.may_end = False, True
            self._looked()


def _bounded(claims: Sequence[StoredClaim]) -> Iterator[list[StoredClaim]]:
    """Split claims into parts whose requests make a reply of bounded size."""
    part: list[StoredClaim] = []
    for claim in claims:
        if len(part) == PAGE or sum(one.length for one in part) + claim.length > MAX_REPLY:
            yield part
            part = []
        part.append(claim)
    if part:
        yield part
