"""The same crawl on one server and on a cluster of three nodes, in turns."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from benchmarks.crawl import CRAWLED, run_crawler
from benchmarks.nodes import Nodes, primaries
from benchmarks.report import progress
from benchmarks.site import LINKS, PAGES, served

#: Milliseconds of a round trip, besides what loopback takes.
LATENCIES = (0, 1)
TURNS, QUICK_PAGES = 9, 200
#: Names of both, and the primaries of each.
PLACES = {"one": 1, "three": 3}


@dataclass(frozen=True)
class Crawl:
    """What one crawl took.

    Args:
        seconds: from its opening to its closing.
        cpu: seconds of CPU time of the crawling process.
        server: seconds of CPU time of all servers.
        pages: pages fetched.
        trips: round trips.
    """

    seconds: float
    cpu: float
    server: float
    pages: int
    trips: int


Crawls = dict[str, list[Crawl]]


def where(latency: int) -> str:
    """Return a latency in words."""
    return f"{latency} ms away" if latency else "on loopback"


def measure_crawls(*, quick: bool) -> list[dict[str, Any]]:
    """Crawl in turns at each latency; return a row of numbers for each."""
    pages, turns = (QUICK_PAGES, 1) if quick else (PAGES, TURNS)
    rows = []
    with (
        primaries(PLACES["one"]) as one,
        primaries(PLACES["three"]) as three,
        served("--pages", str(pages), "--links", str(LINKS)) as site,
        progress() as bar,
    ):
        places = {"one": one, "three": three}
        task = bar.add_task("scaling: crawls", total=turns * len(LATENCIES) * len(places))
        for latency in LATENCIES:
            crawls: Crawls = defaultdict(list)
            for turn in range(turns):
                # Neither is always the first.
                for name in sorted(places, reverse=bool(turn % 2)):
                    crawls[name].append(_crawl(places[name], site, latency))
                    bar.advance(task)
            rows.append({"latency": latency, **_summary(crawls)})
    return rows


def _crawl(nodes: Nodes, site: str, latency: int) -> Crawl:
    nodes.clear()
    with nodes.at(latency) as url:
        settings = {**CRAWLED.settings, "BLOOM_REDIS_URL": url}
        before = nodes.usage()
        stats = run_crawler(CRAWLED.name, {"url": site, "items": True, "settings": settings})
        used = nodes.usage().since(before, nodes.idle)
    return Crawl(
        stats["elapsed_time_seconds"],
        stats["cpu"],
        sum(used.cpu),
        stats["response_received_count"],
        stats["bloom/async_round_trips"],
    )


def _summary(crawls: Crawls) -> dict[str, Any]:
    """Return the medians of both, and the median ratios of the same turns."""
    found: dict[str, Any] = {
        name: {
            "seconds": round(_median(all_of_it, attrgetter("seconds")), 3),
            "client_us": round(_median(all_of_it, lambda crawl: crawl.cpu * 1e6 / crawl.pages)),
            "server_us": round(_median(all_of_it, lambda crawl: crawl.server * 1e6 / crawl.pages)),
            "trips": round(_median(all_of_it, lambda crawl: crawl.trips / crawl.pages), 3),
        }
        for name, all_of_it in crawls.items()
    }
    for name, spent in (("ratio", attrgetter("seconds")), ("cpu_ratio", attrgetter("cpu"))):
        ratios = [
            spent(three) / spent(one)
            for one, three in zip(crawls["one"], crawls["three"], strict=True)
        ]
        found[name] = round(statistics.median(ratios), 3)
        found[f"{name}s"] = [round(ratio, 3) for ratio in sorted(ratios)]
    return found


def _median(crawls: Sequence[Crawl], of: Callable[[Crawl], float]) -> float:
    return statistics.median(map(of, crawls))
