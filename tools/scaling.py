"""``python -m tools.scaling``: compute the tables of docs/scaling.md.

From the package's own formulas, and from what ``python -m benchmarks --only scaling`` measured.
"""

import json
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.sizing import Plan, plan, predicted_error_rate

DOCS = Path(__file__).parents[1] / "docs"
PAGE, MEASURED = DOCS / "scaling.md", DOCS / "scaling-measured.json"

URLS = (10**8, 10**9, 10**10, 10**11)
RATES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
ERROR_RATE = 1e-5
#: Links of a page: those that IRLbot parsed, by its pages.
LINKS = 394e9 / 6.38e9
DAYS, SECONDS_A_DAY = 30, 86_400
#: Share of a server's core, and of its memory, that is planned with.
USED_CORE, USED_MEMORY = 0.5, 0.75
#: Memory of a server.
SERVER_BYTES = 64e9
#: Blocks from which on nearly each link of a page is a call of its own: what is measured there
#: holds for filters with more.
MANY_BLOCKS = 256
SLOTS = 16_384
NAMES = 1_000


@dataclass(frozen=True)
class Costs:
    """What was measured for one number of servers and blocks, a URL each.

    Args:
        claim: microseconds of a server's CPU time for a new link.
        confirm: for a page that was crawled.
        seen: for a link that is recorded.
        claim_bytes: over the network, for a new link.
        confirm_bytes: for a page that was crawled.
        seen_bytes: for a link that is recorded.
    """

    claim: float
    confirm: float
    seen: float
    claim_bytes: float
    confirm_bytes: float
    seen_bytes: float

    @classmethod
    def of(cls, measured: dict[str, Any], primaries: int, blocks: int) -> "Costs":
        """Find a row of what was measured."""
        (row,) = (
            row
            for row in measured["costs"]
            if (row["primaries"], row["blocks"]) == (primaries, blocks)
        )
        steps = [row[name] for name in ("claim", "confirm", "seen")]
        return cls(
            *(step["us"] for step in steps), *(step["received"] + step["sent"] for step in steps)
        )


@dataclass(frozen=True)
class Crawl:
    """A crawl of so many pages, each new to the filter, in so many days.

    Args:
        urls: pages.
        days: that it takes.
        links: links of a page; each is looked up on the servers.
        costs: of a URL.
    """

    urls: int
    days: float
    links: float
    costs: Costs

    @property
    def pages_a_second(self) -> float:
        """Pages crawled each second."""
        return self.urls / (self.days * SECONDS_A_DAY)

    @property
    def links_a_second(self) -> float:
        """Links looked up each second."""
        return self.pages_a_second * self.links

    @property
    def cores(self) -> float:
        """Cores of servers that are busy all the time."""
        return self._a_page(self.costs.claim, self.costs.confirm, self.costs.seen) / 1e6

    @property
    def network(self) -> float:
        """Bytes a second between crawlers and servers."""
        costs = self.costs
        return self._a_page(costs.claim_bytes, costs.confirm_bytes, costs.seen_bytes)

    @property
    def plan(self) -> Plan:
        """The filter."""
        return plan(self.urls, ERROR_RATE)

    @property
    def primaries(self) -> int:
        """Servers that it takes: by memory, or by cores."""
        by_memory = self.plan.memory / (SERVER_BYTES * USED_MEMORY)
        return math.ceil(max(by_memory, self.cores / USED_CORE))

    def _a_page(self, claim: float, confirm: float, seen: float) -> float:
        return self.pages_a_second * (claim + confirm + (self.links - 1) * seen)


def bits_per_url(capacity: int, error_rate: float) -> float:
    """Return the bits of the bitmaps by the URLs they are made for."""
    return plan(capacity, error_rate).memory * 8 / capacity


def hidden(urls: int, error_rate: float) -> float:
    """Return how many of so many new pages are taken for seen while an empty filter fills up."""
    planned = plan(urls, error_rate)
    bits, k, steps = planned.num_bits, planned.num_hashes, 1_000
    rates = (
        predicted_error_rate(urls / planned.blocks * (step + 0.5) / steps, bits, k)
        for step in range(steps)
    )
    return urls * math.fsum(rates) / steps


