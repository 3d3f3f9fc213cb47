"""What comes of a block of several filters when they are united or intersected. Pure.

An item is in one block under the same seeds, so blocks are combined one by one. A layer of the
result is made of layers of one size: an item has the same offsets in all of those.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, isinf

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras.block_bitmaps import (
    Contents,
    Part,
    check_sizes,
    in_step,
    parts_of,
    reach,
)
from scrapy_bloom.bloom.extras.estimate import cardinality
from scrapy_bloom.bloom.model.generations import Generation, Layer
from scrapy_bloom.bloom.model.geometry import MAX_FURTHER_LAYERS, MAX_LAYERS
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.ring import RUNS_KEPT, Ring

#: Makes the parts of a period's generation from those of each filter of that period or later.
Combine = Callable[[list[list[Part]], int], list[Part]]


def unite(blocks: Sequence[Contents], header: Header) -> Contents:
    """Return the union: every item that any of the blocks remembers, as long as it does.

    A generation of the result has the layers of all generations of its period. Bitmaps of one size
    are joined (OR) where their items have room in one layer, as estimated from the bits; the others
    stay layers of their own. So the error bound of the result is at most the sum of theirs, where
    two full bitmaps in one would have 1,500 times their error rate (of 18 seeds).

    Args:
        blocks: the same block of filters that go together (see ``contents.differences``).
        header: that of the result.

    Raises:
        ConfigurationError: there would be too many layers.
    """
    return _combine(blocks, header, _union)


def intersect(blocks: Sequence[Contents], header: Header) -> Contents:
    """Return the intersection: every item that all of the blocks remember.

    Bitmaps are intersected (AND), each with each. An item has all its bits in the result if it has
    them in all blocks: so none is missing, and the false positives are those that all of them
    have, plus those of items that only some have and the others take for seen. Other bits may be
    set as well, of different items in each, so what is counted in the result is an upper bound.

    An item is remembered until the first of the filters forgets it.

    Args:
        blocks: as in ``unite``.
        header: that of the result.

    Raises:
        FilterMismatchError: layers that may share items differ in size.
        ConfigurationError: there would be too many layers.
    """
    return _combine(blocks, header, partial(_intersection, len(header.seeds)))


@dataclass(frozen=True, slots=True)
class Merge:
    """What has to be done for a block to remember what another one does.

    Args:
        further: layers that have to be added first.
        missing: per layer the bits that have to be set, and how many items they are, as estimated.
    """

    further: tuple[Layer, ...]
    missing: Mapping[Layer, tuple[int, int]]


def merge(one: Contents, two: Contents, own: Collection[Layer] = ()) -> Merge:
    """Return how what the second block remembers comes into the first, which is in use.

    It is remembered there as long as in the second, or until the first forgets its next younger
    generation.

    Args:
        one: a block.
        two: the same block of another filter (see ``contents.differences``).
        own: layers that were added to the first for this. They have room, whatever else has come
            into them since.
    """
    one, two = in_step([one, two])
    hashes = len(one.ring.header.seeds)
    now = {
        g.number: list(zip(g.layers, parts_of(one, g), strict=True)) for g in one.ring.generations
    }
    further = []
    for generation, part in _places(one, two):
        there = now[generation.number]
        for place, (layer, mine) in enumerate(there):
            joined = _join(mine, part, hashes, bounded=layer not in own)
            if joined is not None:
                there[place] = layer, joined
                break
        else:
            index = there[-1][0].index + 1
            layer = Layer(generation.number, index, part.num_bits, part.capacity)
            further.append(layer)
            there.append((layer, part))
    missing = {}
    for layer, part in (pair for there in now.values() for pair in there):
        before, count = one.bits.get(layer.name, 0), one.counts.get(layer.name, 0)
        if part.bits != before:
            missing[layer] = part.bits & ~before, max(0, part.count - count)
    return Merge(tuple(further), missing)


def with_layers(ring: Ring, further: Collection[Layer]) -> Ring:
    """Return a ring with further layers, empty, at the ends of their generations.

    Raises:
        ConfigurationError: there would be too many.
    """
    generations = tuple(
        replace(
            g, layers=(*g.layers, *(layer for layer in further if layer.generation == g.number))
        )
        for g in ring.generations
    )
    _check_layers(generations)
    return replace(ring, generations=generations)


def _places(one: Contents, two: Contents) -> Iterator[tuple[Generation, Part]]:
    """Yield what the second block holds, each with the generation of the first that it goes to."""
    ring = one.ring
    if ring.header.order == WRITE_ALL:
        begins = min(two.ring.period(generation) for generation in two.ring.generations)
        for generation in reversed(ring.generations):
            period = ring.period(generation)
            # All that came after the next older one was opened; the oldest gets everything.
            for part in reach(two, min(begins, period)):
                if part.bits:
                    yield generation, part
            begins = period + 1
        return
    for part in (part for g in two.ring.generations for part in parts_of(two, g) if part.bits):
        fitting = [g for g in ring.generations if ring.period(g) >= part.period]
        yield (fitting[-1] if fitting else ring.active), part


# -- generations --


def _combine(blocks: Sequence[Contents], header: Header, combine: Combine) -> Contents:
    blocks = in_step(blocks)
    members: dict[int, list[Generation]] = {}
    for block in blocks:
        for generation in block.ring.generations:
            members.setdefault(block.ring.period(generation), []).append(generation)
    newest = max(members)
    kept: list[tuple[int, list[Part]]] = []
    for period in sorted(members, reverse=True):
        reaches = [reach(block, period) for block in blocks]
        filled = [part for part in combine(reaches, period) if part.bits]
        if filled:
            kept.append((period, _pack(filled, len(header.seeds))))
        elif period == newest:
            last = parts_of(blocks[0], blocks[0].ring.active)[-1]
            kept.append((period, [replace(last, bits=0, count=0)]))
    ring = replace(
        blocks[0].ring,
        header=header,
        since=0,
        runs=tuple(dict.fromkeys(run for block in blocks for run in block.ring.runs))[:RUNS_KEPT],
        changed=max(block.ring.changed for block in blocks),
    )
    return _build(ring, [(members[period], parts) for period, parts in kept])


def _build(ring: Ring, made: Sequence[tuple[list[Generation], list[Part]]]) -> Contents:
    """Number generations and layers, the oldest 0."""
    generations: list[Generation] = []
    counts, bits = {}, {}
    for number, (members, parts) in zip(range(len(made) - 1, -1, -1), made, strict=True):
        layers = []
        for index, part in enumerate(parts):
            layer = Layer(number, index, part.num_bits, part.capacity)
            counts[layer.name], bits[layer.name] = part.count, part.bits
            layers.append(layer)
        opened = min(generation.opened for generation in members)
        dated = max(generation.dated for generation in members)
        run = max(generation.run for generation in members)
        generations.append(Generation(number, opened, dated, run, tuple(layers)))
    _check_layers(generations)
    return Contents(replace(ring, generations=tuple(generations)), counts, bits)


def _check_layers(generations: Iterable[Generation]) -> None:
    numbers = [len(generation.layers) for generation in generations]
    if max(numbers) > MAX_LAYERS or sum(numbers) - len(numbers) > MAX_FURTHER_LAYERS:
        raise ConfigurationError(
            f"a block would have {sum(numbers)} layers, and a generation {max(numbers)}: at most "
            f"{MAX_LAYERS} are possible in one generation, and {MAX_FURTHER_LAYERS} besides each "
            "first one in all. Combine fewer filters, or such as have room (`capacity`)"
        )


# -- layers --


def _union(reaches: list[list[Part]], period: int) -> list[Part]:
    return [part for reach in reaches for part in reach if part.period == period]


def _intersection(num_hashes: int, reaches: list[list[Part]], period: int) -> list[Part]:
    filled = [[part for part in reach if part.bits] for reach in reaches]
    return [
        _meet(parts, num_hashes)
        for parts in product(*filled)
        if min(part.period for part in parts) == period
    ]


def _meet(parts: Sequence[Part], num_hashes: int) -> Part:
    """Return the bits that all parts have."""
    check_sizes({part.num_bits for part in parts})
    met = min(parts, key=lambda part: (part.period, part.capacity))
    bits = met.bits
    for part in parts:
        bits &= part.bits
    most = min(part.count for part in parts)
    # What is in all of the others is counted already.
    least = min(most, max((part.count for part in parts if part.bits == bits), default=0))
    return replace(met, bits=bits, count=_count(bits, met.num_bits, num_hashes, least, most))


def _pack(parts: Iterable[Part], num_hashes: int) -> list[Part]:
    """Join what has room in one layer; last, where it will be written, the one with most room."""
    packed: list[Part] = []
    for part in parts:
        for place, there in enumerate(packed):
            joined = _join(there, part, num_hashes)
            if joined is not None:
                packed[place] = joined
                break
        else:
            packed.append(part)
    return sorted(packed, key=lambda part: part.capacity - part.count)


def _join(one: Part, two: Part, num_hashes: int, *, bounded: bool = True) -> Part | None:
    """Return the bits that either part has; None if they do not go into one layer.

    Args:
        one: a part.
        two: another one.
        num_hashes: number of seeds.
        bounded: whether there must not be more items than the layer takes.
    """
    if one.num_bits != two.num_bits:
        return None
    bits, capacity = one.bits | two.bits, min(one.capacity, two.capacity)
    least, most = max(one.count, two.count), one.count + two.count
    if bits in (one.bits, two.bits):
        most = least
    count = _count(bits, one.num_bits, num_hashes, least, most)
    if bounded and count > capacity and most > least:
        return None
    return replace(one, bits=bits, capacity=capacity, count=count)


def _count(bits: int, num_bits: int, num_hashes: int, least: int, most: int) -> int:
    """Return the items in a bitmap, as estimated, within what is known of them.

    It decides when the layer is full, so it has to follow the bits that are set.
    """
    found = cardinality(bits.bit_count(), num_bits, num_hashes)
    return most if isinf(found) else min(max(ceil(found), least), most)
