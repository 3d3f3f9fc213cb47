"""``python -m benchmarks.setting_cost``: what settings cost a crawl, beside crawls without them."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contestants import Server, servers
from benchmarks.crawl import run_crawler
from benchmarks.report import Table, console, progress
from benchmarks.site import served
from benchmarks.workload import server_cpu

#: The site that is crawled, and how often with each setting.
PAGES, LINKS, ROUNDS = 3_000, 10, 10
FEED = {"format": "jsonlines", "batch_item_count": 1_000}
SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "BLOOM_RECRAWL_AFTER": "6 months",
}
#: Setting -> its value.
COMPARED: Mapping[str, Any] = {"BLOOM_LEDGER": True, "BLOOM_CONFIRM": "delivered"}


@dataclass(frozen=True)
class Cost:
    """What one crawl took.

    Args:
        seconds: from its opening to its end.
        cpu: seconds of CPU of the crawler.
        server: seconds of CPU of the server.
        memory: bytes, the most that the crawler took.
        counts: pages, items and requests that were scheduled.
    """

    seconds: float
    cpu: float
    server: float
    memory: float
    counts: tuple[int, ...]


#: What is compared: a figure, and its unit.
SPENT: Mapping[str, Callable[[Cost], float]] = {
    "time, ms a page": lambda cost: cost.seconds / PAGES * 1e3,
    "CPU of the crawler, ms a page": lambda cost: cost.cpu / PAGES * 1e3,
    "CPU of the server, ms a page": lambda cost: cost.server / PAGES * 1e3,
    "peak memory of the crawler, MB": lambda cost: cost.memory / 1e6,
}


def main() -> None:
    """Measure; print a table for each setting."""
    with Server(*servers(full=False)) as server:
        for name, value in COMPARED.items():
            console.print(_compare(server, name, value).to_rich())


def _compare(server: Server, name: str, value: Any) -> Table:
    pairs = []
    with served("--pages", f"{PAGES}", "--links", f"{LINKS}") as url, progress() as bar:
        for number in bar.track(range(ROUNDS), description=name):
            order = (False, True) if number % 2 else (True, False)
            costs = {is_on: _crawl(server, url, {name: value} if is_on else {}) for is_on in order}
            pairs.append((costs[False], costs[True]))
    counts = {cost.counts for pair in pairs for cost in pair}
    assert len(counts) == 1, f"the crawls differ: {counts}"
    title = f"{name} = {value!r}: {PAGES:,} pages, an item and {LINKS} links each"
    table = Table(title, ("", "without", "with", "ratio", "of single turns"))
    for figure, spent in SPENT.items():
        off, on = ([spent(cost) for cost in costs] for costs in zip(*pairs, strict=True))
        ratios = sorted(having / without for without, having in zip(off, on, strict=True))
        table.add(
            figure,
            *(f"{statistics.median(each):.3f}" for each in (off, on)),
            f"{statistics.median(ratios):.3f}",
            f"{ratios[0]:.3f} - {ratios[-1]:.3f}",
        )
    return table


def _crawl(server: Server, url: str, given: Mapping[str, Any]) -> Cost:
    with TemporaryDirectory() as directory, server.client() as client:
        feeds = {f"{directory}/%(batch_id)05d.jsonl": FEED}
        settings = {**SETTINGS, "BLOOM_REDIS_URL": server.url, "FEEDS": feeds, **given}
        client.flushall()
        before = server_cpu(client)
        stats = run_crawler("scrapy-bloom", {"url": url, "items": True, "settings": settings})
        used = server_cpu(client) - before
    counted = ("response_received_count", "item_scraped_count")
    return Cost(
        stats["elapsed_time_seconds"],
        stats["cpu"],
        used,
        stats["peak_memory"],
        tuple(stats[name] for name in counted),
    )


if __name__ == "__main__":
    main()
