"""The only entry of a crawl: decides which requests are new, one or many at a time."""

from collections.abc import Callable, Sequence

from scrapy import Request, Spider
from scrapy.crawler import Crawler

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, shown
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl.claims.crawled import RecordWhenCrawled
from scrapy_bloom.crawl.claims.policy import Lookup, Policy, RecordWhenScheduled
from scrapy_bloom.crawl.claims.queues import Queue
from scrapy_bloom.crawl.connections import Connections
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Identity, Key
from scrapy_bloom.crawl.local_state import (
    ANY_AGE,
    FRESH_SECONDS,
    MAX_RESERVED,
    LocalState,
    Reserved,
)
from scrapy_bloom.crawl.opening import OPENING_SECONDS, Opening
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import InMain, Runtime
from scrapy_bloom.crawl.write_behind import WriteBehind
from scrapy_bloom.settings import CRAWLED, RUN, BloomSettings


class Deduplicator:
    """Decides which requests of a crawl are new.

    Args:
        crawler: the running crawler.
        settings: its settings.
        report: counts and warns.
        spider: the spider; None for the crawler's, when the filters are opened.
        runtime: time, chance and threads.
    """

    def __init__(
        self,
        crawler: Crawler,
        settings: BloomSettings,
        report: Report,
        spider: Spider | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._crawler, self._settings, self._report = crawler, settings, report
        self._spider, self._runtime = spider, runtime or Runtime()
        self.identity = Identity(crawler, settings, report)
        self.engine = EngineAdapter(crawler)
        self._local = LocalState(
            settings.cache_size, 2 * settings.heartbeat, self._runtime.monotonic
        )
        self.connections = Connections(
            settings,
            crawler.settings,
            self.identity.fingerprinter,
            report=report,
            local=self._local,
            runtime=self._runtime,
        )
        self._failover = Failover(
            self.engine,
            report,
            self._local,
            settings.on_redis_error,
            use=self._use,
            forget=self.connections.forget,
        )
        self._policy: Policy
        self._clock = self._runtime.monotonic
        self._inc_value, self._names = report.stats.inc_value, report.stats.names
        #: None before the filters are opened, and after they are closed.
        self._write_behind: WriteBehind | None = None

    # -- the life of a crawl --

    def open(self, patience: float = OPENING_SECONDS) -> Filters:
        """Connect, read or create the filters, and start the background thread.

        Args:
            patience: seconds to wait for a server that is slow or loading its data.

        Raises:
            BloomError: a setting cannot work, or the server cannot be used.
        """
        opening = Opening(patience, runtime=self._runtime)
        filters = self.connections.open(opening)
        in_main = self._runtime.to_main()
        self._policy = self._failover.policy = self._make_policy(in_main)
        self._write_behind = WriteBehind(
            self.connections.connector(in_main),
            in_main,
            self._failover,
            claims=self._policy.claims,
            task=self._policy.task,
            runtime=self._runtime,
        )
        self._policy.start(filters, self._write_behind, opening)
        self._use(filters)
        return filters

    def _make_policy(self, in_main: InMain) -> Policy:
        if self._settings.remember != CRAWLED:
            return RecordWhenScheduled()
        spider = self._spider or self._crawler.spider
        if spider is None:
            raise ConfigurationError(
                'BLOOM_REMEMBER = "crawled" needs the spider when the filter is opened, and the '
                "crawler has none: set crawler.spider, or build the filter with from_spider"
            )
        return RecordWhenCrawled(
            spider,
            self._settings,
            Queue.of(self._crawler.settings),
            engine=self.engine,
            failover=self._failover,
            report=self._report,
            take=self._local.take,
            forget=self.connections.forget,
            in_main=in_main,
            runtime=self._runtime,
        )

    @property
    def is_open(self) -> bool:
        """Whether the filters are open."""
        return self._write_behind is not None

    @property
    def follows_outputs(self) -> bool:
        """Whether the outputs of callbacks pass through ``outputs.py``."""
        return bool(self._settings.batch) or self._policy.follows_outputs

    @property
    def is_busy(self) -> bool:
        """Whether a round of lookups is under way, without blocking."""
        return self.connections.lookups is not None and self.connections.lookups.is_busy

    def clear(self) -> None:
        """Forget everything; under "crawled" only what is claimed, as scrapy-redis's queue goes."""
        filters = self.connections.filters
        for bloom in filters.by_window.values() if filters else ():
            bloom.clear(claims_only=self._policy.clears_claims_only)
            self._report.cleared(bloom)
        self._local.clear()

    async def aclose(self) -> None:
        """Close after the round that is under way, so that what it claims is given back."""
        if self.is_open:
            self._policy.stop()
        await self.connections.close_lookups()
        self.close()

    def close(self) -> None:
        """Write what is queued, and close the connections that block."""
        self._failover.is_over = True
        write_behind, self._write_behind = self._write_behind, None
        if write_behind is not None:
            self._give_back(0)
            self._policy.finish()
            left = write_behind.stop(self._settings.timeout)
            self._report.closed(write_behind.round_trips, left)
        self.connections.close(is_up=self._failover.is_up)

    def _use(self, filters: Filters) -> None:
        self.connections.use(filters, self._policy, self._reserve)

    def _fail(self, error: Exception) -> None:
        if self._write_behind is not None:  # else the crawl is over
            as_ours = error if isinstance(error, BloomError) else BloomError(shown(error))
            self._failover.server_failed(as_ours, self._write_behind.fail())

    # -- deciding --

    def decide(self, request: Request) -> Verdict:
        """Return the verdict on a request that the scheduler is offered; record it if it is new.

        If the server does not answer, the outcome is unknown, and the request is new (once in this
        process), because a page fetched twice is better than a page hidden.

        Raises:
            Exception: what the project's own fingerprinter raises, as from Scrapy's own filter. If
                the request counted as new instead, a site with a loop would be crawled for ever.
        """
        if not request.meta.get("bloom_enabled", True):
            self._policy.let_pass(request)
            return Verdict.NEW
        key = self.identity.key(request)
        try:
            return self._decide(key, request)
        except Exception as error:
            # A fault of this package: raised from here, it would cost the project the request.
            self._report.failed(request, error)
            is_new = self._local.take(key[1])
            self._policy.let_pass(request)
            return Verdict.UNKNOWN if is_new else Verdict.SEEN

    def prepare(self, request: Request) -> Lookup | None:
        """Return the lookup of a request that a page yields; None if none is needed.

        It has its verdict if this process knows the URL as seen.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        if request.dont_filter or not request.meta.get("bloom_enabled", True):
            return None
        key = self.identity.key(request)
        if self._local.is_reserved(key):
            return None
        if self._local.has_taken(key[1]):
            return Lookup((RUN, key[1]), request, Verdict.SEEN)
        if key[0] == RUN or self.connections.filters is None or not self._failover.is_up:
            return None
        return Lookup(key, request, Verdict.SEEN if self._is_seen(key, FRESH_SECONDS) else None)

    async def decide_many(self, lookups: Sequence[Lookup]) -> None:
        """Give lookups their verdicts, if possible without blocking; ``decide`` will know them.

        Never raises.
        """
        batcher = self.connections.lookups
        try:
            if batcher is not None:
                await batcher.look_up(lookups)
        except Exception as error:
            if batcher is self.connections.lookups:  # else the server has been found again since
                self._fail(error)

    def count_seen(self, lookup: Lookup) -> None:
        """Count a request that is dropped after its lookup."""
        self._report.count("seen", lookup.key[0])

    def _decide(self, key: Key, request: Request) -> Verdict:
        window, item = key
        if self._policy.has_claim(key, request):
            # What was kept in another run may have been taken in this one; not what failed in it.
            is_new = window != RUN or self._policy.has_to_repeat(request) or self._local.take(item)
            return Verdict.NEW if is_new else Verdict.SEEN
        known = self._local.pop(key)
        if known is not None:
            return self._use_known(known, key, request)
        if window == RUN:
            self._local.take(item)
            self._policy.let_pass(request)
            return self._judge(key, Verdict.NEW)
        return self._look_up(key, request)

    def _look_up(self, key: Key, request: Request) -> Verdict:
        connections = self.connections
        assert connections.filters is not None  # noqa: S101 - they are open
        bloom, sent = connections.filters.by_window[key[0]], self._clock()
        block = bloom.session.hasher.block(key[1])
        is_up = self._failover.is_up
        if self._local.get(key, block, FRESH_SECONDS if is_up else ANY_AGE):
            return self._judge(key, Verdict.SEEN)
        if not is_up:
            return self._record_alone(key, request, "offline")
        try:
            verdict = self._policy.look_up_one(bloom, key, request)
        except BloomError as error:
            # Do not retry: if the call succeeded, a retry would answer "seen" to the owner.
            self._fail(error)
            if self._local.get(key, block, ANY_AGE):
                return self._judge(key, Verdict.SEEN)
            return self._record_alone(key, request, "unknown")
        is_in_flight = connections.lookups is not None and key in connections.lookups.in_flight
        if not is_in_flight and verdict is not Verdict.UNRECORDED:
            # Else it may be "seen" because of that lookup, whose outcome may turn out unknown.
            held = bloom.session.held.get(block)
            self._local.put(key, held, sent, is_certain=verdict in self._policy.certain)
        return self._judge(key, verdict)

    def _use_known(self, known: Reserved, key: Key, request: Request) -> Verdict:
        """Return the verdict of an earlier lookup, or SEEN of a URL that is recorded here."""
        verdict = known.verdict
        if verdict is Verdict.UNKNOWN:
            return self._record_alone(key, request, "unknown")
        if verdict is Verdict.SEEN:
            return self._judge((RUN, key[1]), verdict)
        if verdict.is_new:
            self._policy.attach_claim(request, key, known.length)
        return self._judge(key, verdict)

    def _record_alone(self, key: Key, request: Request, stat: str) -> Verdict:
        self._local.take(key[1])
        self._policy.record_later(key, request)
        if self._write_behind is not None:
            self._failover.limit(self._write_behind.backlog)
        return self._judge(key, Verdict.UNKNOWN, stat)

    def _judge(self, key: Key, verdict: Verdict, stat: str = "") -> Verdict:
        """Count and note a verdict."""
        window, item = key
        if verdict is Verdict.UNRECORDED:
            # Else pages that link each other would be fetched for ever.
            self._local.take(item)
            self._report.count("unrecorded", window)
        self._inc_value(self._names[window, stat or ("new" if verdict.is_new else "seen")])
        self._policy.decided(key, verdict)
        return verdict

    def _reserve(self, lookups: Sequence[Lookup]) -> None:
        """Keep the verdicts on what is new, or may be, until the scheduler is offered it."""
        for lookup in lookups:
            key, verdict = lookup.key, lookup.verdict
            is_taken = self._local.has_taken(key[1])  # since the lookup began
            if is_taken or (verdict is Verdict.UNKNOWN and self._is_seen(key, ANY_AGE)):
                # Do not retry an unknown one: a retry would answer "seen" to the owner.
                lookup.verdict = Verdict.SEEN
            elif verdict is Verdict.MINE_UNKEPT and self._local.is_reserved(key):
                continue  # of another page, whose request is about to be scheduled
            if lookup.verdict is not None and not lookup.is_duplicate:
                self._local.reserve(key, lookup.verdict, lookup.length)
        self._give_back(MAX_RESERVED)

    def _is_seen(self, key: Key, max_age: float) -> bool:
        filters = self.connections.filters
        if filters is None:
            return False
        block = filters.by_window[key[0]].session.hasher.block(key[1])
        return self._local.get(key, block, max_age)

    def _give_back(self, most: int) -> None:
        """Give up the oldest requests that are new and were not scheduled; keep so many."""
        for key, reserved in self._local.pop_oldest_reserved(most):
            self._policy.give_back(key, reserved.verdict, reserved.length)

    # -- pages --

    def yields(self, page: Request) -> Callable[[Request], None] | None:
        """Return a function to be called with each request that a page yields; None for none."""
        return self._policy.yields(page)

    def lost_link(self, page: Request, error: Exception) -> None:
        """Note that a link of a page is not crawled: the page is crawled again later."""
        self._policy.raised(page, error)

    def may_close(self) -> bool:
        """Return whether an idle spider may close; if not, the engine is woken later."""
        return self._write_behind is None or self._policy.may_close()
