"""What crawls of ``odd_site`` are made of, each in its own process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from scrapy import Request, Spider, version_info
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.signals import engine_stopped
from scrapy.utils.defer import maybe_deferred_to_future


class OddSpider(Spider):
    """Follows all links, the first one first; begins at START, or nowhere if that is empty."""

    name = "odd"
    allowed_domains = ("127.0.0.1",)

    async def start(self) -> Any:
        if path := self.settings.get("START", "/"):
            yield Request(self.settings["SITE_URL"] + path)

    def parse(self, response: Response) -> Any:
        return self.links(response)

    def links(self, response: Response, **kwargs: Any) -> Iterator[Request]:
        for number, url in enumerate(response.css("a::attr(href)").getall()):
            yield response.follow(url, priority=-number, **kwargs)

    async def download(self, url: str) -> Any:
        """Return the response of a page, for a callback that waits for it."""
        engine: Any = self.crawler.engine
        if version_info >= (2, 14):
            return await engine.download_async(Request(url))
        return await maybe_deferred_to_future(engine.download(Request(url)))


class Component:
    """A component that knows its crawler."""

    crawler: Crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        self = cls()
        self.crawler = crawler
        return self


class StatsFile(Component):
    """An extension that writes the stats to STATS_FILE at the very end."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        self = super().from_crawler(crawler)
        crawler.signals.connect(self.write, engine_stopped)
        return self

    def write(self) -> None:
        assert self.crawler.stats
        stats = json.dumps(self.crawler.stats.get_stats(), default=str)
        Path(self.crawler.settings["STATS_FILE"]).write_text(stats)


class Keep(Component):
    """A pipeline that appends items to ITEMS_FILE."""

    def process_item(self, item: Any, spider: Any = None) -> Any:
        with Path(self.crawler.settings["ITEMS_FILE"]).open("a") as file:
            file.write(json.dumps(item) + "\n")
        return item
