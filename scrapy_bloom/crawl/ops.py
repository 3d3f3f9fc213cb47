"""Has what a crawl writes: ops, and how they are applied. A second time, they change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

from scrapy_bloom.bloom.protocol.claims import FAILED, NewClaim
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.context import Context


class OpKind(IntEnum):
    """What an op does to a URL. Of ops of different URLs, those of smaller kinds come first."""

    #: Claim a URL whose lookup got no reply, or could not be sent.
    CLAIM = auto()
    #: Claim a request that is not looked up.
    KEEP = auto()
    #: Make a claim this worker's: its request has come out of a queue that others use.
    OWN = auto()
    #: Record a URL that was scheduled.
    ADD = auto()
    #: Let a URL wait, because it failed; or because its callback has closed the spider.
    FAIL = auto()
    STOP = auto()
    #: Crawl a URL again, because the server may have lost requests of its page.
    REPEAT = auto()
    #: Leave a crawled page to the next run, because the server has lost a part of the filter.
    STAY = auto()
    #: End the claim of a dropped request. It waits again if it has waited: other runs may crawl it.
    DROP = auto()
    #: End a claim.
    RELEASE = auto()
    #: Record a page that was crawled, and end its claim.
    CONFIRM = auto()


@dataclass(slots=True)
class Op:
    """A queued write.

    Args:
        kind: its effect.
        claim: that is made, changed or ended.
        epoch: of the server, in which its page left the scheduler.
    """

    kind: OpKind
    claim: NewClaim
    epoch: int = 0

    @property
    def key(self) -> Key:
        """The URL's key."""
        return self.claim.key


class Applier:
    """Applies ops.

    Args:
        context: the objects that all parts use.
    """

    def __init__(self, context: Context) -> None:
        self._server, self._outage = context.server, context.server.outage
        self._claims, self._me = context.claims, context.me
        self._local, self._monitor = context.local, context.monitor
        self._retry_after, self._shares_queue = context.settings.retry_after, context.shares_queue

    async def apply(self, batch: Sequence[Op]) -> None:
        """Apply ops; a second time changes nothing.

        Raises:
            StorageError: the server failed.
        """
        losses = self._server.bloom.session.losses
        for op in batch:
            if op.kind is not OpKind.CONFIRM or op.epoch >= self._outage.lost:
                continue
            # The server may have lost claims on the page's links.
            self._monitor.count("repeated", op.key[0])
            op.kind, reason = OpKind.STAY, "lost-by-server"
            if op.epoch < self._outage.restarted or self._shares_queue:
                op.kind, reason = OpKind.REPEAT, "server-restarted"
                self._local.forget(op.key)
            op.claim = op.claim._replace(nonce=reason)
        for kind in OpKind:
            same = [op for op in batch if op.kind is kind]
            if same:
                await self._apply_kind(kind, same, losses)

    async def _apply_kind(self, kind: OpKind, ops: Sequence[Op], losses: int) -> None:
        claims, run, keys = self._claims, self._server.run, [op.key for op in ops]
        owner, made = self._me.owner, [op.claim for op in ops]
        owners = self._me.id, owner
        if kind is OpKind.CLAIM:
            await run(claims.claim(made, owner, self._me.id))
            self._remembered_late(keys)
        elif kind is OpKind.ADD:
            await run(claims.session.add(keys))
            self._remembered_late(keys)
        elif kind is OpKind.KEEP:
            await run(claims.keep(made, owner, self._me.id))
        elif kind is OpKind.OWN:
            await run(claims.own(keys, self._me.id))
        elif kind in (OpKind.DROP, OpKind.RELEASE):
            await run(claims.release(keys, owners, again=kind is OpKind.DROP))
        elif kind is OpKind.CONFIRM:
            await self._wait_for_replicas(len(ops))
            await run(claims.confirm(keys, owners, self._outage.process, losses))
        else:
            seconds = self._retry_after if kind is OpKind.FAIL else 0
            attempts = int(kind in (OpKind.FAIL, OpKind.STOP))
            has = self._me.id if kind is OpKind.STAY else f"{FAILED}.{self._me.arguments}"
            # The page that yields a request again that isn't stored may be another worker's.
            ends = bool(self._me.queue)
            await run(claims.wait(made, has, seconds, attempts=attempts, ends_unstored=ends))
            for op in ops:
                self._local.late.pop(op.key[1], None)

    async def _wait_for_replicas(self, pages: int) -> None:
        """Let replicas have the claims on pages' links before the pages are recorded."""
        if reason := await self._server.wait_for_replicas():
            self._monitor.count("unreplicated", count=pages)
            message = (
                f"too few replicas have a page's links ({reason}), so the page is remembered "
                "without them. Check the replicas, or raise BLOOM_TIMEOUT"
            )
            self._monitor.warn_once("unreplicated", message)

    def _remembered_late(self, keys: Sequence[Key]) -> None:
        if count := sum(map(self._local.stored_late, keys)):
            self._monitor.count("remembered_late", count=count)
