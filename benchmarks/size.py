"""What filters take of the server's memory as they get larger, and how often they are wrong."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.contestants import BITS, MODULE, OURS, SET, Ask, askers, items, started
from benchmarks.found import Found, Size, counted
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.spec import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE

#: Numbers of URLs at which the memory is measured. The last is more than the default capacity.
MARKS = (1_000, 10_000, 100_000, 1_000_000, 2_000_000)
#: The bitmap of Scrapy-Redis-BloomFilter has its full size after a few URLs; more take long.
ENOUGH = 1_000
BATCH = 5_000
#: Other URLs that are looked up when the filter has DEFAULT_CAPACITY of them.
PROBES = 1_000_000


def run(size: Size) -> Found:
    """Fill all filters, and look up URLs that are in none of them."""
    marks = [size.of(mark) for mark in MARKS]
    memory: dict[str, dict[int, int]] = defaultdict(dict)
    wrong: dict[str, int] = {}
    with started() as server, server.client() as client:
        testers = _testers(client)
        for name, ask in askers(client).items():
            for before, mark in zip((0, *marks), marks, strict=False):
                if name != BITS or mark <= ENOUGH:
                    _fill(ask, before, mark)
                memory[name][mark] = _usage(client, name)
                if mark == size.of(DEFAULT_CAPACITY) and name in testers:
                    wrong[name] = sum(map(testers[name], _probes(size.of(PROBES))))
        bloom = BloomFilter(client, OURS)
        blocks, rate = bloom.info().spec.blocks, DEFAULT_ERROR_RATE
    bits = {
        name: some[size.of(DEFAULT_CAPACITY)] * 8 / size.of(DEFAULT_CAPACITY)
        for name, some in memory.items()
    }
    rows = [
        _row("Server's memory, bits per URL, with", size, {n: counted(b) for n, b in bits.items()}),
        _row("Wrongly seen of as many new URLs, with", size, {n: str(w) for n, w in wrong.items()}),
    ]
    return Found(rows, _said(bits, blocks, rate), dict(memory))


def _testers(client: Any) -> dict[str, Callable[[Sequence[bytes]], int]]:
    """Return what counts the items of a batch that count as seen."""
    ours = BloomFilter(client, OURS)
    return {
        OURS: lambda batch: sum(ours.contains(batch)),
        MODULE: lambda batch: sum(client.execute_command("BF.MEXISTS", MODULE, *batch)),
    }


def _fill(ask: Ask, first: int, end: int) -> None:
    for start in range(first, end, BATCH):
        ask(items(start, min(BATCH, end - start)))


def _probes(count: int) -> Iterator[Sequence[bytes]]:
    for start in range(0, count, BATCH):
        yield items(10**9 + start, min(BATCH, count - start))


def _usage(client: Any, name: str) -> int:
    """Return the bytes of a contestant's keys."""
    keys = [name.encode(), *client.scan_iter(f"{{{name}:*", count=1000)]
    return sum(int(client.memory_usage(key, samples=0) or 0) for key in keys)


def _row(title: str, size: Size, values: dict[str, str]) -> Sequence[str]:
    others = ", ".join(f"{value} {name}" for name, value in values.items() if name != OURS)
    return f"{title} {size.of(DEFAULT_CAPACITY):,} URLs", values[OURS], others


def _said(bits: dict[str, float], blocks: int, rate: float) -> str:
    module = f", and {MODULE} {bits[MODULE]:.1f}" if MODULE in bits else ""
    return (
        f"With the defaults (a capacity of {DEFAULT_CAPACITY:,}, an error rate of {rate:g}, "
        f"{blocks} shards), a URL takes {bits[OURS]:.1f} bits when the filter is full, with the "
        f"scripts, which a server loads once. {SET} takes {bits[SET]:.0f}{module}. "
        f"{BITS} allocates 128 MiB at the start. A filter that gets more URLs "
        "than planned allocates further bitmaps, within the same error rate."
    )
