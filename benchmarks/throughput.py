"""Claims per second that one core takes, server and client apart, and where the time goes.

Both are given in CPU time, the server's as it says itself (``INFO cpu``), the client's that of this
process (``time.process_time``), in which neither waits. So the two do not disturb each other's
numbers, and a machine with few cores will do.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import hiredis
import redis
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from benchmarks.contestants import Server, request, servers
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.workload import Work, items, server_cpu
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import Hasher, offset_packer
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.scripts import Call, Reply

#: Client CPU of a batched addition that is accepted, in that of the fingerprint of its request.
TARGET = 1.0
TARGET_BATCH = 64
GENERATIONS = (1, 6)
BATCHES = (1, 8, 30, 64, 256, 1_024)
ERROR_RATE = 1e-5
#: URLs the measured filters hold and are made for, and their blocks; URLs of one measurement.
HELD, CAPACITY, BLOCKS = 60_000, 1_200_000, 16
CHUNK = 2_048

COLUMNS = ("", "URLs", "script µs", "server µs", "adds/s", "client µs", "adds/s")
NOTES = (
    (
        f"A filter of {BLOCKS} blocks, error rate {ERROR_RATE:g}; `add_many`, so many `URLs` in a "
        "round trip. Medians per URL: `script` in the script, `server` and `client` CPU times of "
        "the processes, `adds/s` what one core does at that."
    ),
)
PARTS_NOTES = (
    (
        "CPU time per URL, one part at a time; medians. `all of an addition` is `add_many`, "
        "without the fingerprint. What is indented was tried, and is not done."
    ),
)
#: What the profile led to; ``crawl`` measures whole crawls.


@dataclass(frozen=True)
class Cost:
    """Microseconds per URL: in the script, of the server in all, and of the client."""

    script: float
    server: float
    client: float


#: By generations of the ring, "new" or "seen", and URLs in a batch.
Costs = dict[tuple[int, str, int], Cost]


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure on the first server, with ``full`` on all there are."""
    rounds = 3 if quick else 41 if full else 15
    fingerprint = _fingerprint(rounds)
    table = Table("Throughput: additions per second and core", COLUMNS, notes=NOTES)
    measured = []
    for binary in servers(full=full):
        with Server(binary) as server, server.client(socket_timeout=60) as client:
            measured.append(_measure(client, rounds, table))
    worst = max(costs[key].client for costs in measured for key in costs if key[2] == TARGET_BATCH)
    parts = _parts(fingerprint, rounds)
    return Outcome([table, parts], [_target(worst, fingerprint)])


def _measure(client: redis.Redis, rounds: int, table: Table) -> Costs:
    """Measure on a server; add rows to the table."""
    name = server_name(client)
    costs: Costs = {}
    for generations in GENERATIONS:
        bloom = _fill(client, generations)
        for size in BATCHES:
            for what, cost in _costs(bloom, client, size, rounds, name).items():
                costs[generations, what, size] = cost
    table.add(f"**{name}**", *[""] * (len(COLUMNS) - 1))
    for (generations, what, size), cost in sorted(costs.items()):
        ring = f"{generations} generation{'s' * (generations > 1)}"
        table.add(f"{ring}, {what}", f"{size:,}", *_cells(cost))
    return costs


def _cells(cost: Cost) -> list[str]:
    """Return a row's numbers."""
    rates = [f"{1e6 / value:,.0f}" for value in (cost.server, cost.client)]
    return [
        f"{cost.script:.2f}",
        f"{cost.server:.2f}",
        rates[0],
        f"{cost.client:.2f}",
        rates[1],
    ]


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
    """Measure additions in batches of a size, of new and of seen URLs in turn."""
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
    return {what: _median(costs) for what, costs in measured.items()}


def _median(costs: Sequence[Cost]) -> Cost:
    each = zip(*((cost.script, cost.server, cost.client) for cost in costs), strict=True)
    return Cost(*map(statistics.median, each))


def _cost(bloom: BloomFilter, client: redis.Redis, batches: list[list[bytes]]) -> Cost:
    urls = sum(map(len, batches))
    before, server, begin = Work.of(client), server_cpu(client), time.process_time()
    for batch in batches:
        bloom.add_many(batch)
    spent = time.process_time() - begin
    server = server_cpu(client) - server
    script = Work.of(client).since(before).script_us
    return Cost(script / urls, server * 1e6 / urls, spent * 1e6 / urls)


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
    """Measure the parts of an addition that need no server, and the whole beside them."""
    columns = ("", *(f"{size:,} a batch" for size in BATCHES))
    table = Table("Profile: CPU of an addition, µs per URL", columns, notes=PARTS_NOTES)
    table.add("fingerprint", *[f"{fingerprint:.2f}"] * len(BATCHES))
    rows: dict[str, list[float]] = {}
    with Server(*servers(full=False)) as server, server.client(socket_timeout=60) as client:
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
    held = CachedRing("0" * 32, ring, Keys("throughput"))
    chunk = items(range(1 << 40, (1 << 40) + CHUNK))
    hashed = [hasher.hashes(item) for item in chunk]
    packed = [held.pack(hashes) for _, hashes in hashed]
    calls = [held.add(urls) for urls in _by_block(hashed, packed, size)]
    answered = b"".join(map(_answer, calls, repeat(4 * len(header.seeds))))
    pool: Any = client.connection_pool
    encode = pool.get_connection().pack_commands
    work: dict[str, Callable[[], object]] = {
        "hashing": lambda: [hasher.hashes(item) for item in chunk],
        "packing offsets": lambda: [held.pack(hashes) for _, hashes in hashed],
        "— a struct call for all": partial(_pack_together, hashed, ring, size),
        "building calls": lambda: [held.add(urls) for urls in _by_block(hashed, packed, size)],
        "encoding calls, redis-py": lambda: encode([_arguments(call) for call in calls]),
        "— what they share made before": partial(_encode, calls),
        "parsing replies": partial(_parse, answered, len(calls)),
    }
    spent = {name: _per_url(job, rounds) for name, job in work.items()}
    cost = _costs(bloom, client, size, rounds, "parts")["new"]
    return spent | {
        "all of an addition": cost.client,
        "Lua": cost.script,
        "all of the server": cost.server,
    }


def _answer(call: Call, width: int) -> bytes:
    """Return a reply as it comes from the server."""
    urls = len(_packed(call)) // width
    return b"*2\r\n$2\r\nok\r\n$%d\r\n%b\r\n" % (urls, b"1" * urls)


def _packed(call: Call) -> bytes:
    """Return the argument that the calls on a ring differ in."""
    packed = call.args[5]
    assert isinstance(packed, bytes)
    return packed


def _parse(answered: bytes, replies: int) -> list[Reply]:
    reader = hiredis.Reader()
    reader.feed(answered)
    return [Reply.parse(reader.gets()) for _ in range(replies)]


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
    return b"".join([b"%b%b%b" % (before, _bulk(_packed(call)), after) for call in calls])


def _bulk(value: Any) -> bytes:
    encoded = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


def _target(client: float, fingerprint: float) -> Target:
    what = (
        f"Client CPU to add a URL, {TARGET_BATCH} at a time, in that of Scrapy's fingerprint of it"
    )
    return Target.at_most(what, TARGET, client / fingerprint)
