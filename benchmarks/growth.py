"""A filter that is given many times its capacity: what it grows to, what it costs, how it errs.

Two processes fill one filter that is made with the default settings. At some numbers of URLs they
rest, and what an addition takes is measured by a single client. The geometry, which follows from
the settings alone, is also computed for numbers that are not measured.
"""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import redis

from benchmarks.contestants import Server, found_servers
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.workload import Work, items
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import plan
from scrapy_bloom.bloom.options import DEFAULTS

#: URLs for which the targets are stated, largest bitmap and bits per URL that are accepted there.
TARGET_URLS = 50_000_000
TARGET_BYTES = 32 << 20
TARGET_BITS = 40.0

#: Numbers of URLs at which something is measured or computed.
STAGES = (1, 2, 5, 10, 20, 50, 100, 200)
MILLION = 1_000_000
KEY = "growth"
WORKERS = 2
CHUNK = 20_000
BATCH = 1_024
ROUNDS = 9
#: Items from here on are in no filter.
ABSENT = 1 << 40

MEASURED = (
    "URLs",
    "add µs",
    "server µs",
    "layers",
    "largest MiB",
    "bits per URL",
    "used bits",
    "predicted rate",
    "measured rate",
)
COMPUTED = ("URLs", "layers", "largest MiB", "bits per URL", "at most", "error bound")
NOTES = (
    (
        f"`add` is the time per new URL in batches of {BATCH:,}, `server` the part of it in the "
        "script. `layers` are those of the block that has most of them. The error rate asked for "
        f"is {DEFAULTS.error_rate:g}."
    ),
)
COMPUTED_NOTES = (
    (
        "URLs spread evenly over the blocks. `at most` are the bits per URL just after the last "
        "layer was added, `error bound` is the rate with all layers full."
    ),
)

#: The filter of a worker process.
_ours: BloomFilter


@dataclass(frozen=True)
class Shape:
    """A ring's geometry at a number of URLs.

    Args:
        layers: layers per block.
        largest: bytes of the largest bitmap.
        bits: bits of bitmap per URL.
        peak: bits of bitmap per URL just after its last layer was added, when it has most.
        bound: false-positive rate with all layers full.
    """

    layers: int
    largest: int
    bits: float
    peak: float
    bound: float


def shape(urls: int) -> Shape:
    """Compute what a filter with the default settings grows to; no server is asked."""
    sized = plan(DEFAULTS.capacity, DEFAULTS.error_rate)
    header = Header("0" * 32, sized.blocks, tuple(range(sized.num_hashes)))
    ring, peak_at = Ring.fresh(header, DEFAULTS, 0), DEFAULTS.capacity
    while (room := _room(ring) * header.blocks) < urls:
        ring = ring.grow(0, {layer.name: layer.capacity for layer in ring.layers})
        peak_at = room
    bits = ring.memory * 8 * header.blocks
    return Shape(
        len(ring.layers),
        max(layer.memory for layer in ring.layers),
        bits / urls,
        bits / peak_at,
        ring.error_bound,
    )


def _room(ring: Ring) -> int:
    return sum(layer.capacity for layer in ring.layers)


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure on the first server there is; return the tables and how they compare."""
    most, probes = (2, 200_000) if quick else (50, 4_000_000) if full else (2, 500_000)
    stages = [stage * MILLION for stage in STAGES if stage <= most]
    with Server(next(iter(found_servers().values()))) as server:
        measured = _measure(server, stages, probes)
    return Outcome([measured, _computed()], [*_targets(shape(TARGET_URLS))])


def _measure(server: Server, stages: list[int], probes: int) -> Table:
    client = server.client(socket_timeout=60)
    title = f"Growth: a filter made for {DEFAULTS.capacity:,} URLs, {server_name(client)}"
    table = Table(title, MEASURED, notes=NOTES)
    bloom = BloomFilter(client, KEY)
    bloom.open()
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, _prepare, (server.unix_url,)) as pool:
        for start, stop in pairwise([0, *stages]):
            rest = stop - ROUNDS * BATCH
            _work(pool, _extend, (start, rest), f"{stop:,} URLs")
            table.add(f"{stop:,}", *_additions(bloom, client, rest), *_found(bloom, client), "")
        wrong = _work(pool, _probe, (ABSENT, ABSENT + probes), f"{probes:,} new URLs")
    rate = f"{wrong / probes:.1e} ({wrong:,} of {probes:,})"
    table.rows[-1] = (*table.rows[-1][:-1], rate)
    client.close()
    return table


def _work(pool: Any, job: Any, numbers: tuple[int, int], title: str) -> int:
    """Let the workers do a job on a range of items; return the sum of what they return."""
    start, stop = numbers
    parts = [(at, min(at + CHUNK, stop)) for at in range(start, stop, CHUNK)]
    with progress() as bar:
        results = pool.imap_unordered(job, parts)
        return sum(bar.track(results, total=len(parts), description=f"Growth: {title}"))


def _prepare(url: str) -> None:
    """Connect a worker."""
    global _ours  # noqa: PLW0603 - the worker is a process of its own
    _ours = BloomFilter(redis.Redis.from_url(url, socket_timeout=60), KEY)


def _extend(part: tuple[int, int]) -> int:
    return _ours.extend(items(range(*part)))


def _probe(part: tuple[int, int]) -> int:
    return sum(_ours.contains(items(range(*part))))


def _additions(bloom: BloomFilter, client: redis.Redis, start: int) -> tuple[str, str]:
    """Claim batches of new URLs; return the median microseconds per URL, here and on the server."""
    here, there = [], []
    for first in range(start, start + ROUNDS * BATCH, BATCH):
        batch = items(range(first, first + BATCH))
        before, begin = Work.of(client), time.perf_counter()
        bloom.add_many(batch)
        here.append((time.perf_counter() - begin) * 1e6 / BATCH)
        there.append(Work.of(client).since(before).script_us / BATCH)
    return f"{statistics.median(here):.1f}", f"{statistics.median(there):.1f}"


def _found(bloom: BloomFilter, client: redis.Redis) -> list[str]:
    """Return what the filter has grown to."""
    snapshot, info = bloom.look(), bloom.info()
    rings = list(snapshot.rings.values()) if snapshot else []
    allocated = sum(int(client.memory_usage(key, samples=0) or 0) for key in client.scan_iter())
    return [
        f"{max(len(ring.layers) for ring in rings)}",
        _mebibytes(max(layer.memory for ring in rings for layer in ring.layers)),
        f"{info.memory * 8 / info.count:.1f}",
        f"{allocated * 8 / info.count:.1f}",
        f"{info.estimated_error_rate:.1e}",
    ]


def _computed() -> Table:
    table = Table("Growth, computed", COMPUTED, notes=COMPUTED_NOTES)
    for stage in STAGES:
        at = shape(stage * MILLION)
        table.add(
            f"{stage * MILLION:,}",
            f"{at.layers}",
            _mebibytes(at.largest),
            f"{at.bits:.1f}",
            f"{at.peak:.1f}",
            f"{at.bound:.1e}",
        )
    return table


def _targets(at: Shape) -> Iterator[Target]:
    made = f"A filter made for {DEFAULTS.capacity:,} URLs that has {TARGET_URLS:,} (computed)"
    largest, most = at.largest / (1 << 20), TARGET_BYTES / (1 << 20)
    yield Target.at_most(f"{made}: MiB of the largest bitmap", most, largest, ".1f")
    yield Target.at_most(f"{made}: bits per URL", TARGET_BITS, at.bits)


def _mebibytes(number: int) -> str:
    return f"{number / (1 << 20):.1f}"
