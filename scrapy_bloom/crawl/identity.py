"""Which URL a request is for the filter, and which window remembers it: worked out once."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.spiders import SitemapSpider
from scrapy.utils.python import global_object_name

from scrapy_bloom.crawl.report import Report
from scrapy_bloom.fingerprinter import MAX_FINGERPRINT, bounded
from scrapy_bloom.settings import LASTING, RUN, BloomSettings

#: A window, and a fingerprint: what is looked up, claimed and recorded.
Key = tuple[str, bytes]


def name_of(key: Key) -> str:
    """Return a key as text, for ``meta``."""
    return f"{key[0]}:{key[1].hex()}"


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
        item = self.fingerprint(request)
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
            return bounded(b"bloom_key:" + key)  # never equal to a fingerprint
        kind = "empty" if isinstance(key, bytes) else f"of type {type(key).__name__}"
        self._report.warn_once("key", f"meta['bloom_key'] is {kind} in {request}: its URL is used")
        return b""


@dataclass(frozen=True, slots=True)
class Windows:
    """Which request has which window.

    Args:
        names: the windows that have a filter of their own.
        start: window of start requests and sitemaps.
        rules: patterns that are searched in the URL, and the windows they name; the first counts.
    """

    names: Collection[str]
    start: str
    rules: Sequence[tuple[re.Pattern[str], str]]

    def of(self, request: Request, spider: Spider | None) -> str:
        """Return the window of a request: by ``meta``, as a start request, by a rule, or LASTING.

        Raises:
            ValueError: ``meta["bloom_window"]`` names no window; the text lists those there are.
        """
        named = request.meta.get("bloom_window")
        if named is not None:
            if not isinstance(named, str) or named not in (RUN, LASTING, *self.names):
                known = ", ".join(repr(name) for name in (RUN, LASTING, *self.names))
                what = repr(named)[:60] if isinstance(named, str) else f"a {type(named).__name__}"
                raise ValueError(f"is {what}, and there are {known}")
            return named
        if self.start != LASTING and _is_hub(request, spider):
            return self.start
        for pattern, name in self.rules:
            if pattern.search(request.url):
                return name
        return LASTING


def is_start(request: Request) -> bool:
    """Whether it is a start request, which the next run makes again."""
    # is_start_request travels along with meta=response.meta; depth tells the copies apart.
    return bool(request.meta.get("is_start_request")) and not request.meta.get("depth")


def _is_hub(request: Request, spider: Spider | None) -> bool:
    """Whether it is a start request or, reached from one, a further sitemap.

    Each run crawls these again to find what is new.
    """
    if is_start(request):
        return True
    return isinstance(spider, SitemapSpider) and request.callback == spider._parse_sitemap  # noqa: SLF001
