"""What an addition costs as the filter gets larger, at a fixed number of blocks.

The same filter for 10^5, 10^6, ... URLs, filled to its capacity. The largest is not filled URL by
URL: random bits are set in its bitmaps, as many as its URLs would have set.
"""

import itertools
import multiprocessing
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis
from matplotlib.figure import Figure

from benchmarks.contestants import Server, servers
from benchmarks.report import Outcome, Table, met, progress, server_name
from benchmarks.workload import items, server_cpu
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.keys import Keys

#: Largest part by which the server's time per addition may change, from smallest to largest.
TARGET = 0.25
BLOCKS = 64
ERROR_RATE = 1e-5
KEY = "size"
KEYS = Keys(KEY)
#: Processes that fill a filter, and URLs they add at a time.
WORKERS = 2
CHUNK = 20_000
#: URLs in a batch that is measured, and batches.
BATCH = 1_024
ROUNDS = 21
#: URLs from which on bitmaps are filled with random bits.
RANDOM_FROM = 10**8
PROBES = 1_000_000
#: Items from here on are in no filter.
ABSENT = 1 << 40

COLUMNS = (
    "URLs",
    "new: server µs",
    "caller µs",
    "seen: server µs",
    "caller µs",
    "bits read: server µs",
)
MORE = ("MiB of bitmaps", "bits per URL", "measured rate", "filled in s")
NOTES = (
    (
        f"One filter per row, made for so many URLs in {BLOCKS} blocks at an error rate of "
        f"{ERROR_RATE:g}, and filled to its capacity. Times per URL in batches of {BATCH:,}, "
        "medians; `server` is the server's CPU time (`INFO cpu`), `caller` what an addition takes "
        "in all. `measured rate` is that of URLs that are in no filter. Filters of "
        f"{RANDOM_FROM:,} URLs and more are filled with random bits instead, each set with the "
        "probability that it has in a full filter; their `seen` URLs are those added just "
        "before. `bits read` is what the server needs to read as many random bits of the same "
        "bitmaps as a URL has, by one BITFIELD_RO: it grows as bitmaps leave the processor's "
        "caches."
    ),
)


#: The filter of a worker process.
_ours: BloomFilter


@dataclass(frozen=True)
class Times:
    """Median microseconds per URL."""

    server: float
    client: float


def run(*, quick: bool = False, full: bool = False, plot: Path) -> Outcome:
    """Measure on the first server there is, and draw a chart.

    Args:
        quick: with fewer probes.
        full: with larger filters.
        plot: where the chart is written to.
    """
    sizes = [10**5, 10**6, *([10**7, 10**8] if full else [])]
    found: dict[int, list[Times]] = {}
    with Server(*servers(full=False)) as server, server.client(socket_timeout=60) as client:
        title = f"Size: {BLOCKS} blocks, {server_name(client)}"
        table = Table(title, (*COLUMNS, *MORE), notes=NOTES)
        for size in sizes:
            client.flushall()
            row, *found[size] = _row(server, client, size, 50_000 if quick else PROBES)
            table.add(*row)
    draw(found, plot)
    return Outcome(
        [table], _verdict({size: new.server for size, (new, _) in found.items()}), plot=plot
    )


