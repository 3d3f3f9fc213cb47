"""What identifies a request for the filters: its window and its fingerprint, worked out once."""

from collections.abc import Callable

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.spiders import SitemapSpider
from scrapy.utils.python import global_object_name

from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.windows import Windows
from scrapy_bloom.fingerprinter import MAX_FINGERPRINT, bounded
from scrapy_bloom.settings import LASTING, BloomSettings

#: A window, and a fingerprint: what is looked up, claimed and recorded.
Key = tuple[str, bytes]


def name_of(key: Key) -> str:
    """Return a key as text, for ``meta``."""
    return f"{key[0]}:{key[1].hex()}"


def of_own_key(key: bytes) -> bytes:
    """Return what filters hold of ``meta["bloom_key"]``: never equal to a fingerprint."""
    return bounded(b"bloom_key:" + key)


class Identity:
    """Identifies the requests of a crawl.

    Args:
        crawler: the running crawler, with its fingerprinter.
        settings: its settings.
        report: counts and warns.
    """

    def __init__(self, crawler: Crawler, settings: BloomSettings, report: Report) -> None:
        self._crawler, self._report = crawler, report
        self._fingerprint: Callable[[Request], bytes] = crawler.request_fingerprinter.fingerprint
        #: Whether a request's URL or callback may give it a window.
        self._has_rules = bool(settings.window_rules) or issubclass(
            crawler.spidercls, SitemapSpider
        )
        self._windows = Windows(settings.windows, settings.start_window, settings.window_rules)
        #: Import path of the class that makes the fingerprints.
        self.fingerprinter = global_object_name(type(crawler.request_fingerprinter))

    def fingerprint(self, request: Request) -> bytes:
        """Return what identifies a request: its ``bloom_key``, or its fingerprint.

        Raises:
            Exception: what the project's own fingerprinter raises.
        """
        if "bloom_key" in request.meta:
            key = self._own_key(request)
            if key:
                return key
        try:
            found = self._fingerprint(request)
            is_short = type(found) is bytes and len(found) <= MAX_FINGERPRINT
            return found if is_short else bounded(found)
        except Exception as error:
            self._report.not_identified(self.fingerprinter, request, error)
            raise

    def key(self, request: Request) -> Key:
        """Return a request's window and fingerprint. Raises as ``fingerprint`` does."""
        item, meta = self.fingerprint(request), request.meta
        if not (self._has_rules or "bloom_window" in meta or meta.get("is_start_request")):
            return LASTING, item  # as most requests
        try:
            return self._windows.of(request, self._crawler.spider), item
        except ValueError as error:
            self._report.warn_once(
                "window",
                f"meta['bloom_window'] of {request} {error} (BLOOM_WINDOWS has more): the request "
                "is remembered like any other",
            )
            return LASTING, item

    def _own_key(self, request: Request) -> bytes:
        # A redirect copies meta: the target would be taken for a duplicate of the source.
        if request.meta.get("redirect_urls"):
            return b""
        key = request.meta["bloom_key"]
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        if isinstance(key, bytes) and key:
            return of_own_key(key)
        kind = "empty" if isinstance(key, bytes) else f"of type {type(key).__name__}"
        self._report.warn_once("key", f"meta['bloom_key'] is {kind} in {request}: its URL is used")
        return b""
