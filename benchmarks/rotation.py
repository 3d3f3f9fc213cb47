"""How long a rotation keeps everybody else waiting.

A process of its own sends PING after PING to the server while another client opens the filter with
the id of a new run, which rotates all blocks, one at a time. The same is done while nothing
happens. All the while a third process sends PINGs to a server that has nothing else to do: what it
finds is the noise of the machine. The bitmaps that are dropped have been written to from end to
end.
"""

import gc
import multiprocessing
import os
import socket
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import redis

from benchmarks.contestants import Server, found_servers
from benchmarks.report import Outcome, Table, Target, progress, server_name
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import MAX_GROWN_BITS

#: Longest PING in milliseconds that is accepted during a rotation.
TARGET = 20.0
WINDOW = "2 runs"
KEY = "rotation"
ROUNDS = 3
#: Seconds that are watched while nothing happens.
QUIET = 1.0
#: Seconds between the PINGs to the server that is idle: they must not keep a core busy.
PAUSE = 0.0005
#: Seconds before and after a rotation that are watched with it.
MARGIN = 0.02
#: Layers per block of the filter that has grown before it rotates; the last has 32 MiB.
GROWN_LAYERS = 8

COLUMNS = (
    "",
    "blocks",
    "comes",
    "goes",
    "seconds",
    "PINGs",
    "p99.9 ms",
    "longest ms",
    "worst ms",
    "script ms",
    "noise ms",
)
NOTES = (
    (
        f"PINGs of a second client while a first one rotates a filter with a window of {WINDOW}. "
        "`comes` and `goes` are the MiB that one script allocates and frees; `longest` is the "
        f"median over {ROUNDS} times, `worst` the longest PING of all, `script` the longest time "
        "in a script (`SLOWLOG`), `noise` the longest PING to an idle server at the same time."
    ),
)

Action = Callable[[], object]


class Probe:
    """A process that sends PING after PING to a server, from ``begin`` to ``end``.

    Args:
        path: the server's unix socket.
        pause: seconds between two PINGs.
    """

    def __init__(self, path: str, pause: float = 0.0) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._pipe, theirs = context.Pipe()
        arguments = (path, pause, self._stop, theirs)
        self._process = context.Process(target=ping_on_demand, args=arguments, daemon=True)
        self._process.start()

    def begin(self) -> None:
        """Begin to measure."""
        self._stop.clear()
        self._pipe.send(True)
        self._pipe.recv()

    def end(self) -> list[float]:
        """Stop measuring; return the milliseconds that each PING took."""
        self._stop.set()
        return [seconds * 1e3 for seconds in array("d", self._pipe.recv())]

    def close(self) -> None:
        """End the process."""
        self._pipe.send(False)
        self._process.join()


def ping_on_demand(path: str, pause: float, stop: Event, pipe: Connection) -> None:
    """Send PINGs from when the pipe says True until ``stop`` is set; send back their times."""
    gc.disable()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        while pipe.recv():
            _pings(connection, 50)
            pipe.send("ready")
            times = array("d")
            while not stop.is_set():
                times.extend(_pings(connection, 1))
                if pause:
                    time.sleep(pause)
            pipe.send(times.tobytes())


def _pings(connection: socket.socket, number: int) -> list[float]:
    taken = []
    for _ in range(number):
        begin = time.perf_counter()
        connection.sendall(b"PING\r\n")
        connection.recv(64)
        taken.append(time.perf_counter() - begin)
    return taken


@dataclass(frozen=True)
class Watched:
    """What was seen while something was done once.

    Args:
        seconds: how long it took.
        pings: milliseconds of each PING meanwhile.
        script: milliseconds of the longest script, by the server's own clock.
        noise: milliseconds of the longest PING to the idle server.
        blocks: blocks that were rotated.
        comes: most bytes of bitmaps that were allocated in a block.
        goes: most bytes of bitmaps that were freed in a block.
    """

    seconds: float
    pings: list[float]
    script: float
    noise: float
    blocks: int
    comes: int
    goes: int

    @property
    def p999(self) -> float:
        """The PING that one in a thousand exceeds."""
        return sorted(self.pings)[int(len(self.pings) * 0.999)]


@dataclass
class Case:
    """Something that is watched a few times.

    Args:
        name: how it is called in the table.
        rotates: whether it is a rotation.
        watched: one entry per time.
    """

    name: str
    rotates: bool = True
    watched: list[Watched] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The longest PING of all."""
        return max(max(once.pings) for once in self.watched)

    def cells(self) -> list[str]:
        """Return its row of the table."""
        seen = self.watched
        script = max(once.script for once in seen)
        return [
            self.name,
            f"{seen[0].blocks}",
            f"{seen[0].comes / (1 << 20):.1f}",
            f"{seen[0].goes / (1 << 20):.1f}",
            f"{statistics.median(once.seconds for once in seen):.2f}",
            f"{sum(len(once.pings) for once in seen):,}",
            f"{statistics.median(once.p999 for once in seen):.2f}",
            f"{statistics.median(max(once.pings) for once in seen):.2f}",
            f"{self.worst:.2f}",
            f"{script:.2f}" if script else "<0.1",
            f"{max(once.noise for once in seen):.2f}",
        ]


@dataclass(frozen=True)
class Bench:
    """A server under test and what watches it."""

    client: redis.Redis
    probe: Probe
    noise: Probe

    def watch(self, case: Case, action: Action) -> None:
        """Do something once; note in ``case`` what others saw of it."""
        before = self.rings()
        self.client.slowlog_reset()
        self.noise.begin()
        self.probe.begin()
        time.sleep(MARGIN)
        begin = time.perf_counter()
        action()
        seconds = time.perf_counter() - begin
        time.sleep(MARGIN)
        pings, noise = self.probe.end(), self.noise.end()
        slow = [entry["duration"] / 1e3 for entry in self.client.slowlog_get(1_000)]
        sizes = _sizes(before, self.rings())
        case.watched.append(Watched(seconds, pings, max(slow, default=0), max(noise), *sizes))

    def rings(self) -> dict[int, Ring]:
        """Return the filter's rings as they are stored."""
        snapshot = BloomFilter(self.client, KEY).look()
        return dict(snapshot.rings) if snapshot else {}

    def open(self, run: int, capacity: int | None = None) -> BloomFilter:
        """Open the filter with the id of a run."""
        bloom = BloomFilter(self.client, KEY, capacity=capacity, window=WINDOW, run=str(run))
        bloom.open()
        return bloom


