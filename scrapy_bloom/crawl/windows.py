"""Which window (re-crawl interval) a request belongs to."""

from scrapy import Request, Spider
from scrapy.spiders import SitemapSpider

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.fingerprinter import version_of
from scrapy_bloom.recrawl_rules import DEFAULT, RecrawlWindows

#: Texts in ``meta`` whose windows are kept: a spider may make any number.
MAX_TEXTS = 1_000


class Windows:
    """Which request has which window.

    Args:
        windows: the windows of the crawl.
        report: warns.
    """

    def __init__(self, windows: RecrawlWindows, report: Report) -> None:
        self._windows, self._report = windows, report
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
        self._report.names_pages = True
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