def busiest(name: str, blocks: int, primaries: int) -> float:
    """Return the share of a filter's blocks that the server with most of them has."""
    counts = [0] * primaries
    keys = Keys(name)
    for block in range(blocks):
        counts[key_slot(keys.ring(block).encode()) * primaries // SLOTS] += 1
    return max(counts) / blocks


# -- tables --

Rows = Iterable[Sequence[str]]


def costs_table(measured: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield what a URL costs servers."""
    yield (
        "primaries, blocks",
        *("claim, µs", "pending, µs", "confirm, µs", "seen, µs"),
        *("claim, bytes", "confirm, bytes", "seen, bytes"),
    )
    for row in measured["costs"]:
        times = [f"{row[step]['us']:.1f}" for step in ("claim", "pending", "confirm", "seen")]
        sizes = [
            f"{row[step]['received'] + row[step]['sent']:.0f}"
            for step in ("claim", "confirm", "seen")
        ]
        yield (f"{row['primaries']}, {row['blocks']}", *times, *sizes)


def crawls_table(measured: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield how long crawls take on a cluster."""
    yield (
        *("server", "one server, s", "three nodes, s", "ratio of the same turn", "all ratios"),
        *("crawler's CPU", "servers' µs a page, one", "three"),
    )
    for row in measured["crawls"]:
        yield (
            f"{row['latency']} ms away" if row["latency"] else "on loopback",
            *(f"{row[name]['seconds']:.2f}" for name in ("one", "three")),
            f"{row['ratio']:.3f}",
            f"{row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}, {len(row['ratios'])} turns",
            f"{row['cpu_ratio']:.3f}",
            *(f"{row[name]['server_us']:.0f}" for name in ("one", "three")),
        )


def memory_table(measured: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield what a URL takes of a server's memory."""
    memory = measured["memory"]
    computed = bits_per_url(memory["capacity"], memory["error_rate"])
    yield "a URL that is", "takes on the server"
    yield (
        f"recorded, {memory['error_rate']:g}",
        f"{memory['bits_per_url']:.1f} bits; computed: {computed:.1f}",
    )
    yield "claimed, with its request", f"{memory['claim_with_request']} bytes"
    yield "claimed, without its request", f"{memory['claim_alone']} bytes"


def balance_table(_: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield how even blocks are over three primaries."""
    yield "blocks", "median share of the busiest of three", "largest"
    names = [f"spider{number}:bloom" for number in range(NAMES)]
    for blocks in (16, 64, 256, 1_024):
        shares = [busiest(name, blocks, 3) for name in names]
        yield f"{blocks:,}", f"{statistics.median(shares):.1%}", f"{max(shares):.1%}"


def errors_table(_: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield what error rates hide, and cost."""
    yield "error rate", "pages hidden, at most", "expected", "bits a URL", "one digit more costs"
    bits = [bits_per_url(10**9, rate) for rate in RATES]
    for rate, one, more in zip(RATES, bits, [*bits[1:], math.nan], strict=True):
        expected = hidden(10**9, rate)
        yield (
            f"{rate:.0e}",
            f"{10**9 * rate:,.0f}",
            f"{expected:.1g}" if expected < 10 else f"{expected:,.0f}",
            f"{one:.1f}",
            "" if math.isnan(more) else f"{more - one:.1f}",
        )


def filters_table(_: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield how large filters are."""
    yield ("URLs", "blocks", "a bitmap, MiB", "memory, GB", "with 1e-9, GB")
    for urls in URLS:
        planned = plan(urls, ERROR_RATE)
        yield (
            f"{urls:.0e}",
            f"{planned.blocks:,}",
            f"{planned.num_bits / 8 / (1 << 20):.1f}",
            f"{planned.memory / 1e9:,.2f}",
            f"{plan(urls, 1e-9).memory / 1e9:,.2f}",
        )


def plans_table(measured: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield what crawls take."""
    yield (
        *("pages", "pages/s", "links/s", "busy cores of servers", "network, MB/s"),
        *("primaries", "crawler processes"),
    )
    costs = Costs.of(measured, 3, MANY_BLOCKS)
    for urls in URLS:
        crawl = Crawl(urls, DAYS, LINKS, costs)
        yield (
            f"{urls:.0e}",
            f"{crawl.pages_a_second:,.0f}",
            f"{crawl.links_a_second:,.0f}",
            f"{crawl.cores:,.1f}",
            f"{crawl.network / 1e6:,.0f}",
            f"{crawl.primaries:,}",
            f"{math.ceil(crawl.pages_a_second * client_seconds(measured)):,}",
        )


def client_seconds(measured: dict[str, Any]) -> float:
    """Return the seconds of a crawler's CPU time a page, as measured on the cluster."""
    row = next(row for row in measured["crawls"] if row["latency"] == 0)
    return float(row["three"]["client_us"]) / 1e6


def frontier_table(measured: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the memory of a crawl that finds more than it fetches."""
    yield "", "URLs", "bytes a URL", "GB"
    memory = measured["memory"]
    crawled, found = 6.38e9, 41e9
    recorded = bits_per_url(10**10, ERROR_RATE) / 8
    for what, urls, size in (
        ("crawled: recorded in the filter", crawled, recorded),
        ('found and not crawled: claimed ("crawled")', found - crawled, memory["claim_alone"]),
        ("the same, with their requests", found - crawled, memory["claim_with_request"]),
        ('all that was found: recorded ("scheduled")', found, recorded),
    ):
        yield what, f"{urls:.2e}", f"{size:,.1f}", f"{urls * size / 1e9:,.0f}"


def facts(measured: dict[str, Any]) -> str:
    """Return where and how it was measured."""
    known = measured["facts"]
    before, after = known["load"]
    return "\n".join(
        [
            f"- Command: `{known['command']}`, {known['date']}; {measured['memory']['server']}",
            f"- Machine: {known['machine']}",
            textwrap.fill(
                f"- Packages: {known['packages']}",
                118,
                subsequent_indent="  ",
                break_on_hyphens=False,
            ),
            f"- Load of the machine (average of five minutes): {before} before, {after} after",
        ]
    )


def grid(rows: Rows) -> str:
    """Return a table in markdown; the first row is its head."""
    head, *others = rows
    rule = [":---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *others))


TABLES: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "costs": costs_table,
    "crawls": crawls_table,
    "memory": memory_table,
    "balance": balance_table,
    "errors": errors_table,
    "filters": filters_table,
    "plans": plans_table,
    "frontier": frontier_table,
}


def render(page: str, measured: dict[str, Any]) -> str:
    """Return the page with all tables as they are computed now."""

    def compute(match: re.Match[str]) -> str:
        name = match[1]
        text = facts(measured) if name == "facts" else grid(TABLES[name](measured))
        return f"<!-- {name} -->\n{text}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z]+) -->\n.*?<!-- end -->", compute, page, flags=re.DOTALL)


def main() -> None:
    """Compute the page's tables."""
    measured = json.loads(MEASURED.read_text("utf-8"))
    PAGE.write_text(render(PAGE.read_text("utf-8"), measured), "utf-8")


if __name__ == "__main__":
    main()
