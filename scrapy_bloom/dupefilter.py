"""BloomDupeFilter: Scrapy's and scrapy-redis's dupefilter interface on a BloomFilter."""

import logging
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.project import data_path
from scrapy.utils.python import global_object_name
from scrapy.utils.request import referer_str

from scrapy_bloom import advice, windows
from scrapy_bloom.connection import Connection, connect, connect_scrapy_redis
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import BloomFilter
from scrapy_bloom.settings import (
    FLUSH_ALWAYS,
    FLUSH_START,
    BloomSettings,
    is_developer_command,
)

logger = logging.getLogger(__name__)


class BloomDupeFilter(BaseDupeFilter):
    """Drops requests that any worker of the crawl has scheduled before.

    ``DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"``, or the add-on. Nothing is connected until
    the spider opens; then an unusable setting or server raises, before any request is lost.

    Per request, in ``meta``: ``bloom_key`` (str or bytes) identifies it instead of its fingerprint,
    ``bloom_window`` = ``"run"`` remembers it for this run and in this process only,
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
        #: The filter; None until it is opened.
        self.filter: BloomFilter | None = None
        self._connection: Connection | None = None
        #: Neither filters nor records; for good after ``close`` and under developer commands.
        self._closed = is_developer_command(crawler)
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._log_next = True
        self._spider_opened = False
        self._identify = crawler.request_fingerprinter.fingerprint
        self._stats: Any = crawler.stats
        #: Fingerprints taken under the window "run", and those that could not be recorded.
        self._taken_in_run: set[bytes] = set()
        self._warned: set[str] = set()
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
            bloom = self._connect()
            bloom.open()
            self._report(bloom)
        except BaseException:
            self.close()
            raise
        self._count_round_trips(bloom)

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
                self._count("run/seen")
                return True
            if self._window(request) == windows.RUN:
                self._taken_in_run.add(fingerprint)
                self._count("run/new")
                return False
            new = self._claim(fingerprint)
        except Exception as error:
            # Whatever it is: raised from here, Scrapy would lose the request without a word.
            self._give_up(request, fingerprint, error)
            return False
        self._count("new" if new else "seen")
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
        if self.filter is None:
            return
        try:
            self.filter.clear()
        except BloomError as error:
            if not self._spider_opened:
                raise  # before anything is lost
            logger.error("Bloom filter not cleared: %s", error)  # noqa: TRY400 - it says all
        else:
            logger.info("%r cleared (BLOOM_FLUSH = %r)", self.filter, self.settings.flush)

    def close(self, reason: str = "") -> None:  # noqa: ARG002 - Scrapy's interface
        """Close the connection; the filter stays on the server."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        self._connection = self.filter = None

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
            self._warn_once("key", f"meta['bloom_key'] is {kind} in {request}: its URL is used")
        fingerprint: object = self._identify(request)
        if not isinstance(fingerprint, bytes):
            raise TypeError(f"the fingerprint of {request} is no bytes but {fingerprint!r:.60}")
        return fingerprint

    def _window(self, request: Request) -> str | None:
        window = request.meta.get("bloom_window")
        if window == windows.RUN:
            return windows.RUN
        if window is not None:
            self._warn_once(
                "window",
                f"meta['bloom_window'] = {window!r:.60} of {request} is unknown (there is 'run'): "
                "the request is remembered like any other",
            )
        hub = windows.is_hub(request, self.crawler.spider)
        return self.settings.start_window if hub else None

    def _claim(self, fingerprint: bytes) -> bool:
        bloom = self._connect() if self.filter is None else self.filter
        unrecorded, lost = bloom.unrecorded, bloom.lost_blocks
        try:
            new = bloom.add(fingerprint)
        finally:
            self._count_round_trips(bloom)
        if bloom.unrecorded > unrecorded:
            self._note_full(bloom, fingerprint)
        if bloom.lost_blocks > lost:
            self._note_lost(bloom)
        return new

    def _note_full(self, bloom: BloomFilter, fingerprint: bytes) -> None:
        # Else pages that link each other would be fetched for ever.
        self._taken_in_run.add(fingerprint)
        self._count("unrecorded")
        self._warn_once(
            "full",
            f"the Bloom filter {bloom.key!r} is full: further URLs are remembered by this process "
            "for this run only. Set a larger BLOOM_CAPACITY with another BLOOM_KEY",
        )

    def _note_lost(self, bloom: BloomFilter) -> None:
        self._stats.set_value("bloom/lost_blocks", bloom.lost_blocks)
        self._warn_once(
            "lost",
            f"a part of the Bloom filter {bloom.key!r} was gone and is empty now: its URLs are "
            "crawled again. Was it evicted, flushed or deleted? (bloom/lost_blocks counts on)",
        )

    def _give_up(self, request: Request, fingerprint: bytes | None, error: Exception) -> None:
        """Let a request pass whose outcome is unknown; once, if it can be told from others."""
        self._count("unknown")
        if fingerprint is not None:
            self._taken_in_run.add(fingerprint)
        kind = "" if isinstance(error, BloomError) else f"{type(error).__name__}: "
        self._warn_once(
            f"unknown {type(error).__name__}",
            f"{kind}{error}. Requests like {request} count as new until that is mended "
            "(bloom/unknown counts them)",
        )

    # -- opening --

    def _connect(self) -> BloomFilter:
        settings = self.settings
        timeout, params = settings.timeout, settings.redis_params
        if settings.redis_url is None:
            connection = connect_scrapy_redis(self.crawler.settings, timeout=timeout, params=params)
        else:
            connection = connect(
                settings.redis_url, timeout=timeout, params=params, data_dir=data_path("bloom")
            )
        self._connection = connection
        self.filter = BloomFilter(
            connection.client,
            settings.key,
            capacity=settings.capacity,
            error_rate=settings.error_rate,
            blocks=settings.blocks,
            seeds=settings.seeds,
            fingerprinter=self._fingerprinter_name(),
            label=connection.label,
        )
        return self.filter

    def _report(self, bloom: BloomFilter) -> None:
        """Say in one line what the filter holds, so that a second run does not look broken."""
        info = bloom.info()
        logger.info(
            "%r remembers %s URLs, which are not crawled again (made for %s, %d blocks, %.1f MiB)",
            bloom,
            f"{info.count:,}",
            f"{info.capacity:,}",
            info.blocks,
            info.memory / (1 << 20),
        )
        stored = bloom.header.fingerprinter if bloom.header else ""
        for sentence in (
            advice.on_config(info, self.settings.capacity, self.settings.error_rate),
            advice.on_capacity(info),
            advice.on_fingerprinter(stored, self._fingerprinter_name()),
            advice.on_eviction(bloom.eviction_policy()),
            advice.on_http_cache(self.crawler.settings),
        ):
            if sentence:
                logger.warning("Bloom filter: %s", sentence)

    def _fingerprinter_name(self) -> str:
        return global_object_name(type(self.crawler.request_fingerprinter))

    # -- signals, stats, log --

    def _on_spider_opened(self) -> None:
        self._spider_opened = True

    def _on_spider_closed(self) -> None:
        # scrapy-redis's scheduler never closes its dupefilter.
        self.close()

    def _count(self, name: str) -> None:
        self._stats.inc_value(f"bloom/{name}")

    def _count_round_trips(self, bloom: BloomFilter) -> None:
        self._stats.set_value("bloom/round_trips", bloom.round_trips)

    def _warn_once(self, topic: str, message: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning("%s", message)
