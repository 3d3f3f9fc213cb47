"""A block of a filter with its bitmaps, and estimates from its bits. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import fsum

from scrapy_bloom.bloom.errors import FilterMismatchError
from scrapy_bloom.bloom.extras.estimate import cardinality, overlap, places_in_use
from scrapy_bloom.bloom.model.generations import Counts, Generation
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.ring import Ring


@dataclass(frozen=True, slots=True)
class Contents:
    """A block with its bitmaps, read or to be written.

    Args:
        ring: its ring.
        counts: items in each layer, by its name.
        bits: the bitmaps, each read as one large integer, by the name of the layer.
    """

    ring: Ring
    counts: Counts
    bits: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A bitmap that becomes a layer, or a part of one.

    Args:
        period: the period of its generation.
        num_bits: its size.
        capacity: items it takes.
        count: items in it, as counted or as estimated.
        bits: the bitmap.
    """

    period: int
    num_bits: int
    capacity: int
    count: int
    bits: int = field(repr=False)


def in_step(blocks: Sequence[Contents]) -> list[Contents]:
    """Number runs alike: those that are now current, whatever number they have in each filter."""
    current = max(block.ring.run for block in blocks)
    shifted = []
    for block in blocks:
        late = current - block.ring.run
        moved = tuple(replace(g, run=g.run + late) for g in block.ring.generations)
        ring = replace(block.ring, run=current, generations=moved)
        shifted.append(replace(block, ring=ring))
    return shifted


def reach(block: Contents, period: int) -> list[Part]:
    """Return what a block has recorded in a period or later.

    Under ``write-all`` one generation has all of it: the oldest that is not older.
    """
    ring = block.ring
    young = [g for g in ring.generations if ring.period(g) >= period]
    if ring.header.order == WRITE_ALL:
        young = young[-1:]
        return [replace(part, period=period) for g in young for part in parts_of(block, g)]
    return [part for generation in young for part in parts_of(block, generation)]


def parts_of(block: Contents, generation: Generation) -> list[Part]:
    """Return the layers of a generation with what is in them."""
    return [
        Part(
            block.ring.period(generation),
            layer.num_bits,
            layer.capacity,
            block.counts.get(layer.name, 0),
            block.bits[layer.name],
        )
        for layer in generation.layers
    ]


# -- estimates --


def estimated(block: Contents) -> float:
    """Return the items that a block remembers, estimated from its bits; infinite if saturated."""
    hashes = len(block.ring.header.seeds)
    return fsum(cardinality(bits.bit_count(), num_bits, hashes) for num_bits, bits in _used(block))


def repeats(ring: Ring) -> bool:
    """Whether a generation has layers of one size, which may have items in common."""
    return any(
        len({layer.num_bits for layer in generation.layers}) < len(generation.layers)
        for generation in ring.generations
    )


def shared(one: Contents, two: Contents) -> float:
    """Return the items that two blocks have in common, estimated from their bits.

    It may be below 0 by chance: see ``estimate.overlap``.

    Raises:
        FilterMismatchError: layers that may share items differ in size.
    """
    hashes = len(one.ring.header.seeds)
    found = []
    for (num_bits, bits), (size, others) in product(_used(one), _used(two)):
        check_sizes({num_bits, size})
        ones = bits.bit_count(), others.bit_count()
        found.append(overlap(ones, (bits | others).bit_count(), num_bits, hashes))
    return fsum(found)


def _used(block: Contents) -> list[tuple[int, int]]:
    """Return size and bits of all bitmaps that hold something that is remembered.

    Layers of one size in a generation count as one: a union may have the same items in both.
    """
    used = []
    for generation in block.ring.generations:
        of_size: dict[int, int] = {}
        for layer in set(generation.layers).intersection(block.ring.tested):
            bits = block.bits[layer.name]
            if layer.counting:
                bits = places_in_use(bits, layer.memory)
            of_size[layer.num_bits] = of_size.get(layer.num_bits, 0) | bits
        used += [(num_bits, bits) for num_bits, bits in of_size.items() if bits]
    return used


# -- what goes together --


def differences(first: Ring, other: Ring) -> list[str]:
    """Return what of two filters is too different for a filter to be made of them, as text."""
    one, two = first.header, other.header
    return unlike(one, two) + _unequal(
        ("the ring order", one.order, two.order),
        ("stagger", one.stagger, two.stagger),
        ("the window", first.config.window or "never", other.config.window or "never"),
        ("the period", first.config.period or "never", other.config.period or "never"),
    )


def unlike(one: Header, two: Header) -> list[str]:
    """Return why an item has other places under one header than under another, as text."""
    found = _unequal(
        ("the number of blocks", one.blocks, two.blocks),
        ("the number of seeds", len(one.seeds), len(two.seeds)),
        ("counting", one.counting, two.counting),
    )
    if len(one.seeds) == len(two.seeds) and one.seeds != two.seeds:
        found.append("the seeds")  # which are secret
    if one.fingerprinter and two.fingerprinter:
        found += _unequal(("the fingerprinter", one.fingerprinter, two.fingerprinter))
    return found


def _unequal(*pairs: tuple[str, object, object]) -> list[str]:
    return [f"{name} ({one!s:.80} and {two!s:.80})" for name, one, two in pairs if one != two]


def check_sizes(sizes: Collection[int]) -> None:
    """Refuse layers of different sizes."""
    if len(sizes) > 1:
        raise FilterMismatchError(
            f"the filters have layers of {min(sizes):,} and of {max(sizes):,} bits, in which an "
            "item has other places: what filters have in common can be estimated only if all their "
            "layers have one size (one capacity and error rate, and none has grown)"
        )
