"""A block's ring as a pure value, and every decision about it: rotation, growth, changed settings.

Redis holds one ring per block under compare-and-set (``lua/swap.lua``). The functions here take a
ring, the server's clock and the number of URLs in each layer, and return the next ring, or the same
object if nothing is to be done. None does I/O.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from scrapy_bloom.errors import ConfigurationError
from scrapy_bloom.header import WRITE_ALL, Header
from scrapy_bloom.schedule import MAX_GENERATIONS, Schedule
from scrapy_bloom.sizing import (
    MAX_GROWN_BITS,
    any_of,
    block_capacity,
    layer_bytes,
    layer_capacity,
    layer_error_rate,
    plan,
    predicted_error_rate,
    required_bits,
)

#: URLs recorded per layer, by the layer's name.
Counts = Mapping[str, int]
NO_COUNTS: Counts = {}

#: Layers of a generation at most.
MAX_LAYERS = 64
#: Layers of a ring beyond one per generation, at most: in all, at most as many as a byte can count.
MAX_FURTHER_LAYERS = 255 - MAX_GENERATIONS
#: Ids of runs that a ring remembers, so that none of them rotates it a second time.
RUNS_KEPT = 32
#: Seconds that keys outlive what they hold: for a clock that goes back a little after a failover.
SLACK = 86_400
#: Seconds that the keys of a filter whose window is in runs outlive its last rotation.
RUNS_EXPIRE = 400 * 86_400


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
    def slots(self) -> int:
        """Generations that are live at once, at most."""
        return self.schedule.generations if self.schedule else 1

    def tested(self, order: str) -> int:
        """Return how many generations are tested for a URL, at most."""
        return 1 if order == WRITE_ALL else self.slots


@dataclass(frozen=True, slots=True)
class Layer:
    """One bitmap of a block.

    Args:
        generation: number of the generation it belongs to.
        index: its place among the generation's layers.
        num_bits: its size in bits.
        capacity: URLs it takes.
    """

    generation: int
    index: int
    num_bits: int
    capacity: int

    @property
    def name(self) -> str:
        """The last part of its Redis key, ``<generation>.<index>``."""
        return f"{self.generation}.{self.index}"

    @property
    def memory(self) -> int:
        """Bytes of its bitmap."""
        return layer_bytes(self.num_bits)


@dataclass(frozen=True, slots=True)
class Generation:
    """The layers that collect URLs during one rotation period.

    Args:
        number: counts up through the life of a block; never used twice.
        opened: Unix time in seconds on the server's clock.
        run: number of the run in which it was opened, for windows in runs.
        layers: oldest first; the last one is written.
    """

    number: int
    opened: int
    run: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """A block's live generations, newest first; the newest is active.

    Args:
        header: the filter's header.
        config: what new layers are made by, and when generations are forgotten.
        block: the block.
        generations: at least one.
        run: number of the current run: how many ids were shown to it before this one's.
        runs: the last ids of runs that it was shown, newest first.
    """

    header: Header
    config: Config
    block: int
    generations: tuple[Generation, ...]
    run: int = 0
    runs: tuple[str, ...] = ()

    @classmethod
    def fresh(
        cls, header: Header, config: Config, now: int, *, block: int = 0, run: str | None = None
    ) -> "Ring":
        """Return a ring of one empty generation.

        Raises:
            ConfigurationError: a layer would pass the 512 MiB of a Redis string, or all generations
                together the memory that is allowed.
        """
        runs = () if run is None else (run,)
        empty = cls(header, config, block, (), 0, runs)
        empty._check_memory()
        return replace(empty, generations=(empty._new_generation(0, now),))

    # -- what is where --

    @property
    def active(self) -> Generation:
        """The generation that collects new URLs."""
        return self.generations[0]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, the active generation's first."""
        return tuple(layer for generation in self.generations for layer in generation.layers)

    @property
    def written(self) -> tuple[Layer, ...]:
        """The layers that a new URL is written to; the first of them decides whether it is new."""
        if self.header.order == WRITE_ALL:
            return tuple(generation.layers[-1] for generation in reversed(self.generations))
        return self.active.layers[-1:]

    @property
    def tested(self) -> tuple[Layer, ...]:
        """The layers that hold the URLs that are seen."""
        if self.header.order == WRITE_ALL:
            return self.generations[-1].layers
        return self.layers

    def count(self, counts: Counts) -> int:
        """Return the URLs that are remembered."""
        return sum(counts.get(layer.name, 0) for layer in self.tested)

    def error_rate(self, counts: Counts) -> float:
        """Return the false-positive rate at these counts."""
        k = len(self.header.seeds)
        return any_of(
            predicted_error_rate(counts.get(layer.name, 0), layer.num_bits, k)
            for layer in self.tested
        )

    @property
    def error_bound(self) -> float:
        """The false-positive rate when all layers are full: at most one error budget.

        After a change of settings, the layers made before have a share of the budget of then: it is
        at most the sum of the budgets by which the live layers were made.
        """
        return self.error_rate({layer.name: layer.capacity for layer in self.tested})

    @property
    def memory(self) -> int:
        """Bytes of all bitmaps."""
        return sum(layer.memory for layer in self.layers)

    # -- when --

    def period(self, generation: Generation) -> int:
        """Return the number of the period in which a generation was opened."""
        schedule = self.config.schedule
        if schedule is None:
            return 0
        if schedule.counts_runs:
            return generation.run // schedule.period.count
        return self._index(generation.opened)

    @property
    def ends(self) -> int:
        """Unix time from which nothing may be written to the active generation; 0 is never."""
        return self.closes(self.active)

    def closes(self, generation: Generation) -> int:
        """Return the Unix time at which a generation's period ends; 0 if that is not known."""
        return self._start(self.period(generation) + 1)

    def forgotten(self, generation: Generation) -> int:
        """Return the Unix time at which a generation is forgotten; 0 if that is not known."""
        return self._start(self.period(generation) + self.config.slots)

    def expires(self, generation: Generation) -> int:
        """Return the Unix time at which its keys go if nobody comes back; 0 is never."""
        if self.config.schedule is None:
            return 0
        if self.config.schedule.counts_runs:
            return self.active.opened + RUNS_EXPIRE
        return self.forgotten(generation) + SLACK

    @property
    def last_expiry(self) -> int:
        """Unix time at which its last layer goes if nobody comes back; 0 is never."""
        return max(self.expires(generation) for generation in self.generations)

    # -- what comes next --

    def advance(self, now: int, counts: Counts = NO_COUNTS, run: str | None = None) -> "Ring":
        """Return the ring as it is at a time: old generations gone, a new one opened if it is due.

        However many periods have passed, one step is enough. When the clock goes back a little,
        nothing changes; when it goes back by more than a period, what was opened in the future
        counts as opened now, or it would be remembered for that much longer.

        Args:
            now: the server's clock, Unix time in seconds.
            counts: URLs per layer, by which the new generation is sized.
            run: id of the caller's run; None shows none. A new one rotates windows in runs.
        """
        schedule = self.config.schedule
        if schedule is None:
            return self
        newest = self.period(self.active)
        if schedule.counts_runs:
            if run is None or run in self.runs:
                return self
            shown = self._show(run)
            current = shown.run // schedule.period.count
            return shown._open(current, now, counts) if current > newest else shown
        current = self._index(now)
        if current < newest - 1:
            return self._opened_by(now).advance(now, counts)
        return self._open(current, now, counts) if current > newest else self

    def rotate(self, now: int, counts: Counts = NO_COUNTS) -> "Ring":
        """Return the ring with a new generation opened by hand; the oldest goes if there are G."""
        schedule = self.config.schedule
        if schedule is None:
            return self
        if not schedule.counts_runs:
            return self._open(self._current(now), now, counts)
        current = self.period(self.active) + 1
        return replace(self, run=current * schedule.period.count)._open(current, now, counts)

    def grow(self, now: int, counts: Counts) -> "Ring":
        """Return the ring with room in a layer that is full; the same if none can be made.

        A full layer is followed by a larger one, one at a time. Where that is not allowed, the ring
        rotates early, as long as that forgets nothing of the current period: else a crawl that is
        larger than the filter would never end.
        """
        full = self._full(counts)
        if not full:
            return self
        grown = self._grown(full[0]) if self.config.growth else self
        if grown is not self and grown._fits and _within_bounds(grown):
            return grown
        rotated = self._rotate_early(now, counts)
        # Under "write-all", younger generations may be full as well: forget nothing in vain.
        ring, following = self, rotated
        while following is not ring and following._full(counts):
            ring, following = following, following.grow(now, counts)
        return self if following is ring else rotated

    def reconfigure(self, config: Config) -> "Ring":
        """Return the ring under other settings: layers stay as they are, times move.

        Raises:
            ConfigurationError: as ``fresh`` does.
        """
        if config == self.config:
            return self
        ring = replace(self, config=config)
        ring._check_memory()
        # Without a window, nothing is forgotten that is still there.
        slots = config.slots if config.schedule else len(self.generations)
        return replace(ring, generations=ring._live(ring.period(self.active))[:slots])

    def without(self, lost: Collection[str]) -> "Ring":
        """Return the ring without the layers that are lost; one that has to be there stays, empty.

        Under ``write-all`` a generation that has lost a part no longer holds what the younger ones
        hold, and goes as a whole.
        """
        kept = []
        for generation in self.generations:
            left = tuple(layer for layer in generation.layers if layer.name not in lost)
            if generation is self.active:
                last = generation.layers[-1]
                left = left if last in left else (*left, last)
            elif self.header.order == WRITE_ALL and left != generation.layers:
                left = ()
            if left:
                kept.append(replace(generation, layers=left))
        return replace(self, generations=tuple(kept))

    def cleared(self, now: int) -> "Ring":
        """Return the empty ring that follows this one, under a new generation number."""
        return replace(self, generations=(self._new_generation(self.active.number + 1, now),))

    # -- how --

    def _index(self, time: int) -> int:
        schedule = self.config.schedule
        return schedule.index(time, *self._shift) if schedule else 0

    def _start(self, period: int) -> int:
        schedule = self.config.schedule
        if schedule is None or schedule.counts_runs:
            return 0
        return schedule.start(period, *self._shift)

    @property
    def _shift(self) -> tuple[int, int]:
        """By which part of a period this block's boundaries are late."""
        return (self.block, self.header.blocks) if self.header.stagger else (0, 1)

    def _show(self, run: str) -> "Ring":
        """Return the ring that was shown the id of another run."""
        return replace(self, run=self.run + 1, runs=(run, *self.runs)[:RUNS_KEPT])

    def _open(self, current: int, now: int, counts: Counts) -> "Ring":
        """Open a generation in period ``current``; drop what is forgotten by then."""
        kept = self._live(current)[: self.config.slots - 1]
        dropped = [generation for generation in self.generations if generation not in kept]
        needed = max((_count(generation, counts) for generation in dropped), default=0)
        ring = replace(self, generations=kept)
        new = ring._new_generation(self.active.number + 1, now, needed)
        return replace(ring, generations=(new, *kept))

    def _live(self, current: int) -> tuple[Generation, ...]:
        """Return the generations that are remembered in period ``current``."""
        oldest = current - self.config.slots
        return tuple(g for g in self.generations if self.period(g) > oldest)

    def _opened_by(self, now: int) -> "Ring":
        return replace(
            self,
            generations=tuple(replace(g, opened=min(g.opened, now)) for g in self.generations),
        )

    def _current(self, now: int) -> int:
        """Return the period at a time, of runs the last one; never one before the active's."""
        newest, schedule = self.period(self.active), self.config.schedule
        return newest if schedule is None or schedule.counts_runs else max(newest, self._index(now))

    def _full(self, counts: Counts) -> list[Layer]:
        return [layer for layer in self.written if counts.get(layer.name, 0) >= layer.capacity]

    def _rotate_early(self, now: int, counts: Counts) -> "Ring":
        current = self._current(now)
        if current > self.period(self.active):
            return self._open(current, now, counts)  # it has just become due
        oldest = self.generations[-1]
        # Under "write-all" it is the oldest generation that is full first.
        room = len(self.generations) < self.config.slots and self.header.order != WRITE_ALL
        if self.config.schedule is None or (self.period(oldest) >= current and not room):
            return self
        kept = self if room else replace(self, generations=self.generations[:-1])
        return kept._open(current, now, counts)

    def _new_generation(self, number: int, now: int, needed: int = 0) -> Generation:
        """Return an empty generation of the configured capacity, or of what is needed if more."""
        first = replace(self._base, generation=number)
        if needed > first.capacity and self.config.growth:
            larger = self._layer(number, 0, needed)
            generation = Generation(number, now, self.run, (larger,))
            fits = replace(self, generations=(generation, *self.generations))._fits
            first = larger if fits and larger.capacity > first.capacity else first
        return Generation(number, now, self.run, (first,))

    def _grown(self, full: Layer) -> "Ring":
        """Return the ring with a further layer in the generation whose last layer is full."""
        return replace(
            self,
            generations=tuple(
                replace(g, layers=(*g.layers, self._next_layer(g))) if g.layers[-1] == full else g
                for g in self.generations
            ),
        )

    def _next_layer(self, generation: Generation) -> Layer:
        last = generation.layers[-1]
        size: float = last.capacity
        if last.index == 0:
            # The first layer's head room, for the uneven spread over blocks, does not grow.
            size -= self._share - self.config.capacity / self.header.blocks
        # The larger of growth and of what is missing to a capacity that was raised since.
        missing = self._share - sum(layer.capacity for layer in generation.layers)
        wanted = max(math.ceil(size * self.config.growth), missing, 1)
        return self._layer(generation.number, last.index + 1, wanted)

    def _layer(self, generation: int, index: int, capacity: int) -> Layer:
        """Return a layer for so many URLs, or of the largest size that layers grow to."""
        k = len(self.header.seeds)
        tested, growing = self.config.tested(self.header.order), bool(self.config.growth)
        rate = layer_error_rate(self.config.error_rate, tested, index, growing=growing)
        bits = required_bits(capacity, rate, k)
        if bits > MAX_GROWN_BITS:
            bits, capacity = MAX_GROWN_BITS, layer_capacity(MAX_GROWN_BITS, rate, k)
        return Layer(generation, index, bits, capacity)

    @property
    def _share(self) -> int:
        """URLs of a generation that this block takes."""
        return block_capacity(self.config.capacity, self.header.blocks)

    @property
    def _base(self) -> Layer:
        """The layer that a generation starts with as configured."""
        sized = plan(
            self.config.capacity,
            self.config.error_rate,
            tested=self.config.tested(self.header.order),
            growing=bool(self.config.growth),
            blocks=self.header.blocks,
            num_hashes=len(self.header.seeds),
        )
        return Layer(0, 0, sized.num_bits, sized.block_capacity)

    @property
    def _fits(self) -> bool:
        """Whether its bitmaps, and those of the generations to come, are within the limit."""
        limit = self.config.max_memory
        if limit is None:
            return True
        to_come = max(0, self.config.slots - len(self.generations))
        return (self.memory + to_come * self._base.memory) * self.header.blocks <= limit

    def _check_memory(self) -> None:
        config = self.config
        needed = config.slots * self._base.memory * self.header.blocks
        if config.max_memory is not None and needed > config.max_memory:
            raise ConfigurationError(
                f"BLOOM_MAX_MEMORY = {config.max_memory:,} is less than the {needed:,} bytes that "
                f"BLOOM_CAPACITY = {config.capacity:,} takes in {config.slots} generation(s) "
                "before any growth: raise it, or set a smaller capacity"
            )


def _count(generation: Generation, counts: Counts) -> int:
    return sum(counts.get(layer.name, 0) for layer in generation.layers)


def _within_bounds(ring: Ring) -> bool:
    further = len(ring.layers) - len(ring.generations)
    return further <= MAX_FURTHER_LAYERS and all(
        generation.layers[-1].index < MAX_LAYERS for generation in ring.generations
    )
