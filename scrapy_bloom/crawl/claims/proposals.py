"""Crawls requests of the ledger that are due, once the spider has nothing else to do.

By then, most pages that are linked have been found by their links: what is left are the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from scrapy import Request, Spider
from twisted.internet.defer import Deferred

from scrapy_bloom.bloom.errors import shown, tagged
from scrapy_bloom.bloom.model.ledger import CHUNK_ENTRIES
from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.crawl.apply_jobs import LedgerWriter
from scrapy_bloom.crawl.claims import request_codec, workers
from scrapy_bloom.crawl.claims.ledger_rules import LedgerRules
from scrapy_bloom.crawl.claims.ledger_task import LedgerTask
from scrapy_bloom.crawl.claims.pace import LOOK_SECONDS
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import ClaimOwner
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import InMain, Runtime, has_asyncio
from scrapy_bloom.crawl.write_behind import WriteBehind

logger = logging.getLogger(__name__)

#: Pages that this process adds between two looks for blocks with entries to pack.
LOOK_AFTER = 4 * CHUNK_ENTRIES
#: Returns those of requests that are new, with their claims made, and whether it is known of all.
NewAmong = Callable[[Sequence[Request]], Awaitable[tuple[list[Request], bool]]]


class Proposals:
    """Posts messages to the ledger's task in the background thread, and receives its events.

    Args:
        spider: the spider.
        engine: Scrapy's engine.
        failover: whether the server is up.
        report: counts and warns.
        new_among: looks requests up.
        in_main: schedules a function in the crawl's thread.
        keeps_headers: whether requests with credentials are stored; if not, none is proposed.
        rules: by which requests have their windows.
        runtime: time.

    Attributes:
        task: runs in the background thread.
    """

    def __init__(
        self,
        spider: Spider,
        engine: EngineAdapter,
        failover: Failover,
        report: Report,
        *,
        new_among: NewAmong,
        in_main: InMain,
        keeps_headers: bool,
        rules: LedgerRules,
        runtime: Runtime,
    ) -> None:
        self._spider, self._engine = spider, engine
        self._failover, self._report = failover, report
        self._new_among, self._keeps_headers = new_among, keeps_headers
        self._clock = runtime.monotonic
        #: Windows of the filters that have a ledger; pages that were added since the last look.
        self._windows: frozenset[str] = frozenset()
        self._added = 0
        self._tag = workers.tag(spider.name)
        self.task = LedgerTask(self._tag, self, in_main, runtime.token, rules)
        #: Whether requests that are due were asked for, or are being looked up.
        self._is_asked = False
        #: Whether there may be more of them.
        self._may_have_more = False
        #: Until when it is known that none is due.
        self._none_until = 0.0
        #: The lookup of the last ones.
        self._proposing: object = None

    def writer(self, filters: Filters, claims: ClaimOwner) -> LedgerWriter:
        """Return what adds pages to the ledgers of filters, which are open."""
        assert claims.retry is not None  # noqa: S101 - pages are claimed
        owners, tries = (claims.worker, claims.owner), claims.retry.attempts
        self._windows = frozenset(filters.forgetting)
        return LedgerWriter(self._windows, owners, self._tag, tries)

    def start(self, filters: Filters, write_behind: WriteBehind) -> None:
        """Begin, with open filters.

        Raises:
            RightsError: the user lacks rights that a ledger needs.
        """
        for bloom in filters.forgetting.values():
            bloom.run(ledger_protocol.check_rights)
        self.task.begin(filters)
        self._post = write_behind.post

    def added(self, window: str) -> None:
        """Note that the ledger keeps the request of a page."""
        if window not in self._windows:
            return
        self._report.count("ledger_added", window)
        self._added += 1
        if self._added == LOOK_AFTER:
            self._added = 0
            self._post(self.task.look_for_entries)

    def may_close(self) -> bool:
        """Let the idle spider close when no request is due."""
        if not self._failover.is_up or self._failover.is_closing:
            return True
        if self._clock() < self._none_until:
            return True
        self._ask()
        return False

    def resume(self) -> None:
        """Note that the crawl has something to do: take more before the queue is empty."""
        if self._may_have_more and not self._is_asked and self._engine.has_room():
            self._ask()

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._post(self.task.want)

    # -- events of the task --

    def none_due(self) -> None:
        """Let the idle spider close."""
        self._is_asked = self._may_have_more = False
        self._none_until = self._clock() + LOOK_SECONDS
        if not self._failover.is_over:
            self._engine.look()

    def due(self, texts: Sequence[str]) -> None:
        """Look requests up, and crawl those that are new."""
        proposing = self._propose(texts)
        if has_asyncio():
            self._proposing = asyncio.ensure_future(proposing)
        else:
            self._proposing = Deferred.fromCoroutine(proposing)

    async def _propose(self, texts: Sequence[str]) -> None:
        try:
            requests = [request for text in texts if (request := self._read(text)) is not None]
            new, is_complete = await self._new_among(requests)
        except Exception:
            new, is_complete = [], False
            logger.exception(tagged("not-proposed", "Bloom filter: the ledger cannot be used"))
        if self._failover.is_over:
            return
        for request in new:
            self._crawl(request)
        if not is_complete:  # they stay in the ledger, and are looked up again later
            self.none_due()
            return
        self._report.count("ledger_due", count=len(texts))
        self._report.count("proposed", count=len(new))
        self._is_asked, self._may_have_more = False, True
        self._post(self.task.proposed)
        if self._engine.has_room():
            self._ask()

    def _crawl(self, request: Request) -> None:
        try:
            self._engine.crawl(request)
        except Exception:
            line = "Bloom filter: due request %s cannot be scheduled"
            logger.exception(tagged("not-scheduled", line), shown(request))

    def _read(self, text: str) -> Request | None:
        try:
            request = request_codec.load_stored(
                text, self._spider, keeps_headers=self._keeps_headers
            )
        except ValueError as error:
            self._report.count("not_restored")
            self._report.warn_once(
                "not-restored",
                f"a request of the ledger cannot be put back: {error}. Has the spider changed? Its "
                "URL is crawled when it is found again (bloom/not_restored counts them)",
            )
            return None
        # A version that was crawled is not what is due: the page is.
        request.meta.pop("bloom_version", None)
        request.dont_filter = False  # of start pages, and pages that were given to recrawl
        return request
