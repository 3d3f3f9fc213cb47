"""Filters as sets: how many items are in one or in two, and filters that are made of others.

Operations on several filters are generators as in ``multi.py``: a filter's number is its place
among the arguments. Filters may be in use: items recorded before an operation began are in its
result, items recorded during it may be.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum, isinf

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError, SaturatedError
from scrapy_bloom.bloom.extras.block_bitmaps import (
    Contents,
    differences,
    estimated,
    repeats,
    shared,
    unlike,
)
from scrapy_bloom.bloom.extras.builder import (
    count_ones,
    merge_bits,
    read_block,
    try_block,
)
from scrapy_bloom.bloom.extras.combine_blocks import intersect, merge, unite, with_layers
from scrapy_bloom.bloom.extras.estimate import cardinality
from scrapy_bloom.bloom.extras.installer import Installer, or_discard
from scrapy_bloom.bloom.extras.multi import MultiOperation, on, open_all
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS, Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.swaps import Change

#: Makes a block of the result from the same block of each filter, under the result's header.
Make = Callable[[Sequence[Contents], Header], Contents]


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
        found += yield from try_block(session, header, block, partial(_approx, session))
    return round(found)


def overlap(first: FilterSession, second: FilterSession) -> MultiOperation[Overlap]:
    """Estimate how many items two filters, numbers 0 and 1, have in common.

    Raises:
        FilterMismatchError: they place items differently, or have layers of different sizes.
        SaturatedError: a layer has no bit left that is 0.
    """
    views = first, second
    headers = [ring.header for ring in (yield from open_all(views))]
    _refuse(unlike(*headers), first, second)
    counts: tuple[list[float], list[float]] = ([], [])
    both = []
    for block in range(headers[0].blocks):
        contents = yield from _read(views, headers, block, _read_tested)
        for session, count, content in zip(views, counts, contents, strict=True):
            count.append(_finite(session, content.ring, estimated(content)))
        both.append(shared(*contents))
    one, two = fsum(counts[0]), fsum(counts[1])
    return Overlap(one, two, min(max(0.0, fsum(both)), one, two))


def _approx(session: FilterSession, held: CachedRing) -> Operation[float]:
    ring = held.ring
    if ring.header.counting or repeats(ring):
        found = estimated((yield from _read_tested(held)))
    else:
        ones, hashes = (yield from count_ones(held)), len(ring.header.seeds)
        pairs = zip(ring.tested, ones, strict=True)
        found = fsum(cardinality(number, layer.num_bits, hashes) for layer, number in pairs)
    return _finite(session, ring, found)


def _finite(session: FilterSession, ring: Ring, found: float) -> float:
    if isinf(found):
        raise SaturatedError(
            f"the filter {session.keys.prefix!r} is saturated: all bits of block {ring.block} are "
            "set, so the number of items cannot be estimated. Clear the filter, or restore it from "
            "a file"
        )
    return found


# -- filters made of others --


def union(sources: Sequence[FilterSession], target: Keys) -> MultiOperation[None]:
    """Make a filter that remembers what any of some filters does, as long as that does.

    It tests as seen what one of them does, and a little more where bitmaps were joined, within the
    error rate that they were made for.

    How many items joined bitmaps hold is an estimate, by which they count as full. Bitmaps that
    have no room for each other's items stay apart; what is in both of them counts twice in ``len``,
    not in ``approx_len``.

    Args:
        sources: the filters, numbers 0 and up; the configuration is that of the first.
        target: keys of the filter that is made, whose number follows theirs.

    Raises:
        FilterMismatchError: the filters do not go together; says in what they differ.
        ConfigurationError: the key is in use, there would be too many layers, or they are counting
            filters.
        StorageError: a server did not answer, or is short of memory.
    """
    headers = yield from _matching(sources)
    yield from _build(sources, headers, target, unite)


def intersection(sources: Sequence[FilterSession], target: Keys) -> MultiOperation[None]:
    """Make a filter that tests as seen what each of some filters does.

    So it has all items that are in all of them, until the first of them forgets it; its false
    positives are those they share, and items of some that the others take for seen. It has more
    bits than those of its items: what ``len`` and ``approx_len`` return for it is an upper bound
    (``overlap`` is closer), and it is full earlier. Arguments and errors are those of ``union``.

    Raises:
        FilterMismatchError: also if layers that may share items differ in size.
    """
    headers = yield from _matching(sources)
    yield from _build(sources, headers, target, intersect)


def copy(source: FilterSession, target: Keys) -> MultiOperation[None]:
    """Make a filter, number 1, that is as another one, number 0. Raises as ``union`` does."""
    (ring,) = yield from open_all([source])
    yield from _build([source], [ring.header], target, _same)


def update(first: FilterSession, *others: FilterSession) -> MultiOperation[None]:
    """Make a filter, number 0, remember what others, numbers 1 and up, do, while it is in use.

    What it has no room for comes into further layers, even if it may not grow. If this ends before
    its time, a part of it is done; it can be done again. Errors are those of ``union``.
    """
    views = [first, *others]
    headers = yield from _matching(views)
    for number, other in enumerate(others, 1):
        for block in range(headers[0].blocks):
            attempt = try_block(other, headers[number], block, _read_all)
            found = yield from on(number, attempt)
            yield from on(0, _merge(first, headers[0], found))


def _same(blocks: Sequence[Contents], _: Header) -> Contents:
    return blocks[0]


def _build(
    sources: Sequence[FilterSession], headers: Sequence[Header], target: Keys, make: Make
) -> MultiOperation[None]:
    header, number = headers[0], len(sources)
    building = Installer(target, header)

    def build() -> MultiOperation[None]:
        yield from on(number, building.check())
        for block in range(header.blocks):
            contents = yield from _read(sources, headers, block, _read_all)
            yield from on(number, building.put(make(contents, header)))
        yield from on(number, building.finish())

    yield from or_discard(building, number, build())


def _merge(session: FilterSession, header: Header, other: Contents) -> Operation[None]:
    """Set the bits that another block has; layers are added first where they are needed."""
    token, own = secrets.token_hex(8), set[Layer]()

    def attempt(held: CachedRing) -> Operation[bool]:
        todo = merge((yield from _read_all(held)), other, own)
        if todo.further:
            own.update(todo.further)
            further = todo.further

            def decide(ring: Ring, *_: object) -> Ring:
                return with_layers(ring, further)

            yield from session.change([Change(held.ring.block, decide, held.version)])
            return False
        for layer, (missing, more) in todo.missing.items():
            yield from merge_bits(held, token, layer, missing, more)
        return True

    for _ in range(MAX_ROUNDS):
        if (yield from try_block(session, header, other.ring.block, attempt)):
            return
    raise session.unstable()


# -- blocks --


def _read(
    views: Sequence[FilterSession],
    headers: Sequence[Header],
    block: int,
    read: Callable[[CachedRing], Operation[Contents]],
) -> MultiOperation[list[Contents]]:
    found = []
    for number, (session, header) in enumerate(zip(views, headers, strict=True)):
        found.append((yield from on(number, try_block(session, header, block, read))))
    return found


def _read_all(held: CachedRing) -> Operation[Contents]:
    return (yield from read_block(held, held.ring.layers))


def _read_tested(held: CachedRing) -> Operation[Contents]:
    return (yield from read_block(held, held.ring.tested))


def _matching(views: Sequence[FilterSession]) -> MultiOperation[list[Header]]:
    """Open filters, and refuse those that no filter can be made of."""
    rings = yield from open_all(views)
    for session, ring in zip(views, rings, strict=True):
        _refuse(differences(rings[0], ring), views[0], session)
    if rings[0].header.counting:
        raise ConfigurationError(
            f"the filter {views[0].keys.prefix!r} counts (`counting`), and the "
            "counters of several filters do not show how often an item was added: such filters can "
            "be copied and compared, but not united or intersected"
        )
    return [ring.header for ring in rings]


def _refuse(found: list[str], one: FilterSession, two: FilterSession) -> None:
    if found:
        raise FilterMismatchError(
            f"the filters {one.keys.prefix!r} and {two.keys.prefix!r} do not go together: they "
            f"differ in {', '.join(found)}. Make one of them like the other (like=)"
        )
