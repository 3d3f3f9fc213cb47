"""Claims per second that one core takes, server and client apart, and where the client's time goes.

The server's share is what it says it spent in scripts (``INFO commandstats``), the client's the CPU
time of this process (``time.process_time``), in which it does not wait. So the two do not disturb
each other's numbers, and a machine with few cores will do.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from benchmarks.contestants import Server, found_servers, request
from benchmarks.report import Table, met, progress, server_name
from benchmarks.workload import Work, items
from scrapy_bloom import BloomFilter
from scrapy_bloom.calls import Held
from scrapy_bloom.generations import Config
from scrapy_bloom.hashing import Hasher, offset_packer
from scrapy_bloom.keys import Keys
from scrapy_bloom.ring import Ring
from scrapy_bloom.scripts import Call, Reply

#: Client CPU of a batched claim that is accepted, in that of the fingerprint of its request.
TARGET = 1.0
TARGET_BATCH = 64
GENERATIONS = (1, 6)
BATCHES = (1, 8, 30, 64, 256)
ERROR_RATE = 1e-5
#: URLs the measured filters hold and are made for, and their blocks; URLs of one measurement.
HELD, CAPACITY, BLOCKS = 60_000, 1_200_000, 16
CHUNK = 1_024

NOTES = (
    (
        "A filter of 16 blocks is asked through `BloomFilter.claim`, `URLs` at a time. `server` "
        "is what the server spends in scripts, `client` the CPU time of the caller's process; "
        "medians per URL. `per core` are the claims per second that one core does at that. "
        f"Error rate {ERROR_RATE:g}; a seen URL is one of any generation."
    ),
)
PARTS_NOTES = (
    (
        "CPU time per URL of one process, measured one part at a time; medians. `fingerprint` is "
        "Scrapy's `RequestFingerprinter` on a new request (making it is left out); `round` "
        "is all of `BloomFilter.claim`, with the sending and the waiting, which costs system time."
    ),
)


@dataclass(frozen=True)
class Cost:
    """Microseconds per URL, of the server and of the client."""

    server: float
    client: float


def run(*, quick: bool = False, full: bool = False) -> tuple[list[Table], str]:
    """Measure on all servers; return the tables and how they compare with the target."""
    rounds = 5 if quick else 41 if full else 15
    fingerprint = _fingerprint(rounds)
    columns = ("", "URLs", "server µs", "client µs", "per server core", "per client core")
    table = Table("Throughput: claims per second and core", columns, notes=NOTES)
    worst = 0.0
    for binary in found_servers().values():
        with Server(binary) as server, server.client(socket_timeout=60) as client:
            name = server_name(client)
            table.add(f"**{name}**", *[""] * 5)
            for generations in GENERATIONS:
                bloom = _fill(client, generations)
                for size in BATCHES:
                    for what, cost in _costs(bloom, client, size, rounds, name).items():
                        ring = f"{generations} generation{'s' * (generations > 1)}"
                        table.add(f"{ring}, {what}", f"{size}", *_cells(cost))
                        if size == TARGET_BATCH:
                            worst = max(worst, cost.client)
    return [table, _parts(fingerprint, rounds)], _verdict(worst, fingerprint)


def _cells(cost: Cost) -> list[str]:
    """Return a row's numbers."""
    rates = [f"{1e6 / value:,.0f}" for value in (cost.server, cost.client)]
    return [f"{cost.server:.2f}", f"{cost.client:.2f}", *rates]


def _fill(client: redis.Redis, generations: int) -> BloomFilter:
    """Return a filter with all its generations, each with its share of URLs."""
    for number in range(generations):
        bloom = BloomFilter(
            client,
            f"throughput-{generations}",
            capacity=CAPACITY // generations,
            error_rate=ERROR_RATE,
            blocks=BLOCKS,
            window=f"{generations} runs",
            run=str(number),
        )
        bloom.open()
        share = HELD // generations
        bloom.extend(items(range(number * share, (number + 1) * share)))
    return bloom


