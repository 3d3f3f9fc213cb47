"""Knows which workers of a spider live, by the heartbeats that they send."""

import time
from typing import NamedTuple

from scrapy_bloom.bloom.protocol.workers import Workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.owners import Worker

#: Seconds between heartbeats while the crawl is idle.
IDLE_SECONDS = 0.5
#: Seconds between heartbeats of a worker that gives requests to idle ones.
SHARING_SECONDS = 1.0
#: Workers from which on these pauses grow, because each heartbeat reads the entries of all.
MANY_WORKERS = 100


class Other(NamedTuple):
    """Another worker as the last heartbeat showed it.

    Args:
        worker: the worker.
        until: the server's time until which it counts as alive.
        is_idle: whether it has nothing to do.
    """

    worker: Worker
    until: int
    is_idle: bool


class Roster:
    """The other workers of a crawl's spider.

    Args:
        context: the objects that all parts use.

    Attributes:
        now: the server's clock at the last heartbeat.
        next_beat: when the next one is due.
        is_idle: whether this worker has nothing to do, as the others are told.
        others: those with an entry.
        alive: names of those that live; the next heartbeat tells whether they have died.
    """

    def __init__(self, context: Context) -> None:
        self._server, self._me = context.server, context.me
        self._workers = Workers(context.claims)
        self._heartbeat = context.settings.heartbeat
        self.now, self.next_beat, self.is_idle = 0, 0.0, False
        self.others: dict[str, Other] = {}
        self.alive: set[str] = set()

    async def beat(self) -> bool:
        """Note that this worker lives, and who else does; return whether claims may be free."""
        pause = SHARING_SECONDS if self._me.group else self._heartbeat
        pause = IDLE_SECONDS if self.is_idle else pause
        pause *= max(1.0, len(self.others) / MANY_WORKERS)
        self.next_beat = time.monotonic() + min(pause, self._heartbeat)
        known, before = self.others.keys(), self.alive
        beat = self._workers.beat(self._me.member, self._me.life, is_idle=self.is_idle)
        self.now, entries = await self._server.run(beat)
        workers = {member: Worker.parse(member) for member in entries}
        self.others = {
            one.id: Other(one, *entries[member])
            for member, one in workers.items()
            if one is not None and one.id != self._me.id
        }
        self.alive = {
            name
            for name, (worker, until, _) in self.others.items()
            if worker.lives(until, self.now)
        }
        has_died = before - self.alive  # or it has ended, and left claims
        return bool(has_died or (self.is_idle and self.others.keys() - known))

    async def leave(self) -> None:
        """Remove this worker's entry: its claims are free."""
        await self._server.run(self._workers.beat(self._me.member, 0))

    def owners(self) -> set[str]:
        """Return whose claims aren't free: those of workers that live, and of their queues.

        The own group's are: no busy worker is left, or this one has just begun.
        """
        workers = [self._me, *(self.others[name].worker for name in self.alive)]
        owners = {name for one in workers for name in (one.id, one.queue, one.group)}
        return owners - {self._me.group}

    def known(self) -> set[str]:
        """Return the owners of claims that are known, alive or not."""
        return self.owners() | self.others.keys() | {self._me.group}

    def count_alike(self, *, idle: bool) -> int:
        """Return how many living workers that share work with this one are idle, or busy."""
        alike = [self.others[name] for name in self.alive] if self._me.group else []
        return sum(one.worker.group == self._me.group and one.is_idle is idle for one in alike)

    def may_lose_workers(self, since: int) -> bool:
        """Whether a worker may turn out to have stopped: no heartbeat since then."""
        return any(
            self.others[name].until <= since + self._me.life and not self._is_near(name)
            for name in self.alive
        )

    def _is_near(self, name: str) -> bool:
        return self.others[name].worker.place == self._me.place != ""
