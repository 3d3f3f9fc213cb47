"""An endless crawl's site: pages made in the crawler's process, by a download handler."""

import asyncio
import random
import time
from typing import Any

from scrapy import Request
from scrapy.http import HtmlResponse, Response
from scrapy.utils.defer import deferred_from_coro

try:
    from scrapy.core.downloader.handlers.base import BaseDownloadHandler  # noqa: F401

    HANDLERS_ARE_COROUTINES = True
except ImportError:  # older versions of Scrapy: handlers return a Deferred
    HANDLERS_ARE_COROUTINES = False

ROOT = "http://site.test"
#: Links of a page to the first pages (its navigation), and to pages anywhere.
NAVIGATION, ANYWHERE = 10, 18
#: Links of a hub: page after page. All hubs together link to each page.
PER_HUB = 30
#: Seconds that a page takes at most.
LONGEST = 0.02
#: One page in so many answers 500, for a time.
BROKEN_SHARE = 100


def hubs(pages: int) -> int:
    """Return how many hubs a site has."""
    return -(-pages // PER_HUB)


def number_of(url: str) -> int:
    """Return the number in a URL."""
    return int(url.rpartition("/")[2])


def links(path: str, number: int, pages: int) -> list[str]:
    """Return the paths that a page links to."""
    if path == "hub":
        first = number * PER_HUB
        return [f"/p/{page}" for page in range(first, min(first + PER_HUB, pages))]
    mixed = random.Random(number)
    found = [f"/p/{page}" for page in range(min(NAVIGATION, pages))]
    found += [f"/p/{mixed.randrange(pages)}" for _ in range(ANYWHERE)]
    return [*found, f"/p/{(number + 1) % pages}", f"/r/{mixed.randrange(pages)}"]


class SiteHandler:
    """Answers requests to the site.

    ``/hub/3`` links to 30 pages, ``/p/7`` is a page, ``/r/7`` is redirected to it. A page answers
    500 now and then, for half a period.
    """

    lazy = False

    def __init__(self, crawler: Any) -> None:
        self._pages = crawler.settings.getint("SOAK_PAGES")
        self._broken_seconds = crawler.settings.getfloat("SOAK_PERIOD") / 2

    @classmethod
    def from_crawler(cls, crawler: Any) -> "SiteHandler":
        return cls(crawler)

    if HANDLERS_ARE_COROUTINES:

        async def download_request(self, request: Request) -> Response:
            return await self._answer(request)
    else:

        def download_request(self, request: Request, spider: Any) -> Any:  # type: ignore[misc]
            return deferred_from_coro(self._answer(request))

    async def close(self) -> None: ...

    async def _answer(self, request: Request) -> Response:
        await asyncio.sleep(random.uniform(0, LONGEST))
        path, number = request.url.split("/")[3], number_of(request.url)
        if path == "r":
            return Response(request.url, 302, {"Location": f"{ROOT}/p/{number}"})
        if path == "p" and self._is_broken(number):
            return HtmlResponse(request.url, 500, encoding="utf-8")
        body = "\n".join(links(path, number, self._pages)).encode()
        return HtmlResponse(request.url, body=body, encoding="utf-8")

    def _is_broken(self, number: int) -> bool:
        turn = int(time.time() / self._broken_seconds)
        return random.Random(number * 1_000_003 + turn).randrange(BROKEN_SHARE) == 0
