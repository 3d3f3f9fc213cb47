"""The cheapest way to add URLs on the server: variants of ``add.lua``, side by side.

A variant takes the place of ``add.lua``, in a file of ``variants/``: all have the same
prelude, arguments and replies. Each is first compared with the package's script on random input
(duplicates, URLs of all layers, layers that get full), and then measured by the server's own
statistics. All variants add the same URLs to the same rings, restored after each call.
"""

import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from benchmarks.contestants import Server, servers
from benchmarks.report import Outcome, Table, progress, server_name
from benchmarks.workload import Work
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import Schedule, parse_span
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.scripts import load

VARIANTS = Path(__file__).parent / "variants"
#: Where ``add.lua`` begins, and so a variant, behind the prelude.
SEAM = "-- add: "
#: What variants have beside the prelude's: where the offsets of each layer begin in a URL's.
START = """local start = {}
for i = 1, layers do start[i] = 4 * k * groups[i] end
"""
#: The script of the package.
PACKAGED = "add.lua"
PACKAGED_IS = (
    "the package's. The newest layer and then the older ones are tested bit by bit, until a bit is "
    "not set; a new URL is set by one BITFIELD. Offsets are unpacked once for all layers of a size."
)
#: Variants that are not one of the package's promises: effects per URL in the replication stream.
PROMISES = {"setbit": "k effects a URL", "one_bitfield": "one effect a batch"}

GENERATIONS = (1, 6, 12)
HASHES = (7, 17, 24)
#: The one whose times are in the table.
USUAL = 17
BATCH = 128
#: URLs a layer of the measured rings takes, and batches between two looks at the statistics.
CAPACITY = 100_000
BATCHES = 4
#: Bytes of a bitmap that are put back at once.
PIECE = 1 << 20
WHERE = ("new", "newest", "oldest")

NOTES = (
    (
        "Microseconds in the script per URL (medians of rounds in turns); rings of 1, 6 and 12 "
        "generations, half the bits of all layers set. `least` and `most` are the extremes of the "
        f"ratio to `{PACKAGED}` over all rings and k = {', '.join(map(str, HASHES))}."
    ),
    (
        "All variants gave the verdicts, bitmaps and counts of the package's script on random "
        "input. All but the marked ones have one effect per new URL and layer in the replication "
        "stream."
    ),
)


@dataclass
class Case:
    """A ring, and the URLs that are added to it.

    Args:
        held: the ring, its bitmaps being on the server.
        newest: the bitmap that is written.
        calls: per kind of URL, the packed offsets of batches.
    """

    held: CachedRing
    newest: bytes
    calls: dict[str, list[bytes]]
    us: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def ratios(self, name: str) -> list[float]:
        """Return a variant's times in those of the package's script, per kind of URL."""
        kinds = {where for _, where in self.us}
        return [
            statistics.median(self.us[name, where]) / statistics.median(self.us[PACKAGED, where])
            for where in kinds
        ]


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Compare and measure; with ``full`` on all servers, and one URL at a time as well."""
    rounds = 3 if quick else 41 if full else 15
    scripts = variants()
    tables: list[Table] = []
    for binary in servers(full=full):
        with Server(binary) as server, server.client(socket_timeout=60) as client:
            name = server_name(client)
            _compare(client, scripts, trials=10 if quick else 60)
            sizes = (BATCH, 1) if full else (BATCH,)
            tables += [_measure(client, scripts, size, rounds, name) for size in sizes]
    tables[0].notes = NOTES
    return Outcome(tables, text=_descriptions(scripts))


def variants() -> dict[str, str]:
    """Return all variants by name: the package's, and then the others."""
    packaged = load("add").text
    head, seam, _ = packaged.partition(SEAM)
    if not seam:
        raise RuntimeError(f"{PACKAGED} has no line {SEAM!r}")
    head += START
    others = {path.stem: head + path.read_text("utf-8") for path in sorted(VARIANTS.glob("*.lua"))}
    return {PACKAGED: packaged, **others}


