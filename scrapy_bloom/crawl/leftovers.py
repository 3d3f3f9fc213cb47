"""Frees the claims that nobody will settle, and picks them up, so that no crash loses a page.

A claim that is free belongs to any link that leads to it, or else to a run with the same arguments.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from math import inf
from secrets import token_hex

from scrapy import Request

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claims import DROPPED, NewClaim, StoredClaim
from scrapy_bloom.bloom.protocol.rings import DEFAULT, parts
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.endings import ONCE
from scrapy_bloom.crawl.offers import Offers
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.roster import Roster
from scrapy_bloom.crawl.writer import Writer
from scrapy_bloom.rules import RUN

logger = logging.getLogger(__name__)

#: Seconds after which requests that an empty queue should have count as lost.
ORPHANED_SECONDS = 5
#: Seconds between scans for URLs that failed and are due, at least.
DUE_SECONDS = 60
#: Seconds for which users can list and retry a page that has failed too often.
GIVEN_UP_SECONDS = 30 * 86_400
#: Blocks that are scanned together.
MAX_SCANNED = 64
#: Pages that a run crawls before it picks anything up, if it isn't idle; and those of its own that
#: it crawls between two turns, and picks up in one.
OWN_PAGES, TURN = 300, 32


class Leftovers:
    """The requests that wait for a run.

    Args:
        context: the objects that all parts use.
        roster: knows who lives.
        writer: writes what is claimed anew.
        offers: puts requests back.

    Attributes:
        is_next: whether the run has done what it does by itself.
        next_due: when a URL that failed is due.
        may_have_more: whether claims may turn out to be free soon.
    """

    def __init__(self, context: Context, roster: Roster, writer: Writer, offers: Offers) -> None:
        self._context, self._roster, self._writer, self._offers = context, roster, writer, offers
        self.is_next, self.next_due, self.may_have_more = False, inf, False
        #: How many claims wait for a run like this one, and those that are being picked up.
        self._waiting = 0
        self._left: AsyncIterator[tuple[int, list[StoredClaim]]] | None = None
        #: From how many pages on a busy run picks up.
        self._turn_at = OWN_PAGES
        #: Nonces of calls that may have taken claims over, without a reply.
        self._lost: set[str] = set()

    # -- claims that nobody will settle --

    async def free(self, idle_since: int = 0) -> Counter[str]:
        """Free all claims that nobody will settle.

        All of them, before the first is picked up: a page must not meet claims of its own requests.

        Args:
            idle_since: since when the crawl is idle, on the server's clock; 0 if it isn't.

        Returns:
            How many requests wait for runs with other arguments, by these.
        """
        self.next_due = inf
        waiting, mine = Counter[str](), self._context.me.arguments
        claims, server = self._context.claims, self._context.server
        async for block, found in self._scan():
            alive = self._roster.owners()
            free = [one for one in found if self._is_free(one, alive, idle_since)]
            if free and (ended := await server.run(claims.leave(block, free))):
                self._context.monitor.count("discarded", count=ended)
            due = [one for one in found if one.waits and self._is_due(one)]
            if useless := [one for one in due if not one.length or one.is_given_up]:
                # A link may have claimed them since.
                fields, owners = zip(*((one.field, one.owner) for one in useless), strict=True)
                await server.run(claims.drop(block, fields, {*owners}))
                self._context.monitor.count("discarded", count=len(useless))
            waiting.update(
                mine if one.arguments is None else one.arguments
                for one in (*free, *due)
                if one.length and not one.is_given_up and not self._is_tried(one)
            )
        self._waiting = waiting.pop(mine, 0)
        return waiting

    def _is_free(self, claim: StoredClaim, alive: set[str], idle_since: int) -> bool:
        """Whether nobody will settle a claim."""
        owner, me = claim.owner, self._context.me
        if claim.waits:
            return False
        if owner == me.id:
            return claim.nonce.partition(":")[0] in self._lost
        if owner == me.queue:
            return idle_since > 0 and self._has_left_queue(claim, idle_since)
        return owner not in alive

    def _has_left_queue(self, claim: StoredClaim, idle_since: int) -> bool:
        """Whether a queue that is empty should have a claim's request.

        A worker that took it out of the queue would hold it by now, unless it died before it wrote
        that. Then its claims on what the request has yielded have to be found free first.
        """
        now, since = self._roster.now, idle_since
        if since < claim.time <= now:  # one that is ahead is from before the clock was corrected
            since = claim.time
        if now - since < ORPHANED_SECONDS or self._roster.may_lose_workers(idle_since):
            self.may_have_more = True
            return False
        return True

    def _is_due(self, claim: StoredClaim) -> bool:
        """Whether a URL that waits is crawled again, or deleted, now; if not, scan again then."""
        left = claim.time - self._roster.now
        if not claim.has_failed or left > self._context.settings.retry_after:
            left = 0  # or it failed while the clock was ahead
        left += GIVEN_UP_SECONDS if claim.is_given_up else 0
        if left > 0:
            self.next_due = min(self.next_due, time.monotonic() + max(DUE_SECONDS, left))
        return left <= 0

    def _is_tried(self, claim: StoredClaim) -> bool:
        """Whether something has dropped a claim's request in this run."""
        return claim.nonce == DROPPED and claim.field in self._offers.pages.endings.dropped

    async def _scan(self) -> AsyncIterator[tuple[int, list[StoredClaim]]]:
        """Yield all claims, a part of a block at a time."""
        spec, roster = self._context.server.bloom.session.spec, self._roster
        for blocks in parts(range(spec.blocks if spec else 0), MAX_SCANNED):
            cursors = dict.fromkeys(blocks, "0")
            while cursors:
                pages = await self._context.server.run(self._context.claims.scan(cursors))
                every = [one for _, _, claims in pages.values() for one in claims]
                owners = {one.owner for one in every if not one.waits}
                if time.monotonic() >= roster.next_beat or owners - roster.known():
                    # A worker has its entry before its first claim. So those without one now have
                    # ended, and the others are newer than the last heartbeat.
                    self.may_have_more |= await roster.beat()
                for block, (_, now, claims) in pages.items():
                    roster.now = now
                    yield block, claims
                cursors = {block: page[0] for block, page in pages.items() if page[0] != "0"}

    # -- picking up --

    @property
    def is_under_way(self) -> bool:
        """Whether something waits that is picked up when there is room."""
        return bool(self._waiting) or self._left is not None

    async def pick_up(self) -> bool:
        """Put back a few requests that wait, as far as there is room; return whether any were."""
        engine, count = self._context.engine, self._offers.handed_out_count
        is_turn = count >= self._turn_at and len(self._offers.queue.picked_up) < TURN
        if engine.is_closing or not (is_turn or (self.is_next and engine.has_room())):
            return False
        if self._waiting and self._left is None:
            text = "Bloom filter: picks up %s pending requests that earlier runs or failures left"
            logger.info(text, f"{self._waiting:,}")
            self._waiting, self._left = 0, self._find()
        if self._left is None:
            return False
        self._turn_at = max(self._turn_at, count + TURN)
        async for block, claims in self._left:
            return await self.take(block, claims)
        self._left = None
        return False

    async def _find(self) -> AsyncIterator[tuple[int, list[StoredClaim]]]:
        """Yield what waits for a run like this one, a few claims at a time."""
        mine = None, self._context.me.arguments
        async for block, claims in self._scan():
            due = [
                one
                for one in claims
                if one.waits and one.arguments in mine and self._is_due(one)
                if one.length and not one.is_given_up and not self._is_tried(one)
            ]
            for part in parts(due, TURN):
                yield block, part

    async def take(
        self, block: int, claims: Sequence[StoredClaim], stat: str = "picked_up"
    ) -> bool:
        """Make claims this worker's, and put their requests into its queue; return whether any."""
        server, operations, nonce = self._context.server, self._context.claims, token_hex(4)
        self._lost.add(nonce)  # until the reply has come, they may be this worker's, or not
        taking = operations.take(block, claims, self._context.me.owner, nonce)
        requests = await server.run(taking)
        self._lost.discard(nonce)
        if self._context.engine.is_closing:  # its queue takes nothing any more: the next run does
            return False
        keys = {one: self._put_back(block, one, text, stat) for one, text in requests.items()}
        unread = [name for name, key in keys.items() if key is None]
        misplaced = self._misplaced(block, keys)
        if stat == "picked_up" and (unread or misplaced):  # living workers may need their own
            await self._writer.flush()  # which may read the filter's header again
            mine = [self._context.me.owner]
            # Those that can't be restored wait again: another run may have their callbacks.
            self._offers.pages.endings.dropped.update(unread)
            await server.run(operations.drop(block, unread, mine, again=True))
            await server.run(operations.drop(block, self._misplaced(block, keys), mine))
        return len(unread) + len(misplaced) < len(keys)

    def _misplaced(self, block: int, keys: Mapping[str, Key | None]) -> list[str]:
        """Return names of claims that belong to other places: the seeds or fingerprints are new."""
        spec = self._context.server.bloom.session.spec
        return [
            name
            for name, key in keys.items()
            if key is not None
            if field_of(key[1]) != name or (spec is not None and spec.hasher.block(key[1]) != block)
        ]

    def _put_back(self, block: int, name: str, text: str, stat: str) -> Key | None:
        """Schedule the request of a claim, and return its key; None if it can't be restored."""
        monitor = self._context.monitor
        try:
            request = request_codec.load(text, self._context.spider)
            key = self._key(name, request)
        except Exception as error:
            monitor.count("unreadable")
            monitor.warn_once(
                "unreadable",
                f"a pending request of another run can't be restored, because {error}, so it "
                "stays pending. Give its callback the old name again, or use `recrawl --callback`",
            )
            return None
        monitor.count(stat, key[0])
        if not self.is_next:  # it's in turns, so it goes out before what the run has found itself
            request.priority = max(request.priority, self._offers.priority + 1)
        try:
            self._offers.restore(request, key, self._context.engine.crawl)
        except Exception:  # it has failed, with a warning; the others are put back
            logger.debug("Bloom filter: %s can't be scheduled", request, exc_info=True)
        if self._misplaced(block, {name: key}):
            self._writer.put(Op(OpKind.CLAIM, NewClaim.of(key, text)))
        return key

    def _key(self, name: str, request: Request) -> Key:
        """Return the key of a claim, by the name of its field."""
        if name.startswith(ONCE.hex()):
            return DEFAULT, bytes.fromhex(name)
        key = self._context.identity.key(request)
        return (DEFAULT, key[1]) if key[0] == RUN else key  # a rule that is newer than the claim