def _sizes(before: dict[int, Ring], after: dict[int, Ring]) -> tuple[int, int, int]:
    """Return how many blocks have changed, and the most bytes that came and went in one."""
    pairs = [(set(before[b].layers), set(after[b].layers)) for b in after if before[b] != after[b]]
    comes = (sum(layer.memory for layer in new - old) for old, new in pairs)
    goes = (sum(layer.memory for layer in old - new) for old, new in pairs)
    return len(pairs), max(comes, default=0), max(goes, default=0)


def run(
    *,
    quick: bool = False,
    full: bool = False,  # noqa: ARG001 - the filters are the largest anyway
) -> Outcome:
    """Measure on all servers; return the table and how it compares with the target."""
    capacity, layers = (4_000_000, 5) if quick else (100_000_000, GROWN_LAYERS)
    table = Table("The longest stall that a rotation causes", COLUMNS, notes=NOTES)
    everything = []
    for binary in found_servers().values():
        with _bench(binary) as bench:
            name = server_name(bench.client)
            cases = _cases(bench, capacity, layers, name)
        table.add(f"**{name}**", *[""] * (len(COLUMNS) - 1))
        for case in cases:
            table.add(*case.cells())
        everything += cases
    return Outcome([table], [*_targets(everything)])


@contextmanager
def _bench(binary: str) -> Iterator[Bench]:
    with ExitStack() as stack:
        server, idle = (stack.enter_context(Server(binary)) for _ in range(2))
        probe, noise = Probe(str(server.socket)), Probe(str(idle.socket), PAUSE)
        stack.callback(probe.close)
        stack.callback(noise.close)
        client = stack.enter_context(server.client(socket_timeout=60))
        client.config_set("slowlog-log-slower-than", 100)
        client.config_set("slowlog-max-len", 1_000)
        yield Bench(client, probe, noise)


def _cases(bench: Bench, capacity: int, layers: int, title: str) -> list[Case]:
    nothing = Case("nothing", rotates=False)
    allocate = Case(f"{capacity:,} URLs: allocate")
    drop = Case(f"{capacity:,} URLs: drop, allocate")
    grown = Case(f"{layers} layers a block: drop, allocate")
    with progress() as bar:
        for _ in bar.track(range(ROUNDS), description=f"{title}: rotations"):
            bench.watch(nothing, lambda: time.sleep(QUIET))
            _rotate_plain(bench, allocate, drop, capacity)
            _rotate_grown(bench, grown, layers)
    return [nothing, allocate, drop, grown]


def _rotate_plain(bench: Bench, allocate: Case, drop: Case, capacity: int) -> None:
    """Watch a filter that has not grown: its second generation, and its third."""
    bench.open(1, capacity)
    _write_all_over(bench)
    bench.watch(allocate, lambda: bench.open(2))
    bench.watch(drop, lambda: bench.open(3))
    bench.client.flushall()


def _rotate_grown(bench: Bench, case: Case, layers: int) -> None:
    """Watch a filter whose oldest generation has grown; the new one is made as large at once."""
    bloom = bench.open(1)
    for _ in range(layers - 1):
        _pretend_full(bench)
        bloom.add_many(os.urandom(20) for _ in range(1_000))
    _pretend_full(bench)
    _write_all_over(bench)
    bench.open(2)
    bench.watch(case, lambda: bench.open(3))
    bench.client.flushall()


def _pretend_full(bench: Bench) -> None:
    """Note in all layers that they are full; the next addition makes its block grow."""
    for block, ring in bench.rings().items():
        counts: dict[Any, Any] = {f"n:{layer.name}": layer.capacity for layer in ring.layers}
        bench.client.hset(Keys(KEY).ring(block), mapping=counts)


def _write_all_over(bench: Bench) -> None:
    """Fill all bitmaps with random bits: only memory that was written to is memory in use."""
    bits = os.urandom(MAX_GROWN_BITS // 8)
    for block, ring in bench.rings().items():
        for layer in ring.layers:
            key = Keys(KEY).layer(block, layer.name)
            bench.client.setrange(key, 0, bits[: layer.memory])


def _targets(cases: list[Case]) -> Iterator[Target]:
    worst: dict[str, float] = {}
    for case in cases:
        if case.rotates:
            worst[case.name] = max(worst.get(case.name, 0), case.worst)
    for name, ms in worst.items():
        what = f"Longest PING of another client during a rotation, ms: {name}"
        yield Target(what, f"below {TARGET:g}", f"{ms:.1f}", ms < TARGET)
