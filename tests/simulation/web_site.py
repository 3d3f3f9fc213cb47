"""The site of simulated crawls by Scrapy itself: what its engine gets from the network."""

import re
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Any

from scrapy import Request
from scrapy.http import HtmlResponse, Response, TextResponse, XmlResponse
from scrapy.utils.request import fingerprint

from simulation.site import ROOT, Site, SiteError, short

#: What spiders read before its pages: none of them is a page.
ROBOTS, SITEMAP = f"{ROOT}robots.txt", f"{ROOT}sitemap.xml"
#: Seconds that a download takes.
DOWNLOADS = (0.1, 0.2, 0.2, 0.5)


class WebSite(Site):
    """The pages of a site as HTML, with its robots.txt and its sitemaps.

    Args:
        rng: makes the site.
        pages: their number, besides the start page.
        stored: share of the requests that can be stored with their claims.
        log: notes what is fetched.
        gone: share of the pages that are missing.
        each_run: matches the URLs of pages that are remembered for a run only.
        kinds: further arguments of ``Site``.

    Attributes:
        gone: URL -> status of a page that is missing.
        disallowed: pages that robots.txt disallows.
        unreachable: pages whose failures are exceptions of the download.
        dropped: pages whose item a pipeline drops.
        unfiltered: pages that ``Plain`` spiders request with ``dont_filter``.
        each_run: pages that are remembered for a run only.
        listed: pages that are in a sitemap.
        is_stored_whole: whether all requests can be stored.
        is_plain: whether what happens to the pages is not noted, nor fails.
    """

    def __init__(
        self,
        rng: Random,
        pages: int,
        stored: float,
        log: Callable[[str], None],
        *,
        gone: float,
        each_run: str,
        **kinds: Any,
    ) -> None:
        super().__init__(rng, pages, stored, log, **kinds)
        others = [name for name in self.links if name not in (*self.starts, *self.redirects)]
        self.gone = {name: rng.choice([404, 410]) for name in others if rng.random() < gone}
        # They fail for good where Scrapy's tries are not enough.
        self.fails = {name: times * rng.choice([1, 1, 3]) for name, times in self.fails.items()}
        for name in self.gone:
            self.fails.pop(name, None)
        self.listings -= self.gone.keys()  # a page that is missing is recorded without an item
        self.disallowed = {name for name in others if rng.random() < 0.08}
        self.unreachable = {name for name in others if rng.random() < 0.5}
        self.dropped = {name for name in others if rng.random() < 0.1}
        self.listed = [name for name in self.links if rng.random() < 0.7]
        self.circles = {name for name in self.redirects if self._target(name) in self.redirects}
        ends = [name for name in others if not self.links[name]]
        self.unfiltered = {name for name in ends if rng.random() < 0.5}
        self.each_run = {name for name in others if each_run and re.search(each_run, name)}
        self.circles |= self.unfiltered | self.each_run  # they are fetched in each run, too
        for name in self.redirects:  # their sources fail, too
            self.fails[name] = rng.choice([0, 0, 1]) if kinds.get("fails") else 0
        self.is_plain, self.is_stored_whole = False, stored == 1
        for name in (SITEMAP, *(f"{ROOT}sitemap{n}.xml" for n in range(2))):
            self.fields[fingerprint(Request(name)).hex()] = name
        for name in [*self.gone, *sorted(self.disallowed)]:
            log(f"site: {short(name)} is {self.gone.get(name, 'disallowed')}")

    def _reached(self, by: Collection[str], starts: Collection[str] = ()) -> set[str]:
        # Where robots.txt is obeyed, what only such a page links is not found.
        return super()._reached({*by} - self.disallowed, starts)

    def _target(self, url: str) -> str:
        for _ in self.redirects:
            url = self.redirects.get(url, url)
        return url

    def respond(self, request: Request, process: str, spider: int) -> Response:
        """Return the response to a request, or raise."""
        url = request.url
        if url == ROBOTS:
            lines = [f"Disallow: /{short(name)}$" for name in sorted(self.disallowed)]
            return TextResponse(url, body="\n".join(["User-agent: *", *lines]).encode())
        if url.startswith(SITEMAP.removesuffix(".xml")):
            return XmlResponse(url, body=self._sitemap(url))
        got = None if self.is_plain else self.fetch(request, process, spider)
        if isinstance(got, Request) and self.fails[url]:
            self.fails[url] -= 1
            return Response(url, 503)
        if url in self.redirects:
            return Response(url, 302, headers={"Location": self.redirects[url]})
        if isinstance(got, Response) and got.status != 200:
            if url in self.unreachable:
                raise SiteError("connection refused")
            return got
        return self._page(url)

    def _page(self, url: str) -> Response:
        links = "".join(f'<a href="{link}">{short(link)}</a>' for link, _ in self.links[url])
        body = f"<html><body>{links}</body></html>".encode()
        return HtmlResponse(url, self.gone.get(url, 200), body=body)

    def _sitemap(self, url: str) -> bytes:
        """Return the sitemap of some pages; that of the site lists all others."""
        if url == SITEMAP:
            return _xml("sitemapindex", "sitemap", [f"{ROOT}sitemap{n}.xml" for n in range(2)])
        half = int(url.removesuffix(".xml")[-1])
        return _xml("urlset", "url", [ROOT, *self.listed[half::2]])

    def is_stored(self, url: str, link: str) -> bool:
        """Whether the request for a page's link can be stored."""
        return all(ok for name, ok in self.links[url] if name == link)


def _xml(root: str, entry: str, urls: Iterable[str]) -> bytes:
    entries = "".join(f"<{entry}><loc>{url}</loc></{entry}>" for url in urls)
    namespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0"?><{root} xmlns="{namespace}">{entries}</{root}>'.encode()
