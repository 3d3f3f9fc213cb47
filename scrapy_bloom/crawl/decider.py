"""The only entry of a crawl: decides which requests are new, one or many at a time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from scrapy import Request

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.protocol.cached_ring import UNCACHED, UNKEPT_ELSEWHERE, CachedRing, Verdict
from scrapy_bloom.bloom.protocol.membership import add
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.local_state import ANY_AGE, FRESH_SECONDS, MAX_RESERVED, Reserved
from scrapy_bloom.crawl.lookups import Lookup, LookupBatcher
from scrapy_bloom.crawl.writer import Writer
from scrapy_bloom.fingerprinter import VERSIONED, Key, base_of
from scrapy_bloom.settings import RUN

#: Verdicts of lookups to which the server did not reply.
UNCERTAIN = (None, Verdict.UNKNOWN)
#: Those after which a URL stays seen, where it counts as seen once it is scheduled.
SEEN_FOR_GOOD = frozenset((Verdict.SEEN, Verdict.NEW))
#: Returns those of requests that are new, with their claims made, and whether it is known of all.
NewAmong = Callable[[Sequence[Request]], Awaitable[tuple[list[Request], bool]]]


class Decider:
    """Decides which requests of a crawl are new.

    Args:
        context: what all parts use.
        identity: identifies requests.
        writer: pauses the crawl.
        claims: of the crawl; None if a URL counts as seen once its request is scheduled.
    """

    def __init__(
        self, context: Context, identity: Identity, writer: Writer, claims: Claims | None
    ) -> None:
        self._report, self._clock, self._server = context.report, context.clock, context.server
        self._local, self._jobs = context.local, context.jobs
        self._identity, self._writer, self._claims = identity, writer, claims
        blooms = self._server.filters.by_window
        self._sessions = {window: bloom.session for window, bloom in blooms.items()}
        self._certain = SEEN_FOR_GOOD if claims is None else claims.certain
        stats = context.report.stats
        self._inc_value, self._names = stats.inc_value, stats.names
        self.lookups = LookupBatcher(
            self._server, self._operation, self._answered, self._reserve, context.clock
        )

    # -- one request --

    def decide(self, request: Request) -> Verdict:
        """Return the verdict on a request that the scheduler is offered; record it if it is new.

        If the server does not answer, the outcome is unknown, and the request is new (once in this
        process), because a page fetched twice is better than a page hidden.

        Raises:
            Exception: what the project's own fingerprinter raises, as from Scrapy's own filter. If
                the request counted as new instead, a site with a loop would be crawled for ever.
        """
        if not request.meta.get("bloom_enabled", True):
            self._let_pass(request)
            return Verdict.NEW
        key = self._identity.key(request)
        try:
            return self._decide(key, request)
        except Exception as error:
            # A fault of this package: raised from here, it would cost the project the request.
            self._report.failed(request, error)
            is_new = self._local.take(key[1])
            with suppress(Exception):  # the same may be wrong with it
                self._let_pass(request)
            return Verdict.UNKNOWN if is_new else Verdict.SEEN

    def _let_pass(self, request: Request) -> None:
        if self._claims is not None:
            self._claims.let_pass(request)

    def _decide(self, key: Key, request: Request) -> Verdict:
        window, item = key
        if self._claims is not None and self._claims.tracker.offer.inherited:
            verdict = self._claims.take_claimed(key, request)
            if verdict is not None:
                return verdict
        known = self._local.pop(key)
        if known is not None:
            return self._use_known(known, key, request)
        if window == RUN:
            self._local.take(item)
            self._let_pass(request)
            return self._judge(key, Verdict.NEW)
        return self._look_up(key, request)

    def _look_up(self, key: Key, request: Request) -> Verdict:
        window, item = key
        block, sent = self._sessions[window].hasher.block(item), self._clock()
        is_up = self._server.is_up or self._server.serves(key)
        if self._local.get(key, block, FRESH_SECONDS if is_up else ANY_AGE):
            return self._judge(key, Verdict.SEEN)
        if not is_up:
            return self._record_alone(key, request, "offline")
        try:
            verdict = self._look_up_now(key, request)
        except BloomError as error:
            # Do not retry: if the call succeeded, a retry would answer "seen" to the owner.
            self._server.fail(error, [key])
            if self._local.get(key, block, ANY_AGE):
                return self._judge(key, Verdict.SEEN)
            return self._record_alone(key, request, "unknown")
        if key not in self.lookups.in_flight:
            # Else it may be "seen" because of that lookup, whose outcome may turn out unknown.
            self._cache(key, self._sessions[window].held.get(block), verdict, sent)
        return self._judge(key, verdict)

    def _look_up_now(self, key: Key, request: Request) -> Verdict:
        """Look up a request, and record or claim it if it is new, in one blocking round trip."""
        bloom, item = self._server.filters.by_window[key[0]], key[1]
        if self._claims is not None:
            return self._claims.look_up_one(bloom, key, request)
        return bloom.run_one(item, CachedRing.add_one, partial(add, items=[item]))

    def _use_known(self, known: Reserved, key: Key, request: Request) -> Verdict:
        """Return the verdict of an earlier lookup, or SEEN of a URL that is recorded here."""
        verdict = known.verdict
        if verdict is Verdict.UNKNOWN:
            return self._record_alone(key, request, "unknown")
        if verdict is Verdict.SEEN:
            return self._judge((RUN, key[1]), verdict)
        if verdict.is_new and self._claims is not None:
            self._claims.tracker.attach_claim(request, key, known.length)
        return self._judge(key, verdict)

    def _record_alone(self, key: Key, request: Request, stat: str) -> Verdict:
        """Record a request here, and in the filter later."""
        self._local.take(key[1], is_late=True)
        if self._claims is None:
            self._jobs.put(Job(JobKind.RECORD, *key))
        else:
            self._claims.record_later(key, request)
        self._writer.pause_if_full()
        return self._judge(key, Verdict.UNKNOWN, stat)

    def _judge(self, key: Key, verdict: Verdict, stat: str = "") -> Verdict:
        """Count and note a verdict."""
        window, item = key
        if verdict is Verdict.UNRECORDED:
            # Else pages that link each other would be fetched for ever.
            self._local.take(item)
            self._report.count("unrecorded", window)
        self._inc_value(self._names[window, stat or ("new" if verdict.is_new else "seen")])
        if self._claims is not None:
            self._claims.decided(key, verdict)
        elif verdict is Verdict.NEW and item.startswith(VERSIONED):
            # The URL of a version is recorded a moment later, in no further call.
            self._jobs.put(Job(JobKind.BASE, window, base_of(item) or b""))
            self._local.versions.crawled(key)
        return verdict

    # -- the requests that a page yields --

    def prepare(self, request: Request) -> Lookup | None:
        """Return the lookup of a request that a page yields; None if none is needed.

        It has its verdict if this process knows the URL as seen.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        if request.dont_filter or not request.meta.get("bloom_enabled", True):
            return None
        key = self._identity.key(request)
        if self._local.is_reserved(key) and Verdict.NEW in self._certain:
            return None  # new to whichever page schedules it first; the other knows that
        if self._local.has_taken(key[1]):
            return Lookup((RUN, key[1]), request, Verdict.SEEN)
        if key[0] == RUN or not self._server.serves(key):
            return None
        return Lookup(key, request, Verdict.SEEN if self._is_seen(key, FRESH_SECONDS) else None)

    async def decide_many(self, lookups: Sequence[Lookup]) -> None:
        """Give lookups their verdicts without blocking; ``decide`` will know them. Never raises."""
        epoch = self._server.epoch
        try:
            await self.lookups.look_up(lookups)
        except Exception as error:
            # Else the server has failed, and been found again, since.
            if self._server.epoch == epoch or not self._server.is_up:
                self._server.fail(error)

    async def new_among(self, requests: Sequence[Request]) -> tuple[list[Request], bool]:
        """Return those of requests, which no page has yielded, that are new: ``decide`` knows them.

        And whether that is known of all. A window "run" has none that are new.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        lookups = [found for one in requests if (found := self.prepare(one)) is not None]
        await self.decide_many([lookup for lookup in lookups if lookup.verdict is None])
        known = [lookup for lookup in lookups if lookup.verdict not in UNCERTAIN]
        is_complete = self._server.is_up and len(known) == len(lookups)
        for lookup in lookups:
            # Else it would be taken for a link of another page when it is looked up again.
            if lookup.verdict in UNCERTAIN and (reserved := self._local.pop(lookup.key)):
                self._give_back(lookup.key, reserved)
        return [lookup.request for lookup in known if not lookup.is_duplicate], is_complete

    def count_seen(self, lookup: Lookup) -> None:
        """Count a request that is dropped after its lookup."""
        self._report.count("seen", lookup.key[0])

    def _operation(
        self, lookups: Sequence[Lookup]
    ) -> Callable[[FilterSession], Operation[list[Verdict]]]:
        if self._claims is not None:
            return self._claims.look_up(lookups)
        return partial(add, items=[lookup.key[1] for lookup in lookups])

    def _answered(
        self,
        lookups: Sequence[Lookup],
        verdicts: Sequence[Verdict],
        sent: float,
        held: Mapping[int, CachedRing],
    ) -> None:
        """Note the verdicts of one window; those that are unknown stay so."""
        for lookup, verdict in zip(lookups, verdicts, strict=True):
            if verdict is not Verdict.UNKNOWN:
                lookup.verdict = verdict
                block = self._server.block_of(lookup.key)
                now = self._sessions[lookup.key[0]].held.get(block)
                self._cache(lookup.key, _unchanged(held.get(block), now), verdict, sent)
        if self._claims is not None:
            self._claims.answered(lookups)

    def _reserve(self, lookups: Sequence[Lookup]) -> None:
        """Keep the verdicts on what is new, or may be, until the scheduler is offered it."""
        for lookup in lookups:
            key, verdict = lookup.key, lookup.verdict
            if self._local.has_taken(key[1]) and verdict is not None:  # since the lookup began
                if self._local.is_over(key[1]):  # its page was crawled, and not recorded
                    self._give_back(key, Reserved(verdict, lookup.length))
                lookup.verdict = Verdict.SEEN
            elif verdict is Verdict.UNKNOWN and self._is_seen(key, ANY_AGE):
                # Do not retry: a retry would answer "seen" to the owner.
                lookup.verdict = Verdict.SEEN
            elif verdict in UNKEPT_ELSEWHERE and self._local.is_reserved(key):
                continue  # of another page, whose request is about to be scheduled
            if lookup.verdict is not None and not lookup.is_duplicate:
                self._local.reserve(key, lookup.verdict, lookup.length)
        self.give_back_reserved(MAX_RESERVED)

    def give_back_reserved(self, most: int) -> None:
        """End the oldest claims of requests that were never scheduled, until so many are left."""
        for key, reserved in self._local.pop_oldest_reserved(most):
            self._give_back(key, reserved)

    def _give_back(self, key: Key, reserved: Reserved) -> None:
        if self._claims is not None:
            self._claims.give_back(key, reserved.verdict, reserved.length)

    # -- what this process knows --

    def _is_seen(self, key: Key, max_age: float) -> bool:
        return self._local.get(key, self._server.block_of(key), max_age)

    def _cache(self, key: Key, held: CachedRing | None, verdict: Verdict, sent: float) -> None:
        if verdict not in UNCACHED:
            self._local.put(key, held, sent, is_certain=verdict in self._certain)


def _unchanged(asked: CachedRing | None, held: CachedRing | None) -> CachedRing | None:
    """Return a block's ring; None if it has changed since it was asked.

    The reply may be of either then: this operation, or another one, has rotated it.
    """
    return held if asked and held and asked.version == held.version else None
