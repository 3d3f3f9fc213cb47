"""The life of a crawl's filters: opened, replaced after an outage, cleared, closed."""

import logging
from collections.abc import Callable, Iterable, Sequence

from scrapy.crawler import Crawler

from scrapy_bloom.bloom.client.routes import slot_of
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, shown, slots_of, tagged
from scrapy_bloom.crawl.apply_jobs import Replicas
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.in_flight import PageItems
from scrapy_bloom.crawl.claims.ledger_rules import LedgerRules
from scrapy_bloom.crawl.claims.policy import Lookup, Policy, RecordWhenScheduled
from scrapy_bloom.crawl.claims.proposals import NewAmong, Proposals
from scrapy_bloom.crawl.claims.record_when_crawled import RecordWhenCrawled
from scrapy_bloom.crawl.claims.workers import Queue
from scrapy_bloom.crawl.connections import Connections
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Identity, Key
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.opening import OPENING_SECONDS, Opening
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import InMain, Runtime
from scrapy_bloom.crawl.sitemaps import SitemapVersions
from scrapy_bloom.crawl.write_behind import WriteBehind
from scrapy_bloom.settings import ITEMS, BloomSettings

logger = logging.getLogger(__name__)


class Lifecycle:
    """Puts the parts of a crawl together.

    Args:
        crawler: the running crawler.
        settings: its settings.
        identity: identifies requests.
        report: counts and warns.
        runtime: time, chance and threads.

    Attributes:
        local: what this process knows.
        connections: the filters.
        failover: whether the server is up.
        policy: when a URL counts as seen; there after ``open``.
        write_behind: the background thread; None before ``open``, and after ``close``.
        answered: is called with lookups of many requests once they have verdicts.
        new_among: looks up requests that no page has yielded.
    """

    policy: Policy

    def __init__(
        self,
        crawler: Crawler,
        settings: BloomSettings,
        identity: Identity,
        *,
        report: Report,
        runtime: Runtime | None = None,
    ) -> None:
        self._crawler, self._settings, self._report = crawler, settings, report
        self._identity = identity
        self.runtime = runtime or Runtime()
        self.engine = EngineAdapter(crawler)
        self.local = LocalState(settings.cache_size, 2 * settings.heartbeat, self.runtime.monotonic)
        self.connections = Connections(
            settings,
            crawler.settings,
            identity.fingerprinter,
            report=report,
            local=self.local,
            runtime=self.runtime,
        )
        self.failover = Failover(
            self.engine,
            report,
            self.local,
            settings.on_redis_error,
            use=self._use,
            forget=self.local.discard,
        )
        self.write_behind: WriteBehind | None = None
        self._proposals: Proposals | None = None
        self.answered: Callable[[Sequence[Lookup]], None]
        self.new_among: NewAmong

    def open(self, patience: float = OPENING_SECONDS) -> Filters:
        """Connect, read or create the filters, and start the background thread.

        Args:
            patience: seconds to wait for a server that is slow or loading its data.

        Raises:
            BloomError: a setting cannot work, or the server cannot be used.
        """
        opening = Opening(patience, runtime=self.runtime)
        rules = self._ledger_rules()
        filters = self.connections.open(opening, rules)
        in_main = self.runtime.to_main()
        self.policy = self.failover.policy = self._make_policy(in_main, rules)
        write_behind = WriteBehind(
            self.connections.connector(in_main),
            in_main,
            self.failover,
            claims=self.policy.claims,
            task=self.policy.task,
            replicas=Replicas(self._settings.wait_replicas, self._settings.timeout / 2),
            ledger=self._proposals.writer(filters, self.policy.claims) if self._proposals else None,
            runtime=self.runtime,
        )
        try:
            self.policy.start(filters, write_behind, opening)
        except BaseException:
            write_behind.stop(self._settings.timeout)
            raise
        self.write_behind = write_behind
        self._use(filters)
        spider = self._crawler.spider
        if isinstance(spider, SitemapVersions) and self._settings.may_skip_sitemaps:
            spider.bloom_forgotten = self.connections.forgotten
        return filters

    def _ledger_rules(self) -> LedgerRules | None:
        spider = self._crawler.spider
        if spider is None or not self._settings.ledger:
            return None
        return LedgerRules(workers.tag(spider.name), self._settings.windows.digest)

    def _make_policy(self, in_main: InMain, rules: LedgerRules | None) -> Policy:
        if not self._settings.makes_claims:
            return RecordWhenScheduled(self.local.versions.crawled)
        spider = self._crawler.spider
        if spider is None:
            raise ConfigurationError(
                f'BLOOM_REMEMBER = "{self._settings.remember}" needs the spider when the filter is '
                "opened, and the crawler has none: set crawler.spider, or build the filter with "
                "from_spider"
            )
        if rules is not None:
            self._proposals = Proposals(
                spider,
                self.engine,
                self.failover,
                self._report,
                new_among=self.new_among,
                in_main=in_main,
                keeps_headers=self._settings.keep_headers,
                rules=rules,
                runtime=self.runtime,
            )
        page_items = None
        if self._settings.remember == ITEMS:
            page_items = PageItems(self._identity.key, self._report)
        return RecordWhenCrawled(
            spider,
            self._settings,
            Queue.of(self._crawler.settings),
            engine=self.engine,
            failover=self.failover,
            report=self._report,
            local=self.local,
            page_items=page_items,
            proposals=self._proposals,
            in_main=in_main,
            runtime=self.runtime,
        )

    @property
    def is_open(self) -> bool:
        """Whether the filters are open."""
        return self.write_behind is not None

    @property
    def follows_outputs(self) -> bool:
        """Whether the outputs of callbacks pass through ``outputs.py``."""
        return bool(self._settings.batch) or self.policy.follows_outputs

    @property
    def is_busy(self) -> bool:
        """Whether a round of lookups or of writes is under way, without blocking."""
        lookups = self.connections.lookups
        writer = None if self.write_behind is None else self.write_behind.loop_writer
        return any(one is not None and one.is_busy for one in (lookups, writer))

    def clear(self) -> None:
        """Forget everything."""
        filters = self.connections.filters
        for bloom in filters.by_window.values() if filters else ():
            bloom.clear()
            self._report.cleared(bloom)
        self.local.clear()

    async def aclose(self) -> None:
        """Close after the rounds that are under way, so that what they claim is given back."""
        self.failover.is_over = True
        if self.write_behind is not None and self.write_behind.loop_writer is not None:
            await self.write_behind.loop_writer.finish()
        await self.connections.close_lookups()
        self.close()

    def close(self) -> None:
        """Write what is queued, and close the connections that block."""
        self.failover.is_over, is_up = True, True
        write_behind, self.write_behind = self.write_behind, None
        if write_behind is not None:
            for key, reserved in self.local.pop_oldest_reserved(0):
                self.policy.give_back(key, reserved.verdict, reserved.length)
            self.policy.finish()
            left = write_behind.stop(self._settings.timeout)
            self._report.closed(write_behind.round_trips, left)
            is_up = not write_behind.server.is_down  # it may be back since the last lookup
        self.connections.close(is_up=is_up)

    def _use(self, filters: Filters) -> None:
        self.connections.use(
            filters, self.policy, self.answered, serves=self.serves, failed=self.fail
        )
        if self.write_behind is not None and self.connections.lookups is not None:
            self.write_behind.use(filters, self.connections.lookups.driver, self.fail)

    def serves(self, key: Key) -> bool:
        """Whether the lookup of a URL uses the filters, which are open."""
        if self.failover.is_up:
            return True
        assert self.connections.filters is not None  # noqa: S101 - they are open
        session = self.connections.filters.by_window[key[0]].session
        return self.failover.serves(slot_of(session.keys.ring(session.hasher.block(key[1]))))

    def fail(self, error: Exception, unanswered: Iterable[Key] = ()) -> None:
        """Note that the server failed.

        Args:
            error: of a lookup, or of a queued write.
            unanswered: the URLs that were looked up and have no verdict.
        """
        if self.write_behind is not None:  # else the crawl is over
            as_ours = error if isinstance(error, BloomError) else BloomError(shown(error))
            epoch = self.write_behind.fail(is_partial=bool(slots_of(as_ours)))
            self.failover.server_failed(as_ours, epoch)
            if any(map(self.serves, unanswered)):
                # It is not about their node alone, and their next lookup would fail again.
                self.failover.lose_all()


