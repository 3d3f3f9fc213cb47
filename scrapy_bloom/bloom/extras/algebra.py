"""Filters as sets: how many items are in one or in two, and filters that are made of others.

Bitmaps are read and combined here and not by the server: keys of two filters are in two slots of a
cluster, or on two servers.

Operations on several filters are generators as in ``multi.py``: a filter's number is its place
among the arguments. Filters may be in use: items recorded before an operation began are in its
result, items recorded during it may be. No I/O.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum, isinf
from typing import TypeVar

from scrapy_bloom.bloom.errors import (
    ConfigurationError,
    FilterMismatchError,
    SaturatedError,
    StorageError,
)
from scrapy_bloom.bloom.extras.bitmaps import (
    Contents,
    cardinality,
    estimated,
    intersect,
    merge,
    shared,
    unite,
)
from scrapy_bloom.bloom.extras.file import Block, Chunk, spans
from scrapy_bloom.bloom.extras.install import Installer, install
from scrapy_bloom.bloom.extras.multi import MultiOperation, on
from scrapy_bloom.bloom.extras.save import RefusedError, call_all, read_layer
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import Call, load
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")

#: What decides when items are forgotten, and not where they are.
_TIMES = ("the ring order", "stagger", "the window", "the period")
#: Bytes of a bitmap whose bits are counted in one call: 0.7 ms.
COUNTED_BYTES = 4 << 20


# -- how many --


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many items two filters remember, estimated from their bits.

    Args:
        first: items in the first.
        second: items in the second.
        intersection: items in both.
    """

    first: float
    second: float
    intersection: float

    @property
    def union(self) -> float:
        """Items in one or the other."""
        return self.first + self.second - self.intersection


def approx_len(session: FilterSession) -> Operation[int]:
    """Return how many items a filter remembers, estimated from its bits alone.

    Raises:
        SaturatedError: a layer has no bit left that is 0.
    """
    header = yield from session.open()
    found = 0.0
    for block in range(header.blocks):
        items = yield from try_block(session, header, block, _approx)
        if isinf(items):
            raise SaturatedError(
                f"the filter {session.keys.prefix!r} is saturated: all bits of block {block} are "
                "set, so the number of items cannot be estimated. Clear the filter, or restore it "
                "from a file"
            )
        found += items
    return round(found)


def overlap(first: FilterSession, second: FilterSession) -> MultiOperation[Overlap]:
    """Estimate how many items two filters, numbers 0 and 1, have in common.

    Raises:
        FilterMismatchError: they place items differently, or have layers of different sizes.
        SaturatedError: a layer has no bit left that is 0.
    """
    views = first, second
    rings = yield from _open_all(views)
    _refuse_unlike(views, rings, only_places=True)
    one, two = (yield from on(0, approx_len(first))), (yield from on(1, approx_len(second)))
    headers, both = [ring.header for ring in rings], 0.0
    for block in range(headers[0].blocks):
        both += shared(*(yield from _read(views, headers, block)))
    # Cut off in each block, the sum over blocks would be too large.
    return Overlap(one, two, min(max(0.0, both), one, two))


def _approx(held: CachedRing) -> Operation[float]:
    header = held.ring.header
    if header.counting:
        return estimated((yield from read_block(held)))
    pairs = zip((yield from count_ones(held)), held.ring.tested, strict=True)
    return fsum(cardinality(ones, layer.num_bits, len(header.seeds)) for ones, layer in pairs)


# -- filters made of others --


def union(sources: Sequence[FilterSession], target: Keys) -> MultiOperation[None]:
    """Make a filter that remembers what any of some filters does, as long as that does.

    Args:
        sources: the filters, numbers 0 and up; the configuration is that of the first.
        target: keys of the filter that is made, whose number follows theirs.

    Raises:
        FilterMismatchError: the filters do not go together; says in what they differ.
        ConfigurationError: the key is in use, a bitmap has no room for all items, or these filters
            cannot be combined.
        StorageError: a server did not answer, or is short of memory.
    """
    headers = yield from _matching(sources)
    yield from _build(sources, headers, target, unite)