def _costs(
    bloom: BloomFilter, client: redis.Redis, size: int, rounds: int, title: str
) -> dict[str, Cost]:
    """Measure claims in batches of a size, of new and of seen URLs in turn."""
    measured: dict[str, list[Cost]] = {"new": [], "seen": []}
    urls = max(size, CHUNK // 8 if size == 1 else CHUNK // size * size)
    new = HELD + (BATCHES.index(size) << 32)
    with progress() as bar:
        for number in bar.track(range(rounds + 1), description=f"{title}: {size} at a time"):
            seen = [place * 97 % HELD for place in range(number * urls, (number + 1) * urls)]
            chunks = {"new": range(new + number * urls, new + (number + 1) * urls), "seen": seen}
            for what, numbers in chunks.items():
                chunk = items(numbers)
                cost = _cost(bloom, client, [chunk[at : at + size] for at in range(0, urls, size)])
                if number:  # the first is to warm up
                    measured[what].append(cost)
    return {
        what: Cost(
            statistics.median(cost.server for cost in costs),
            statistics.median(cost.client for cost in costs),
        )
        for what, costs in measured.items()
    }


def _cost(bloom: BloomFilter, client: redis.Redis, batches: list[list[bytes]]) -> Cost:
    urls = sum(map(len, batches))
    before, begin = Work.of(client), time.process_time()
    for batch in batches:
        bloom.claim(batch)
    spent = time.process_time() - begin
    return Cost(Work.of(client).since(before).script_us / urls, spent * 1e6 / urls)


# -- parts of the client's time --


def _fingerprint(rounds: int) -> float:
    """Return the CPU microseconds of Scrapy's fingerprint of a new request."""
    fingerprinter = RequestFingerprinter(get_crawler())
    requests = iter([request(number) for number in range(CHUNK * rounds)])
    return _per_url(
        lambda: [fingerprinter.fingerprint(next(requests)) for _ in range(CHUNK)], rounds
    )


def _per_url(work: Callable[[], object], rounds: int) -> float:
    """Return the median CPU microseconds per URL of work on ``CHUNK`` URLs."""
    spent = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        spent.append((time.process_time() - begin) * 1e6 / CHUNK)
    return statistics.median(spent)


def _parts(fingerprint: float, rounds: int) -> Table:
    """Measure the parts of a claim that need no server, and the whole beside them."""
    columns = ("", *(f"{size} a batch" for size in BATCHES))
    table = Table("Client CPU of a claim, µs per URL", columns, notes=PARTS_NOTES)
    table.add("fingerprint", *[f"{fingerprint:.2f}"] * len(BATCHES))
    rows: dict[str, list[float]] = {}
    binary = next(iter(found_servers().values()))
    with Server(binary) as server, server.client(socket_timeout=60) as client:
        bloom = _fill(client, 1)
        for size in BATCHES:
            for name, spent in _spent(bloom, client, size, rounds).items():
                rows.setdefault(name, []).append(spent)
    for name, cells in rows.items():
        table.add(name, *(f"{value:.2f}" for value in cells))
    return table


def _spent(bloom: BloomFilter, client: redis.Redis, size: int, rounds: int) -> dict[str, float]:
    """Return the CPU microseconds per URL of each part, for batches of a size."""
    header = bloom.header
    if header is None:
        raise RuntimeError("the filter is not open")
    hasher = Hasher(header.seeds, header.blocks)
    ring = Ring.fresh(header, Config(CAPACITY, ERROR_RATE), 0)
    held = Held.of("0" * 32, ring, Keys("throughput"))
    chunk = items(range(1 << 40, (1 << 40) + CHUNK))
    hashed = [hasher.hashes(item) for item in chunk]
    packed = [held.pack(hashes) for _, hashes in hashed]
    calls = [held.claim(urls) for urls in _by_block(hashed, packed, size)]
    raw = [[b"ok", b"1" * (len(call.args[5]) // held.packer.size)] for call in calls]
    encode = client.connection_pool.get_connection().pack_commands
    work: dict[str, Callable[[], object]] = {
        "hashing": lambda: [hasher.hashes(item) for item in chunk],
        "packing": lambda: [held.pack(hashes) for _, hashes in hashed],
        "packing, one struct call": partial(_pack_together, hashed, ring, size),
        "building calls": lambda: [held.claim(urls) for urls in _by_block(hashed, packed, size)],
        "encoding, redis-py": lambda: encode([_arguments(call) for call in calls]),
        "encoding, prefix made before": partial(_encode, calls),
        "reading replies": lambda: [Reply.parse(reply) for reply in raw],
    }
    spent = {name: _per_url(job, rounds) for name, job in work.items()}
    spent["round"] = _costs(bloom, client, size, rounds, "parts")["new"].client
    return spent


def _by_block(
    hashed: Sequence[tuple[int, list[int]]], packed: Sequence[bytes], size: int
) -> list[bytes]:
    """Return the joined offsets of each block's URLs, batch by batch."""
    joined = []
    for start in range(0, len(hashed), size):
        by_block: dict[int, list[bytes]] = {}
        for place in range(start, min(start + size, len(hashed))):
            by_block.setdefault(hashed[place][0], []).append(packed[place])
        joined += [b"".join(urls) for urls in by_block.values()]
    return joined


def _pack_together(hashed: Sequence[tuple[int, list[int]]], ring: Ring, size: int) -> None:
    """Pack the offsets of a batch's URLs of one block by one call."""
    num_bits = ring.active.layers[-1].num_bits
    for start in range(0, len(hashed), size):
        by_block: dict[int, list[int]] = {}
        for block, hashes in hashed[start : start + size]:
            by_block.setdefault(block, []).extend(hashes)
        for values in by_block.values():
            offset_packer(len(values)).pack(*[value % num_bits for value in values])


def _arguments(call: Call) -> tuple[Any, ...]:
    return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)


def _encode(calls: Sequence[Call]) -> bytes:
    """Encode calls as if all that a ring's calls have in common were encoded already."""
    call = calls[0]
    before = b"".join(map(_bulk, _arguments(call)[: 3 + len(call.keys) + 5]))
    after = b"".join(map(_bulk, call.args[6:]))
    return b"".join(
        [b"%b$%d\r\n%b\r\n%b" % (before, len(c.args[5]), c.args[5], after) for c in calls]
    )


def _bulk(value: Any) -> bytes:
    encoded = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


def _verdict(client: float, fingerprint: float) -> str:
    ratio = client / fingerprint
    return (
        f"A claim in batches of {TARGET_BATCH} takes at most {TARGET:g} times the client CPU of "
        f"its request's fingerprint. The worst here: {ratio:.2f} ({client:.1f} of "
        f"{fingerprint:.1f} µs), {met(ratio <= TARGET)}."
    )
