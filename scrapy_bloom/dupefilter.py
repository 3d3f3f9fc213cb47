"""BloomDupeFilter: Scrapy's and scrapy-redis's dupefilter interface on a BloomFilter."""

import logging
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.python import global_object_name
from scrapy.utils.request import referer_str

from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import BloomFilter
from scrapy_bloom.filters import Filters, connect_filters
from scrapy_bloom.report import Report
from scrapy_bloom.settings import (
    FLUSH_ALWAYS,
    FLUSH_START,
    BloomSettings,
    is_developer_command,
    need_run,
)
from scrapy_bloom.windows import LASTING, RUN, Windows

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

    Raises:
        ConfigurationError: a ``BLOOM_*`` setting is unknown or its value is no good.
    """

    def __init__(self, crawler: Crawler) -> None:
        name = getattr(crawler.spider or crawler.spidercls, "name", None) or "spider"
        self.crawler = crawler
        self.settings = BloomSettings.from_scrapy(crawler.settings, name)
        #: The filters; None until they are opened.
        self.filters: Filters | None = None
        self._windows = Windows(
            self.settings.windows, self.settings.start_window, self.settings.window_rules
        )
        #: Neither filters nor records; for good after ``close`` and under developer commands.
        self._closed = is_developer_command(crawler)
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._log_next = True
        self._spider_opened = False
        self._identify = crawler.request_fingerprinter.fingerprint
        self._stats: Any = crawler.stats
        self._report = Report(crawler.stats)
        #: Fingerprints taken under the window "run", and those that could not be recorded.
        self._taken_in_run: set[bytes] = set()
        crawler.signals.connect(self._on_spider_opened, signals.spider_opened)
        crawler.signals.connect(self._on_spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "BloomDupeFilter":
        """Build the filter for Scrapy's scheduler, which opens it."""
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> "BloomDupeFilter":
        """Build and open the filter for scrapy-redis's scheduler, which does not open it."""
        dupefilter = cls(spider.crawler)
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
            logger.info("Bloom filter off: developer commands neither filter nor record requests")
            return
        try:
            filters = self._connect()
            for bloom in filters.by_window.values():
                bloom.open()
                self._check_run(bloom)
            self._report.opened(filters, self.crawler.settings, self._fingerprinter_name())
        except BaseException:
            self._disconnect()
            raise
        self._count_round_trips(filters)

    def request_seen(self, request: Request) -> bool:
        """Return whether the request was scheduled before; if not, it is recorded now.

        Never raises. If the server does not answer, the outcome is unknown, and the request is new
        (once in this process), because a page fetched twice is better than a page hidden.
        """
        if self._closed:
            return False
        fingerprint = None
        try:
            if not request.meta.get("bloom_enabled", True):
                return False
            fingerprint = self._fingerprint(request)
            if fingerprint in self._taken_in_run:
                self._report.count("seen", RUN)
                return True
            window = self._window(request)
            if window == RUN:
                self._taken_in_run.add(fingerprint)
                self._report.count("new", RUN)
                return False
            new = self._claim(fingerprint, window)
        except Exception as error:
            # Whatever it is: raised from here, Scrapy would lose the request without a word.
            self._give_up(request, fingerprint, error)
            return False
        self._report.count("new" if new else "seen", window)
        return not new

    def log(self, request: Request, spider: Spider) -> None:
        """Count a dropped request, and log the first one (all of them with DUPEFILTER_DEBUG)."""
        args = {"request": request, "referer": referer_str(request)}
        if self._debug:
            message = "Filtered duplicate request: %(request)s (referer: %(referer)s)"
            logger.debug(message, args, extra={"spider": spider})
        elif self._log_next:
            message = (
                "Filtered duplicate request: %(request)s - no more duplicates will be shown "
                "(see DUPEFILTER_DEBUG to show all duplicates)"
            )
            logger.debug(message, args, extra={"spider": spider})
            self._log_next = False
        self._stats.inc_value("dupefilter/filtered")

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
        if self.filters is None:
            return
        try:
            for bloom in self.filters.by_window.values():
                bloom.clear()
                logger.info("%r cleared (BLOOM_FLUSH = %r)", bloom, self.settings.flush)
        except BloomError as error:
            if not self._spider_opened:
                raise  # before anything is lost
            logger.error("Bloom filter not cleared: %s", error)  # noqa: TRY400 - it says all

    def close(self, reason: str = "") -> None:  # noqa: ARG002 - Scrapy's interface
        """Take down the last stats and close the connection; the filters stay on the server."""
        if self.filters is not None and not self._closed:
            try:
                self._report.closing(self.filters)
            except BloomError as error:
                logger.warning("No last look at the Bloom filter: %s", error)
            self._count_round_trips(self.filters)
        self._disconnect()

    def _disconnect(self) -> None:
        self._closed = True
        if self.filters is not None:
            self.filters.close()
        self.filters = None

    # -- one request --

    def _fingerprint(self, request: Request) -> bytes:
        # A redirect copies meta: the target would be taken for a duplicate of the source.
        if "bloom_key" in request.meta and not request.meta.get("redirect_urls"):
            key = request.meta["bloom_key"]
            if isinstance(key, str):
                key = key.encode("utf-8", "surrogatepass")
            if isinstance(key, bytes) and key:
                return b"bloom_key:" + key  # never equal to a fingerprint
            kind = "empty" if key in ("", b"") else f"of type {type(key).__name__}"
            self._report.warn_once(
                "key", f"meta['bloom_key'] is {kind} in {request}: its URL is used"
            )
        fingerprint: object = self._identify(request)
        if not isinstance(fingerprint, bytes):
            raise TypeError(f"the fingerprint of {request} is no bytes but {fingerprint!r:.60}")
        return fingerprint

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

    def _claim(self, fingerprint: bytes, window: str) -> bool:
        filters = self._connect() if self.filters is None else self.filters
        bloom = filters.by_window[window]
        unrecorded = bloom.unrecorded
        try:
            new = bloom.add(fingerprint)
        finally:
            self._count_round_trips(filters)
        if bloom.unrecorded > unrecorded:
            # Else pages that link each other would be fetched for ever.
            self._taken_in_run.add(fingerprint)
            self._report.count("unrecorded", window)
        return new

    def _give_up(self, request: Request, fingerprint: bytes | None, error: Exception) -> None:
        """Let a request pass whose outcome is unknown; once, if it can be told from others."""
        self._report.count("unknown")
        if fingerprint is not None:
            self._taken_in_run.add(fingerprint)
        kind = "" if isinstance(error, BloomError) else f"{type(error).__name__}: "
        self._report.warn_once(
            f"unknown {type(error).__name__}",
            f"{kind}{error}. Requests like {request} count as new until that is mended "
            "(bloom/unknown counts them)",
        )

    # -- opening --

    def _connect(self) -> Filters:
        self.filters = connect_filters(
            self.settings,
            self.crawler.settings,
            fingerprinter=self._fingerprinter_name(),
            notify=self._report.happened,
        )
        return self.filters

    def _check_run(self, bloom: BloomFilter) -> None:
        """Refuse a stored window in runs if this run has no id."""
        schedule = bloom.config.schedule if bloom.config else None
        if schedule is not None and schedule.counts_runs and self.settings.run is None:
            raise need_run(f"the stored window of {bloom!r}, {schedule.window},")

    def _fingerprinter_name(self) -> str:
        return global_object_name(type(self.crawler.request_fingerprinter))

    # -- signals, stats, log --

    def _on_spider_opened(self) -> None:
        self._spider_opened = True

    def _on_spider_closed(self) -> None:
        # scrapy-redis's scheduler never closes its dupefilter.
        self.close()

    def _count_round_trips(self, filters: Filters) -> None:
        self._stats.set_value("bloom/round_trips", filters.round_trips)