def draw(found: Mapping[int, Sequence[Times]], path: Path) -> None:
    """Write a chart of the times per addition, by the size of the filter."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    for number, what in enumerate(("new", "seen")):
        some = [times[number] for times in found.values()]
        axes.plot(list(found), [t.server for t in some], "o-", label=f"{what} URL, server")
        axes.plot(list(found), [t.client for t in some], "s--", label=f"{what} URL, caller")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("URLs in the filter")
    axes.set_ylabel("µs per addition")
    axes.legend(frameon=False, ncols=2)
    figure.savefig(path, metadata={"Date": None})


def _row(
    server: Server, client: redis.Redis, size: int, probes: int
) -> tuple[list[str], Times, Times]:
    """Fill a filter and measure it."""
    bloom = BloomFilter(client, KEY, capacity=size, error_rate=ERROR_RATE, blocks=BLOCKS, growth=0)
    bloom.open()
    measured = (ROUNDS + 1) * BATCH
    begin = time.perf_counter()
    if size >= RANDOM_FROM:
        _fill_at_random(bloom, client, size)
    else:
        _fill(server.unix_url, size - measured)
    seconds = time.perf_counter() - begin
    new = _times(bloom, client, [range(at, at + BATCH) for at in _starts(size - measured)])
    seen = _times(bloom, client, [_seen(size, at) for at in range(ROUNDS + 1)])
    info = bloom.info()
    wrong = _wrong(bloom, probes)
    row = [
        f"{size:,}",
        *(f"{value:.2f}" for times in (new, seen) for value in (times.server, times.client)),
        f"{_bits_read(bloom, client):.2f}",
        f"{info.memory / (1 << 20):.1f}",
        f"{info.memory * 8 / size:.1f}",
        f"{wrong / probes:.1e} ({wrong:,} of {probes:,})",
        f"{seconds:.0f}",
    ]
    return row, new, seen


def _starts(first: int) -> range:
    return range(first, first + (ROUNDS + 1) * BATCH, BATCH)


def _seen(size: int, number: int) -> list[int]:
    """Return the numbers of a batch of URLs that are in the filter."""
    measured = (ROUNDS + 1) * BATCH
    first = size - measured if size >= RANDOM_FROM else 0
    rng = random.Random(number)
    return [rng.randrange(first, size) for _ in range(BATCH)]


def _fill(url: str, wanted: int) -> None:
    parts = [(at, min(at + CHUNK, wanted)) for at in range(0, wanted, CHUNK)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, _prepare, (url,)) as pool, progress() as bar:
        done = pool.imap_unordered(_extend, parts)
        for _ in bar.track(done, total=len(parts), description=f"Size: filling {wanted:,}"):
            pass


def _prepare(url: str) -> None:
    """Connect a worker."""
    global _ours  # noqa: PLW0603 - the worker is a process of its own
    _ours = BloomFilter(redis.Redis.from_url(url, socket_timeout=60), KEY)


def _extend(part: tuple[int, int]) -> int:
    return _ours.extend(items(range(*part)))


def _fill_at_random(bloom: BloomFilter, client: redis.Redis, size: int) -> None:
    """Set bits of all bitmaps with the probability that they have in a full filter."""
    with progress() as bar:
        for block, layer in bar.track(
            _layers(bloom), description=f"Size: random bits for {size:,}"
        ):
            filled = 1 - (1 - 1 / layer.num_bits) ** (bloom.num_hashes * size / BLOCKS)
            bitmap = _random_bytes(layer.memory, filled)
            client.set(KEYS.layer(block, layer.name), bitmap)
            # Room for what is measured.
            client.hset(KEYS.ring(block), f"n:{layer.name}", int(size / BLOCKS * 0.99))


def _layers(bloom: BloomFilter) -> list[tuple[int, Layer]]:
    """Return the blocks of a filter, and the layer of each that is written."""
    snapshot = bloom.look()
    if snapshot is None:
        raise RuntimeError("the filter is not there")
    return [(ring.block, ring.active.layers[0]) for ring in snapshot.rings.values()]


def _random_bytes(length: int, filled: float) -> bytes:
    """Return bytes whose bits are 1 with a probability, to 1/256."""
    bits = 0
    # Binary digits of the probability, the last first: 1 is OR with random bits, 0 is AND.
    for digit in reversed(range(1, 9)):
        drawn = int.from_bytes(random.randbytes(length), "little")
        is_set = round(filled * 256) >> (8 - digit) & 1
        bits = bits | drawn if is_set else bits & drawn
    return bits.to_bytes(length, "little")


def _times(
    bloom: BloomFilter, client: redis.Redis, batches: list[range] | list[list[int]]
) -> Times:
    """Claim batches; the first is to warm up."""
    server, caller = [], []
    for numbers in batches:
        batch = items(numbers)
        used, begin = server_cpu(client), time.perf_counter()
        bloom.add_many(batch)
        caller.append((time.perf_counter() - begin) * 1e6 / BATCH)
        server.append((server_cpu(client) - used) * 1e6 / BATCH)
    return Times(statistics.median(server[1:]), statistics.median(caller[1:]))


def _bits_read(bloom: BloomFilter, client: redis.Redis) -> float:
    """Return the median microseconds of the server for reading a URL's number of random bits."""
    layers, rng, server = _layers(bloom), random.Random(0), []
    for _ in range(ROUNDS + 1):
        pipeline = client.pipeline(transaction=False)
        for block, layer in layers:
            key = KEYS.layer(block, layer.name)
            for _ in range(BATCH // BLOCKS):
                bits = (("GET", "u1", rng.randrange(layer.num_bits)) for _ in bloom.seeds)
                pipeline.execute_command("BITFIELD_RO", key, *itertools.chain.from_iterable(bits))
        used = server_cpu(client)
        pipeline.execute()
        server.append((server_cpu(client) - used) * 1e6 / BATCH)
    return statistics.median(server[1:])


def _wrong(bloom: BloomFilter, probes: int) -> int:
    """Return how many of so many new URLs are called seen."""
    with progress() as bar:
        starts = range(ABSENT, ABSENT + probes, CHUNK)
        return sum(
            sum(bloom.contains(items(range(at, min(at + CHUNK, ABSENT + probes)))))
            for at in bar.track(starts, description=f"Size: {probes:,} new URLs")
        )


def _verdict(new: Mapping[int, float]) -> str:
    smallest, *_, largest = new
    change = max(new.values()) / min(new.values()) - 1
    return (
        f"The server's time for a new URL changes by at most {TARGET:.0%} from {smallest:,} to "
        f"{largest:,} URLs in the filter. Measured: {change:.0%}, {met(change <= TARGET)}."
    )
