"""What an addition costs in a ring of 6 generations, in either order, beside a single generation.

Three filters on one server hold the same number of URLs per window, nearly all they have room for.
They take turns in small chunks, so that noise of the machine hits all of them alike. What the
server did is read from its own statistics (``INFO commandstats``) before and after each chunk.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice

import redis

from benchmarks.contestants import Server, found_servers
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.workload import Work, items
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST

#: Largest median of a new URL in 6 generations that is accepted, in those in 1 generation.
TARGET = 2.0
GENERATIONS = 6
BATCH = 256
CHUNK = 50

NOTES = (
    (
        "`1` adds one URL at a time, `256` as many in one round trip; `server` is the time in the "
        "script, `client` what the caller waits. All filters hold the same URLs of one window: a "
        f"generation of `write-newest` is made for 1/{GENERATIONS} of them, one of `write-all` for "
        "all."
    ),
)


@dataclass
class Operation:
    """A way to add URLs that is measured, in chunks of equal size.

    Args:
        name: how it is called in the table.
        add: adds a list of items.
        items: which are added.
        urls: items per chunk.
    """

    name: str
    add: Callable[[list[bytes]], object]
    items: Iterator[bytes]
    urls: int
    client_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)

    def measure(self, client: redis.Redis) -> None:
        """Add a chunk; note what it took per URL."""
        chunk = list(islice(self.items, self.urls))
        before = Work.of(client)
        begin = time.perf_counter()
        self.add(chunk)
        elapsed = time.perf_counter() - begin
        work = Work.of(client).since(before)
        self.client_us.append(elapsed * 1e6 / self.urls)
        self.server_us.append(work.script_us / self.urls)
        self.commands.append(work.inside / self.urls)

    def reset(self) -> None:
        """Forget what was measured."""
        for values in (self.client_us, self.server_us, self.commands):
            values.clear()

    @property
    def server(self) -> float:
        """Median of the server's microseconds per URL."""
        return statistics.median(self.server_us)

    @property
    def client(self) -> float:
        """Median of the client's microseconds per URL."""
        return statistics.median(self.client_us)


@dataclass(frozen=True)
class Kind:
    """A kind of ring: what it is called, its generations and their order."""

    name: str
    generations: int
    order: str

    def capacity(self, urls: int) -> int:
        """Return the capacity of a generation, for so many URLs per window."""
        return urls // self.generations if self.order == WRITE_NEWEST else urls


KINDS = (
    Kind("1 generation", 1, WRITE_NEWEST),
    Kind(f"{GENERATIONS} generations, write-newest", GENERATIONS, WRITE_NEWEST),
    Kind(f"{GENERATIONS} generations, write-all", GENERATIONS, WRITE_ALL),
)


