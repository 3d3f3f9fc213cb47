"""The spider of the crawls, which notes what it has done in a way that a kill can't undo."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any, Self

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import BlockingFeedStorage
from scrapy.http import Response


class ChaosSpider(Spider):
    """Follows all links, and notes each page of which all has been yielded."""

    name = "chaos"

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self.settings["START_URL"], dont_filter=True)

    def parse(self, response: Response) -> Iterator[Any]:
        page = response.url.rpartition("/")[2]
        for number, text in enumerate(response.css("p::text").getall()):
            yield {"page": page, "number": number, "text": text}
        yield from response.follow_all(response.css("a::attr(href)").getall())
        note(self.settings["NOTES"], {"page": page})


class NotingPipeline:
    """Notes each item, as a database would store it."""

    def __init__(self, notes: str) -> None:
        self._notes = notes

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler.settings["NOTES"])

    def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        note(self._notes, {"item": item})
        return item


class StagedStorage(BlockingFeedStorage):
    """Stores a feed as a whole or not at all, as S3 does. Scrapy's files also have parts of one."""

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        self._path = Path(uri.removeprefix("staged://"))

    def _store_in_thread(self, file: IO[bytes]) -> None:
        file.seek(0)
        part = self._path.with_suffix(".part")
        part.write_bytes(file.read())
        file.close()
        part.rename(self._path)


def note(path: str, what: dict[str, Any]) -> None:
    """Add a line to a file that several processes share, by one write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(what).encode() + b"\n")
    os.close(file)
