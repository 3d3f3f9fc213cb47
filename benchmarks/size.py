"""What an addition costs, and how often it is wrong, as a filter gets larger.

All URLs are really added, by two processes at once: with ``--full`` 100,000,000 of them.
"""

import multiprocessing
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from pathlib import Path

import redis
from matplotlib.figure import Figure

from benchmarks.contestants import Server, servers
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.workload import items, server_cpu
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.info import FilterInfo

#: Largest part by which the server's time per addition may change, from smallest to largest.
TARGET = 0.25
BLOCKS = 64
ERROR_RATE = 1e-5
KEY = "size"
#: Filters by capacity, and the numbers of URLs at which each is measured.
FILTERS = {10**5: [10**5], 10**6: [10**6]}
FULL_FILTERS = {**FILTERS, 10**8: [10**6, 10**7, 10**8]}
#: Processes that add, URLs that they add in one round trip, and round trips with seen URLs.
WORKERS = 2
BATCH = 4_096
SEEN = 100
PROBES, QUICK_PROBES = 1_000_000, 50_000
#: Seconds that the server may take to answer.
TIMEOUT = 60

COLUMNS = (
    "URLs",
    "new: URLs/s",
    "server µs",
    "seen: URLs/s",
    "server µs",
    "used_memory MiB",
    "bits per URL",
    "predicted rate",
    "measured rate",
    "seen wrongly",
)
NOTES = (
    (
        f"{BLOCKS} blocks, error rate {ERROR_RATE:g}. {WORKERS} processes add different URLs, "
        f"{BATCH:,} in a round trip, and share the cores with the server. `seen wrongly` are new "
        'URLs that were answered with "seen"; `measured rate` is that of random items which were '
        "not added."
    ),
)

#: The filter of a worker process.
_ours: BloomFilter


@dataclass(frozen=True)
class Added:
    """What adding URLs took.

    Args:
        urls: how many they were.
        new: how many of them were answered with "new".
        seconds: on the clock.
        cpu: seconds of the server's CPU time.
    """

    urls: int
    new: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """URLs per second."""
        return self.urls / self.seconds

    @property
    def server(self) -> float:
        """The server's microseconds per URL."""
        return self.cpu * 1e6 / self.urls


@dataclass(frozen=True)
class Measurement:
    """How many of some random items, which were never added, were "seen"."""

    probes: int
    seen: int

    @property
    def rate(self) -> float:
        """Their share."""
        return self.seen / self.probes


@dataclass(frozen=True)
class Mark:
    """A filter at a number of URLs.

    Args:
        urls: URLs added so far.
        new: those since the last mark.
        seen: some of them, added again.
        used_memory: bytes by which the server has grown since before the filter was created.
        info: what the filter is and holds.
        measured: false positives among random items.
    """

    urls: int
    new: Added
    seen: Added
    used_memory: int
    info: FilterInfo
    measured: Measurement


def run(*, quick: bool = False, full: bool = False, plot: Path) -> Outcome:
    """Measure on the first server there is, and draw a chart.

    Args:
        quick: with fewer probes.
        full: with 100,000,000 URLs.
        plot: where the chart is written to.
    """
    probes = QUICK_PROBES if quick else PROBES
    filters = FULL_FILTERS if full else FILTERS
    with Server(*servers(full=False)) as server, server.client(socket_timeout=TIMEOUT) as client:
        name = server_name(client)
        marks = [
            mark
            for capacity, numbers in filters.items()
            for mark in _measure(server, client, capacity, numbers, probes)
        ]
    draw(marks, plot)
    return Outcome(
        [_table(f"Size: {BLOCKS} blocks, {name}", marks)],
        [_target(marks)],
        _headline(marks[-1]),
        summary=[*_summary(marks)],
        plot=plot,
        failures=[*_failures(marks)],
    )