def _ring(generations: int, num_hashes: int, capacity: int, order: str = WRITE_NEWEST) -> Ring:
    """Return a ring with all its generations."""
    header = Header("0" * 32, 1, tuple(range(1, num_hashes + 1)), order)
    window = Schedule(parse_span("window", f"{generations} runs"), parse_span("period", "1 run"))
    config = Config(capacity, 0.5**num_hashes * generations, window)
    ring = Ring.fresh(header, config, 0, run="0")
    for _ in range(1, generations):
        ring = ring.rotate(0)
    return ring


# -- comparison --


def _compare(client: redis.Redis, scripts: dict[str, str], trials: int) -> None:
    """Make sure that all variants do what the package's script does."""
    random.seed(1)
    for trial in range(trials):
        held = _random_ring(trial)
        keys = held.add(b"").keys
        known = [_hashes(held) for _ in range(30)]
        begin = _random_state(held, known)
        calls = [
            b"".join(held.pack(random.choice(known)) for _ in range(25))  # some occur twice
            for _ in range(3)
        ]
        expected: Any = None
        for name, text in scripts.items():
            _restore(client, keys, begin)
            got = [client.eval(text, *_arguments(held, packed)) for packed in calls]
            outcome = got, client.hgetall(keys[0]), [client.get(key) for key in keys[1:]]
            expected = expected or outcome
            if outcome != expected:
                raise RuntimeError(f"{name} differs in trial {trial}: {outcome} / {expected}")


def _random_ring(trial: int) -> CachedRing:
    order = WRITE_ALL if trial % 4 == 3 else WRITE_NEWEST
    ring = _ring(random.randint(1, 4), random.choice((3, 4, 5, 7, 12)), 40, order)
    for _ in range(random.randint(0, 2)):
        ring = ring.grow(0, {layer.name: layer.capacity for layer in ring.layers})
    return CachedRing("v", ring, Keys("compared"))


def _random_state(held: CachedRing, known: list[list[int]]) -> tuple[dict[Any, Any], list[bytes]]:
    """Return a ring's hash and its bitmaps, each with some of the URLs; some are nearly full."""
    layers = {layer.name: layer for layer in held.ring.layers}
    fields: dict[Any, Any] = {"v": "v"}
    bitmaps = []
    for key in held.add(b"").keys[1:]:
        layer = layers[key.rpartition(":")[2]]
        fields[f"n:{layer.name}"] = max(0, layer.capacity - random.choice((3, 10, 60)))
        bitmap = bytearray(layer.memory)
        for hashes in random.sample(known, random.randint(0, 8)):
            _put(bitmap, hashes, layer.num_bits)
        bitmaps.append(bytes(bitmap))
    return fields, bitmaps


def _restore(
    client: redis.Redis, keys: Iterable[str], state: tuple[dict[Any, Any], list[bytes]]
) -> None:
    ring, *others = keys
    client.delete(ring)
    client.hset(ring, mapping=state[0])
    for key, bitmap in zip(others, state[1], strict=True):
        client.set(key, bitmap)


def _hashes(held: CachedRing) -> list[int]:
    return [random.getrandbits(64) for _ in held.ring.header.seeds]


