"""What a large crawl is made of: a server's CPU time, bytes and memory per link and per page.

The numbers are kept in docs/scaling-measured.json, from which tools/scaling.py computes
docs/scaling.md.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cluster_crawl import LATENCIES, measure_crawls, where
from benchmarks.nodes import Nodes, Usage, load, primaries
from benchmarks.pending import PagesSpider, request_text
from benchmarks.report import (
    Outcome,
    Table,
    Target,
    command,
    machine,
    packages,
    progress,
    server_name,
)
from benchmarks.site import LINKS
from benchmarks.workload import items
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.protocol import claim_protocol

CAPACITY, ERROR_RATE = 1_000_000, 1e-5
PRIMARIES, BLOCKS = (1, 2, 3), (16, 64, 256)
#: URLs that are claimed in a round, and links and pages that are sent together.
URLS, QUICK_URLS, BATCH, PAGES_TOGETHER = 8_192, 1_024, 64, 16
ROUNDS, QUICK_ROUNDS = 5, 1
STEPS = ("claim", "pending", "confirm", "seen")
#: URLs that the filter is made for whose memory is measured, and claims on it.
MEMORY_CAPACITY, MEMORY_CLAIMS = 10_000_000, 20_000
#: A crawl on three nodes takes, of one on a single server, at most.
TARGET = 1.05
KEY, OWNER, OTHER = "scaling", "w" + "0" * 24, "w" + "1" * 24
#: Seconds that the servers may take.
TIMEOUT = 60.0

COLUMNS = (
    "primaries, blocks",
    *("claim µs", "pending µs", "confirm µs", "seen µs"),
    *("claim bytes", "pending bytes", "confirm bytes", "seen bytes", "busiest"),
)
NOTES = (
    (
        "Microseconds of CPU time that all servers together spend on a URL, and bytes from and to "
        f"clients; medians of rounds of {URLS:,} URLs, without what idle servers use. `claim`: a "
        "new link, whose request is stored. `pending`: a link that another worker has claimed. "
        "`confirm`: a page that is crawled is recorded, and its claim ended. `seen`: a link that "
        f"is recorded. Links come {BATCH} at a time, pages {PAGES_TOGETHER}. `busiest`: the "
        "largest share of one server in the CPU time of claims."
    ),
)
CRAWL_COLUMNS = (
    *("", "one server, s", "three nodes, s", "ratio", "crawler's CPU, ratio"),
    *("servers' µs a page, one", "three"),
)
CRAWL_NOTES = (
    (
        f'Whole crawls of a generated site ({LINKS} links a page), `BLOOM_REMEMBER = "crawled"`, '
        "on one server and on a cluster of three primaries in turns: medians, and the median ratio "
        "of the same turn. Crawler, site, servers and delays share the cores of one machine."
    ),
)


@dataclass(frozen=True)
class Cost:
    """What a URL costs servers in one step.

    Args:
        us: microseconds of CPU time.
        received: bytes from clients.
        sent: bytes to clients.
        busiest: share of the busiest server in the CPU time.
    """

    us: float
    received: float
    sent: float
    busiest: float

    @classmethod
    def of(cls, usage: Usage, urls: int) -> "Cost":
        """Divide what was used by the URLs."""
        us = sum(usage.cpu) * 1e6 / urls
        return cls(us, usage.received / urls, usage.sent / urls, usage.busiest)

    @classmethod
    def median(cls, costs: Sequence["Cost"]) -> "Cost":
        """Return the medians of all that was measured."""
        names = ("us", "received", "sent", "busiest")
        return cls(
            *(round(statistics.median(getattr(cost, name) for cost in costs), 3) for name in names)
        )


def run(*, quick: bool = False, full: bool = False, page: Path) -> Outcome:  # noqa: ARG001
    """Measure, and keep the numbers.

    Args:
        quick: fewer URLs, once.
        full: makes no difference.
        page: where the numbers are written to.
    """
    before = load()
    costs = _measure_costs(QUICK_URLS if quick else URLS, QUICK_ROUNDS if quick else ROUNDS)
    memory = _measure_memory()
    crawls = measure_crawls(quick=quick)
    facts = {
        "machine": machine(),
        "packages": packages(),
        "command": command(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load": [round(before, 1), round(load(), 1)],
    }
    found = {"facts": facts, "memory": memory, "costs": costs, "crawls": crawls}
    page.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return Outcome([_cost_table(costs), _crawl_table(crawls)], _targets(crawls))


# -- CPU and network --


def _measure_costs(urls: int, rounds: int) -> list[dict[str, Any]]:
    """Measure all steps on all numbers of primaries and blocks; blocks in turns."""
    rows: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("scaling: costs", total=len(PRIMARIES) * rounds)
        for count in PRIMARIES:
            measured: dict[int, dict[str, list[Cost]]] = {
                blocks: defaultdict(list) for blocks in BLOCKS
            }
            with primaries(count) as nodes:
                for _ in range(rounds):
                    for blocks, steps in measured.items():
                        for step, cost in _round(nodes, blocks, urls):
                            steps[step].append(cost)
                    bar.advance(task)
            for blocks, steps in measured.items():
                medians = {step: asdict(Cost.median(all_)) for step, all_ in steps.items()}
                rows.append({"primaries": count, "blocks": blocks, **medians})
    return rows


class _Workload:
    """URLs of a new filter: claimed, found pending, confirmed and found recorded."""

    def __init__(self, nodes: Nodes, client: Any, blocks: int, urls: int) -> None:
        self._is_cluster = nodes.is_cluster
        self._driver = Driver(client, KEY, TIMEOUT)
        self._server = self._driver.server_id()
        self.items = items(range(urls))
        spider = PagesSpider()
        self._texts = [request_text(spider, *numbered) for numbered in enumerate(self.items)]
        self.bloom = BloomFilter(
            client, KEY, capacity=CAPACITY, error_rate=ERROR_RATE, blocks=blocks
        )
        self.bloom.open()

    def claim(self, owner: str, start: int) -> None:
        """Claim a batch of links."""
        part = slice(start, start + BATCH)
        links, texts, nonce = self.items[part], self._texts[part], f"{start}.0"
        self.bloom.run(lambda session: claim_protocol.claim(session, links, texts, owner, nonce))

    def confirm(self, start: int) -> None:
        """Confirm some pages; on a cluster, a crawl identifies the servers before."""
        pages = self.items[start : start + PAGES_TOGETHER]
        server = self._driver.server_id() if self._is_cluster else self._server
        self.bloom.run(
            lambda session: claim_protocol.confirm(session, pages, (OWNER,), server=server)
        )


def _round(nodes: Nodes, blocks: int, urls: int) -> Iterator[tuple[str, Cost]]:
    """Give what each step costs."""
    nodes.clear()
    with nodes.connect() as client:
        work = _Workload(nodes, client, blocks, urls)

        def cost(batch: int, step: Callable[[int], None]) -> Cost:
            before = nodes.usage()
            for start in range(0, urls, batch):
                step(start)
            return Cost.of(nodes.usage().since(before, nodes.idle), urls)

        yield "claim", cost(BATCH, lambda start: work.claim(OWNER, start))
        yield "pending", cost(BATCH, lambda start: work.claim(OTHER, start))
        yield "confirm", cost(PAGES_TOGETHER, work.confirm)
        yield "seen", cost(BATCH, lambda start: work.claim(OTHER, start))
        if not all(work.bloom.contains(work.items)):
            raise RuntimeError("not all pages are recorded")


def _cost_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("Scaling: what a URL costs servers", COLUMNS, notes=NOTES)
    for row in rows:
        steps = [row[step] for step in STEPS]
        times = [f"{step['us']:.1f}" for step in steps]
        sizes = [f"{step['received'] + step['sent']:.0f}" for step in steps]
        name = f"{row['primaries']}, {row['blocks']}"
        table.add(name, *times, *sizes, f"{row['claim']['busiest']:.0%}")
    return table


# -- memory --


def _measure_memory() -> dict[str, Any]:
    """Return what a URL takes of the server's memory: recorded, and claimed."""
    with primaries(1) as nodes, nodes.connect() as client:
        before = nodes.memory()
        bloom = BloomFilter(client, KEY, capacity=MEMORY_CAPACITY, error_rate=ERROR_RATE)
        bloom.open()
        recorded = (nodes.memory() - before) / MEMORY_CAPACITY
        found = {
            "server": server_name(client),
            "capacity": MEMORY_CAPACITY,
            "error_rate": ERROR_RATE,
            "bits_per_url": round(recorded * 8, 2),
        }
        for name, is_kept in (("claim_with_request", True), ("claim_alone", False)):
            found[name] = round(_claimed_memory(nodes, client, is_kept=is_kept))
        return found