def intersection(sources: Sequence[FilterSession], target: Keys) -> MultiOperation[None]:
    """Make a filter that tests as seen what each of some filters does. Raises as ``union`` does.

    It may have more bits than those of its items, so what ``len`` and ``approx_len`` return for it
    is an upper bound (``overlap`` is closer).
    """
    headers = yield from _matching(sources)
    yield from _build(sources, headers, target, intersect)


def copy(source: FilterSession, target: Keys) -> MultiOperation[None]:
    """Make a filter, number 1, that is as another one, number 0. Raises as ``union`` does."""
    (ring,) = yield from _open_all([source])
    yield from _build([source], [ring.header], target, lambda blocks: blocks[0])


def update(first: FilterSession, *others: FilterSession) -> MultiOperation[None]:
    """Make a filter, number 0, remember what others, numbers 1 and up, do, while it is in use.

    If this ends before its time, a part of it is done; it can be done again. Errors are those of
    ``union``.
    """
    headers = yield from _matching([first, *others])
    for number, other in enumerate(others, 1):
        for block in range(headers[0].blocks):
            found = yield from on(number, try_block(other, headers[number], block, read_block))
            merging = partial(_merge, found, secrets.token_hex(8))
            yield from on(0, try_block(first, headers[0], block, merging))


def _build(
    sources: Sequence[FilterSession],
    headers: Sequence[Header],
    target: Keys,
    make: Callable[[Sequence[Contents]], Contents],
) -> MultiOperation[None]:
    new, number = Installer(target, headers[0]), len(sources)

    def write() -> MultiOperation[None]:
        for block in range(headers[0].blocks):
            made = make((yield from _read(sources, headers, block)))
            yield from on(number, new.write(Block(made.ring, made.counts, _chunks(made))))

    yield from install(new, number, write())


def _chunks(block: Contents) -> Iterator[Chunk]:
    for layer in block.ring.layers:
        data = block.bits[layer.name].to_bytes(layer.memory, "big")
        for start, size in spans(layer):
            yield Chunk(layer, start, data[start : start + size])


def _merge(other: Contents, token: str, held: CachedRing) -> Operation[None]:
    """Set the bits that the same block of another filter has."""
    mine = yield from read_block(held)
    for layer, count, bits, _ in merge(mine, other):
        if missing := bits & ~mine.bits[layer.name]:
            yield from merge_bits(held, token, layer, missing, count - mine.counts[layer.name])


# -- blocks on servers --


def try_block(
    session: FilterSession,
    header: Header,
    block: int,
    attempt: Callable[[CachedRing], Operation[T]],
) -> Operation[T]:
    """Run an attempt on a block; repeat it when it raises RefusedError, as the ring has changed.

    Raises:
        StorageError: the filter keeps changing, or has another header by now.
    """
    for _ in range(MAX_ROUNDS):
        yield from session.ensure_open()
        if session.header != header:
            raise StorageError(f"the filter {session.keys.prefix!r} was deleted and created again")
        held = session.held[block]
        try:
            return (yield from attempt(held))
        except RefusedError as refusal:
            yield from session.refresh([(held, refusal.reply)])
    raise session.unstable()


def read_block(held: CachedRing) -> Operation[Contents]:
    """Read a block; an item that is recorded at the same time may be there in part."""
    ring, stored = held.ring, StoredFilter(held.keys)
    (reply,) = yield [stored.read_call(ring.block)]
    if reply.version != held.version or ring.advance(reply.now) is not ring:
        raise RefusedError(reply)
    bits = {}
    for layer in ring.layers:
        chunks = yield from read_layer(held.keys, ring.block, layer, held.version)
        bits[layer.name] = int.from_bytes(b"".join(chunks), "big")
    return Contents(ring, stored.counts_in(ring, reply), bits)


def count_ones(held: CachedRing) -> Operation[list[int]]:
    """Return how many bits are set in each of the layers of a block that are tested."""
    counted = []
    for layer in held.ring.tested:
        keys, head = _keys(held, layer), (held.version, layer.memory)
        calls = [
            Call(load("bitcount"), keys, (*head, start, start + size - 1))
            for start, size in spans(layer, COUNTED_BYTES)
        ]
        answers = [reply.verdicts for reply in (yield from call_all(calls, "ok"))]
        for text in answers:
            if not re.fullmatch(r"[0-9]{1,10}", text):
                raise StorageError(f"a script answered {text!r:.40}, and counts bits")
        counted.append(sum(map(int, answers)))
    return counted


