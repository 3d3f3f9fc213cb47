"""Batches of items in and out of the filters that Python has, on Redis and in the process."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pybloom_live
import rbloom
import redis

from benchmarks import pyrebloom
from benchmarks.contestants import Server, found_servers
from benchmarks.peers import redisbloom
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.workload import items, server_cpu
from scrapy_bloom import BloomFilter

#: Hash functions, items in a batch, and the error rate that takes so many.
NUM_HASHES, BATCH, ERROR_RATE = 10, 500, 0.001
ITEMS, QUICK_ITEMS = 50_000, 20_000
#: Of peers that wait for the server with each item.
FEW = 20
ROUNDS, QUICK_ROUNDS = 3, 1
#: Our items a second in those of a peer, at least.
TARGETS = {"pyreBloom-ng": 1.0, "Scrapy-Redis-BloomFilter": 8.0}
#: With so many blocks, the peers' one bitmap among them.
BLOCKS = (1, 16)

WHATS = ("insert", "test, present", "test, absent")
COLUMNS = ("", *(text for what in WHATS for text in (f"{what}/s", "client µs", "server µs")))
NOTES = (
    (
        f"Items are fingerprints of 20 bytes; the filters have {NUM_HASHES} hash functions, and "
        "are filled by the insertion. Client and server have one core each; `client` and `server` "
        "are their CPU time per item."
    ),
)

Insert = Callable[[Sequence[bytes]], Any]


@dataclass
class Contestant:
    """A filter that is empty.

    Args:
        name: as it is in the table.
        insert: adds a batch.
        test: tests a batch.
        client: its server's; None if it has none.
        share: of the items, those that it is given; it waits with each.
    """

    name: str
    insert: Insert
    test: Insert
    client: redis.Redis | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Speed:
    """Items per second, and microseconds of CPU per item of the client and of the server."""

    rate: float
    client: float
    server: float


#: By contestant and what it does.
Speeds = dict[tuple[str, str], list[Speed]]


def run(*, quick: bool = False, full: bool = False) -> Outcome:  # noqa: ARG001
    """Measure on the first server, and on Redis with RedisBloom if it is there.

    Args:
        quick: fewer items, once.
        full: the same as usual.
    """
    count, rounds = (QUICK_ITEMS, QUICK_ROUNDS) if quick else (ITEMS, ROUNDS)
    speeds: Speeds = {}
    notes = list(NOTES)
    with _pinned(), _servers() as (usual, stack), progress() as bar:
        task = bar.add_task("batches", total=rounds)
        for number in range(rounds):
            present = items(range(number * 4 * count, number * 4 * count + count))
            absent = items(range(number * 4 * count + 2 * count, number * 4 * count + 3 * count))
            for one in _contestants(usual, stack, count, notes if number == 0 else []):
                for what, speed in _measure(one, present, absent).items():
                    speeds.setdefault((one.name, what), []).append(speed)
            bar.advance(task)
        with usual.client() as client:
            notes.append(f"On {server_name(client)}; RedisBloom is a module of Redis.")
    return Outcome([_table(speeds, notes)], [*_targets(speeds)])


# -- contestants --


@contextlib.contextmanager
def _pinned() -> Iterator[None]:
    """Leave all but one core to the servers."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _servers() -> Iterator[tuple[Server, Server | None]]:
    """Start the servers on one core, and stay on another one."""
    found, module = found_servers(), redisbloom()
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        os.sched_setaffinity(0, {cores[-1]})
        usual = stack.enter_context(Server(next(iter(found.values()))))
        loaded = None
        if module and "redis" in found:
            options = ("--loadmodule", str(module))
            loaded = stack.enter_context(Server(found["redis"], *options))
        os.sched_setaffinity(0, {cores[0]})
        yield usual, loaded


def _contestants(
    usual: Server, loaded: Server | None, count: int, notes: list[str]
) -> Iterator[Contestant]:
    """Make all of them, one after the other, each on an empty server."""
    with usual.client() as client:
        for blocks in BLOCKS:
            client.flushall()
            yield _ours(client, blocks, count)
        client.flushall()
        try:
            yield _pyrebloom(client, usual.port, count)
        except pyrebloom.NotBuiltError as error:
            notes.append(f"pyreBloom-ng could not be built: {error}.")
        client.flushall()
        yield _pipeline(client, count)
        client.flushall()
        yield _srbf(client)
    if loaded is not None:
        with loaded.client() as client:
            client.flushall()
            yield _redisbloom(client, count)
    yield from _in_process(count)


def _ours(client: redis.Redis, blocks: int, count: int) -> Contestant:
    bloom = BloomFilter(
        client,
        "ours",
        blocks=blocks,
        capacity=count,
        seeds=NUM_HASHES,
        error_rate=ERROR_RATE,
    )
    bloom.open()
    name = f"scrapy-bloom {version('scrapy-bloom')}, {blocks} block{'s' * (blocks > 1)}"
    return Contestant(name, bloom.add_many, bloom.contains, client)


