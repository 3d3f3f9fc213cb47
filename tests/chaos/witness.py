"""A Scrapy extension that notes what is asked for and what is scraped, also if the crawler dies."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from example_site import urls
from magazine.items import Story
from scrapy import Request, signals
from scrapy.crawler import Crawler

_ASKED, _SCRAPED = "asked", "scraped"


class Witness:
    """Adds what happens to the file that the setting `WITNESS_FILE` names.

    Several processes share the file; a line is one write, so that a kill -9 leaves no half of one.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Witness":
        witness = cls(crawler.settings["WITNESS_FILE"])
        crawler.signals.connect(witness.asked, signals.request_reached_downloader)
        crawler.signals.connect(witness.scraped, signals.item_scraped)
        return witness

    def asked(self, request: Request) -> None:
        self._write(_ASKED, request.url)

    def scraped(self, item: Story) -> None:
        self._write(_SCRAPED, item.url)

    def _write(self, what: str, url: str) -> None:
        path = urls.canonical("/" + url.split("/", 3)[3])
        os.write(self._file, f"{what} {os.getpid()} {path}\n".encode())


@dataclass
class Testimony:
    """What the crawlers did.

    Args:
        asked: process -> how often it asked for each page.
        scraped: the stories that were scraped.
    """

    asked: dict[int, Counter[str]] = field(default_factory=dict)
    scraped: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path) -> "Testimony":
        """Read the file; there may be none yet."""
        asked: dict[int, Counter[str]] = {}
        scraped = set()
        for line in path.read_text().splitlines() if path.exists() else ():
            what, pid, page = line.split(" ", 2)
            if what == _SCRAPED:
                scraped.add(page)
            else:
                asked.setdefault(int(pid), Counter())[page] += 1
        return cls(asked, frozenset(scraped))
