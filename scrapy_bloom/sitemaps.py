"""Sitemaps whose entries have versions: what has not changed is not fetched again.

A sitemap that an index lists with a ``<lastmod>`` has a version too. Pages in it may be due
although it has not changed, so its version counts what the filters have forgotten: then it is read
again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import SitemapSpider

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.fingerprinter import MAX_VERSION, version_of

#: The end of a sitemap. Scrapy's parser reads a part of one without an error.
_END = re.compile(
    rb"</(?:[\w.-]+:)?(?:urlset|sitemapindex)\s*>|<(?:[\w.-]+:)?(?:urlset|sitemapindex)[^<>]*/>"
)
#: So long after a date began in UTC, it is over everywhere on earth.
_DAY_IS_OVER = timedelta(days=2)

Entry = dict[str, Any]


@dataclass
class _SitemapReading:
    """A sitemap that is being read.

    Args:
        lastmods: URL as the sitemap has it -> ``lastmod``.
        is_complete: whether the sitemap was received as a whole.
        has_escaped: whether ``lastmods`` has URLs as requests have them, too.
    """

    lastmods: dict[str, str] = field(default_factory=dict)
    is_complete: bool = False
    has_escaped: bool = False

    def lastmod(self, request: Request) -> str:
        """Return the ``lastmod`` of a request's entry; empty if it has none."""
        found = self.lastmods.get(request.url)
        if found is None and not self.has_escaped:
            self.lastmods, self.has_escaped = as_requested(self.lastmods), True
            found = self.lastmods.get(request.url)
        return found or ""


class SitemapVersions(SitemapSpider):
    """Makes versions of ``<lastmod>``: ``class Shop(SitemapVersions, SitemapSpider)``.

    Pages are fetched when their ``lastmod`` has changed, or when they are due. A sitemap that a
    sitemap index lists is read when its ``lastmod`` has changed, or when the filters have forgotten
    something since it was read; without ``lastmod``, in each run. All are read in each run under
    ``BLOOM_REMEMBER = "items"``, and if a rule has the window ``"run"``: they may name listings.

    Attributes:
        sitemap_skip_unchanged: whether sitemaps are left out that have not changed, according to
            the index. False reads all of them in each run.
    """

    sitemap_skip_unchanged: bool = True
    #: Returns what the filters have forgotten, as text; None if that is not known. The dupefilter
    #: sets it.
    bloom_forgotten: Callable[[], str | None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading = _SitemapReading()
        # Not by inheritance: the method of a subclass goes first, and need not call this one.
        of_class = self.sitemap_filter
        vars(self)["sitemap_filter"] = lambda entries: self._noted(of_class(entries))

    def _noted(self, entries: Iterable[Entry]) -> list[Entry]:
        listed = list(entries)  # as newer versions of Scrapy do
        self._reading.lastmods |= lastmods_of(listed)
        return listed

    def _get_sitemap_body(self, response: Response) -> bytes | None:
        body = super()._get_sitemap_body(response)
        self._reading.is_complete = bool(body and _END.search(body))
        return body

    def _parse_sitemap(self, response: Response) -> Iterator[Request]:
        """Yield the requests of a sitemap, with versions.

        Raises:
            ValueError: it is no sitemap, or a part of one, and has a version: if it counted as
                read, it would not be read again until it changes.
        """
        # Scrapy reads all of a sitemap before the first request: none is read in between.
        self._reading = reading = _SitemapReading()
        forgotten = self._forgotten()
        for request in super()._parse_sitemap(response):
            lastmod = reading.lastmod(request)
            if request.callback == self._parse_sitemap:
                version = sitemap_version(lastmod, forgotten, datetime.now(UTC).date())
            else:
                version = short_version(lastmod)
            if version:
                request.meta.setdefault("bloom_version", version)
            yield request
        is_versioned = response.request is not None and version_of(response.request.meta)
        if is_versioned and not reading.is_complete:
            raise ValueError(
                f"{shown(response)} is no sitemap, or not a whole one: it is read again after "
                "BLOOM_RETRY_AFTER"
            )

    def _forgotten(self) -> str | None:
        if not self.sitemap_skip_unchanged or self.bloom_forgotten is None:
            return None
        return self.bloom_forgotten()


def lastmods_of(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the ``lastmod`` of each URL, empty for none.

    That of an alternate without one of its own is that of its page.
    """
    own, alternate, without = dict[str, str](), dict[str, str](), dict[str, str]()
    for entry in entries:
        url, alternates, lastmod = entry["loc"], entry.get("alternate", ()), entry.get("lastmod")
        if lastmod:
            own[url] = str(lastmod)
            alternate |= dict.fromkeys(alternates, str(lastmod))
        else:
            without |= dict.fromkeys((url, *alternates), "")
    return {**without, **alternate, **own}


def as_requested(by_url: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping of URLs with these as requests have them as well: escaped."""
    found = dict(by_url)
    for url, value in by_url.items():
        with suppress(ValueError):  # Scrapy raises it for the request
            found[Request(url).url] = value
    return found


def sitemap_version(lastmod: str, forgotten: str | None, today: date) -> str:
    """Return the version of a sitemap; empty if it has to be read in this run.

    Args:
        lastmod: as the index has it.
        forgotten: what the filters have forgotten; None if that is not known.
        today: in UTC. A date without a time says nothing about the changes of the same day.
    """
    if not lastmod or forgotten is None or not is_final(lastmod, today):
        return ""
    return short_version(f"{lastmod} {forgotten}")


def is_final(lastmod: str, today: date) -> bool:
    """Whether a later change has another ``lastmod``."""
    if ":" in lastmod:
        return True  # it has a time
    try:
        return today - date.fromisoformat(lastmod) >= _DAY_IS_OVER
    except ValueError:
        return False  # a month or a year


def short_version(text: str) -> str:
    """Return a version: the text, or a hash of a long one."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= MAX_VERSION:
        return text
    return f"hashed:{blake2b(encoded, digest_size=16).hexdigest()}"
