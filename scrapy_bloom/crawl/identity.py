"""What identifies a request for the filters: its window and its fingerprint, worked out once."""

import difflib
from collections.abc import Callable
from functools import cache
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.spiders import SitemapSpider
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.fingerprinter import (
    MAX_FINGERPRINT,
    MAX_VERSION,
    VERSIONED,
    Key,
    ScrapyRedisFingerprinter,
    bounded,
    version_of,
    versioned,
)
from scrapy_bloom.recrawl_rules import RecrawlWindows
from scrapy_bloom.settings import DEFAULT, ITEMS, RUN, BloomSettings

#: Texts in ``meta`` whose windows are kept: a spider may make any number.
MAX_TEXTS = 1_000


class Windows:
    """Which request has which window.

    Args:
        windows: the windows of the crawl.
        report: warns.

    Attributes:
        named_one: whether a request has named its window.
    """

    def __init__(self, windows: RecrawlWindows, report: Report) -> None:
        self._windows, self._report = windows, report
        self.named_one = False
        #: What a request may name -> its window.
        self._by_text: dict[str, str] = {}

    def of(self, request: Request, spider: Spider | None) -> str:
        """Return the window of a request: by ``meta``, as a start request, or by the rules."""
        meta = request.meta
        value = meta.get("bloom_recrawl_after")
        named = None if value is None else self._named(value, request)
        if named is not None:
            return named
        if self._windows.start != DEFAULT and _is_hub(request, spider):
            return self._windows.start
        # DepthMiddleware sets it on all requests but start requests.
        depth = meta.get("depth", 0)
        return self._windows.name(request.url, depth if type(depth) is int else None)

    def _named(self, value: object, request: Request) -> str | None:
        """Return the window that ``meta`` names; None, after a warning, if there is none."""
        name = self._by_text.get(value) if isinstance(value, str) else None
        if name is not None:
            return name
        try:
            name = self._windows.find(value)
        except ConfigurationError as error:
            known = ", ".join(f'"{span}"' for span in self._windows.spans)
            self._report.warn_once(
                "unknown-window",
                f'meta["bloom_recrawl_after"] of {shown(request)} is {shown(value)}, and the '
                f"settings have {known} ({error}): the request has the window that the settings "
                "give it. To have another one, name it in BLOOM_RECRAWL_RULES, too",
            )
            return None
        self.named_one = True
        if isinstance(value, str) and len(self._by_text) < MAX_TEXTS:
            self._by_text[value] = name
        return name


def is_start(request: Request) -> bool:
    """Whether it is a start request, which the next run makes again."""
    # is_start_request travels along with meta=response.meta; depth tells the copies apart.
    return bool(request.meta.get("is_start_request")) and not request.meta.get("depth")


def pops_start_urls(spider: Spider | None) -> bool:
    """Whether it is a spider of scrapy-redis, which removes its start URLs from a list."""
    return any(base.__module__.startswith("scrapy_redis.") for base in type(spider).__mro__)


def _is_hub(request: Request, spider: Spider | None) -> bool:
    """Whether it is a start request or, reached from one, a further sitemap.

    Each run crawls these again to find what is new. A sitemap with a version changes with it.
    """
    if is_start(request):
        return True
    is_sitemap = isinstance(spider, SitemapSpider) and request.callback == spider._parse_sitemap  # noqa: SLF001
    return is_sitemap and not version_of(request.meta)


#: The keys of ``meta`` that a crawl reads or sets: docs/reference/meta.md has what each does.
META_KEYS = (
    *("bloom_key", "bloom_version", "bloom_recrawl_after", "bloom_has_item", "bloom_enabled"),
    *("bloom_filtered_start", "bloom_claims", "bloom_set_later"),
)
#: Fingerprinters that make it of the URL, the method and the body alone, as long as the meta key
#: "verbatim_url" is not there.
KNOWN = (RequestFingerprinter, ScrapyRedisFingerprinter)
ATTRIBUTES, META = {"url", "method", "body", "meta"}, {"verbatim_url"}
#: Keys of ``meta`` that are remembered as right: a spider may make any number.
MAX_KEYS = 1_000
#: URLs of each half of the cache, and characters of the longest: 5 MB at 100 characters a URL.
HALF, MAX_LENGTH = 8_192, 500