def _put(bitmap: bytearray, hashes: Iterable[int], num_bits: int) -> None:
    for value in hashes:
        offset = value % num_bits
        bitmap[offset // 8] |= 128 >> offset % 8


def _has(bitmap: bytes | bytearray, hashes: Iterable[int], num_bits: int) -> bool:
    return all(bitmap[(v % num_bits) // 8] & 128 >> (v % num_bits) % 8 for v in hashes)


def _arguments(held: CachedRing, packed: bytes) -> tuple[Any, ...]:
    call = held.add(packed)
    return (len(call.keys), *call.keys, *call.args)


# -- measurement --


def _measure(
    client: redis.Redis, scripts: dict[str, str], size: int, rounds: int, title: str
) -> Table:
    shas = {name: client.script_load(text) for name, text in scripts.items()}
    cases = {}
    with progress() as bar:
        pairs = [(generations, k) for generations in GENERATIONS for k in HASHES]
        for pair in bar.track(pairs, description=f"{title}: variants, {size} at a time"):
            cases[pair] = _timed(client, _case(client, *pair, size), shas, rounds, size)
    heads = [(g, where) for g in GENERATIONS for where in WHERE if g > 1 or where != "oldest"]
    many = f"batches of {size}" if size > 1 else "one by one"
    columns = ("", *(f"{g} {where}" for g, where in heads), "least", "most")
    table = Table(f"Variants of add.lua, {many}, k = {USUAL}: {title}", columns)
    for name in shas:
        cells = [f"{statistics.median(cases[g, USUAL].us[name, where]):.2f}" for g, where in heads]
        ratios = [ratio for case in cases.values() for ratio in case.ratios(name)]
        promise = f" ({PROMISES[name]})" if name in PROMISES else ""
        table.add(f"{name}{promise}", *cells, f"{min(ratios):.2f}", f"{max(ratios):.2f}")
    return table


def _descriptions(scripts: dict[str, str]) -> str:
    """Return what each variant does, which is the comment it begins with."""
    lines = [f"- `{PACKAGED}`: {PACKAGED_IS}"]
    for name in scripts:
        if name != PACKAGED:
            first, _, _ = (VARIANTS / f"{name}.lua").read_text("utf-8").partition("\n")
            lines.append(f"- `{name}`: {first.removeprefix('-- ')}")
    return "\n".join(lines)


def _case(client: redis.Redis, generations: int, num_hashes: int, size: int) -> Case:
    """Make a ring on the server, half the bits of its layers set, and URLs to add."""
    held = CachedRing("v", _ring(generations, num_hashes, CAPACITY), Keys("measured"))
    layers = held.ring.layers
    bitmaps = [bytearray(random.randbytes(layer.memory)) for layer in layers]
    urls: dict[str, list[list[int]]] = {where: [] for where in WHERE}
    for where, listed in urls.items():
        while len(listed) < BATCHES * BATCH:
            hashes = _hashes(held)
            there = (
                _has(bits, hashes, layer.num_bits)
                for bits, layer in zip(bitmaps, layers, strict=True)
            )
            if not any(there):
                listed.append(hashes)
                if where != "new":
                    place = 0 if where == "newest" else -1
                    _put(bitmaps[place], hashes, layers[place].num_bits)
    # What was set later may hold a URL that was new: that is one of the false positives.
    fields: dict[Any, Any] = {"v": "v", **{f"n:{layer.name}": 0 for layer in layers}}
    _restore(client, held.add(b"").keys, (fields, [bytes(bitmap) for bitmap in bitmaps]))
    calls = {
        where: [
            b"".join(map(held.pack, listed[start : start + size]))
            for start in range(0, len(listed) if size > 1 else BATCH, size)
        ]
        for where, listed in urls.items()
    }
    return Case(held, bytes(bitmaps[0]), calls)


def _timed(client: redis.Redis, case: Case, shas: dict[str, str], rounds: int, size: int) -> Case:
    """Let all variants take turns; note the server's microseconds per URL."""
    verdicts: dict[str, list[Any]] = {}
    for number in range(rounds + 1):
        for where, calls in case.calls.items():
            # Whoever is the first finds the bitmaps in no cache.
            for name, sha in random.sample(list(shas.items()), len(shas)):
                before = Work.of(client)
                with client.pipeline(transaction=False) as pipeline:
                    for packed in calls:
                        pipeline.evalsha(sha, *_arguments(case.held, packed))
                    replies = pipeline.execute()
                spent = Work.of(client).since(before).script_us / (len(calls) * size)
                if number:  # the first is to warm up
                    case.us.setdefault((name, where), []).append(spent)
                if replies != verdicts.setdefault(where, replies):
                    raise RuntimeError(f"{name} differs from the others on {where} URLs")
                if where == "new":
                    _put_back(client, case)
    return case


def _put_back(client: redis.Redis, case: Case) -> None:
    """Restore the state, in place."""
    ring, newest = case.held.add(b"").keys[:2]
    name = case.held.ring.written[0].name
    client.hset(ring, f"n:{name}", 0)
    for start in range(0, len(case.newest), PIECE):
        client.setrange(newest, start, case.newest[start : start + PIECE])