# The dupefilter raises its error before the first request. Scrapy then closes parts of the engine
# that it has not opened, and logs each failure of that with all tracebacks: 260 lines.

#: Loggers that show why a crawl ended. Twisted's, if Scrapy runs on Deferreds (before 2.15).
_LAST = ("asyncio", "twisted")
#: Loggers that show what fails because of that.
_NEXT = ("scrapy.core.engine", "scrapy.utils.signal")
_MAX_CHAIN = 20


class ShortErrors(logging.Filter):
    """Replaces the records of an error of the package by one of the package's own, in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop a record of such an error; log the error, if the record is the last one."""
        given = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if given is None:
            # The next record has the error.
            return "Unhandled error in Deferred" not in record.getMessage()
        if isinstance(given, AssertionError) and "CoreStats.spider_closed" in record.getMessage():
            return False  # this extension fails if the spider was not opened
        error = _cause(given)
        if error is None:
            return True
        if record.name in _LAST:
            logger.log(record.levelno, tagged(error.code, "Bloom filter: %s"), error)
        return False


def shorten_errors() -> None:
    """Shorten the records; a second time changes nothing."""
    for name in _LAST + _NEXT:
        logging.getLogger(name).addFilter(_SHORT_ERRORS)


def _cause(error: BaseException | None) -> BloomError | None:
    """Return the error of the package that an error is, or came of."""
    for _ in range(_MAX_CHAIN):
        if error is None or isinstance(error, BloomError):
            return error
        error = error.__cause__ or error.__context__
    return None


_SHORT_ERRORS = ShortErrors()
