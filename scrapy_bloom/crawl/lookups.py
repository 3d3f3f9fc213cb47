"""Looks requests up together, before the scheduler is offered them.

One round trip at a time is under way, for all callers that have come together. A request that is
new is claimed by it, and its lookup is kept until the scheduler is offered the request.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from scrapy import Request

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.protocol.claims import NewClaim
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.session import Key, Verdict
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.offers import Offers
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.rule import Known
from scrapy_bloom.rules import RUN

#: Verdicts kept for requests that the scheduler has not been offered yet.
MAX_RESERVED = 100_000
_KNOWN = {
    Verdict.SEEN: Known.RECORDED,
    Verdict.CLAIMED: Known.STORED,
    Verdict.UNSTORED: Known.ELSEWHERE,
    Verdict.FAILED: Known.FAILED,
    Verdict.ASTRAY: Known.ASTRAY,
}


@dataclass(slots=True)
class Lookup:
    """A request that is looked up.

    Args:
        key: its key.
        request: the request.
        verdict: None until the server was asked.
        known: about its URL; None if it's new.
        claim: that is made if it's new; None until it's about to be asked for.
    """

    key: Key
    request: Request
    verdict: Verdict | None = None
    known: Known | None = None
    claim: NewClaim | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the request is stored with its claim."""
        return self.claim is not None and self.claim.request != ""

    @property
    def is_duplicate(self) -> bool:
        """Whether the request is dropped."""
        return self.known is not None


class Lookups:
    """Looks requests up.

    Args:
        context: the objects that all parts use.
        put: queues an op.
        offers: to the scheduler; None if a URL counts as seen once its request is scheduled.

    Attributes:
        reserved: lookups of requests that the scheduler hasn't been offered yet.
    """

    def __init__(self, context: Context, put: Callable[[Op], None], offers: Offers | None) -> None:
        self._context, self._outage = context, context.server.outage
        self._local, self._identity = context.local, context.identity
        self._put, self._offers = put, offers
        #: Claims in progress here without a stored request.
        self._here = {} if offers is None else offers.pages.endings.here
        self.reserved: dict[Key, Lookup] = {}
        #: Lookups of the next round, with the futures of those who wait for them; the rounds under
        #: way, and the keys of the current one.
        self._next: list[tuple[Sequence[Lookup], asyncio.Future[None]]] = []
        self._rounds: asyncio.Task[None] | None = None
        self._asked: set[Key] = set()

    def prepare(self, request: Request) -> Lookup | None:
        """Return the lookup of a request that is yielded; None if none is needed.

        It has its verdict if this process knows the URL as seen.

        Raises:
            Exception: the project's own fingerprinter has raised it.
        """
        if request.dont_filter or not request.meta.get("bloom_enabled", True):
            return None
        key = self._identity.key(request)
        if key in self.reserved:
            return None  # new to whichever page schedules it first
        if known := self.known(key):
            return Lookup(key, request, known=known)
        return Lookup(key, request) if key[0] != RUN and self._outage.is_up else None

    def known(self, key: Key) -> Known | None:
        """Return what this process knows of a URL."""
        if self._here and key in self._here:
            return Known.HERE
        return self._local.known(key, is_up=self._outage.is_up)

    def claim_of(self, lookup: Lookup) -> NewClaim:
        """Return the claim of a lookup's request, which is stored as it was when it first could."""
        claim = lookup.claim
        if claim is None or not claim.request:
            text = "" if self._offers is None else self._offers.text_of(lookup.request)
            claim = lookup.claim = NewClaim.of(lookup.key, text)
        return claim

    def look_up_now(self, lookup: Lookup) -> None:
        """Give a lookup its verdict, blocking."""
        verdict = Verdict.UNKNOWN
        try:
            (verdict,) = self._context.server.run_now(self._operation([lookup]))
        except BloomError as error:
            self._outage.fail(error)
        self._answer(lookup, verdict)

    def look_up(self, lookups: Sequence[Lookup]) -> asyncio.Future[None]:
        """Give lookups their verdicts: one round at a time, for all that have come together."""
        done = asyncio.get_running_loop().create_future()
        self._next.append((lookups, done))
        if self._rounds is None:
            self._rounds = asyncio.ensure_future(self._run_rounds())
        return done  # if this caller is cancelled, the others still get their verdicts

    async def _run_rounds(self) -> None:
        """Run rounds as long as somebody waits for one."""
        while self._next:
            asked, self._next = [one for one in self._next if not one[1].cancelled()], []
            failure: Exception | None = None
            try:
                await self._run_round([one for lookups, _ in asked for one in lookups])
            except Exception as error:  # the callers' pages have failed
                failure = error
            for _, done in asked:
                if not done.done():
                    done.set_exception(failure) if failure else done.set_result(None)
        self._rounds = None

    async def _run_round(self, lookups: Sequence[Lookup]) -> None:
        self._asked = {one.key for one in lookups}
        verdicts: list[Verdict] = [Verdict.UNKNOWN] * len(lookups)
        try:
            if self._outage.is_up:
                verdicts = await self._context.server.run(self._operation(lookups))
        except BloomError as error:
            self._outage.fail(error)
        finally:
            self._asked = set()
            for lookup, verdict in zip(lookups, verdicts, strict=True):
                self._answer(lookup, verdict)
                if not lookup.is_duplicate:
                    self.reserved[lookup.key] = lookup
                    if self._offers is not None and not lookup.is_stored:
                        self._here.setdefault(lookup.key, [])
            self.give_back(MAX_RESERVED)

    def _answer(self, lookup: Lookup, verdict: Verdict) -> None:
        """Give a lookup its verdict."""
        key = lookup.key
        lookup.verdict, lookup.known = verdict, _KNOWN.get(verdict)
        if verdict is Verdict.UNKNOWN:
            lookup.known = self._local.known(key, is_up=False)
        elif verdict is Verdict.UNSTORED:
            lookup.known = self.known(key) or Known.ELSEWHERE
        elif verdict is Verdict.SEEN and key not in self._asked:
            # One that is being asked for may be known from that question, whose reply can be lost.
            self._local.see(key)

    def give_back(self, most: int) -> None:
        """End the oldest claims of requests that were never scheduled, until so many are left."""
        while len(self.reserved) > most:
            key = next(iter(self.reserved))
            verdict = self.reserved.pop(key).verdict
            self._local.forget(key)
            if self._offers is not None:
                self._offers.pages.endings.lose(key)
                if verdict is not Verdict.UNKNOWN:
                    self._put(Op(OpKind.DROP, NewClaim(key)))

    async def finish(self) -> None:
        """Wait for the rounds of callers; end claims of requests that were never scheduled."""
        if self._rounds is not None:
            await asyncio.wait({self._rounds})
        self.give_back(0)

    def _operation(self, lookups: Sequence[Lookup]) -> Operation[list[Verdict]]:
        """Return what looks requests up, and claims or records those that are new."""
        claims, me = self._context.claims, self._context.me
        if self._offers is None:
            return claims.session.add([one.key for one in lookups])
        return claims.claim([*map(self.claim_of, lookups)], me.owner, me.id)

    @contextmanager
    def answering(self, lookup: Lookup) -> Iterator[None]:
        """Answer with a verdict, if the project's own dupefilter asks for it meanwhile."""
        self.reserved.setdefault(lookup.key, lookup)  # another page's claim comes first
        try:
            yield
        finally:
            if self.reserved.get(lookup.key) is lookup:
                del self.reserved[lookup.key]
