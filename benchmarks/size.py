"""What filters take of the server's memory as they get larger, and how often they are wrong."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.contestants import BITS, MEMORY, MODULE, OURS, Ask, askers, items, started
from benchmarks.found import Found, Size, counted, megabytes
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.spec import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE

#: The bitmap of Scrapy-Redis-BloomFilter has its full size after a few URLs; more take long.
ENOUGH = 1_000
BATCH = 5_000
#: Other URLs that are looked up when the filter has DEFAULT_CAPACITY of them.
PROBES = 1_000_000


def run(size: Size) -> Found:
    """Fill all filters, and look up URLs that are in none of them."""
    count = size.of(DEFAULT_CAPACITY)
    memory: dict[str, int] = {}
    wrong: dict[str, int] = {}
    with started() as server, server.client() as client, ProcessPoolExecutor(1) as process:
        testers = _testers(client)
        for name, ask in askers(client).items():
            _fill(ask, ENOUGH if name == BITS else count)
            memory[name] = _usage(client, name)
            if name in testers:
                wrong[name] = sum(map(testers[name], _probes(size.of(PROBES))))
        blocks = BloomFilter(client, OURS).info().spec.blocks
        memory[MEMORY] = process.submit(_grown, count).result()
    bits = {name: counted(used * 8 / count) for name, used in memory.items()}
    used = {name: megabytes(one) for name, one in memory.items()}
    rows = [
        _row("Memory in MB, with", count, used),
        _row("The same in bits per URL, with", count, bits),
        _row(
            "Wrongly seen of as many new URLs, with", count, {n: str(w) for n, w in wrong.items()}
        ),
    ]
    return Found(rows, _said(blocks), dict(sorted(memory.items(), key=lambda one: one[1])))


def _grown(count: int) -> int:
    """Return by how many bytes a process grows that holds fingerprints as Scrapy's filter does."""
    before = _resident()
    fingerprints = {item for start in range(0, count, BATCH) for item in items(start, BATCH)}
    return _resident() - before if fingerprints else 0


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _testers(client: Any) -> dict[str, Callable[[Sequence[bytes]], int]]:
    """Return what counts the items of a batch that count as seen."""
    ours = BloomFilter(client, OURS)
    return {
        OURS: lambda batch: sum(ours.contains(batch)),
        MODULE: lambda batch: sum(client.execute_command("BF.MEXISTS", "module", *batch)),
    }


def _fill(ask: Ask, count: int) -> None:
    for start in range(0, count, BATCH):
        ask(items(start, min(BATCH, count - start)))


def _probes(count: int) -> Iterator[Sequence[bytes]]:
    for start in range(0, count, BATCH):
        yield items(10**9 + start, min(BATCH, count - start))


def _usage(client: Any, name: str) -> int:
    """Return the bytes of a contestant's keys."""
    keys = [name.encode(), *client.scan_iter(f"{{{name}:*", count=1000)]
    return sum(int(client.memory_usage(key, samples=0) or 0) for key in keys)


def _row(title: str, count: int, values: dict[str, str]) -> Sequence[str]:
    others = ", ".join(f"{value} {name}" for name, value in values.items() if name != OURS)
    return f"{title} {count:,} URLs", values[OURS], others


def _said(blocks: int) -> str:
    return (
        f"This is the memory for {DEFAULT_CAPACITY:,} URLs with the defaults (a capacity of "
        f"{DEFAULT_CAPACITY:,}, an error rate of {DEFAULT_ERROR_RATE:g}, {blocks} shards). "
        f"{MEMORY} keeps its set in the crawling process, and the others are on the server. The "
        f"filter's scripts are included, which a server loads once. {BITS} allocates 128 MiB at "
        "the start."
    )
