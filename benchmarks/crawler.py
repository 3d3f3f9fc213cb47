"""``python -m benchmarks.crawler URL SETTINGS [FILE]``: one crawl in a process; prints its costs.

Each page yields an item and a request for each of its links. SETTINGS is a JSON object. With FILE,
the start requests are its lines, and pages yield only items.
"""

import hashlib
import json
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import process_time
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse, Response

SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "DOWNLOAD_DELAY": 0,
}
STATUS = Path("/proc/self/status")


class EveryLinkSpider(Spider):
    """Follows every link, and leaves it to the dupefilter which pages that comes to."""

    name = "every-link"
    url: str

    async def start(self) -> AsyncIterator[Request]:
        """The page to start with."""
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Any]:
        """A page: an item, and a request for each of its links."""
        yield {"url": response.url, "title": response.css("title::text").get()}
        assert isinstance(response, HtmlResponse)
        yield from response.follow_all(css="a", callback=self.parse)


class ListSpider(Spider):
    """Crawls a list of URLs."""

    name = "list"
    url: str

    async def start(self) -> AsyncIterator[Request]:
        """The lines of a file."""
        for line in Path(self.url).read_text("utf-8").splitlines():
            yield Request(line)

    def parse(self, response: Response) -> Iterator[Any]:
        """A page: an item."""
        yield {"url": response.url, "title": response.css("title::text").get()}


def crawl(url: str, settings: dict[str, Any], file: str = "") -> dict[str, Any]:
    """Crawl a site; return the costs, and a digest of the pages that it fetched."""
    process = CrawlerProcess({**SETTINGS, **settings})
    crawler = process.create_crawler(ListSpider if file else EveryLinkSpider)
    fetched: list[str] = []
    cpu: list[float] = []
    connect = crawler.signals.connect
    for signal in (signals.spider_opened, signals.spider_closed):
        connect(lambda: cpu.append(process_time()), signal, weak=False)
    connect(
        lambda response: fetched.append(urlsplit(response.url).path),
        signals.response_received,
        weak=False,
    )
    process.crawl(crawler, url=file or url)
    process.start()
    assert crawler.stats
    stats = crawler.stats.get_stats()
    return {
        "seconds": stats["elapsed_time_seconds"],
        "cpu": cpu[1] - cpu[0],
        "memory": peak_memory(),
        "pages": hashlib.sha1("\n".join(sorted(fetched)).encode()).hexdigest(),
        "items": stats.get("item_scraped_count", 0),
        "errors": stats.get("log_count/ERROR", 0),
    }


def peak_memory() -> int:
    """Return the most bytes of memory that this process has taken."""
    # On Linux, ru_maxrss begins with what the parent had when it started the process.
    if STATUS.exists():
        lines = (line.split() for line in STATUS.read_text(encoding="ascii").splitlines())
        return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(crawl(sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:])))
