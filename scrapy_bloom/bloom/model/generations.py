"""What a ring is made of: its configuration, its generations and their layers. Pure values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.schedule import MAX_GENERATIONS, Schedule
from scrapy_bloom.bloom.model.sizing import (
    MAX_GROWN_BITS,
    Plan,
    any_of,
    block_capacity,
    layer_bytes,
    layer_capacity,
    layer_error_rate,
    max_bits,
    plan,
    predicted_error_rate,
    required_bits,
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


#: Layers of a generation at most.
MAX_LAYERS = 64
#: Layers of a ring beyond one per generation, at most: in all, at most as many as a byte can count.
MAX_FURTHER_LAYERS = 255 - MAX_GENERATIONS
#: Leading bits of the capacity of a generation that is made for what an earlier one has needed.
LEADING_BITS = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one block's layers.

    Args:
        header: the filter's header.
        config: what new layers are made by.
    """

    header: Header
    config: Config

    def first_in(self, generations: Sequence[Generation], generation: int, needed: int) -> Layer:
        """Return the layer that a new generation starts with: larger if that is needed and fits.

        Args:
            generations: the others.
            generation: its number.
            needed: URLs that an earlier generation took.
        """
        first = self._first(generation)
        if needed > first.capacity and self.config.growth:
            # In steps: so many generations have the same size, and URLs the same offsets in them.
            step = 1 << max(0, needed.bit_length() - LEADING_BITS)
            larger = self._layer(generation, 0, -(-needed // step) * step)
            live = len(generations) + 1
            memory = larger.memory + memory_of(generations)
            if larger.capacity > first.capacity and self._fits(memory, live):
                return larger
        return first

    def grown(
        self, generations: Sequence[Generation], full: Layer
    ) -> tuple[Generation, ...] | None:
        """Return generations with a further layer behind one that is full; None without room."""
        if not self.config.growth:
            return None
        grown = tuple(
            replace(g, layers=(*g.layers, self._next(g))) if g.layers[-1] == full else g
            for g in generations
        )
        further = sum(len(generation.layers) - 1 for generation in grown)
        is_bounded = further <= MAX_FURTHER_LAYERS and all(
            generation.layers[-1].index < MAX_LAYERS for generation in grown
        )
        return grown if is_bounded and self._fits(memory_of(grown), len(grown)) else None

    def check(self) -> None:
        """Refuse an impossible configuration.

        Raises:
            ConfigurationError: a layer would pass the 512 MiB of a Redis string, or all generations
                together the memory that is allowed.
        """
        config = self.config
        needed = config.slots * self._plan().memory
        if config.max_memory is not None and needed > config.max_memory:
            raise ConfigurationError(
                f"`max_memory` = {config.max_memory:,} is less than the {needed:,} bytes that "
                f"`capacity` = {config.capacity:,} takes in {config.slots} generation(s) "
                "before any growth: raise it, or set a smaller capacity"
            )

    def _first(self, generation: int) -> Layer:
        """Return the layer that a generation starts with as configured.

        Raises:
            ConfigurationError: it would pass the 512 MiB of a Redis string.
        """
        sized = self._plan()
        if sized.num_bits > self._max_grown and self.config.growth:
            # A capacity that was raised in a filter with few blocks: the rest is grown.
            return self._layer(generation, 0, sized.block_capacity)
        return Layer(generation, 0, sized.num_bits, sized.block_capacity, self.header.counting)

    def _next(self, generation: Generation) -> Layer:
        """Return the layer that a generation grows by."""
        config, last = self.config, generation.layers[-1]
        share = block_capacity(config.capacity, self.header.blocks)
        size: float = last.capacity
        if last.index == 0:
            # The first layer's head room, for the uneven spread over blocks, does not grow.
            size -= share - config.capacity / self.header.blocks
        # The larger of growth and of what is missing to a capacity that was raised since.
        missing = share - sum(layer.capacity for layer in generation.layers)
        wanted = max(math.ceil(size * config.growth), missing, 1)
        return self._layer(generation.number, last.index + 1, wanted)

    def _fits(self, memory: int, live: int) -> bool:
        """Whether a block is within its share of the memory limit.

        Args:
            memory: bytes of its bitmaps.
            live: how many generations have them; the others of the window need room too.
        """
        limit = self.config.max_memory
        if limit is None:
            return True
        to_come = max(0, self.config.slots - live)
        return (memory + to_come * self._first(0).memory) * self.header.blocks <= limit

    def _plan(self) -> Plan:
        return plan(
            self.config.capacity,
            self.config.error_rate,
            tested=self.config.tested(self.header.order),
            growing=bool(self.config.growth),
            blocks=self.header.blocks,
            num_hashes=len(self.header.seeds),
            counting=self.header.counting,
        )

    @property
    def _max_grown(self) -> int:
        return max_bits(MAX_GROWN_BITS, counting=self.header.counting)

    def _layer(self, generation: int, index: int, capacity: int) -> Layer:
        """Return a layer for so many URLs, or of the largest size that layers grow to."""
        k = len(self.header.seeds)
        tested, growing = self.config.tested(self.header.order), bool(self.config.growth)
        rate = layer_error_rate(self.config.error_rate, tested, index, growing=growing)
        bits = required_bits(capacity, rate, k)
        if bits > self._max_grown:
            bits, capacity = self._max_grown, layer_capacity(self._max_grown, rate, k)
        return Layer(generation, index, bits, capacity, self.header.counting)