def _claimed_memory(nodes: Nodes, client: Any, *, is_kept: bool) -> float:
    """Return the bytes of a claim, as the server itself says of its hashes."""
    nodes.clear()
    bloom = BloomFilter(client, KEY, capacity=CAPACITY, error_rate=ERROR_RATE)
    bloom.open()
    claimed, spider = items(range(MEMORY_CLAIMS)), PagesSpider()
    texts = [request_text(spider, *one) if is_kept else "" for one in enumerate(claimed)]
    bloom.run(lambda session: claim_protocol.claim(session, claimed, texts, OWNER, "0.0"))
    sizes = [client.memory_usage(key, samples=0) for key in client.keys("*:claims")]
    return float(sum(sizes) / MEMORY_CLAIMS)


# -- crawls --


def _crawl_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("Scaling: a crawl on a cluster", CRAWL_COLUMNS, notes=CRAWL_NOTES)
    for row in rows:
        seconds = [f"{row[name]['seconds']:.2f}" for name in ("one", "three")]
        ratios = [f"{row[name]:.3f}" for name in ("ratio", "cpu_ratio")]
        servers = [f"{row[name]['server_us']:.0f}" for name in ("one", "three")]
        table.add(where(row["latency"]), *seconds, *ratios, *servers)
    return table


def _targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    assert len(rows) == len(LATENCIES)
    return [
        Target.at_most(
            f"Time of a crawl on three nodes, {where(row['latency'])}, of one on a single server",
            TARGET,
            row["ratio"],
            ".3f",
        )
        for row in rows
    ]