def _pyrebloom(client: redis.Redis, port: int, count: int) -> Contestant:
    bloom = pyrebloom.load().PyreBloom(b"pyrebloom", count, ERROR_RATE, port=port)
    assert bloom.hashes == NUM_HASHES
    return Contestant("pyreBloom-ng 0.0.2", bloom.update, bloom.intersection, client)


def _pipeline(client: redis.Redis, count: int) -> Contestant:
    """As one would write it: a pipeline of SETBIT and GETBIT, with this library's hashing."""
    bloom = BloomFilter(client, "like", capacity=count, seeds=NUM_HASHES, blocks=1)
    bloom.open()
    bloom.add(b"")  # makes the bitmap
    hasher, num_bits = bloom.session.known.hasher, bloom.bits
    client.setbit("bits", num_bits - 1, 0)

    def send(batch: Sequence[bytes], command: str, *more: int) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for item in batch:
                for value in hasher.hashes(item)[1]:
                    pipeline.execute_command(command, "bits", value % num_bits, *more)
            pipeline.execute()

    return Contestant(
        "pipelines of SETBIT, GETBIT",
        lambda batch: send(batch, "SETBIT", 1),
        lambda batch: send(batch, "GETBIT"),
        client,
    )


def _srbf(client: redis.Redis) -> Contestant:
    from scrapy_redis_bloomfilter.bloomfilter import BloomFilter as Theirs  # noqa: PLC0415

    bloom = Theirs(client, "srbf", 24, NUM_HASHES)

    def insert(batch: Sequence[bytes]) -> None:
        for item in batch:
            bloom.insert(item.hex())

    def test(batch: Sequence[bytes]) -> None:
        for item in batch:
            bloom.exists(item.hex())

    name = f"Scrapy-Redis-BloomFilter {version('Scrapy-Redis-BloomFilter')}, one by one"
    return Contestant(name, insert, test, client, share=1 / FEW)


def _redisbloom(client: redis.Redis, count: int) -> Contestant:
    client.execute_command("BF.RESERVE", "module", ERROR_RATE, count, "NONSCALING")
    call = client.execute_command
    return Contestant(
        "RedisBloom (BF.MADD, BF.MEXISTS)",
        lambda batch: call("BF.MADD", "module", *batch),
        lambda batch: call("BF.MEXISTS", "module", *batch),
        client,
    )


def _in_process(count: int) -> Iterator[Contestant]:
    fast = rbloom.Bloom(count, ERROR_RATE)
    yield Contestant(
        f"rbloom {version('rbloom')}, in the process",
        fast.update,
        lambda batch: [item in fast for item in batch],
    )
    slow = pybloom_live.BloomFilter(count, ERROR_RATE)
    yield Contestant(
        f"pybloom-live {version('pybloom-live')}, in the process",
        lambda batch: [slow.add(item) for item in batch],
        lambda batch: [item in slow for item in batch],
    )


# -- measuring --


def _measure(
    one: Contestant, present: Sequence[bytes], absent: Sequence[bytes]
) -> dict[str, Speed]:
    count = round(len(present) * one.share)
    return {
        "insert": _speed(one, one.insert, present[:count]),
        "test, present": _speed(one, one.test, present[:count]),
        "test, absent": _speed(one, one.test, absent[:count]),
    }


def _speed(one: Contestant, call: Insert, given: Sequence[bytes]) -> Speed:
    server = server_cpu(one.client) if one.client else 0.0
    client, start = time.process_time(), time.perf_counter()
    for at in range(0, len(given), BATCH):
        call(given[at : at + BATCH])
    seconds, client = time.perf_counter() - start, time.process_time() - client
    server = server_cpu(one.client) - server if one.client else 0.0
    return Speed(len(given) / seconds, client * 1e6 / len(given), server * 1e6 / len(given))


def _table(speeds: Speeds, notes: Sequence[str]) -> Table:
    table = Table(f"Batches of {BATCH}: Bloom filters for Python", COLUMNS, notes=notes)
    for name in dict.fromkeys(name for name, _ in speeds):
        cells = []
        for what in WHATS:
            of_it = speeds[name, what]
            server = statistics.median(speed.server for speed in of_it)
            cells += [
                f"{statistics.median(speed.rate for speed in of_it):,.0f}",
                f"{statistics.median(speed.client for speed in of_it):.2f}",
                f"{server:.2f}" if server else "",
            ]
        table.add(name, *cells)
    return table


def _targets(speeds: Speeds) -> Iterator[Target]:
    """Compare with those there is a target for, by the ratios of the same rounds."""
    ours = next(name for name, _ in speeds if name.startswith("scrapy-bloom"))
    for peer, target in TARGETS.items():
        theirs = next((name for name, _ in speeds if name.startswith(peer)), None)
        if theirs is None:
            continue
        for what in WHATS[:2]:
            pairs = zip(speeds[ours, what], speeds[theirs, what], strict=True)
            ratio = statistics.median(a.rate / b.rate for a, b in pairs)
            text = f"Items a second in one block, {what}, as a multiple of {peer}"
            yield Target(text, f"at least {target:g}", f"{ratio:.2f}", ratio >= target)