def draw(marks: Sequence[Mark], path: Path) -> None:
    """Write a chart of the server's time per addition, by the number of URLs."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    for number, (capacity, group) in enumerate(groupby(marks, _capacity)):
        some = list(group)
        urls, color = [mark.urls for mark in some], f"C{number}"
        new, seen = [mark.new.server for mark in some], [mark.seen.server for mark in some]
        axes.plot(urls, new, "o-", color=color, label=f"new URL, filter for {capacity:,}")
        axes.plot(urls, seen, "s--", color=color, label=f"seen URL, filter for {capacity:,}")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("URLs in the filter")
    axes.set_ylabel("server's CPU time, µs per URL")
    axes.legend(frameon=False, ncols=2)
    figure.savefig(path, metadata={"Date": None})


def _capacity(mark: Mark) -> int:
    return mark.info.spec.capacity


def _measure(
    server: Server, client: redis.Redis, capacity: int, numbers: list[int], probes: int
) -> Iterator[Mark]:
    """Fill a filter, and measure it at some numbers of URLs."""
    client.flushall()
    before = _used_memory(client)
    bloom = BloomFilter(client, KEY, capacity=capacity, error_rate=ERROR_RATE, blocks=BLOCKS)
    bloom.open()
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(WORKERS + 1, timeout=TIMEOUT)
    with context.Pool(WORKERS, _prepare, (server.unix_url, ready)) as pool:
        ready.wait()
        for start, stop in pairwise([0, *numbers]):
            new = _add(pool, client, _batches(start, stop))
            added = _batches(0, stop)
            seen = _add(pool, client, added[:: max(len(added) // SEEN, 1)])
            memory = _used_memory(client) - before
            yield Mark(stop, new, seen, memory, bloom.info(), _probe(bloom, probes))


def _used_memory(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def _batches(start: int, stop: int) -> list[range]:
    return [range(at, min(at + BATCH, stop)) for at in range(start, stop, BATCH)]


def _add(pool: Pool, client: redis.Redis, batches: Sequence[range]) -> Added:
    """Let the workers add batches of URLs."""
    urls = sum(map(len, batches))
    used, begin = server_cpu(client), time.perf_counter()
    with progress() as bar:
        answers = pool.imap_unordered(_add_batch, batches)
        description = f"Size: {urls:,} URLs up to {batches[-1].stop:,}"
        new = sum(bar.track(answers, total=len(batches), description=description))
    return Added(urls, new, time.perf_counter() - begin, server_cpu(client) - used)


def _prepare(url: str, ready: Barrier) -> None:
    """Connect a worker."""
    global _ours  # noqa: PLW0603 - the worker is a process of its own
    _ours = BloomFilter(redis.Redis.from_url(url, socket_timeout=TIMEOUT), KEY)
    _ours.open()
    ready.wait()


def _add_batch(numbers: range) -> int:
    """Add URLs; return how many were new."""
    return sum(_ours.add_many(items(numbers)))


def _probe(bloom: BloomFilter, probes: int) -> Measurement:
    seen = 0
    with progress() as bar:
        description = f"Size: {probes:,} URLs that are in no filter"
        for batch in bar.track(range(0, probes, BATCH), description=description):
            items = [secrets.token_bytes(20) for _ in range(min(BATCH, probes - batch))]
            seen += sum(bloom.contains(items))
    return Measurement(probes, seen)


def _table(title: str, marks: Iterable[Mark]) -> Table:
    table = Table(title, COLUMNS, notes=NOTES)
    for capacity, some in groupby(marks, _capacity):
        table.add(f"**made for {capacity:,}**", *[""] * (len(COLUMNS) - 1))
        for mark in some:
            table.add(*_row(mark))
    return table


def _row(mark: Mark) -> list[str]:
    return [
        f"{mark.urls:,}",
        f"{mark.new.rate:,.0f}",
        f"{mark.new.server:.2f}",
        f"{mark.seen.rate:,.0f}",
        f"{mark.seen.server:.2f}",
        f"{mark.used_memory / (1 << 20):.1f}",
        f"{mark.info.memory * 8 / mark.urls:.1f}",
        f"{mark.info.windows['default'].error_rate:.1e}",
        _counted(mark.measured),
        f"{mark.new.urls - mark.new.new:,}",
    ]


def _counted(measured: Measurement) -> str:
    return f"{measured.rate:.1e} ({measured.seen:,} of {measured.probes:,})"


def _target(marks: Sequence[Mark]) -> Target:
    times = [mark.new.server for mark in marks]
    change = max(times) / min(times) - 1
    return Target(
        "Change of the server's time to add a new URL, from "
        f"{marks[0].urls:,} to {marks[-1].urls:,} URLs in the filter",
        f"at most {TARGET:.0%}",
        f"{change:.0%}",
        change <= TARGET,
    )


def _headline(mark: Mark) -> str:
    measured = mark.measured
    return (
        f"A filter of {mark.urls:,} URLs takes {mark.info.memory * 8 / mark.urls:.1f} bits per URL "
        f'and answers "seen" wrongly for {measured.seen:,} of {measured.probes:,} new URLs, where '
        f"{mark.info.windows['default'].error_rate * measured.probes:.1f} are predicted."
    )


def _summary(marks: Sequence[Mark]) -> Iterator[tuple[str, ...]]:
    first, last = marks[0], marks[-1]
    yield (
        f"Server's µs to add a new URL, to a filter of {first.urls:,} and of {last.urls:,}",
        f"{first.new.server:.1f} and {last.new.server:.1f}",
        "",
        _target(marks).judged,
    )
    yield (
        f"False positives with {last.urls:,} URLs, of {last.measured.probes:,} new ones",
        f"{last.measured.seen:,}",
        f"predicted: {last.info.windows['default'].error_rate * last.measured.probes:.1f}",
        "",
    )


def _failures(marks: Iterable[Mark]) -> Iterator[str]:
    for mark in marks:
        if mark.seen.new:
            yield f"{mark.seen.new:,} of {mark.seen.urls:,} URLs are not in the filter any more"
