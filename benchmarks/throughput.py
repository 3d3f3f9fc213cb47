"""Additions per second that one core does, server and client apart.

Both are given in CPU time, the server's as it says itself (``INFO cpu``), the client's that of this
process (``time.process_time``), in which neither waits. So the two do not disturb each other's
numbers, and a machine with few cores will do.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import redis
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from benchmarks.contestants import Server, request, servers
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.workload import Work, items, server_cpu
from scrapy_bloom import BloomFilter

#: Client CPU of a batched addition that is accepted, in that of the fingerprint of its request.
TARGET = 1.0
TARGET_BATCH = 64
#: Cost of a new URL in the most generations, in that in one, that is accepted.
GENERATIONS_TARGET = 2.0
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
    return Outcome([table], [_target(worst, fingerprint), _generations_target(measured)])


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


def _target(client: float, fingerprint: float) -> Target:
    what = (
        f"Client CPU to add a URL, {TARGET_BATCH} at a time, in that of Scrapy's fingerprint of it"
    )
    return Target.at_most(what, TARGET, client / fingerprint)


def _generations_target(measured: Sequence[Costs]) -> Target:
    """Compare a new URL in all generations with one in a single generation."""
    one, many = GENERATIONS
    ratios = [
        side(costs[many, "new", TARGET_BATCH]) / side(costs[one, "new", TARGET_BATCH])
        for costs in measured
        for side in (attrgetter("server"), attrgetter("client"))
    ]
    what = f"Cost of a new URL in {many} generations, in that in one: the larger of both sides"
    return Target.at_most(what, GENERATIONS_TARGET, max(ratios))
