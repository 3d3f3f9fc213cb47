"""Decides which claims are free, from the entries of all workers. No I/O but a look at /proc."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.worker_protocol import MAX_NAMED
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.workers import Worker

#: Seconds after which requests that an empty queue should have count as lost.
ORPHANED_AFTER_SECONDS = 5
#: Stands for all further owners without an entry, where there are too many to note each.
REST = ""


@dataclass(frozen=True)
class WorkerView:
    """All workers of a filter, as one of them sees them.

    Args:
        me: the worker that looks.
        spider: name of its spider: of other spiders' claims, it crawls those only in which it has a
            request of its own.
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
    spider: str
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
        return workers.is_of(owner, self.spider)
