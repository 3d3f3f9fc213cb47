"""``python -m benchmarks.crawler JSON``: one crawl in a process of its own; prints its stats.

The JSON is an object with ``url``, where to start, and ``settings`` of Scrapy.
"""

import contextlib
import hashlib
import json
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.http import HtmlResponse, Response

#: Stats that are told; all that begin with ``bloom/`` too.
STATS = (
    "elapsed_time_seconds",
    "response_received_count",
    "dupefilter/filtered",
    "scheduler/enqueued",
    "scheduler/enqueued/redis",
    "log_count/ERROR",
    "finish_reason",
)
SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "DOWNLOAD_DELAY": 0,
}


#: What is followed; Scrapy makes no request for a mail address.
LINKS = "a[href]:not([href^='mailto:'])"


class EveryLinkSpider(Spider):
    """Follows every link, and leaves it to the dupefilter which pages that comes to."""

    name = "every-link"
    url: str

    async def start(self) -> AsyncIterator[Request]:
        """The page to start with."""
        self.allowed_domains = [urlsplit(self.url).hostname]
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Request]:
        """A page: a request for each of its links."""
        if isinstance(response, HtmlResponse):
            yield from response.follow_all(css=LINKS, callback=self.parse)


class Watch:
    """Takes down what a crawl fetches, and the time its dupefilter takes.

    Args:
        crawler: the crawler, before it crawls.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        #: Requests that the dupefilter was asked about, and the seconds it took to answer.
        self.asked = 0
        self.blocked = 0.0
        self._paths: set[str] = set()
        crawler.signals.connect(self._on_spider_opened, signals.spider_opened)
        crawler.signals.connect(self._on_response, signals.response_received)

    def report(self) -> dict[str, Any]:
        """Return what is to be told, once the crawl is over."""
        assert self.crawler.stats
        stats = self.crawler.stats.get_stats()
        told = {name: value for name, value in stats.items() if name.startswith("bloom/")}
        told |= {name: stats[name] for name in STATS if name in stats}
        return told | {
            "asked": self.asked,
            "blocked": self.blocked,
            "peak_rss": peak_rss(),
            "cpu": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
            "digest": hashlib.sha1("\n".join(sorted(self._paths)).encode()).hexdigest(),
        }

    def _on_spider_opened(self) -> None:
        assert self.crawler.engine
        scheduler: Any = self.crawler.engine.scheduler
        seen = scheduler.df.request_seen

        def request_seen(request: Request) -> bool:
            start = perf_counter()
            try:
                return bool(seen(request))
            finally:
                self.blocked += perf_counter() - start
                self.asked += 1

        scheduler.df.request_seen = request_seen

    def _on_response(self, response: Response) -> None:
        self._paths.add(urlsplit(response.url)._replace(netloc="").geturl())


def crawl(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Crawl a site; return the stats."""
    process = CrawlerProcess({**SETTINGS, **settings})
    crawler = process.create_crawler(EveryLinkSpider)
    watch = Watch(crawler)
    process.crawl(crawler, url=url)
    process.start()
    return watch.report()


def peak_rss() -> int:
    """Return the most memory this process took, in bytes.

    On Linux ``ru_maxrss`` begins with what the parent had when it started the process.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    given = json.loads(sys.argv[1])
    print(json.dumps(crawl(given["url"], given["settings"]), default=str))


if __name__ == "__main__":
    main()
