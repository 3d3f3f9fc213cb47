"""Spiders of simulated crawls by Scrapy itself, in the forms that people write."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from io import BytesIO
from typing import Any

from scrapy import Request, Spider
from scrapy.exceptions import DropItem
from scrapy.http import Response
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider
from twisted.python.failure import Failure

from simulation.site import SITEMAP, Price, SiteError, short

#: Seconds that a download takes, a pipeline, and that a callback waits before an output.
DOWNLOADS, PIPELINES, WAITS = (0.1, 0.2, 0.2, 0.5), (0.0, 0.0, 0.1, 1.0), (0.0, 0.0, 0.0, 0.01, 0.5)
#: Seconds for which a callback blocks.
BLOCKED = (30.0, 200.0)


class Simulated(Spider):
    """What all spiders of a simulated process do.

    Attributes:
        process: that it crawls in.
    """

    process: Any

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> "Simulated":
        """Return the spider of a process."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.process = crawler.settings["SIMULATED_PROCESS"]
        return spider

    def crawled(
        self, response: Response, outputs: Iterable[Any] | AsyncIterator[Any]
    ) -> Iterator[Any] | AsyncIterator[Any]:
        """Return outputs of a callback, which note when it is done."""
        return (self._async if isinstance(outputs, AsyncIterator) else self._sync)(
            response, outputs
        )

    def _sync(self, response: Response, outputs: Any) -> Iterator[Any]:
        yield from outputs
        self.process.crawled(response)

    async def _async(self, response: Response, outputs: Any) -> AsyncIterator[Any]:
        async for output in outputs:
            yield output
        self.process.crawled(response)

    def outputs(self, response: Response, requests: Iterable[Request]) -> Any:
        """Return what a callback yields: an item, requests, and sometimes an exception."""
        process, url = self.process, response.url
        rng, site = process.rng, process.site
        outputs: list[Any] = [*requests]
        if response.status == 200 and url not in site.listings:
            outputs.insert(rng.randint(0, len(outputs)), {"url": url})
        if site.stumbles(url):
            outputs.insert(rng.randint(0, len(outputs)), None)
        form = rng.choice((self._yield, self._yield, self._wait_and_yield))
        return self.crawled(response, form(outputs))

    def _yield(self, outputs: Iterable[Any]) -> Iterator[Any]:
        for output in outputs:
            self._before(output)
            yield output

    async def _wait_and_yield(self, outputs: Iterable[Any]) -> AsyncIterator[Any]:
        for output in outputs:
            if seconds := self.process.rng.choice(WAITS):
                await asyncio.sleep(seconds)
            self._before(output)
            yield output

    def _before(self, output: Any) -> None:
        world = self.process.world
        if not self.process.site.is_plain and world.strikes("block"):
            world.log(f"{self.process.name}: BLOCKS")
            world.hold(self.process, world.rng.choice(BLOCKED))
        if output is None:
            raise SiteError("there is no price")

    def unstored(self) -> dict[str, Any]:
        """Return ``meta`` that JSON cannot hold."""
        return self.process.rng.choice(  # type: ignore[no-any-return]
            [{"price": Price()}, {"prices": [Price()]}, {"when": self.process.unpicklable}]
        )


class Plain(Simulated):
    """Follows all links by requests of its own; errbacks yield those of pages that are missing."""

    follows_missing = True

    async def start(self) -> AsyncIterator[Any]:
        """Yield the start request."""
        yield Request(
            self.process.start_url,
            self.parse,
            errback=self.failed,
            dont_filter=self.process.dont_filter,
        )

    def parse(self, response: Response, **kwargs: Any) -> Any:
        """Follow the links of a page."""
        return self.outputs(response, self.links_of(response.url))

    def failed(self, failure: Failure) -> Iterator[Request]:
        """Follow the links of a page that is missing."""
        response = getattr(failure.value, "response", None)
        if response is not None and response.status in (404, 410) and self.follows_missing:
            yield from self.links_of(response.url)

    def links_of(self, url: str) -> list[Request]:
        return [self._request(link, is_ok) for link, is_ok in self.process.site.links[url]]

    def _request(self, link: str, is_stored: bool) -> Request:
        rng = self.process.rng
        callback: Callable[..., Any] = self.parse
        meta: dict[str, Any] = {}
        if not is_stored:
            if self.process.unpicklable is not None and rng.random() < 0.3:
                callback = lambda response: self.parse(response)  # noqa: E731, PLW0108
            else:
                meta = self.unstored()
        more: dict[str, Any] = {"priority": rng.choice([0, 0, 5])}
        if rng.random() < 0.3:
            more["cb_kwargs"] = {"depth": 1}
            callback = self.parse if is_stored else callback
        if callback is not self.parse:
            more.pop("cb_kwargs", None)
        more["dont_filter"] = link in self.process.site.unfiltered
        return Request(link, callback, errback=self.failed, meta=meta, **more)


