"""What one crawler runs: `scrapy runspider soak/worker.py`, with further settings."""

import asyncio
import gc
import json
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.link import Link
from scrapy.spiders import CrawlSpider, Rule

from soak.site import ROOT, hubs, number_of
from soak.sizes import container_sizes
from soak.visits import Visits

#: Periods of a window, and periods in which all hubs are fetched once.
GENERATIONS, HUB_PERIODS = 4, 0.75
#: Requests in a queue that is short.
SHORT_QUEUE = 20
#: Stats of scrapy-bloom in a sample; and those of them that count requests.
VERDICTS = ("new", "seen", "offline", "unknown")
STATS = (*VERDICTS, "outages", "rotations", "taken_over", "failed", "not_kept")

SETTINGS: dict[str, Any] = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "DOWNLOAD_HANDLERS": {"http": "soak.site.SiteHandler"},
    "EXTENSIONS": {"soak.worker.Probe": 500},
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "BLOOM_KEY": "soak",
    "BLOOM_TIMEOUT": 1.0,
    "BLOOM_HEARTBEAT": 2.0,
    "CONCURRENT_REQUESTS": 32,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
    "DOWNLOAD_DELAY": 0,
    "RETRY_TIMES": 1,
    "LOG_LEVEL": "WARNING",
    "TELNETCONSOLE_ENABLED": False,
    "MEMUSAGE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
}


class LineLinks:
    """A link extractor: each line of a page is a link."""

    def extract_links(self, response: Response) -> list[Link]:
        return [Link(ROOT + line) for line in response.text.splitlines()]


class SoakSpider(CrawlSpider):
    """Follows all links, and fetches hub after hub until the file `SOAK_STOP` is there.

    It fetches hubs at leisure while there is much to do and, if `SOAK_IS_BUSY`, as many as it can
    while there is not.
    """

    name = "soak"
    custom_settings = SETTINGS
    rules = (
        Rule(
            cast("Any", LineLinks()),
            callback="parse_page",
            process_links="unless_stopping",
            process_request="as_written",
            follow=True,
        ),
    )

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> "SoakSpider":
        spider: SoakSpider = super().from_crawler(crawler, *args, **kwargs)
        spider.open_visits()
        return spider

    def open_visits(self) -> None:
        settings = self.crawler.settings
        self._stop = Path(settings["SOAK_STOP"])
        self._pages = settings.getint("SOAK_PAGES")
        self._period = settings.getfloat("SOAK_PERIOD")
        self._is_busy = settings.getbool("SOAK_IS_BUSY", True)
        self._visits = Visits(Path(settings["SOAK_VISITS"]))
        self.crawler.signals.connect(self._visits.close, signals.spider_closed)

    async def start(self) -> AsyncIterator[Request]:
        count = hubs(self._pages)
        hub = random.randrange(count)
        while not self._stop.exists():
            hub = (hub + 1) % count
            yield Request(f"{ROOT}/hub/{hub}", dont_filter=True)
            engine: Any = self.crawler.engine
            is_idle = self._is_busy and len(engine._slot.scheduler) < SHORT_QUEUE
            await asyncio.sleep(0 if is_idle else HUB_PERIODS * self._period / count)

    def unless_stopping(self, links: list[Link]) -> list[Link]:
        return [] if self._stop.exists() else links

    def as_written(self, request: Request, response: Response) -> Request:
        """Make some requests such that they cannot be stored."""
        kind = number_of(request.url) % 50
        if kind == 3:
            request.meta["object"] = object()
        elif kind == 4:
            return request.replace(callback=lambda response: self._callback(response))  # noqa: PLW0108
        return request

    def parse_page(self, response: Response) -> Iterator[dict[str, int]]:
        page = number_of(response.url)
        self._visits.crawled(page)
        yield {"page": page}


class Probe:
    """Appends a sample of this process to the file `SOAK_PROBE`, every few seconds."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._path = crawler.settings["SOAK_PROBE"]
        if self._path:
            crawler.signals.connect(self._begin, signals.spider_opened)
            crawler.signals.connect(self._end, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Probe":
        return cls(crawler)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        seconds = self._crawler.settings.getfloat("SOAK_SAMPLE_SECONDS")
        while True:
            with Path(self._path).open("a") as file:
                file.write(json.dumps(self.sample()) + "\n")
            await asyncio.sleep(seconds)

    def sample(self) -> dict[str, Any]:
        stats = self._crawler.stats
        engine = self._crawler.engine
        assert stats is not None
        assert engine is not None
        scheduler: Any = engine._slot.scheduler
        counted = {name: stats.get_value(f"bloom/{name}", 0) for name in STATS}
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        sizes = container_sizes(scheduler.df)
        return {
            "time": time.time(),
            "requests": sum(counted[name] for name in VERDICTS),
            "pages": stats.get_value("response_received_count", 0),
            "rss_mb": resident * os.sysconf("SC_PAGE_SIZE") / 1e6,
            "objects": len(gc.get_objects()),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks()),
            "queue": len(scheduler),
            "entries": sum(sizes.values()),
            **counted,
        }
