"""Which window (re-crawl interval) a request belongs to."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scrapy import Request, Spider
from scrapy.spiders import SitemapSpider

from scrapy_bloom.fingerprinter import version_of
from scrapy_bloom.settings import LASTING, RUN


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

    Each run crawls these again to find what is new. A sitemap with a version changes with it.
    """
    if is_start(request):
        return True
    is_sitemap = isinstance(spider, SitemapSpider) and request.callback == spider._parse_sitemap  # noqa: SLF001
    return is_sitemap and not version_of(request.meta)