class Crawling(Simulated, CrawlSpider):  # type: ignore[misc]
    """Follows all links by a rule, which gives each request ``link_text``."""

    rules = (
        Rule(
            LinkExtractor(unique=True, process_value=None),
            callback="page",
            follow=True,
            process_links="shuffled",
            process_request="described",
        ),
    )

    async def start(self) -> AsyncIterator[Any]:
        """Yield the start request."""
        yield Request(self.process.start_url, dont_filter=self.process.dont_filter)

    def shuffled(self, links: list[Link]) -> list[Link]:
        """Return links in any order."""
        self.process.rng.shuffle(links)
        return links

    def described(self, request: Request, response: Response) -> Request:
        """Give a request what cannot be stored, if it is one of these."""
        links = self.process.site.links[response.url]
        if not all(is_ok for link, is_ok in links if link == request.url):
            request.meta.update(self.unstored())
        return request

    def parse_start_url(self, response: Response, **kwargs: Any) -> Any:
        """Take the item of the start page."""
        return self.page(response)

    def page(self, response: Response) -> Any:
        """Take a page's item; it must know by which link it was found."""
        text = response.meta.get("link_text")
        redirected = response.meta.get("redirect_urls", [response.url])[0]
        if "rule" in response.meta and text != short(redirected):
            self.process.world.found.append(f"link_text {text!r} of {redirected}")
        return self.outputs(response, ())


class Mapped(Plain, SitemapSpider):  # type: ignore[misc]
    """Begins with the site's sitemaps, and follows all links."""

    sitemap_urls = (SITEMAP,)
    follows_missing = False  # requests for what a sitemap lists have no errback

    async def start(self) -> AsyncIterator[Any]:
        """Yield a request for the sitemap."""
        async for request in SitemapSpider.start(self):
            yield request


SPIDERS = (Plain, Crawling, Mapped)


class Handler:
    """Downloads from the site."""

    lazy = False

    def __init__(self, process: Any) -> None:
        self._process = process

    @classmethod
    def from_crawler(cls, crawler: Any) -> "Handler":
        """Return the handler of a process."""
        return cls(crawler.settings["SIMULATED_PROCESS"])

    async def download_request(self, request: Request) -> Response:
        """Return the response to a request, after some time."""
        process = self._process
        await asyncio.sleep(process.rng.choice(DOWNLOADS))
        return process.site.respond(request, process.name, process.spider)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """There is nothing to close."""


class Pipeline:
    """Stores the items of the site, unless feeds do; drops some."""

    def __init__(self, process: Any, *, stores: bool) -> None:
        self._process, self._stores = process, stores

    @classmethod
    def from_crawler(cls, crawler: Any) -> "Pipeline":
        """Return the pipeline of a process."""
        process = crawler.settings["SIMULATED_PROCESS"]
        return cls(process, stores=not crawler.settings["FEEDS"])

    async def process_item(self, item: Any) -> Any:
        """Store, drop, or fail to store an item."""
        process, url = self._process, item["url"]
        if seconds := process.rng.choice(PIPELINES):
            await asyncio.sleep(seconds)
        if url in process.site.dropped:
            raise DropItem("too dear")
        if self._stores:
            process.delivered(url)
        return item


class Storage:
    """Stores the files of a feed as a whole, or refuses them."""

    def __init__(self, process: Any) -> None:
        self._process = process

    @classmethod
    def from_crawler(cls, crawler: Any, uri: str, **kwargs: Any) -> "Storage":
        """Return the storage of a file."""
        return cls(crawler.settings["SIMULATED_PROCESS"])

    def open(self, spider: Spider) -> BytesIO:
        """Return the file."""
        return BytesIO()

    async def store(self, file: BytesIO) -> None:
        """Store the items of a file, or raise before the first one."""
        process = self._process
        await asyncio.sleep(process.rng.choice(PIPELINES))
        urls = [json.loads(line)["url"] for line in file.getvalue().splitlines()]
        refused = process.site.raises
        for url in sorted(urls, key=lambda url: not refused.get(url)):
            process.delivered(url)