@dataclass(frozen=True)
class Filled:
    """A filter that is full, and the number of items in it."""

    kind: Kind
    filter: BloomFilter
    held: int

    def operations(self) -> list[Operation]:
        """Return what is measured of it."""
        new = map(_item, iter(range(self.held, 1 << 62)))
        seen = map(_item, cycle(range(0, self.held, 97)))  # 97 wanders through all generations
        return [
            Operation("new URL, 1", self._one_by_one, new, CHUNK),
            Operation(f"new URL, {BATCH}", self.filter.add_many, new, BATCH),
            Operation("seen URL, 1", self._one_by_one, seen, CHUNK),
            Operation(f"seen URL, {BATCH}", self.filter.add_many, seen, BATCH),
        ]

    def _one_by_one(self, chunk: list[bytes]) -> None:
        for item in chunk:
            self.filter.add(item)


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure on all servers; return the tables and how they compare with the target."""
    urls, rounds = (60_000, 6) if quick else (600_000, 20) if full else (150_000, 20)
    columns = ("", "commands", "ratio", "server µs", "ratio", "client µs", "ratio")
    cost = Table(f"Ring orders: {urls:,} URLs per window", columns, notes=NOTES)
    memory = Table(
        f"Memory of the ring orders: {urls:,} URLs per window",
        ("", "capacity setting", "URLs", "bytes of bitmaps", "bits per URL", "ratio"),
    )
    worst: dict[str, float] = {}
    for binary in found_servers().values():
        with Server(binary) as server, server.client(socket_timeout=60) as client:
            name = server_name(client)
            # What is measured, and what warms up, brings them to the number of URLs.
            held = urls - (rounds + 1) * (CHUNK + BATCH)
            filters = [_fill(client, kind, urls, held, name) for kind in KINDS]
            measured, ping = _measure(client, filters, rounds, name)
            _check(filters)
            cost.add(f"**{name}; a PING takes {ping:.0f} µs**", *[""] * 6)
            _report_cost(cost, filters, measured, worst)
            memory.add(f"**{name}**", *[""] * 5)
            _report_memory(memory, filters, urls)
    return Outcome([cost, memory], [_target(worst)])


def _fill(client: redis.Redis, kind: Kind, urls: int, wanted: int, title: str) -> Filled:
    """Give a filter so many of its URLs, one generation after the other."""
    held = 0
    with progress() as bar:
        task = bar.add_task(f"{title}: filling {kind.name}", total=wanted)
        for period in range(GENERATIONS):
            made = BloomFilter(
                client,
                f"{kind.order}-{kind.generations}",
                capacity=kind.capacity(urls),
                window=f"{kind.generations} runs",
                ring=kind.order,
                run=str(period if kind.generations > 1 else 0),
            )
            made.open()
            end = min(wanted, (period + 1) * urls // GENERATIONS)
            for start in range(held, end, 2_000):
                stop = min(start + 2_000, end)
                made.extend(items(range(start, stop)))
                bar.advance(task, stop - start)
            held = end
    return Filled(kind, made, held)


def _check(filters: list[Filled]) -> None:
    """Make sure that the rings are as described: all generations are there, and none has grown."""
    for filled in filters:
        layers = [generation.layers for generation in filled.filter.info().generations]
        if layers != [1] * filled.kind.generations:
            raise RuntimeError(f"{filled.kind.name}: the generations have {layers} layers")


def _measure(
    client: redis.Redis, filters: list[Filled], rounds: int, title: str
) -> tuple[list[list[Operation]], float]:
    """Measure all operations in turn, and a PING with them; return its microseconds too."""
    pings = []
    measured = [filled.operations() for filled in filters]
    together = list(zip(*measured, strict=True))
    with progress() as bar:
        for number in bar.track(range(rounds + 1), description=f"{title}: additions"):
            pings.append(_ping(client))
            for alike in together:
                for op in alike:
                    op.measure(client)
                    if number == 0:
                        op.reset()  # that was to warm up
    return measured, statistics.median(pings)


def _ping(client: redis.Redis) -> float:
    seconds = []
    for _ in range(CHUNK):
        begin = time.perf_counter()
        client.ping()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e6


def _report_cost(
    table: Table, filters: list[Filled], measured: list[list[Operation]], worst: dict[str, float]
) -> None:
    for filled, listed in zip(filters, measured, strict=True):
        for op, single in zip(listed, measured[0], strict=True):
            commands, one = (statistics.median(o.commands) for o in (op, single))
            ratios = {"server": op.server / single.server, "client": op.client / single.client}
            table.add(
                f"{filled.kind.name}: {op.name}",
                f"{commands:.1f}",
                f"{commands / one:.2f}",
                f"{op.server:.1f}",
                f"{ratios['server']:.2f}",
                f"{op.client:.1f}",
                f"{ratios['client']:.2f}",
            )
            if filled.kind is KINDS[1]:
                for side, ratio in ratios.items():
                    key = f"{op.name.partition(' ')[0]} {side}"
                    worst[key] = max(worst.get(key, 0), ratio)


def _report_memory(table: Table, filters: list[Filled], urls: int) -> None:
    single = 0
    for filled in filters:
        info = filled.filter.info()
        single = single or info.memory
        table.add(
            filled.kind.name,
            f"{filled.kind.capacity(urls):,}",
            f"{urls:,}",
            f"{info.memory:,}",
            f"{info.memory * 8 / urls:.1f}",
            f"{info.memory / single:.2f}",
        )


def _target(worst: dict[str, float]) -> Target:
    what = (
        f"Cost of a new URL in {GENERATIONS} full generations (`write-newest`, the default), in "
        "that in one: the larger of server and client"
    )
    return Target.at_most(what, TARGET, max(worst["new server"], worst["new client"]))


def _item(number: int) -> bytes:
    return items([number])[0]
