"""A Scrapy extension that notes what is asked for and what is scraped, also if the crawler dies."""

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from example_site import urls
from magazine.items import Story
from scrapy import Request, signals
from scrapy.crawler import Crawler

_ASKED, _SCRAPED, _HELD, _DROPPED = "asked", "scraped", "held", "dropped"


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
        crawler.signals.connect(witness.held, signals.request_scheduled)
        crawler.signals.connect(witness.dropped, signals.request_dropped)
        return witness

    def asked(self, request: Request) -> None:
        self._write(_ASKED, request.url)

    def held(self, request: Request) -> None:
        self._write(_HELD, request.url)

    def dropped(self, request: Request) -> None:
        self._write(_DROPPED, request.url)

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
        held: page -> processes that had it in their queues at any time.
    """

    asked: dict[int, Counter[str]] = field(default_factory=dict)
    scraped: frozenset[str] = frozenset()
    held: dict[str, set[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Testimony":
        """Read the file; there may be none yet."""
        asked: dict[int, Counter[str]] = defaultdict(Counter)
        queued: dict[str, Counter[int]] = defaultdict(Counter)
        scraped = set()
        for line in path.read_text().splitlines() if path.exists() else ():
            what, pid, page = line.split(" ", 2)
            if what == _SCRAPED:
                scraped.add(page)
            elif what == _ASKED:
                asked[int(pid)][page] += 1
            else:
                queued[page][int(pid)] += 1 if what == _HELD else -1
        held = {page: set(+counts) for page, counts in queued.items()}
        return cls(dict(asked), frozenset(scraped), held)
