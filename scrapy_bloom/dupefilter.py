"""BloomDupeFilter: the dupefilter interface of Scrapy and scrapy-redis."""

import asyncio
import logging
from typing import TYPE_CHECKING

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.misc import load_object
from scrapy.utils.request import referer_str
from twisted.internet.defer import Deferred

from scrapy_bloom.bloom.errors import BloomError, shown, tagged
from scrapy_bloom.crawl.context import Opening, has_asyncio
from scrapy_bloom.crawl.crawl import Crawl, open_crawl
from scrapy_bloom.crawl.delivery import Feeds, watch_items
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.identity import Identity, is_start, pops_start_urls
from scrapy_bloom.crawl.outputs import Outputs
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.server import Filters
from scrapy_bloom.crawl.stats import MetricsServer, Stats, families
from scrapy_bloom.settings import DELIVERED, BloomSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

#: The key of ``meta`` of start requests that were looked up though they have ``dont_filter``.
FILTERED_START = "bloom_filtered_start"
#: Characters of a request in the log: a site may link URLs of any length.
MAX_LOGGED = 1_000
#: Loggers that show why a crawl ended. Twisted's, if Scrapy runs on Deferreds (before 2.15).
_LAST = ("asyncio", "twisted")
#: Loggers that show what fails because of that.
_NEXT = ("scrapy.core.engine", "scrapy.utils.signal")
_MAX_CHAIN = 20


