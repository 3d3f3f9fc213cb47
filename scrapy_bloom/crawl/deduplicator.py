"""The only entry of a crawl: decides which requests are new, one or many at a time."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from scrapy import Request

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.protocol.cached_ring import UNCACHED, UNKEPT_ELSEWHERE, Verdict
from scrapy_bloom.crawl.claims.policy import Lookup
from scrapy_bloom.crawl.identity import Identity, Key
from scrapy_bloom.crawl.lifecycle import Lifecycle
from scrapy_bloom.crawl.local_state import ANY_AGE, FRESH_SECONDS, MAX_RESERVED, Reserved
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.settings import RUN

#: Verdicts of lookups to which the server did not reply.
UNCERTAIN = (None, Verdict.UNKNOWN)


class Deduplicator:
    """Decides which requests of a crawl are new.

    Args:
        crawl: the parts of the crawl; open, before the first decision.
        identity: identifies requests.
        report: counts and warns.
    """

    def __init__(self, crawl: Lifecycle, identity: Identity, report: Report) -> None:
        self._crawl, self._identity, self._report = crawl, identity, report
        self._local, self._connections = crawl.local, crawl.connections
        self._failover, self._clock = crawl.failover, crawl.runtime.monotonic
        self._inc_value, self._names = report.stats.inc_value, report.stats.names
        crawl.answered, crawl.new_among = self._reserve, self.new_among

    def decide(self, request: Request) -> Verdict:
        """Return the verdict on a request that the scheduler is offered; record it if it is new.

        If the server does not answer, the outcome is unknown, and the request is new (once in this
        process), because a page fetched twice is better than a page hidden.

        Raises:
            Exception: what the project's own fingerprinter raises, as from Scrapy's own filter. If
                the request counted as new instead, a site with a loop would be crawled for ever.
        """
        if not request.meta.get("bloom_enabled", True):
            self._crawl.policy.let_pass(request)
            return Verdict.NEW
        key = self._identity.key(request)
        try:
            return self._decide(key, request)
        except Exception as error:
            # A fault of this package: raised from here, it would cost the project the request.
            self._report.failed(request, error)
            is_new = self._local.take(key[1])
            with suppress(Exception):  # the same may be wrong with it
                self._crawl.policy.let_pass(request)
            return Verdict.UNKNOWN if is_new else Verdict.SEEN

    def prepare(self, request: Request, page: Request) -> Lookup | None:
        """Return the lookup of a request that a page yields; None if none is needed.

        It has its verdict if this process knows the URL as seen.

        Args:
            request: the request.
            page: of its page.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        if request.dont_filter or not request.meta.get("bloom_enabled", True):
            return None
        key = self._identity.key(request)
        if self._local.is_reserved(key) and Verdict.NEW in self._crawl.policy.certain:
            return None  # new to whichever page schedules it first; the other knows that
        policy = self._crawl.policy
        if key in policy.doubtful or key in policy.uncertain:
            policy.yields_again(page, key)
        if self._local.has_taken(key[1]):
            return Lookup((RUN, key[1]), request, Verdict.SEEN)
        if key[0] == RUN or self._connections.filters is None:
            return None
        if not self._failover.is_up and not self._crawl.serves(key):
            return None
        return Lookup(key, request, Verdict.SEEN if self._is_seen(key, FRESH_SECONDS) else None)

    async def decide_many(self, lookups: Sequence[Lookup]) -> None:
        """Give lookups their verdicts, if possible without blocking; ``decide`` will know them.

        Never raises.
        """
        batcher = self._connections.lookups
        try:
            if batcher is not None:
                await batcher.look_up(lookups)
        except Exception as error:
            if batcher is self._connections.lookups:  # else the server has been found again since
                self._crawl.fail(error)

    async def new_among(self, requests: Sequence[Request]) -> tuple[list[Request], bool]:
        """Return those of requests, which no page has yielded, that are new: ``decide`` knows them.

        And whether that is known of all. A window "run" has none that are new.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        lookups = [found for one in requests if (found := self.prepare(one, one)) is not None]
        await self.decide_many([lookup for lookup in lookups if lookup.verdict is None])
        known = [lookup for lookup in lookups if lookup.verdict not in UNCERTAIN]
        is_complete = self._failover.is_up and len(known) == len(lookups)
        for lookup in lookups:
            # Else it would be taken for a link of another page when it is looked up again.
            if lookup.verdict in UNCERTAIN and (reserved := self._local.pop(lookup.key)):
                self._crawl.policy.give_back(lookup.key, reserved.verdict, reserved.length)
        return [lookup.request for lookup in known if not lookup.is_duplicate], is_complete

    def count_seen(self, lookup: Lookup) -> None:
        """Count a request that is dropped after its lookup."""
        self._report.count("seen", lookup.key[0])

    def _decide(self, key: Key, request: Request) -> Verdict:
        window, item = key
        is_new = self._crawl.policy.take_claimed(key, request)
        if is_new is not None:
            return Verdict.NEW if is_new else Verdict.SEEN
        known = self._local.pop(key)
        if known is not None:
            return self._use_known(known, key, request)
        if window == RUN:
            self._local.take(item)
            self._crawl.policy.let_pass(request)
            return self._judge(key, Verdict.NEW)
        return self._look_up(key, request)

    def _look_up(self, key: Key, request: Request) -> Verdict:
        connections = self._connections
        assert connections.filters is not None  # noqa: S101 - they are open
        bloom, sent = connections.filters.by_window[key[0]], self._clock()
        block = bloom.session.hasher.block(key[1])
        is_up = self._failover.is_up or self._crawl.serves(key)
        max_age = FRESH_SECONDS if is_up else ANY_AGE
        if self._local.get(key, block, max_age):
            return self._judge(key, Verdict.SEEN)
        if not is_up:
            return self._record_alone(key, request, "offline")
        try:
            verdict = self._crawl.policy.look_up_one(bloom, key, request)
        except BloomError as error:
            # Do not retry: if the call succeeded, a retry would answer "seen" to the owner.
            self._crawl.fail(error, [key])
            if self._is_seen(key, ANY_AGE):
                return self._judge(key, Verdict.SEEN)
            return self._record_alone(key, request, "unknown")
        is_in_flight = connections.lookups is not None and key in connections.lookups.in_flight
        if not is_in_flight and verdict not in UNCACHED:
            # Else it may be "seen" because of that lookup, whose outcome may turn out unknown.
            held = bloom.session.held.get(block)
            self._local.put(key, held, sent, is_certain=verdict in self._crawl.policy.certain)
        return self._judge(key, verdict)

    def _use_known(self, known: Reserved, key: Key, request: Request) -> Verdict:
        """Return the verdict of an earlier lookup, or SEEN of a URL that is recorded here."""
        verdict = known.verdict
        if verdict is Verdict.UNKNOWN:
            return self._record_alone(key, request, "unknown")
        if verdict is Verdict.SEEN:
            return self._judge((RUN, key[1]), verdict)
        if verdict.is_new:
            self._crawl.policy.attach_claim(request, key, known.length)
        return self._judge(key, verdict)

    def _record_alone(self, key: Key, request: Request, stat: str) -> Verdict:
        self._local.take(key[1])
        self._crawl.policy.record_later(key, request)
        if self._crawl.write_behind is not None:
            self._failover.limit(len(self._crawl.write_behind.queue))
        return self._judge(key, Verdict.UNKNOWN, stat)

    def _judge(self, key: Key, verdict: Verdict, stat: str = "") -> Verdict:
        """Count and note a verdict."""
        window, item = key
        if verdict is Verdict.UNRECORDED:
            # Else pages that link each other would be fetched for ever.
            self._local.take(item)
            self._report.count("unrecorded", window)
        self._inc_value(self._names[window, stat or ("new" if verdict.is_new else "seen")])
        self._crawl.policy.decided(key, verdict)
        return verdict

    def _reserve(self, lookups: Sequence[Lookup]) -> None:
        """Keep the verdicts on what is new, or may be, until the scheduler is offered it."""
        for lookup in lookups:
            key, verdict = lookup.key, lookup.verdict
            is_taken = self._local.has_taken(key[1])  # since the lookup began
            if is_taken or (verdict is Verdict.UNKNOWN and self._is_seen(key, ANY_AGE)):
                # Do not retry an unknown one: a retry would answer "seen" to the owner.
                lookup.verdict = Verdict.SEEN
            elif verdict in UNKEPT_ELSEWHERE and self._local.is_reserved(key):
                continue  # of another page, whose request is about to be scheduled
            if lookup.verdict is not None and not lookup.is_duplicate:
                self._local.reserve(key, lookup.verdict, lookup.length)
        for key, old in self._local.pop_oldest_reserved(MAX_RESERVED):
            self._crawl.policy.give_back(key, old.verdict, old.length)

    def _is_seen(self, key: Key, max_age: float) -> bool:
        filters = self._connections.filters
        if filters is None:
            return False
        block = filters.by_window[key[0]].session.hasher.block(key[1])
        return self._local.get(key, block, max_age)

    # -- pages --

    def yields(self, page: Request) -> Callable[[object], None] | None:
        """Return a function for each request and item that a page yields; None for none."""
        return self._crawl.policy.yields(page)

    def lost_link(self, page: Request, error: Exception) -> None:
        """Note that a link of a page is not crawled: the page is crawled again later."""
        self._crawl.policy.raised(page, error)

    def item_failed(self, page: Request, error: BaseException) -> None:
        """Note that a pipeline has raised for an item of a page."""
        self._crawl.policy.raised(page, error, in_pipeline=True)

    def may_close(self) -> bool:
        """Return whether an idle spider may close; if not, the engine is woken later."""
        return self._crawl.write_behind is None or self._crawl.policy.may_close()
