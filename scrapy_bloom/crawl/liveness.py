"""Who is alive, and which claims are free: sends heartbeats, and keeps what their replies say."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil

from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.worker_protocol import MAX_NAMED, ONLY_DEAD, WorkerEntries
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.workers import Worker

#: Seconds after which requests that an empty queue should have count as lost.
ORPHANED_AFTER_SECONDS = 5
#: Stands for all further owners without an entry, where there are too many to note each.
REST = ""
#: Owners without an entry that are noted one by one; the others are noted together.
MAX_UNKNOWN = 1_000
#: Seconds from now of an entry's ``until`` beyond which it is removed if there are too many.
OLD_SECONDS = 86_400
#: Seconds that workers get to send a heartbeat after an outage.
GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class WorkerView:
    """All workers of a filter, as one of them sees them.

    Args:
        me: the worker that looks. Of other spiders' claims, it crawls those only in which its own
            spider has a request.
        others: id -> worker.
        now: Unix time in seconds on the server.
        idle_since: since when the crawl is idle, on the server's clock; 0 if it is not.
        unknown: owner without an entry -> seconds since one of its claims was found.
        trusts_silence: whether workers without a heartbeat count as dead.
        lost: nonces of this worker's calls that may have taken over claims, without a reply.
        awaited: owners of other spiders' claims in which this spider has a request; they change.
        is_partial: whether there are more workers than ``others``: nothing is concluded from the
            absence of one.
        soon: id -> ``until`` of workers that will be dead unless they send a heartbeat; the first
            MAX_NAMED.
        cooldown: seconds that a failed URL waits; 0 if that is not known.
    """

    me: Worker
    others: Mapping[str, Worker]
    now: int
    idle_since: int = 0
    unknown: Mapping[str, float] = field(default_factory=dict)
    trusts_silence: bool = True
    lost: Collection[str] = ()
    awaited: Collection[str] = ()
    is_partial: bool = False
    soon: Mapping[str, int] = field(default_factory=dict)
    cooldown: int = 0

    def is_dead(self, worker: Worker) -> bool:
        """Whether a worker has ended, so that its claims are free."""
        if worker.until == 0:
            # The queue may still have its requests, until it is empty.
            is_in_queue = worker.jobdir and worker.jobdir == self.me.jobdir
            return bool(self.idle_since) or not is_in_queue
        return worker.process.is_gone or (self.trusts_silence and worker.until <= self.now)

    @cached_property
    def _all_dead(self) -> dict[str, Worker]:
        return {name: worker for name, worker in self.others.items() if self.is_dead(worker)}

    @cached_property
    def dead(self) -> list[Worker]:
        """Workers of the spider that are dead: all their claims are free."""
        return [worker for name, worker in self._all_dead.items() if self.is_kin(name)]

    @property
    def has_left_claims(self) -> bool:
        """Whether a worker is dead that had claims for this spider when they were looked at."""
        return bool(self.dead) or any(map(self._is_awaited, self._all_dead))

    @property
    def has_kin(self) -> bool:
        """Whether the spider has other workers."""
        return any(map(self.is_kin, self.others))

    @cached_property
    def _served_queues(self) -> frozenset[str]:
        return frozenset(w.queue for w in self.others.values() if not self.is_dead(w))

    @property
    def has_lost_workers(self) -> bool:
        """Whether workers, of any spider, are dead or have stopped."""
        return bool(self._all_dead) or any(w.until == 0 for w in self.others.values())

    @property
    def may_lose_workers(self) -> bool:
        """Whether a worker may soon turn out to be dead: no heartbeat since the crawl is idle."""
        # A worker with the same heartbeat has shown by then whether it lives.
        if self.is_partial or self.now - self.idle_since > self.me.life:
            return False
        if len(self.soon) >= MAX_NAMED:
            return True
        return any(self._may_be_dead(name) for name in self._soon)

    @property
    def next_death(self) -> int:
        """When the first worker will be dead unless it sends a heartbeat; 0 if none is known."""
        return min((self.soon[name] for name in self._soon), default=0)

    @property
    def _soon(self) -> list[str]:
        return [
            name
            for name in self.soon
            if name != self.me.id and (self.is_kin(name) or self._is_awaited(name))
        ]

    def _may_be_dead(self, name: str) -> bool:
        worker = self.others.get(name)
        if worker is None:  # it is new
            return True
        return workers.may_be_dead(replace(worker, until=self.soon[name]), self.idle_since)

    def is_free(self, claim: StoredClaim) -> bool:
        """Whether no worker will settle a claim."""
        owner = claim.owner
        if owner == self.me.id:
            return claim.nonce in self.lost
        if claim.failed:
            return claim.due(self.now, self.cooldown) <= self.now
        if owner.startswith("q"):
            return self._has_left_queue(claim)
        if owner in self.others:
            return owner in self._all_dead
        known_for = self.unknown.get(owner, self.unknown.get(REST, 0.0))
        return not self.is_partial and known_for >= 2 * self.me.heartbeat

    def is_unkept_lost(self, claim: StoredClaim) -> bool:
        """Whether the request of a claim that is stored without it is lost.

        It is also if its worker has stopped and left its queue in a JOBDIR: Scrapy can rarely
        pickle what JSON cannot hold. If it can, the page may be fetched twice.
        """
        worker = self.others.get(claim.owner)
        has_stopped = worker is not None and worker.until == 0
        return has_stopped or self.is_free(claim)

    def _has_left_queue(self, claim: StoredClaim) -> bool:
        if claim.owner == self.me.shared_queue:
            # A live worker that took it out of the queue would hold it by now. One that was claimed
            # since the queue is empty may lie in it until this worker looks again.
            if not self.idle_since or self.now - self.idle_since < ORPHANED_AFTER_SECONDS:
                return False
            is_older = claim.time <= self.idle_since
            return is_older or self.now - claim.time >= 2 * ORPHANED_AFTER_SECONDS
        return not self.is_partial and claim.owner not in self._served_queues

    def is_to_be_awaited(self, claim: StoredClaim) -> bool:
        """Whether a claim may be free soon."""
        return claim.owner == self.me.shared_queue or self.is_unknown(claim)

    def is_unknown(self, claim: StoredClaim) -> bool:
        """Whether the owner of a claim is a worker without an entry."""
        owner = claim.owner
        is_workers = owner.startswith("w") and owner != self.me.id
        return is_workers and owner not in self.others and not self.is_partial

    def _is_awaited(self, name: str) -> bool:
        if name in self.awaited:
            return True
        queue = self.others[name].shared_queue if name in self.others else ""
        return bool(queue) and queue in self.awaited

    def is_kin(self, owner: str) -> bool:
        """Whether an owner of claims is of the same spider."""
        return workers.owner_tag(owner) == self.me.tag


@dataclass
class KnownWorkers:
    """The workers of a filter as this worker knows them.

    A reply holds all workers only if their set has changed, and the dead in any case. Those that it
    leaves out are alive.

    Attributes:
        version: of the set of workers when it was read.
        by_id: id -> worker.
    """

    version: str = ""
    by_id: dict[str, Worker] = field(default_factory=dict)

    def update(self, found: WorkerEntries) -> None:
        """Note a reply to a heartbeat."""
        listed = workers.parse_all(found.entries)
        if found.is_all:
            self.version, self.by_id = found.version, listed
            return
        for worker in self.by_id.values():
            if worker.until <= found.now and worker.id not in listed:
                # It has sent a heartbeat since, or was removed.
                listed[worker.id] = replace(worker, until=found.now + 1)
        self.by_id.update(listed)


class Heartbeats:
    """Sends heartbeats, and says what the other workers do.

    Args:
        context: what all parts use.
        me: this worker; ``until`` is not used.

    Attributes:
        views: window -> this worker's view of all workers.
        due: when the next heartbeat is due.
        total: number of the workers, at least 1.
        lost: nonces of calls that took claims over, without a reply.
        awaited: owners of other spiders' claims in which this spider has a request, and which were
            not free when they were scanned last.
        met: owner without an entry -> when one of its claims was first found.
    """

    def __init__(self, context: Context, me: Worker) -> None:
        self._me, self._server, self._report = me, context.server, context.report
        self._clock, self._token = context.clock, context.token
        self._cooldown = context.settings.retry_after
        self.views: dict[str, WorkerView] = {}
        self.due, self.total = 0.0, 1
        self.lost: set[str] = set()
        self.awaited: set[str] = set()
        self.met: dict[str, float] = {}
        #: Whether the crawl is idle, and since when, on the server's clock; 0 if that is not known.
        self._is_idle, self._idle_since = False, 0
        #: Until when the silence of workers says nothing.
        self._distrusts_until = 0.0
        self._known: dict[str, KnownWorkers] = {}

    def distrust_silence(self) -> None:
        """Send a heartbeat now; others get some time to send theirs: there was an outage."""
        self._distrusts_until = self._clock() + GRACE_SECONDS
        self.due = 0.0

    def note_unknown(self, owner: str) -> None:
        """Note that a claim was found of an owner without an entry."""
        is_one_more = owner in self.met or len(self.met) < MAX_UNKNOWN
        self.met.setdefault(owner if is_one_more else REST, self._clock())

    async def send(self, *, is_idle: bool) -> bool:
        """Send a heartbeat to each filter; return whether there are other workers of the spider.

        Args:
            is_idle: whether the crawl is idle.
        """
        self.due = self._clock() + self._me.heartbeat
        self._is_idle = is_idle
        if not is_idle:
            self._idle_since = 0
        has_others = False
        for window in self._server.filters.by_window:
            known = self._known.setdefault(window, KnownWorkers())
            found = await self._beat(window, self._me.life, known.version, self._horizon())
            has_others |= await self._note(window, found)
        return has_others

    async def read_again(self) -> None:
        """Read all workers where that tells more than the last heartbeat: a look begins."""
        for window in self._server.filters.by_window:
            # Of a process that is gone, the last heartbeat is not known.
            if self.views[window].is_partial or self._has_gone(window):
                await self._read(window)

    def _has_gone(self, window: str) -> bool:
        """Whether a process is gone of which the server does not know yet."""
        view = self.views[window]
        return any(worker.until > view.now for worker in view.dead)

    async def _read(self, window: str) -> None:
        by = self._horizon()
        found = await self._server.run(window, partial(worker_protocol.heartbeat, by=by))
        await self._note(window, found)

    async def stop(self, window: str) -> None:
        """Note that this worker has stopped and may have left claims in a filter."""
        await self._beat(window, 0, ONLY_DEAD, "0")

    async def leave(self, window: str) -> None:
        """Remove this worker's entry."""
        remove = partial(worker_protocol.remove_workers, entries={self._me.member: ""})
        await self._server.run(window, partial(remove, nonce=self._token(4)))

    async def _beat(self, window: str, life: int, known: str, by: str) -> WorkerEntries:
        """Store this worker's entry: for ``life`` seconds, 0 if it stopped."""
        beat = partial(worker_protocol.heartbeat, member=self._me.member, life=life, by=by)
        return await self._server.run(window, partial(beat, nonce=self._token(4), known=known))

    def _horizon(self) -> str:
        """Return by when dead workers are of interest: see ``worker_protocol.heartbeat``."""
        if not self._is_idle:
            return f"+{ceil(self._me.heartbeat)}"
        return str(self._idle_since + self._me.life) if self._idle_since else f"+{self._me.life}"

    async def _note(self, window: str, found: WorkerEntries) -> bool:
        known, clock = self._known[window], self._clock()
        known.update(found)
        self.total = max(1, found.total)
        if self._is_idle:
            self._idle_since = self._idle_since or found.now
        others = {name: one for name, one in known.by_id.items() if name != self._me.id}
        view = WorkerView(
            self._me,
            others,
            found.now,
            idle_since=self._idle_since,
            unknown={owner: clock - met for owner, met in self.met.items()},
            trusts_silence=clock >= self._distrusts_until,
            lost=self.lost,
            awaited=self.awaited,
            is_partial=found.is_partial,
            soon=found.soon,
            cooldown=self._cooldown,
        )
        self.views[window] = view
        # Of few workers, each watches the others; of many, one is soon there by itself.
        if view.next_death and found.total < self._me.heartbeat:
            self.due = min(self.due, clock + view.next_death - found.now)
        if found.is_partial and found.is_all:
            await self._reduce(window, found, others)
        return view.has_kin or found.is_partial

    async def _reduce(
        self, window: str, found: WorkerEntries, others: Mapping[str, Worker]
    ) -> None:
        """Remove damaged and old entries: there are more than there can be workers."""
        self._report.warn_once(
            "too-many-workers",
            f"Bloom filter {self._server.filters.by_window[window].key!r}: there are "
            f"{found.total:,} workers, more than {worker_protocol.MAX_WORKERS:,}. Does anything "
            "else write to its keys? Old and damaged entries are removed",
        )
        good = {
            worker.member
            for worker in (*others.values(), self._me)
            if worker.id == self._me.id or abs(worker.until - found.now) <= OLD_SECONDS
        }
        old = {member: until for member, until in found.entries.items() if member not in good}
        if old:
            remove = partial(worker_protocol.remove_workers, entries=old, nonce=self._token(4))
            await self._server.run(window, remove)