class BloomDupeFilter(BaseDupeFilter):
    """Drops requests that any worker of the crawl has scheduled before.

    ``DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"``, or the add-on. Nothing is connected until
    the spider opens; then an unusable setting or server raises, before any request is lost.

    Per request, in ``meta``: ``bloom_key`` (str or bytes) identifies it instead of its fingerprint,
    ``bloom_version`` (str) makes it new if that version of the page was not crawled,
    ``bloom_recrawl_after`` is its window: ``"run"`` remembers it for this run and in this process
    only, ``"default"`` as BLOOM_RECRAWL_AFTER says, ``"1 day"`` as the rules with this window;
    ``bloom_enabled`` = False neither tests nor records it.

    Args:
        crawler: the running crawler.
        spider: its spider, where the crawler does not know it.

    Raises:
        ConfigurationError: a ``BLOOM_*`` setting is unknown or its value is no good.
    """

    def __init__(self, crawler: Crawler, spider: Spider | None = None) -> None:
        for name in _LAST + _NEXT:
            logging.getLogger(name).addFilter(_SHORT_ERRORS)  # a second time changes nothing
        # Tests, such as Scrapy's own, open an engine with a spider that the crawler does not know.
        crawler.spider = crawler.spider or spider or EngineAdapter(crawler).spider
        name = getattr(crawler.spider or crawler.spidercls, "name", None) or "spider"
        self.crawler = crawler
        self.settings = BloomSettings.from_scrapy(crawler.settings, name)
        #: Whether it filters by what this process has scheduled, as Scrapy's own filter, and
        #: records nothing: under ``BLOOM_ENABLED = False`` and ``scrapy parse``.
        self._is_local = not self.settings.enabled or _is_developer_command(crawler)
        self._scheduled: set[bytes] = set()
        #: Neither looks up nor records; for good after ``close`` and in developer commands.
        self._closed = self._is_local
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._log_next = True
        self._spider_opened = False
        self._stats = Stats(crawler.stats)
        self._report = Report(self._stats)
        self._identity = Identity(crawler, self.settings, self._report)
        #: None unless it is open.
        self._crawl: Crawl | None = None
        self._outputs: Outputs | None = None
        #: Feeds that pages wait for; they are stored when the scheduler is closed.
        self._feeds: Feeds | None = None
        #: Whether an event loop writes what is queued.
        self._has_loop = False
        self._spider_name = name
        self._metrics = MetricsServer(self.settings.metrics_port, self._read_metrics)
        #: The start request that the scheduler is offered next, to be looked up like any other.
        self._start: Request | None = None
        if self.settings.filters_start_requests and not pops_start_urls(crawler.spider):
            crawler.signals.connect(self._on_request_scheduled, signals.request_scheduled)
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
        """Connect, read or create the filter, and log in one line what it holds.

        Raises:
            ConfigurationError: the settings cannot work.
            FilterMismatchError: the stored filter has other blocks or seeds than the settings ask.
            StorageError: the server cannot be reached or used.
        """
        opening = Opening()
        crawl = None if self._closed else self._open(opening)
        if crawl is None:
            why = "developer command" if self.settings.enabled else "BLOOM_ENABLED is False"
            logger.info("Bloom filter off (%s): nothing is read or written on Redis", why)
            return
        self._report.opened(
            crawl.server.filters,
            self.crawler.settings,
            self._identity.fingerprinter,
            self.settings,
            opening.run,
        )
        self._count_round_trips()

    def _open(self, opening: Opening) -> Crawl | None:
        """Open the filters, unless a developer command needs none."""
        if _is_shell(self.crawler):
            self._closed = True
            return None
        try:
            self._crawl = crawl = open_crawl(
                self.crawler, self.settings, self._identity, self._report, opening
            )
            self._has_loop = has_asyncio()
            if self._has_loop and (self.settings.batch or crawl.claims is not None):
                self._outputs = Outputs(self.crawler, crawl, self.settings.batch, self.log)
                EngineAdapter(self.crawler).hook_scraper(self._outputs.hook)
                if self.settings.retry_item_errors:
                    item_failed = self._outputs.item_failed
                    self.crawler.signals.connect(item_failed, signals.item_error)
                if crawl.delivery is not None:
                    feeds = self.settings.confirm == DELIVERED
                    parts = crawl.delivery, self._outputs.pages_of, self._report
                    self._feeds = watch_items(self.crawler, *parts, feeds=feeds)
        except BaseException:
            self._close()
            self._closed = True
            raise
        self._metrics.open()
        return crawl

    def request_seen(self, request: Request) -> bool:
        """Return whether the request was scheduled before; if not, it is recorded now.

        Raises:
            Exception: what the project's own fingerprinter raises, as from Scrapy's own filter.
        """
        if request is self._start:
            # Offsite pages, redirects and retries go by it, as without this filter.
            request.dont_filter, self._start = True, None
        if self._crawl is None and not self._closed:
            # The scheduler has not opened it, and the crawl is under way.
            self._open(Opening(patience=0))
        if self._crawl is None or self._closed:
            return self._is_local and self._was_scheduled(request)
        server = self._crawl.server
        was_up = server.is_up
        is_new = self._crawl.decider.decide(request).is_new
        # Not if it has just failed: that has taken a time-out already.
        if not self._has_loop and (server.is_up or not was_up):
            self._crawl.write_now()
        return not is_new

    def _was_scheduled(self, request: Request) -> bool:
        if not request.meta.get("bloom_enabled", True):
            return False
        item = self._identity.fingerprint(request)
        was_scheduled = item in self._scheduled
        self._scheduled.add(item)
        return was_scheduled

    def log(self, request: Request, spider: Spider) -> None:
        """Count a dropped request, and log the first one (all of them with DUPEFILTER_DEBUG)."""
        if self._debug or self._log_next:
            message = "Filtered duplicate request: %(request)s (referer: %(referer)s)"
            if not self._debug:
                message = (
                    "Filtered duplicate request: %(request)s - no more duplicates will be shown "
                    "(see DUPEFILTER_DEBUG to show all duplicates)"
                )
            referer = referer_str(request)
            args = {
                "request": shown(request, MAX_LOGGED),
                "referer": None if referer is None else referer[:MAX_LOGGED],
            }
            logger.debug(message, args, extra={"spider": spider})
            self._log_next = False
        self._stats.inc_value("dupefilter/filtered")

    def clear(self) -> None:
        """Forget everything, at the start of a crawl under SCHEDULER_FLUSH_ON_START.

        scrapy-redis calls this also when a worker ends, unless SCHEDULER_PERSIST is set. That is
        ignored: the first worker that ends would wipe what all have recorded.

        Raises:
            StorageError: the server cannot be reached or used.
        """
        if self._crawl is None or self._closed:
            return
        if self.crawler.settings.getbool("SCHEDULER_FLUSH_ON_START") and not self._spider_opened:
            self._crawl.clear()
        else:
            logger.info(
                "Bloom filter kept: scrapy-redis's flush at the end of a worker is ignored "
                "(to forget everything: scrapy bloom clear, or SCHEDULER_FLUSH_ON_START)"
            )

    def close(self, reason: str = "") -> "Deferred[None] | None":  # noqa: ARG002 - Scrapy's
        """Write what is queued, set the last stats, and close; the filters stay."""
        if self._feeds is not None and not self._closed:
            return None  # pages wait for feeds, which are stored after the scheduler is closed
        closing = self._close()
        return None if closing is None else Deferred.fromFuture(closing)

    def _close(self) -> "asyncio.Future[None] | None":
        """Close; return what is left to wait for."""
        if self._crawl is None or self._closed:
            return None
        self._closed = True
        if self._outputs is not None:
            self._outputs.close()
        self._metrics.close()
        if has_asyncio():
            return asyncio.ensure_future(self._aclose(self._crawl))
        self._crawl.close_now()
        self._count_round_trips()
        return None

    async def _aclose(self, crawl: Crawl) -> None:
        try:
            if self._feeds is not None:
                await self._feeds.close()
        finally:
            await crawl.aclose()
        self._count_round_trips()

    @property
    def filters(self) -> Filters | None:
        """The filters; None unless they are open."""
        return None if self._crawl is None or self._closed else self._crawl.server.filters

    # -- signals, stats, log --

    def _on_request_scheduled(self, request: Request) -> None:
        """Have the scheduler ask about a start request: Scrapy's own have ``dont_filter``."""
        is_new = request.dont_filter and not request.meta.get(FILTERED_START)
        if is_new and is_start(request) and not self._closed:
            # Redirects and retries copy it: they belong to a page that was looked up.
            request.meta[FILTERED_START] = True
            request.dont_filter, self._start = False, request

    def _on_spider_opened(self) -> None:
        self._spider_opened = True

    def _on_spider_idle(self) -> None:
        self._count_round_trips()
        if self._crawl is not None and not self._closed and not self._crawl.may_close():
            raise DontCloseSpider

    def _on_spider_closed(self) -> "asyncio.Future[None] | None":
        # scrapy-redis's scheduler never closes its dupefilter.
        return self._close()

    def _read_metrics(self) -> "list[Metric]":
        # In a thread of the server's: Scrapy's stats are for one thread to write.
        return families(self._stats, self._spider_name, self._round_trips())

    def _count_round_trips(self) -> None:
        for name, count in self._round_trips().items():
            self._stats.set(name, count)

    def _round_trips(self) -> dict[str, int]:
        if self._crawl is None:
            return {"round_trips": 0}
        server = self._crawl.server
        counts = {"round_trips": server.filters.round_trips}
        if others := server.async_round_trips:
            counts["async_round_trips"] = others
        return counts


