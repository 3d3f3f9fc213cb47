"""What a ring is made of: its configuration, its generations and their layers. Pure values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scrapy_bloom.bloom.model.header import WRITE_ALL
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.sizing import (
    any_of,
    layer_bytes,
    lost_by_discard,
    predicted_error_rate,
    saturated_counters,
)

#: URLs recorded per layer, by the layer's name.
Counts = Mapping[str, int]
NO_COUNTS: Counts = {}


@dataclass(frozen=True, slots=True)
class Config:
    """What may change during a filter's life.

    Args:
        capacity: URLs a generation of the whole filter takes before it grows.
        error_rate: bound on the filter's false-positive rate, 0 < p < 1.
        schedule: window and period; None remembers for ever.
        growth: size of the next layer in sizes of the last one; 0 never grows.
        max_memory: bytes of all bitmaps of the filter beyond which no layer is added; None is no
            limit.
    """

    capacity: int
    error_rate: float
    schedule: Schedule | None = None
    growth: float = 2
    max_memory: int | None = None

    @property
    def window(self) -> str | None:
        """The window as text; None for ever."""
        return str(self.schedule.window) if self.schedule else None

    @property
    def period(self) -> str | None:
        """The period as text; None for never."""
        return str(self.schedule.period) if self.schedule else None

    @property
    def slots(self) -> int:
        """Generations that are live at once, at most."""
        return self.schedule.generations if self.schedule else 1

    def capacity_in_all(self, order: str) -> int:
        """Return how many URLs all generations take together before any of them grows."""
        return self.capacity * self.tested(order)

    def tested(self, order: str) -> int:
        """Return how many generations are tested for a URL, at most."""
        return 1 if order == WRITE_ALL else self.slots


@dataclass(frozen=True, slots=True)
class Layer:
    """One bitmap of a block.

    Args:
        generation: number of the generation it belongs to.
        index: its place among the generation's layers.
        num_bits: its size in bits; in counters, of a counting filter.
        capacity: URLs it takes.
        counting: whether it holds counters instead of bits.
    """

    generation: int
    index: int
    num_bits: int
    capacity: int
    counting: bool = False

    @property
    def name(self) -> str:
        """The last part of its Redis key, ``<generation>.<index>``."""
        return f"{self.generation}.{self.index}"

    @property
    def memory(self) -> int:
        """Bytes of its bitmap."""
        return layer_bytes(self.num_bits, counting=self.counting)


@dataclass(frozen=True, slots=True)
class Generation:
    """The layers that collect URLs during one rotation period.

    Args:
        number: counts up through the life of a block; never used twice.
        opened: Unix time in seconds on the server's clock.
        dated: Unix time that decides its period: that of opening or, after a change of schedule,
            that of the last possible write.
        run: number of the run in which it was opened, for windows in runs.
        layers: oldest first; the last one is written.
    """

    number: int
    opened: int
    dated: int
    run: int
    layers: tuple[Layer, ...]


def forgotten_before(generations: Sequence[Generation]) -> int:
    """Return how many generations a block has forgotten. While it stays, no URL becomes new.

    Args:
        generations: those of its ring, newest first.
    """
    return generations[0].number + 1 - len(generations)


def memory_of(generations: Iterable[Generation]) -> int:
    """Return the bytes of the bitmaps of generations."""
    return sum(layer.memory for generation in generations for layer in generation.layers)


def count_in(layers: Iterable[Layer], counts: Counts) -> int:
    """Return the URLs recorded in layers."""
    return sum(counts.get(layer.name, 0) for layer in layers)


def error_rate_of(layers: Iterable[Layer], counts: Counts, num_hashes: int) -> float:
    """Return the share of absent URLs that test as present in any of the layers."""
    return any_of(
        predicted_error_rate(counts.get(layer.name, 0), layer.num_bits, num_hashes)
        for layer in layers
    )


def lost_by_discard_from(layers: Iterable[Layer], counts: Counts, num_hashes: int) -> float:
    """Return how many URLs in layers one discard of an absent URL makes unseen, as expected."""
    return math.fsum(
        lost_by_discard(counts.get(layer.name, 0), layer.num_bits, num_hashes)
        for layer in layers
        if layer.counting
    )


def saturated_in(layers: Iterable[Layer], counts: Counts, num_hashes: int) -> float:
    """Return how many counters of layers are saturated, as expected if all URLs are different."""
    return math.fsum(
        saturated_counters(counts.get(layer.name, 0), layer.num_bits, num_hashes)
        for layer in layers
        if layer.counting
    )
