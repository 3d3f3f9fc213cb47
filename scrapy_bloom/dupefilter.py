"""BloomDupeFilter: Scrapy's and scrapy-redis's dupefilter interface on what a crawl remembers."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.python import global_object_name
from scrapy.utils.request import referer_str
from twisted.internet.defer import Deferred

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.crawl.deduplicator import Memory
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Windows
from scrapy_bloom.crawl.lookups import TO_SCHEDULER, Lookup
from scrapy_bloom.crawl.outputs import Outputs
from scrapy_bloom.crawl.stats import Report
from scrapy_bloom.crawl.threads import has_asyncio
from scrapy_bloom.fingerprinter import bounded
from scrapy_bloom.settings import (
    FLUSH_ALWAYS,
    FLUSH_START,
    LASTING,
    BloomSettings,
    is_developer_command,
    is_shell,
)

logger = logging.getLogger(__name__)


class BloomDupeFilter(BaseDupeFilter):
    """Drops requests that any worker of the crawl has scheduled before.

    ``DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"``, or the add-on. Nothing is connected until
    the spider opens; then an unusable setting or server raises, before any request is lost.

    Per request, in ``meta``: ``bloom_key`` (str or bytes) identifies it instead of its fingerprint,
    ``bloom_window`` names its window: ``"run"`` remembers it for this run and in this process only,
    a name of ``BLOOM_WINDOWS`` in that window's filter, ``"lasting"`` in the main one;
    ``bloom_enabled`` = False neither tests nor records it.

    Args:
        crawler: the running crawler.
        spider: its spider, where the crawler does not know it.

    Raises:
        ConfigurationError: a ``BLOOM_*`` setting is unknown or its value is no good.
    """

    def __init__(self, crawler: Crawler, spider: Spider | None = None) -> None:
        spider = crawler.spider or spider
        name = getattr(spider or crawler.spidercls, "name", None) or "spider"
        self.crawler = crawler
        self.settings = BloomSettings.from_scrapy(crawler.settings, name)
        self._windows = Windows(
            self.settings.windows, self.settings.start_window, self.settings.window_rules
        )
        #: Whether ``scrapy parse`` runs: it filters by what it has parsed itself, as with Scrapy's
        #: own filter, and records nothing.
        self._is_command = is_developer_command(crawler)
        self._parsed: set[bytes] = set()
        #: Neither asks the server nor records; for good after ``close`` and in developer commands.
        self._closed = self._is_command or is_shell(crawler)
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._log_next = True
        self._spider_opened = False
        self._identify = crawler.request_fingerprinter.fingerprint
        self._fingerprinter = global_object_name(type(crawler.request_fingerprinter))
        self._stats: Any = crawler.stats
        # Scrapy 2.19 takes longer to look the method up than to run it.
        self._inc_value = self._stats.inc_value
        self._report = Report(crawler.stats)
        outputs = Outputs(crawler, self, self.settings.batch)
        self._memory = Memory(crawler, self.settings, self._report, outputs, spider)
        crawler.signals.connect(self._on_spider_opened, signals.spider_opened)
        crawler.signals.connect(self._on_spider_idle, signals.spider_idle)
        crawler.signals.connect(self._on_spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "BloomDupeFilter":
        """Build the filter for Scrapy's scheduler, which opens it."""
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> "BloomDupeFilter":
        """Build and open the filter for scrapy-redis's scheduler, which does not open it."""
        dupefilter = cls(spider.crawler, spider)
        dupefilter.open()
        return dupefilter

    def open(self) -> None:
        """Connect, read or create the filter, and say in one line what it holds.

        Raises:
            ConfigurationError: the settings cannot work.
            FilterMismatchError: the stored filter has other blocks or seeds than the settings ask.
            StorageError: the server cannot be reached or used.
        """
        if self._closed:
            logger.info(
                "Bloom filter off: developer commands neither connect to Redis nor record requests"
            )
            return
        try:
            filters = self._memory.open()
            self._report.opened(
                filters, self.crawler.settings, self._fingerprinter, self.settings.remember
            )
        except BaseException:
            self._closed = True
            self._memory.close()
            raise
        self._count_round_trips()

    def request_seen(self, request: Request) -> bool:
        """Return whether the request was scheduled before; if not, it is recorded now.

        If the server does not answer, the outcome is unknown, and the request is new (once in this
        process), because a page fetched twice is better than a page hidden.

        Raises:
            Exception: what the project's own fingerprinter raises, as from Scrapy's own filter. If
                the request counted as new instead, a site with a loop would be crawled for ever.
        """
        if self._closed:
            return self._is_command and self._was_parsed(request)
        is_filtered = request.meta.get("bloom_enabled", True)
        item = self._fingerprint(request) if is_filtered else b""
        try:
            if not is_filtered:
                self._memory.let_pass(request)
                return False
            return not self._memory.is_new(item, self._window(request), request)
        except Exception as error:
            # A fault of this package: raised from here, it would cost the project the request.
            self._report.failed(request, error)
            return is_filtered and not self._memory.take_here(item, request)
        finally:
            self._count_round_trips()

    def _was_parsed(self, request: Request) -> bool:
        if not request.meta.get("bloom_enabled", True):
            return False
        item = self._fingerprint(request)
        was_parsed = item in self._parsed
        self._parsed.add(item)
        return was_parsed

    # -- what callbacks yield, before it is scheduled: see outputs.py --

    def question(self, request: Request) -> Lookup | None:
        """Return what to ask about a request before it is scheduled; None if nothing.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        if self._closed or request.dont_filter or not request.meta.get("bloom_enabled", True):
            return None
        item, window = self._fingerprint(request), self._window(request)
        try:
            return self._memory.question(item, window, request)
        except Exception:
            return None  # ``request_seen`` deals with it

    def lost_link(self, page: Request, error: Exception) -> None:
        """Take note that a link of a page is not crawled: the page is crawled again later."""
        self._memory.page_failed(page, error)

    def yields(self, page: Request) -> Callable[[Request], None] | None:
        """Return what takes note of the requests that a page yields; None for nothing."""
        return self._memory.yields(page)

    async def ask(self, questions: Sequence[Lookup]) -> None:
        """Ask about many requests at once, if possible without blocking. Never raises."""
        await self._memory.ask(questions)
        self._count_round_trips()

    def is_duplicate(self, question: Lookup) -> bool:
        """Whether a request that was asked about is to be dropped; it counts as seen then."""
        if self._closed or not question.verdict or question.verdict in TO_SCHEDULER:
            return False
        self._memory.count_seen(question.window)
        return True

    def log(self, request: Request, spider: Spider) -> None:
        """Count a dropped request, and log the first one (all of them with DUPEFILTER_DEBUG)."""
        if self._debug or self._log_next:
            message = "Filtered duplicate request: %(request)s (referer: %(referer)s)"
            if not self._debug:
                message = (
                    "Filtered duplicate request: %(request)s - no more duplicates will be shown "
                    "(see DUPEFILTER_DEBUG to show all duplicates)"
                )
            args = {"request": request, "referer": referer_str(request)}
            logger.debug(message, args, extra={"spider": spider})
            self._log_next = False
        self._inc_value("dupefilter/filtered")

    def clear(self) -> None:
        """Forget everything, where ``BLOOM_FLUSH`` allows scrapy-redis to ask for it.

        scrapy-redis calls this at close unless SCHEDULER_PERSIST is set, and at the start with
        SCHEDULER_FLUSH_ON_START; the first worker that ends would wipe the memory of all.
        """
        flush = self.settings.flush
        if flush == FLUSH_ALWAYS or (flush == FLUSH_START and not self._spider_opened):
            self._clear()
        else:
            logger.info("Bloom filter kept: this flush is ignored (BLOOM_FLUSH = %r)", flush)

    def _clear(self) -> None:
        try:
            self._memory.clear()
        except BloomError as error:
            if not self._spider_opened:
                raise  # before anything is lost
            logger.error("Bloom filter not cleared: %s", error)  # noqa: TRY400 - it says all

    def close(self, reason: str = "") -> "Deferred[None] | None":  # noqa: ARG002 - Scrapy's
        """Write what is left, take down the last stats, and close; the filters stay."""
        closing = self._close()
        return None if closing is None else Deferred.fromFuture(closing)

    def _close(self) -> "asyncio.Future[None] | None":
        """Close; return what is left to be waited for."""
        if self._closed:
            return None
        self._closed = True
        if not self._memory.is_asking:  # nothing to wait for
            self._memory.close()
            self._count_round_trips()
        return asyncio.ensure_future(self._aclose()) if has_asyncio() else None

    async def _aclose(self) -> None:
        await self._memory.aclose()
        self._count_round_trips()

    @property
    def filters(self) -> Filters | None:
        """The filters; None unless they are open."""
        return self._memory.filters

    # -- one request --

    def _fingerprint(self, request: Request) -> bytes:
        # A redirect copies meta: the target would be taken for a duplicate of the source.
        if "bloom_key" in request.meta and not request.meta.get("redirect_urls"):
            key = request.meta["bloom_key"]
            if isinstance(key, str):
                key = key.encode("utf-8", "surrogatepass")
            if isinstance(key, bytes) and key:
                return bounded(b"bloom_key:" + key)  # never equal to a fingerprint
            kind = "empty" if isinstance(key, bytes) else f"of type {type(key).__name__}"
            self._report.warn_once(
                "key", f"meta['bloom_key'] is {kind} in {request}: its URL is used"
            )
        try:
            return bounded(self._identify(request))
        except Exception as error:
            self._report.not_identified(self._fingerprinter, request, error)
            raise

    def _window(self, request: Request) -> str:
        try:
            return self._windows.of(request, self.crawler.spider)
        except ValueError as error:
            self._report.warn_once(
                "window",
                f"meta['bloom_window'] of {request} {error} (BLOOM_WINDOWS has more): the request "
                "is remembered like any other",
            )
            return LASTING

    # -- signals, stats, log --

    def _on_spider_opened(self) -> None:
        self._spider_opened = True

    def _on_spider_idle(self) -> None:
        if not self._closed and self._memory.is_busy():
            raise DontCloseSpider

    def _on_spider_closed(self) -> "asyncio.Future[None] | None":
        # scrapy-redis's scheduler never closes its dupefilter.
        return self._close()

    def _count_round_trips(self) -> None:
        self._stats.set_value("bloom/round_trips", self._memory.round_trips)
        if self._memory.async_round_trips:
            self._stats.set_value("bloom/async_round_trips", self._memory.async_round_trips)
