"""A Scrapy extension that notes what was not only fetched but scraped, also if the crawler dies."""

import os
from pathlib import Path

from example_site import urls
from magazine.items import Story
from scrapy import signals
from scrapy.crawler import Crawler


class Witness:
    """Adds the path of each scraped story to the file that the setting `WITNESS_FILE` names.

    Several processes share the file; a line is one write, so that a kill -9 leaves no half of one.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Witness":
        witness = cls(crawler.settings["WITNESS_FILE"])
        crawler.signals.connect(witness.item_scraped, signals.item_scraped)
        return witness

    def item_scraped(self, item: Story) -> None:
        path = "/" + item.url.split("/", 3)[3]
        os.write(self._file, f"{urls.canonical(path)}\n".encode())


def read(path: Path) -> frozenset[str]:
    """Return the paths of the stories that were scraped."""
    return frozenset(path.read_text().splitlines()) if path.exists() else frozenset()
