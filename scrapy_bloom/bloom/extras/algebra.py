"""Filters as sets: how many items are in one or in two, and filters that are made of others.

Bitmaps are read and combined here and not by the server: keys of two filters are in two slots of a
cluster, or on two servers.

What is done with several filters, which may be on different servers, is a coroutine that runs
operations on each of them. Filters may be in use: items recorded before it began are in its result,
items recorded during it may be. No I/O.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from math import isinf
from typing import NamedTuple, TypeVar

from scrapy_bloom.bloom.errors import (
    ConfigurationError,
    FilterMismatchError,
    SaturatedError,
    StorageError,
)
from scrapy_bloom.bloom.extras.bitmaps import Contents, estimated, intersect, merge, shared, unite
from scrapy_bloom.bloom.extras.file import Block, Chunk, spans
from scrapy_bloom.bloom.extras.install import Run, installing
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


class Part(NamedTuple):
    """A filter among several: this client's session of it, and what runs operations on it."""

    session: FilterSession
    run: Run


#: Makes a filter of others, whose keys are free.
Combine = Callable[[Sequence[Part], Run, Keys], Awaitable[None]]

#: What decides when items are forgotten, and not where they are.
_TIMES = ("the ring order", "stagger", "the window", "the period")


# -- how many --


class Overlap(NamedTuple):
    """How many items two filters remember together, and in common; estimated from their bits."""

    union: float
    intersection: float


def approx_len(session: FilterSession) -> Operation[int]:
    """Return how many items a filter remembers, estimated from its bits alone.

    Raises:
        SaturatedError: a layer has no bit left that is 0.
    """
    header, found = (yield from session.open()), 0.0
    for block in range(header.blocks):
        contents = yield from try_block(session, header, block, read_block)
        found += _estimated(session, contents)
    return round(found)


async def overlap(first: Part, second: Part) -> Overlap:
    """Estimate how many items two filters have in common.

    Raises:
        FilterMismatchError: they place items differently, or have layers of different sizes.
        SaturatedError: a layer has no bit left that is 0.
    """
    parts = first, second
    rings = await _open_all(parts)
    _refuse_unlike(parts, rings, only_places=True)
    headers = [ring.header for ring in rings]
    one = two = both = 0.0
    for block in range(headers[0].blocks):
        ours, theirs = await _read(parts, headers, block)
        one += _estimated(first.session, ours)
        two += _estimated(second.session, theirs)
        both += shared(ours, theirs)
    # Cut off in each block, the sum over blocks would be too large.
    both = min(max(0.0, both), one, two)
    return Overlap(one + two - both, both)


def _estimated(session: FilterSession, contents: Contents) -> float:
    """Return the items that a block remembers, estimated from its bits."""
    items = estimated(contents)
    if isinf(items):
        raise SaturatedError(
            f"the filter {session.keys.prefix!r} is saturated: all bits of block "
            f"{contents.ring.block} are set, so the number of items cannot be estimated. Clear "
            "the filter, or restore it from a file"
        )
    return items


# -- filters made of others --


async def union(sources: Sequence[Part], run: Run, target: Keys) -> None:
    """Make a filter that remembers what any of some filters does, as long as that does.

    Args:
        sources: the filters; the configuration is that of the first.
        run: runs operations where the filter is made.
        target: its keys.

    Raises:
        FilterMismatchError: the filters do not go together; says in what they differ.
        ConfigurationError: the key is in use, a bitmap has no room for all items, or these filters
            cannot be combined.
        StorageError: a server did not answer, or is short of memory.
    """
    await _build(sources, await _matching(sources), run, target, unite)


async def intersection(sources: Sequence[Part], run: Run, target: Keys) -> None:
    """Make a filter that tests as seen what each of some filters does: see ``union``.

    It may have more bits than those of its items, so what ``len`` and ``approx_len`` return for it
    is an upper bound (``overlap`` is closer).
    """
    await _build(sources, await _matching(sources), run, target, intersect)


async def copy(sources: Sequence[Part], run: Run, target: Keys) -> None:
    """Make a filter that is as another one, the only source: see ``union``."""
    (ring,) = await _open_all(sources)
    await _build(sources, [ring.header], run, target, lambda blocks: blocks[0])


async def update(first: Part, *others: Part) -> None:
    """Make a filter remember what others do, while it is in use. Raises as ``union`` does.

    If this ends before its time, a part of it is done; it can be done again.
    """
    own, *headers = await _matching([first, *others])
    for other, header in zip(others, headers, strict=True):
        for block in range(own.blocks):
            found = await other.run(try_block(other.session, header, block, read_block))
            merging = partial(_merge, found, secrets.token_hex(8))
            await first.run(try_block(first.session, own, block, merging))


async def _build(
    sources: Sequence[Part],
    headers: Sequence[Header],
    run: Run,
    target: Keys,
    make: Callable[[Sequence[Contents]], Contents],
) -> None:
    async with installing(target, headers[0], run) as new:
        for block in range(headers[0].blocks):
            made = make(await _read(sources, headers, block))
            await run(new.write(Block(made.ring, made.counts, _chunks(made))))


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


async def _read(parts: Sequence[Part], headers: Sequence[Header], block: int) -> list[Contents]:
    return [
        await part.run(try_block(part.session, header, block, read_block))
        for part, header in zip(parts, headers, strict=True)
    ]


# -- what goes together --


async def _open_all(parts: Sequence[Part]) -> list[Ring]:
    """Open filters, and return the first ring of each."""
    for part in parts:
        await part.run(part.session.open())
    return [part.session.held[0].ring for part in parts]


async def _matching(parts: Sequence[Part]) -> list[Header]:
    """Open filters, and refuse those that no filter can be made of."""
    rings = await _open_all(parts)
    _refuse_unlike(parts, rings)
    header, schedule = rings[0].header, rings[0].config.schedule
    for is_so, what in (
        (header.counting, "has counters instead of bits (`counting`)"),
        (header.order == WRITE_ALL, "writes an item to all generations (`ring`)"),
        (schedule and schedule.counts_runs, "counts runs of its own (`window`)"),
    ):
        if is_so:
            raise ConfigurationError(
                f"the filter {_name(parts[0])} {what}: such filters can be copied and compared, "
                "but not united or intersected"
            )
    return [ring.header for ring in rings]


def _refuse_unlike(
    parts: Sequence[Part], rings: Sequence[Ring], *, only_places: bool = False
) -> None:
    """Refuse filters that are unlike the first, and say in what; perhaps only in items' places."""
    first, ours = parts[0], rings[0]
    for part, ring in zip(parts, rings, strict=True):
        found = [
            f"{name} ({one!s:.80} and {two!s:.80})"
            for (name, one), two in zip(_traits(ours).items(), _traits(ring).values(), strict=True)
            if one != two and "" not in (one, two) and not (only_places and name in _TIMES)
        ]
        one, two = ours.header.seeds, ring.header.seeds
        if len(one) == len(two) and one != two:
            found.append("the seeds")  # which are secret
        if found:
            raise FilterMismatchError(
                f"the filters {_name(first)} and {_name(part)} do not go together: they differ in "
                f"{', '.join(found)}. Make one of them like the other (like=)"
            )


def _name(part: Part) -> str:
    return repr(part.session.keys.prefix)


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
