"""Blocks with their bitmaps as values: how many items they hold, and what comes of several.

An item has the same places in bitmaps of one size, so blocks are combined bitmap by bitmap. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from math import ceil, fsum, inf, log1p
from operator import and_
from typing import NamedTuple

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.model.generations import Counts, Generation, Layer
from scrapy_bloom.bloom.model.ring import Ring

#: Counters of a counting filter, two a byte: the mask of the lowest bit of each.
_LOWEST = b"\x11"


class Bitmap(NamedTuple):
    """A layer, the items in it, its bits as one integer, and how many of them an item sets."""

    layer: Layer
    items: int
    bits: int
    hashes: int


class Contents(NamedTuple):
    """A block with its bitmaps, as integers by the names of their layers."""

    ring: Ring
    counts: Counts
    bits: Mapping[str, int]

    def of(self, generation: Generation) -> list[Bitmap]:
        """Return the bitmaps of a generation."""
        hashes = len(self.ring.header.seeds)
        return [
            Bitmap(layer, self.counts[layer.name], self.bits[layer.name], hashes)
            for layer in generation.layers
        ]


# -- how many --


def cardinality(ones: int, num_bits: int, num_hashes: int) -> float:
    """Return how many items set so many bits, most likely; infinity if no bit is left at 0.

    A bit stays 0 with probability ``(1 - 1/m) ** (k * n)``, so ``n`` is ``ln(1 - X/m) /
    (k * ln(1 - 1/m))``, the exact form of Swamidass and Baldi's ``-m/k * ln(1 - X/m)``, which is 2%
    off in a bitmap of 25 bits (J. Chem. Inf. Model. 47(3), 2007, doi:10.1021/ci600526a).

    Args:
        ones: bits that are set, 0 to ``num_bits``.
        num_bits: bits of the bitmap, at least 1.
        num_hashes: bits an item sets, at least 1.
    """
    if ones >= num_bits:
        return inf
    if ones == 0:
        return 0.0
    return log1p(-ones / num_bits) / (num_hashes * log1p(-1 / num_bits))


def estimated(block: Contents) -> float:
    """Return the items that a block remembers, estimated from its bits; infinite if saturated."""
    hashes = len(block.ring.header.seeds)
    return fsum(cardinality(b.bit_count(), layer.num_bits, hashes) for layer, b in _used(block))


def shared(one: Contents, two: Contents) -> float:
    """Return the items that two blocks have in common, estimated; by chance it may be below 0.

    Raises:
        FilterMismatchError: layers that may share items differ in size.
    """
    hashes = len(one.ring.header.seeds)

    def items(bits: int, layer: Layer) -> float:
        return cardinality(bits.bit_count(), layer.num_bits, hashes)

    found = []
    for (layer, bits), (other, others) in product(_used(one), _used(two)):
        _check_sizes([layer], [other])
        found.append(items(bits, layer) + items(others, layer) - items(bits | others, layer))
    return fsum(found)


def _used(block: Contents) -> Iterator[tuple[Layer, int]]:
    """Yield layer and bits of all bitmaps that hold something that is remembered."""
    for layer in block.ring.tested:
        bits = block.bits[layer.name]
        if bits and layer.counting:
            folded = bits | bits >> 2
            bits = (folded | folded >> 1) & int.from_bytes(_LOWEST * layer.memory, "big")
        if bits:
            yield layer, bits


# -- of several --


def unite(blocks: Sequence[Contents]) -> Contents:
    """Return what any of some blocks has: generations that are forgotten together are joined."""
    joined: dict[int, tuple[Generation, list[Bitmap]]] = {}
    for block in blocks:
        for generation in block.ring.generations:
            end, bitmaps = block.ring.forgotten(generation), block.of(generation)
            there, others = joined.get(end, (generation, []))
            opened = min(there.opened, generation.opened)
            bitmaps = _join(others, bitmaps) if others else bitmaps
            joined[end] = replace(there, opened=opened), bitmaps
    generations: list[Generation] = []
    made: list[Bitmap] = []
    for number, end in enumerate(sorted(joined)):
        generation, bitmaps = joined[end]
        bitmaps = [b._replace(layer=replace(b.layer, generation=number)) for b in bitmaps]
        layers = tuple(bitmap.layer for bitmap in bitmaps)
        generations.insert(0, replace(generation, number=number, layers=layers))
        made += bitmaps
    ring = replace(blocks[0].ring, generations=tuple(generations), since=0)
    return Contents(
        ring, {b.layer.name: b.items for b in made}, {b.layer.name: b.bits for b in made}
    )


def intersect(blocks: Sequence[Contents]) -> Contents:
    """Return what each of some blocks has, in which an item has all its bits if all have them."""
    first = blocks[0].ring
    for block in blocks:
        if len(block.ring.layers) > 1:
            raise FilterMismatchError(
                f"block {first.block} of a filter has {len(block.ring.layers)} bitmaps, of "
                "generations of its window or because it has grown: filters can be intersected "
                "only if none has grown or rotated (approx_intersection_len says how much they "
                "have in common)"
            )
        _check_sizes(first.layers, block.ring.layers)
    bitmaps = [block.of(block.ring.active)[0] for block in blocks]
    bits = reduce(and_, (bitmap.bits for bitmap in bitmaps))
    count = _count(bits, bitmaps, 0, min(bitmap.items for bitmap in bitmaps))
    (layer,) = first.layers
    return Contents(first, {layer.name: count}, {layer.name: bits})


def merge(one: Contents, two: Contents) -> list[Bitmap]:
    """Return the bitmaps that a block has when it remembers what another one does.

    A generation goes to the one that is forgotten at the same time, or next.
    """
    now = {generation.number: one.of(generation) for generation in one.ring.generations}
    for generation in two.ring.generations:
        end = two.ring.forgotten(generation)
        later = [g for g in one.ring.generations if one.ring.forgotten(g) >= end]
        number = (later or one.ring.generations)[-1 if later else 0].number
        now[number] = _join(now[number], two.of(generation))
    return [bitmap for bitmaps in now.values() for bitmap in bitmaps]


def _join(one: list[Bitmap], two: list[Bitmap]) -> list[Bitmap]:
    if not any(bitmap.bits for bitmap in two):
        return one
    _check_sizes([bitmap.layer for bitmap in one], [bitmap.layer for bitmap in two])
    return [_either(*pair) for pair in zip(one, two, strict=True)]


def _either(one: Bitmap, two: Bitmap) -> Bitmap:
    """Return the bits of both; refuse more items than the error rate allows."""
    bits = one.bits | two.bits
    count = _count(bits, (one, two), max(one.items, two.items), one.items + two.items)
    if count > one.layer.capacity and bits not in (one.bits, two.bits):
        raise ConfigurationError(
            f"there would be about {count:,} items in a bitmap that takes {one.layer.capacity:,}: "
            "unite filters that have room for what is in all of them (`capacity`)"
        )
    return one._replace(items=count, bits=bits)


def _count(bits: int, bitmaps: Sequence[Bitmap], least: int, most: int) -> int:
    """Return the items in what became of bitmaps: it decides when a layer is full."""
    layer, _, _, hashes = bitmaps[0]
    same = [bitmap.items for bitmap in bitmaps if bitmap.bits == bits]
    found = max(same) if same else cardinality(bits.bit_count(), layer.num_bits, hashes)
    return ceil(min(max(found, least), most))


def _check_sizes(one: Sequence[Layer], two: Sequence[Layer]) -> None:
    """Refuse bitmaps of different sizes, in which an item has different places."""
    sizes, others = ([layer.num_bits for layer in layers] for layers in (one, two))
    if sizes != others:
        raise FilterMismatchError(
            f"the filters have bitmaps of {_listed(sizes)} and of {_listed(others)} bits, in which "
            "an item has other places: filters go together only if their bitmaps have the same "
            "sizes (one capacity and error rate, and none has grown)"
        )


def _listed(sizes: Sequence[int]) -> str:
    return " + ".join(f"{size:,}" for size in sizes)
