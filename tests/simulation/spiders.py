"""The spider of simulated crawls, and what it downloads and stores with."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from io import BytesIO
from typing import Any, Self

from scrapy import Request, Spider, signals
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from simulation.site import ROOT, Price, SiteError

#: Seconds that a download takes, a pipeline, and that a callback waits before an output.
DOWNLOADS, PIPELINES, WAITS = (0.1, 0.2, 0.2, 0.5), (0.0, 0.0, 0.1, 1.0), (0.0, 0.0, 0.0, 0.01, 0.5)


class Pages(Spider):
    """Follows all links; errbacks yield those of pages that are missing.

    Attributes:
        process: that it crawls in.
        domain: whose pages it crawls; None for all.
    """

    name = "pages"
    process: Any
    domain: str | None = None

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Self:
        """Return the spider of a process."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.process = crawler.settings["SIMULATED_PROCESS"]
        crawler.signals.connect(spider.scheduled, signals.request_scheduled)
        crawler.signals.connect(spider.handed_out, signals.request_reached_downloader)
        return spider

    def scheduled(self, request: Request) -> None:
        """Note that the scheduler is about to receive a request."""
        self.process.scheduled.add(request.url)

    def handed_out(self, request: Request) -> None:
        """Note that the downloader has received a request."""
        if not (request.dont_filter or self.process.site.is_plain):
            self.process.world.hands_out(self.process.name, request.url)

    async def start(self) -> AsyncIterator[Any]:
        """Yield the start request, and a list; sometimes wait, and raise at the end."""
        is_unfiltered, site = self.process.dont_filter, self.process.site
        yield Request(ROOT, self.parse, errback=self.failed, dont_filter=is_unfiltered)
        for url in site.listed:
            if seconds := self.process.rng.choice(WAITS):
                await asyncio.sleep(seconds)
            yield Request(url, self.parse, errback=self.failed)
        if site.breaks:
            raise SiteError("the list has no end")

    def parse(self, response: Response, **kwargs: Any) -> Any:
        """Yield an item, and requests for the links of a page; sometimes raise."""
        process, url = self.process, response.url
        rng, site = process.rng, process.site
        outputs: list[Any] = self.links_of(url)
        if response.status == 200 and url not in (*site.listings, *site.parts):
            outputs.insert(rng.randint(0, len(outputs)), {"url": url})
        if error := site.error_of(url):
            outputs.insert(rng.randint(0, len(outputs)), error)
        form = rng.choice((self._yield, self._yield, self._wait_and_yield))
        return form(response, outputs)

    def parse_part(self, response: Response, shared: dict[str, Any]) -> Iterator[Any]:
        """Yield the item of the page that has yielded this request, if it's the last of these."""
        shared["missing"] = [url for url in shared["missing"] if url != response.url]
        item = {"url": shared["page"]}
        return self._yield(response, [] if shared["missing"] else [item])

    def failed(self, failure: Failure) -> Iterator[Request]:
        """Follow the links of a page that is missing."""
        response = getattr(failure.value, "response", None)
        if response is not None and response.status in (404, 410):
            yield from self._yield(response, self.links_of(response.url))

    def _yield(self, response: Response, outputs: Iterable[Any]) -> Iterator[Any]:
        for output in outputs:
            self._before(response.url, output)
            yield output
        self.process.crawled(response)

    async def _wait_and_yield(
        self, response: Response, outputs: Iterable[Any]
    ) -> AsyncIterator[Any]:
        for output in outputs:
            if seconds := self.process.rng.choice(WAITS):
                await asyncio.sleep(seconds)
            self._before(response.url, output)
            yield output
        self.process.crawled(response)

    def _before(self, url: str, output: Any) -> None:
        if isinstance(output, Exception):
            raise output
        if isinstance(output, Request):
            process, link = self.process, output.url
            is_part = link in process.site.parts.get(url, ())
            waits = is_part or (link, False) in process.site.links[url]
            process.site.leads(process.name, url, link, waits=waits)

    def links_of(self, url: str) -> list[Request]:
        """Return requests for the links of a page."""
        site = self.process.site
        parts = site.parts.get(url, [])
        shared = {"page": url, "missing": parts}
        return [
            self._part(link, shared) if link in parts else self._request(link, is_ok)
            for link, is_ok in site.links[url]
        ]

    def _part(self, link: str, shared: dict[str, Any]) -> Request:
        """Return one of the requests that make an item together."""
        is_unfiltered = link in self.process.site.unfiltered
        return Request(
            link,
            self.parse_part,
            errback=self.failed,
            cb_kwargs={"shared": shared},
            dont_filter=is_unfiltered,
        )

    def _request(self, link: str, is_stored: bool) -> Request:
        rng = self.process.rng
        callback: Callable[..., Any] = self.parse
        more: dict[str, Any] = {"priority": rng.choice([0, 0, 5])}
        if not is_stored and self.process.unpicklable is not None and rng.random() < 0.3:
            callback = lambda response: self.parse(response)  # noqa: E731, PLW0108
        elif not is_stored:
            price, function = Price(), self.process.unpicklable
            more["meta"] = rng.choice([{"price": price}, {"prices": [price]}, {"when": function}])
        elif rng.random() < 0.3:
            more["cb_kwargs"] = {"depth": 1}
        more["dont_filter"] = link in self.process.site.unfiltered
        return Request(link, callback, errback=self.failed, **more)


class Offsite(OffsiteMiddleware):
    """Drops requests of other spiders' domains."""

    def should_follow(self, request: Request, spider: Any) -> bool:
        """Whether the spider follows a request."""
        process = spider.process
        return not process.site.refuses(request.url, process.name)


class Part:
    """A part of a simulated process."""

    def __init__(self, crawler: Any) -> None:
        self._process = crawler.settings["SIMULATED_PROCESS"]
        self._feeds = crawler.settings["FEEDS"]

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Self:
        """Return the part of a crawl."""
        return cls(crawler)


class Middleware(Part):
    """Drops requests for some pages, and raises for some responses."""

    def process_request(self, request: Request) -> None:
        """Drop a request of a page that each run drops."""
        if self._process.site.refuses(request.url, self._process.name):
            raise IgnoreRequest("it asks for a password")

    def process_spider_input(self, response: Response) -> None:
        """Keep a response from its callback."""
        if self._process.site.is_blocked(response.url):
            raise SiteError("it is a captcha")


class Handler(Part):
    """Downloads from the site."""

    lazy = False

    async def download_request(self, request: Request) -> Response:
        """Return the response to a request, after some time."""
        process = self._process
        await asyncio.sleep(process.rng.choice(DOWNLOADS))
        return process.site.respond(request, process.name)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """There is nothing to close."""


class Pipeline(Part):
    """Stores the items of the site, unless feeds do."""

    async def process_item(self, item: Any) -> Any:
        """Store, drop, or fail to store an item."""
        process, url = self._process, item["url"]
        if seconds := process.rng.choice(PIPELINES):
            await asyncio.sleep(seconds)
        if not self._feeds:
            process.delivered(url)
        return item


class Storage(Part):
    """Stores the files of a feed as a whole, or refuses them."""

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
