"""Sends heartbeats, and keeps what their replies say of the other workers."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

from scrapy_bloom.bloom.errors import tagged
from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.worker_protocol import ONLY_DEAD, WorkerEntries
from scrapy_bloom.crawl import pace, workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.liveness import WorkerView
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.sweep import ClaimSweep
from scrapy_bloom.crawl.workers import Worker

logger = logging.getLogger(__name__)

#: Seconds from now of an entry's ``until`` beyond which it is removed if there are too many.
OLD_SECONDS = 86_400


@dataclass
class KnownWorkers:
    """The workers of a filter as this worker knows them.

    A reply holds all workers only if their set has changed, and the dead in any case. Those that it
    leaves out are alive.

    Attributes:
        version: of the set of workers when it was read.
        latest: of the set of workers when it was last heard of.
        next_read: when it may be read again.
        by_id: id -> worker.
    """

    version: str = ""
    latest: str = ""
    next_read: float = 0.0
    by_id: dict[str, Worker] = field(default_factory=dict)

    def update(self, found: WorkerEntries) -> None:
        """Note a reply to a heartbeat."""
        listed = workers.parse_all(found.entries)
        self.latest = found.version
        if found.is_all:
            self.version, self.by_id = found.version, listed
            return
        for worker in self.by_id.values():
            if worker.until <= found.now and worker.id not in listed:
                # It has sent a heartbeat since, or was removed.
                listed[worker.id] = replace(worker, until=found.now + 1)
        self.by_id.update(listed)


class Heartbeats:
    """Sends heartbeats.

    Args:
        context: what all parts use.
        me: this worker; ``until`` is not used.
        server: of the filters.
        sweep: uses the views, and knows of owners without an entry.

    Attributes:
        due: when the next heartbeat is due.
        total: number of the workers, at least 1.
        idle_since: since when the crawl is idle, on the server's clock; 0 if it is not.
        distrusts_until: until when the silence of workers says nothing.
    """

    def __init__(self, context: Context, me: Worker, server: Server, sweep: ClaimSweep) -> None:
        assert context.spider is not None  # noqa: S101 - it is checked before
        self._spider = context.spider.name
        self._me, self._server, self._sweep = me, server, sweep
        self._clock, self._token = context.clock, context.token
        self.due = 0.0
        self.total = 1
        self.idle_since = 0
        self.distrusts_until = 0.0
        self._known: dict[str, KnownWorkers] = {}
        #: Whether there were too many workers.
        self._is_crowded = False

    async def send(self, *, is_idle: bool, reads: bool = False) -> bool:
        """Send a heartbeat to each filter; return whether there are other workers of the spider.

        Args:
            is_idle: whether the crawl is idle.
            reads: read all workers if their set has changed, however many there are.
        """
        self.due = self._clock() + self._me.heartbeat
        has_others = False
        for window in self._server.filters.by_window:
            known = self._known.setdefault(window, KnownWorkers())
            may_read = reads or self._clock() >= known.next_read
            version = known.version if may_read else ONLY_DEAD
            found = await self._beat(window, self._me.life, version, self._horizon(is_idle=is_idle))
            has_others |= await self._note(window, found, is_idle=is_idle)
            if self._has_gone(window) and known.version != known.latest:
                await self._read(window, is_idle=is_idle)  # it may have left in order
        return has_others

    async def read_changed(self, *, is_idle: bool) -> None:
        """Read all workers, of filters where others are known: a look at claims begins."""
        for window in self._server.filters.by_window:
            known, view = self._known[window], self._sweep.views[window]
            has_changed = view.is_partial or known.version != known.latest
            # Of a process that is gone, the last heartbeat is not known.
            if has_changed or self._has_gone(window):
                await self._read(window, is_idle=is_idle)

    def _has_gone(self, window: str) -> bool:
        """Whether a process is gone of which the server does not know yet."""
        view = self._sweep.views[window]
        return any(worker.until > view.now for worker in view.dead)

    async def _read(self, window: str, *, is_idle: bool) -> None:
        by = self._horizon(is_idle=is_idle)
        found = await self._server.run(window, partial(worker_protocol.heartbeat, by=by))
        await self._note(window, found, is_idle=is_idle)

    async def end(self) -> None:
        """Remove this worker's entry or, if it may leave claims, note that it has stopped."""
        remove = worker_protocol.remove_workers
        for window in self._server.filters.by_window:
            if await self._sweep.may_have_own(window):
                await self._beat(window, 0, ONLY_DEAD, "0")
            else:
                entry = {self._me.member: ""}
                leave = partial(remove, entries=entry, nonce=self._token(4))
                await self._server.run(window, leave)

    async def _beat(self, window: str, life: int, known: str, by: str) -> WorkerEntries:
        """Store this worker's entry: for ``life`` seconds, 0 if it stopped."""
        beat = partial(worker_protocol.heartbeat, member=self._me.member, life=life, by=by)
        return await self._server.run(window, partial(beat, nonce=self._token(4), known=known))

    def _horizon(self, *, is_idle: bool) -> str:
        """Return by when dead workers are of interest: see ``worker_protocol.heartbeat``."""
        if not is_idle:
            return f"+{ceil(self._me.heartbeat)}"
        return str(self.idle_since + self._me.life) if self.idle_since else f"+{self._me.life}"

    async def _note(self, window: str, found: WorkerEntries, *, is_idle: bool) -> bool:
        known, clock = self._known[window], self._clock()
        known.update(found)
        if found.is_all:
            known.next_read = clock + pace.read_seconds(found.total)
        self.total = max(1, found.total)
        if is_idle:
            self.idle_since = self.idle_since or found.now
        others = {name: one for name, one in known.by_id.items() if name != self._me.id}
        view = WorkerView(
            self._me,
            self._spider,
            others,
            found.now,
            idle_since=self.idle_since if is_idle else 0,
            unknown={owner: clock - met for owner, met in self._sweep.met.items()},
            trusts_silence=clock >= self.distrusts_until,
            lost=self._sweep.lost,
            awaited=self._sweep.awaited,
            is_partial=found.is_partial,
            soon=found.soon,
            cooldown=self._sweep.cooldown,
        )
        self._sweep.views[window] = view
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
        if not self._is_crowded:
            self._is_crowded = True
            logger.warning(
                tagged(
                    "too-many-workers",
                    "Bloom filter %r: there are %s workers, more than %s. Does anything else write "
                    "to its keys? Claims of workers are taken over as they are found; old and "
                    "damaged entries are removed",
                ),
                self._server.filters.by_window[window].key,
                f"{found.total:,}",
                f"{worker_protocol.MAX_WORKERS:,}",
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