def is_ours(value: object) -> bool:
    """Whether a class, or its import path, is this dupefilter or derives from it."""
    try:
        loaded = load_object(value) if isinstance(value, str) else value
    except (ImportError, NameError, ValueError):
        return False  # Scrapy reports the error
    return isinstance(loaded, type) and issubclass(loaded, BloomDupeFilter)


def _is_developer_command(crawler: Crawler) -> bool:
    """Whether ``scrapy parse`` or another command runs that gives the spider requests of its own.

    It must not mark production URLs.
    """
    start = getattr(crawler.spidercls, "start", None)
    return getattr(start, "__module__", "").startswith("scrapy.commands.")


def _is_shell(crawler: Crawler) -> bool:
    """Whether ``scrapy shell`` runs, once its spider is open: there, nothing is filtered."""
    # It makes an engine that stays open, and does not start it by `Crawler.crawl`.
    return not (EngineAdapter(crawler).closes_when_idle or crawler.crawling)


# -- the log of a crawl that cannot begin --


class ShortErrors(logging.Filter):
    """Shortens the log of a crawl that cannot begin: one line for an error of the package.

    The dupefilter raises its error before the first request. Scrapy then closes parts of the engine
    that it has not opened, and logs each failure of that with all tracebacks: 260 lines.
    """

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


def _cause(error: BaseException | None) -> BloomError | None:
    """Return the error of the package that an error is, or came of."""
    for _ in range(_MAX_CHAIN):
        if error is None or isinstance(error, BloomError):
            return error
        error = error.__cause__ or error.__context__
    return None


_SHORT_ERRORS = ShortErrors()
