"""CPU of a page that yields an item and links, without a network: a site in the crawler's memory.

``python -m benchmarks.items JSON`` crawls once, in a process of its own, and prints its CPU time.
"""

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse, Response

from benchmarks.contestants import Server, servers
from benchmarks.report import Outcome, Table, Target, progress
from benchmarks.rss import peak_memory
from benchmarks.site import SEED, linked_pages, path_of

ROOT = Path(__file__).parents[1]
#: Links of a page -> pages of the site: about as many links in all.
SITES = {10: 1_000, 30: 500, 170: 150}
ROUNDS, QUICK_ROUNDS = 3, 1
#: Of in-memory's CPU at most, by BLOOM_REMEMBER.
TARGETS = {"scheduled": 0.70, "crawled": 0.75}
HOST = "http://site.example"
#: Seconds that a page takes to download.
DELAY = 0.005
#: Seconds after which a crawl counts as hung.
TIMEOUT = 600.0
STATS = ("response_received_count", "item_scraped_count", "scheduler/enqueued")
SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "DOWNLOAD_HANDLERS": {"http": "benchmarks.items.MemoryHandler"},
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "DOWNLOAD_DELAY": 0,
}

MEMORY = "Scrapy, in memory"
FILTERS = {
    MEMORY: {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
    "scrapy-bloom, scheduled": {
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
        "BLOOM_REMEMBER": "scheduled",
    },
    "scrapy-bloom, crawled": {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
}
COLUMNS = ("", "links a page", "pages", "CPU ms a page", "of in-memory", "same", "peak RSS MB")
NOTES = (
    (
        "Each page yields an item and `Request(url)` for each of its links; nothing is parsed and "
        "no network is used. Medians of crawls in turns."
    ),
)


@dataclass(frozen=True)
class Crawl:
    """What one crawl took.

    Args:
        cpu: seconds of CPU time of the process.
        pages: pages crawled.
        counts: pages, items and requests scheduled.
        memory: bytes, the most that the process took.
    """

    cpu: float
    pages: int
    counts: tuple[int, ...]
    memory: int


@dataclass
class Group:
    """Crawls of one site: those of each filter, in the order of the turns."""

    links: int
    crawls: dict[str, list[Crawl]] = field(default_factory=dict)

    def ratio(self, name: str) -> float:
        """Return the median ratio of CPU to that in memory."""
        pairs = zip(self.crawls[name], self.crawls[MEMORY], strict=True)
        return statistics.median(one.cpu / memory.cpu for one, memory in pairs)

    def is_same(self, name: str) -> bool:
        """Whether each crawl did as much as those in memory."""
        expected = self.crawls[MEMORY][0].counts
        return all(crawl.counts == expected for crawl in self.crawls[name])


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure; with ``full``, in more turns."""
    rounds = QUICK_ROUNDS if quick else ROUNDS + 2 * full
    groups = []
    with Server(*servers(full=False)) as server, progress() as bar:
        task = bar.add_task("items", total=rounds * len(SITES) * len(FILTERS))
        for links, pages in SITES.items():
            group = Group(links)
            for _ in range(rounds):
                for name, settings in FILTERS.items():
                    crawl = _crawl(server, {"links": links, "pages": pages, "settings": settings})
                    group.crawls.setdefault(name, []).append(crawl)
                    bar.advance(task)
            groups.append(group)
    return Outcome(
        [_table(groups)],
        [*_targets(groups)],
        summary=[*_summary(groups)],
        failures=[*_failures(groups)],
    )


def _crawl(server: Server, given: dict[str, Any]) -> Crawl:
    with server.client() as client:
        client.flushall()
    settings = {**given["settings"], "BLOOM_REDIS_URL": server.url}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.items", json.dumps({**given, "settings": settings})],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode or done.stderr:
        raise RuntimeError(f"a crawl with {settings} failed:\n{done.stderr[-5000:]}")
    cpu, memory, *counts = json.loads(done.stdout)
    return Crawl(cpu, counts[0], tuple(counts), memory)


def _table(groups: Sequence[Group]) -> Table:
    table = Table("A page with an item", COLUMNS, notes=NOTES)
    for group in groups:
        table.add(f"**{group.links} links**", *[""] * (len(COLUMNS) - 1))
        for name, crawls in group.crawls.items():
            one = sorted(crawls, key=lambda crawl: crawl.cpu)[len(crawls) // 2]
            table.add(
                name,
                f"{group.links}",
                f"{one.pages:,}",
                f"{one.cpu / one.pages * 1e3:.2f}",
                f"{group.ratio(name):.2f}",
                "yes" if group.is_same(name) else "NO",
                f"{one.memory / 1e6:.0f}",
            )
    return table


def _targets(groups: Sequence[Group]) -> Iterator[Target]:
    for group in groups:
        yield from _compared(group).values()


def _summary(groups: Sequence[Group]) -> Iterator[tuple[str, ...]]:
    for group in groups:
        found = _compared(group)
        ours = ", ".join(f"{target.here} {policy}" for policy, target in found.items())
        judged = "; ".join(f"{policy} {target.judged}" for policy, target in found.items())
        yield _what(group), ours, "", judged


def _compared(group: Group) -> dict[str, Target]:
    """Return how each policy compares with its target."""
    return {
        policy: Target.at_most(
            f"{_what(group)}, {policy}", most, group.ratio(f"scrapy-bloom, {policy}")
        )
        for policy, most in TARGETS.items()
    }


def _what(group: Group) -> str:
    return f"A page with an item and {group.links} links: CPU, of that in memory"


def _failures(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        for name in group.crawls:
            if not group.is_same(name):
                yield f"{name} crawled other numbers of pages than in memory"


# -- the process that crawls --


class MemoryHandler(BaseDownloadHandler):
    """Downloads pages from nowhere, each after a moment, so that several are under way at once."""

    async def download_request(self, request: Request) -> Response:
        """Return an empty page."""
        await asyncio.sleep(DELAY)
        return HtmlResponse(request.url, body=b"<html></html>", encoding="utf-8")


class ItemSpider(Spider):
    """Yields an item and the links of each page."""

    name = "items"
    links: dict[str, list[str]]

    async def start(self) -> AsyncIterator[Request]:
        """The page to start with."""
        yield Request(_url(0))

    def parse(self, response: Response) -> Iterator[Any]:
        """A page: an item, and a request for each link."""
        yield {"url": response.url, "title": "A product", "price": 12}
        for url in self.links[response.url]:
            yield Request(url)


def _url(page: int) -> str:
    return f"{HOST}{path_of(page)}"


def crawl(links: int, pages: int, settings: dict[str, Any]) -> list[int | float]:
    """Crawl a site; return CPU seconds, peak memory, and how many pages, items and requests."""
    site = {
        _url(page): [_url(target) for target in targets]
        for page, targets in enumerate(linked_pages(pages, links, SEED))
    }
    process = CrawlerProcess({**SETTINGS, **settings})
    crawler = process.create_crawler(ItemSpider)
    cpu: list[float] = []
    for signal in (signals.spider_opened, signals.spider_closed):
        crawler.signals.connect(lambda: cpu.append(process_time()), signal, weak=False)
    process.crawl(crawler, links=site)
    process.start()
    assert crawler.stats
    counts = [crawler.stats.get_value(name, 0) for name in STATS]
    return [cpu[1] - cpu[0], peak_memory(), *counts]


def main() -> None:
    print(json.dumps(crawl(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