Fingerprint = Callable[[Request], bytes]


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

    Attributes:
        fingerprinter: import path of the class that makes the fingerprints.
        has_versions: whether a request had a version: its page is recorded twice, with and without.
    """

    def __init__(self, crawler: Crawler, settings: BloomSettings, report: Report) -> None:
        self._crawler, self._settings, self._report = crawler, settings, report
        self.has_versions = False
        self._fingerprint = cached(crawler.request_fingerprinter)
        #: Whether a request's URL or callback may give it a window.
        self._has_rules = bool(settings.recrawl_rules) or issubclass(
            crawler.spidercls, SitemapSpider
        )
        self._windows = Windows(settings.windows, report)
        #: Keys of ``meta`` that are known to be right.
        self._keys: set[object] = set(META_KEYS)
        self.fingerprinter = global_object_name(type(crawler.request_fingerprinter))

    @property
    def names_pages(self) -> bool:
        """Whether settings or requests name pages that are read again sooner than others."""
        settings = self._settings
        is_named = bool(settings.recrawl_rules) or settings.remember == ITEMS
        return is_named or self._windows.named_one

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
            return found if is_short and found[:8] != VERSIONED else bounded(found)
        except Exception as error:
            self._report.not_identified(self.fingerprinter, request, error)
            raise

    def key(self, request: Request) -> Key:
        """Return a request's window, and its fingerprint or that of its version.

        Raises as ``fingerprint`` does.
        """
        item, meta = self.fingerprint(request), request.meta
        if not self._keys.issuperset(meta):
            self._check_keys(request)
        if self._has_rules or "bloom_recrawl_after" in meta or meta.get("is_start_request"):
            window = self._windows.of(request, self._crawler.spider)
        else:
            window = DEFAULT  # as of most requests
        # What this run has taken is seen until its end, whatever version it has.
        if "bloom_version" in meta and window != RUN:
            item = self._versioned(item, request)
        return window, item

    def _check_keys(self, request: Request) -> None:
        """Warn about keys of ``meta`` that look like those of this package, and are not."""
        keys = request.meta.keys() - self._keys
        for key in keys:
            if isinstance(key, str) and key.startswith("bloom_"):
                close = difflib.get_close_matches(key, META_KEYS, n=1, cutoff=0.8)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(META_KEYS)}"
                self._report.warn_once(
                    "unknown-meta-key",
                    f"meta[{key!r:.100}] of {shown(request)} has no effect: scrapy-bloom knows no "
                    f"such key; {hint}",
                    key,
                )
        if len(self._keys) < MAX_KEYS:
            self._keys |= keys

    def _versioned(self, item: bytes, request: Request) -> bytes:
        version = version_of(request.meta)
        if version:
            self.has_versions = True
            return versioned(item, version)
        given = request.meta["bloom_version"]
        kind = f"of type {type(given).__name__}"
        if isinstance(given, str):
            kind = f"longer than {MAX_VERSION} bytes" if given else "empty"
        self._report.warn_once(
            "bad-version",
            f"meta['bloom_version'] is {kind} in {shown(request)}: the request is treated as "
            "without a version (leave the key out, or give a short text)",
        )
        return item

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
        self._report.warn_once(
            "bad-key", f"meta['bloom_key'] is {kind} in {shown(request)}: its URL is used"
        )
        return b""


class FingerprintCache:
    """Keeps the fingerprints of GET requests without a body.

    To make one takes 17 us, mostly for the canonical URL; to find it here 1 us. When the newer half
    is full, the older one is dropped.
    """

    def __init__(self, fingerprint: Fingerprint) -> None:
        self._fingerprint = fingerprint
        self._newer: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}

    def __call__(self, request: Request) -> bytes:
        """Return the fingerprint of a request."""
        if request.method != "GET" or request.body or "verbatim_url" in request.meta:
            return self._fingerprint(request)
        url = request.url.partition("#")[0]  # as the canonical URL is
        found = self._newer.get(url)
        if found is None:
            found = self._older.get(url) or self._fingerprint(request)
            if len(self._newer) >= HALF:
                self._older, self._newer = self._newer, {}
            if len(url) <= MAX_LENGTH:
                self._newer[url] = found
        return found


def cached(fingerprinter: Any) -> Fingerprint:
    """Return a fingerprinter's function, with a cache in front of it where that is sound."""
    cls: Any = type(fingerprinter)
    fingerprint: Fingerprint = fingerprinter.fingerprint
    is_sound = cls in KNOWN and _reads_only_what_is_known(cls)
    return FingerprintCache(fingerprint) if is_sound else fingerprint


@cache  # Scrapy keeps each class of requests that there ever was
def _reads_only_what_is_known(fingerprinter: type[Any]) -> bool:
    """Try it: a later version of Scrapy may look at more of a request."""
    attributes: set[str] = set()
    keys: set[object] = set()

    class Meta(dict[Any, Any]):
        def get(self, key: object, default: object = None) -> object:
            keys.add(key)
            return default

        def __contains__(self, key: object) -> bool:
            keys.add(key)
            return False

        def __getitem__(self, key: object) -> object:
            keys.add(key)
            raise KeyError(key)

    class Probe(Request):
        @property
        def meta(self) -> dict[str, Any]:
            return Meta()

        def __getattribute__(self, name: str) -> Any:
            attributes.add(name)
            return super().__getattribute__(name)

    probe = Probe("https://example.com/?b=1&a=2#c")
    attributes.clear()
    fingerprinter().fingerprint(probe)
    return keys <= META and {name for name in attributes if name[0] != "_"} <= ATTRIBUTES