def merge_bits(
    held: CachedRing, token: str, layer: Layer, missing: int, more: int
) -> Operation[None]:
    """Set bits of a layer that is in use; if it is refused, some may be set.

    Args:
        held: the ring of its block.
        token: random; names where the server keeps them for the moment.
        layer: the layer.
        missing: the bits, as an integer of the bitmap's size.
        more: how many items they are.
    """
    data = missing.to_bytes(layer.memory, "big")
    names = (f"{layer.name}.a", f"{layer.name}.b")
    scratch = [held.keys.scratch(held.ring.block, token, name) for name in names]
    keys = (*_keys(held, layer), *scratch)
    calls = []
    for start, size in spans(layer):
        chunk = data[start : start + size]
        if any(chunk):
            args = (held.version, layer.memory, start, chunk, f"n:{layer.name}", more)
            calls.append(Call(load("merge"), keys, args))
            more = 0  # they are counted once
    yield from call_all(calls, "ok")


def _keys(held: CachedRing, layer: Layer) -> tuple[str, str]:
    return held.keys.ring(held.ring.block), held.keys.layer(held.ring.block, layer.name)


def _read(
    views: Sequence[FilterSession], headers: Sequence[Header], block: int
) -> MultiOperation[list[Contents]]:
    found = []
    for number, (session, header) in enumerate(zip(views, headers, strict=True)):
        found.append((yield from on(number, try_block(session, header, block, read_block))))
    return found


# -- what goes together --


def _open_all(views: Sequence[FilterSession]) -> MultiOperation[list[Ring]]:
    """Open filters, and return the first ring of each."""
    rings = []
    for number, session in enumerate(views):
        yield from on(number, session.open())
        rings.append(session.held[0].ring)
    return rings


def _matching(views: Sequence[FilterSession]) -> MultiOperation[list[Header]]:
    """Open filters, and refuse those that no filter can be made of."""
    rings = yield from _open_all(views)
    _refuse_unlike(views, rings)
    header, schedule = rings[0].header, rings[0].config.schedule
    for is_so, what in (
        (header.counting, "has counters instead of bits (`counting`)"),
        (header.order == WRITE_ALL, "writes an item to all generations (`ring`)"),
        (schedule and schedule.counts_runs, "counts runs of its own (`window`)"),
    ):
        if is_so:
            raise ConfigurationError(
                f"the filter {views[0].keys.prefix!r} {what}: such filters can be copied and "
                "compared, but not united or intersected"
            )
    return [ring.header for ring in rings]


def _refuse_unlike(
    views: Sequence[FilterSession], rings: Sequence[Ring], *, only_places: bool = False
) -> None:
    """Refuse filters that are unlike the first, and say in what; perhaps only in items' places."""
    first = rings[0]
    for session, ring in zip(views, rings, strict=True):
        found = [
            f"{name} ({one!s:.80} and {two!s:.80})"
            for (name, one), two in zip(_traits(first).items(), _traits(ring).values(), strict=True)
            if one != two and "" not in (one, two) and not (only_places and name in _TIMES)
        ]
        one, two = first.header.seeds, ring.header.seeds
        if len(one) == len(two) and one != two:
            found.append("the seeds")  # which are secret
        if found:
            raise FilterMismatchError(
                f"the filters {views[0].keys.prefix!r} and {session.keys.prefix!r} do not go "
                f"together: they differ in {', '.join(found)}. Make one of them like the other "
                "(like=)"
            )


def _traits(ring: Ring) -> dict[str, object]:
    """Return what two filters must have in common, by its name; "" is unknown."""
    header, config = ring.header, ring.config
    return {
        "the number of blocks": header.blocks,
        "the number of seeds": len(header.seeds),
        "counting": header.counting,
        "the fingerprinter": header.fingerprinter,
        "the ring order": header.order,
        "stagger": header.stagger,
        "the window": config.window or "never",
        "the period": config.period or "never",
    }
