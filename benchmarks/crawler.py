"""``python -m benchmarks.crawler JSON``: one crawl in a process of its own; prints its stats.

The JSON is an object with ``url``, where to start, ``items``, whether each page yields one, and
``settings`` of Scrapy.
"""

import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from time import process_time
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.http import HtmlResponse, Response
from w3lib.url import canonicalize_url

from benchmarks.rss import peak_memory
from benchmarks.stopwatch import Stopwatch

#: Stats that are printed; all that begin with ``bloom/`` too.
STATS = (
    "elapsed_time_seconds",
    "response_received_count",
    "item_scraped_count",
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
    items: bool

    async def start(self) -> AsyncIterator[Request]:
        """The page to start with."""
        self.allowed_domains = [urlsplit(self.url).hostname]
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Any]:
        """A page: an item, if it is to have one, and a request for each of its links."""
        if isinstance(response, HtmlResponse):
            if self.items:
                yield {"url": response.url, "title": response.css("title::text").get()}
            yield from response.follow_all(css=LINKS, callback=self.parse)


class Watch:
    """Takes down what a crawl schedules and fetches, and the time its dupefilter takes.

    Args:
        crawler: the crawler, before it crawls.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._dedupe = Stopwatch()
        #: CPU seconds of the process when the spider was opened, and those of the crawl.
        self._cpu_before = self._cpu = 0.0
        #: Pages, without the site's address, in the order in which they came.
        self._scheduled: list[str] = []
        self._fetched: list[str] = []
        crawler.signals.connect(self._on_spider_opened, signals.spider_opened)
        crawler.signals.connect(self._on_spider_closed, signals.spider_closed)
        crawler.signals.connect(self._on_response, signals.response_received)

    def report(self) -> dict[str, Any]:
        """Return the results, once the crawl is over."""
        assert self.crawler.stats
        stats = self.crawler.stats.get_stats()
        told = {name: value for name, value in stats.items() if name.startswith("bloom/")}
        told |= {name: stats[name] for name in STATS if name in stats}
        return told | {
            "blocked": self._dedupe.seconds,
            "peak_memory": peak_memory(),
            "cpu": self._cpu,
            "scheduled": _digest(self._scheduled),
            "fetched": _digest(self._fetched),
        }

    def _on_spider_opened(self) -> None:
        assert self.crawler.engine
        scheduler: Any = self.crawler.engine.scheduler
        enqueue = scheduler.enqueue_request

        def enqueue_request(request: Request) -> bool:
            is_scheduled = bool(enqueue(request))
            if is_scheduled:
                self._scheduled.append(_page(request.url))
            return is_scheduled

        scheduler.df.request_seen = self._dedupe.function(scheduler.df.request_seen)
        scheduler.enqueue_request = enqueue_request
        if "scrapy_bloom" in str(self.crawler.settings["DUPEFILTER_CLASS"]):
            _time_ours(self._dedupe)
        self._cpu_before = process_time()

    def _on_spider_closed(self) -> None:
        self._cpu = process_time() - self._cpu_before

    def _on_response(self, response: Response) -> None:
        self._fetched.append(_page(response.url))


def _time_ours(stopwatch: Stopwatch) -> None:
    """Time all that scrapy-bloom does in the crawl's thread, besides ``request_seen``."""
    # Crawls with other dupefilters are not to take the memory for these.
    from scrapy_bloom.crawl.duplicates import Duplicates  # noqa: PLC0415
    from scrapy_bloom.crawl.outputs import Outputs  # noqa: PLC0415
    from scrapy_bloom.crawl.pages import Pages  # noqa: PLC0415

    def time(owner: Any, kind: Callable[[Any], Any], *names: str) -> None:
        for name in names:
            setattr(owner, name, kind(getattr(owner, name)))

    # The fingerprints of links are computed, and what is known is dropped.
    time(Duplicates, stopwatch.function, "prepare")
    time(Outputs, stopwatch.function, "will_be_scheduled", "drop")
    # Rounds that look them up are tasks of their own.
    time(Duplicates, stopwatch.coroutine, "_run_round")
    # What waits for the rounds.
    time(Duplicates, stopwatch.coroutine, "look_up")
    # Under "crawled", requests are followed.
    followed = ("offered", "accepted", "refused", "handed_out", "turned_into", "raised", "finished")
    time(Pages, stopwatch.function, *followed)


def _page(url: str) -> str:
    """Return which page of the site a URL is of."""
    return urlsplit(canonicalize_url(url))._replace(scheme="", netloc="").geturl()


def _digest(pages: Iterable[str]) -> str:
    """Return the same for the same pages, each as many times, in any order."""
    return hashlib.sha1("\n".join(sorted(pages)).encode()).hexdigest()


def crawl(url: str, *, items: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Crawl a site; return the stats."""
    process = CrawlerProcess({**SETTINGS, **settings})
    crawler = process.create_crawler(EveryLinkSpider)
    watch = Watch(crawler)
    process.crawl(crawler, url=url, items=items)
    process.start()
    return watch.report()


def main() -> None:
    given = json.loads(sys.argv[1])
    print(json.dumps(crawl(**given), default=str))


if __name__ == "__main__":
    main()
