"""Every decision about a block's ring: rotation, growth, changed settings. Pure.

Redis holds one ring per block under compare-and-set (``lua/swap.lua``). The methods here take the
server's clock and the number of URLs in each layer, and return the next ring, or the same object if
nothing is due.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from scrapy_bloom.bloom.model.generations import (
    NO_COUNTS,
    Config,
    Counts,
    Generation,
    Geometry,
    Layer,
    count_in,
    error_rate_of,
)
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.schedule import MAX_GENERATIONS

#: Seconds that bitmaps outlive their content, for clocks that go back a little (a failover).
SLACK_SECONDS = 86_400
#: Seconds that the keys of a filter whose window is in runs outlive its last use.
RUNS_EXPIRE_SECONDS = 400 * 86_400
#: Seconds that a ring, with its copy of the header, outlives its last bitmap.
RING_OUTLIVES_SECONDS = 400 * 86_400


@dataclass(frozen=True, slots=True)
class RingState:
    """A block's live generations, newest first; the newest is active.

    Args:
        header: the filter's header.
        config: what new layers are made by, and when generations are forgotten.
        block: the block.
        generations: at least one.
        since: number of the generation that was active when the configuration changed last.
        run: number of the current run: how many ids of runs came before this one's.
        runs: the last ids of runs, newest first.
        changed: Unix time at which it was changed last; windows in runs expire by it.
    """

    header: Header
    config: Config
    block: int
    generations: tuple[Generation, ...]
    since: int = 0
    run: int = 0
    runs: tuple[str, ...] = ()
    changed: int = 0

    # -- content --

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
        """Return the number of URLs that are remembered."""
        return count_in(self.tested, counts)

    def error_rate(self, counts: Counts) -> float:
        """Return the false-positive rate at these counts."""
        return error_rate_of(self.tested, counts, len(self.header.seeds))

    @property
    def error_bound(self) -> float:
        """The false-positive rate when all layers are full: at most one error budget.

        After a change of settings, the layers made before keep their share of the earlier budget:
        it is at most the sum of the budgets by which the live layers were made.
        """
        return self.error_rate({layer.name: layer.capacity for layer in self.tested})

    @property
    def memory(self) -> int:
        """Bytes of all bitmaps."""
        return sum(layer.memory for layer in self.layers)

    # -- times --

    def index(self, time: int) -> int:
        """Return the number of the period that contains a time; 0 without a schedule."""
        schedule = self.config.schedule
        return schedule.index(time, *self.shift) if schedule else 0

    def period(self, generation: Generation) -> int:
        """Return the number of the period in which a generation was opened."""
        schedule = self.config.schedule
        if schedule and schedule.counts_runs:
            return generation.run // schedule.period.count
        return self.index(generation.dated)

    @property
    def ends(self) -> int:
        """Unix time from which nothing may be written to the active generation; 0 is never."""
        return self.closes(self.active)

    def closes(self, generation: Generation) -> int:
        """Return the Unix time at which a generation stops being the active one; 0 if unknown.

        That is the end of its period, or earlier if the next one was opened by hand or early.
        """
        end = self._start(self.period(generation) + 1)
        place = self.generations.index(generation)
        return min(end, self.generations[place - 1].opened) if place else end

    def forgotten(self, generation: Generation) -> int:
        """Return the Unix time at which a generation is forgotten; 0 if unknown.

        Later rotations by hand, early ones and changes of settings move it.
        """
        up_to = self.generations[: self.generations.index(generation) + 1]
        return self._start(self._counted(up_to, self.period(self.active))[-1] + self.config.slots)

    def expires(self, generation: Generation) -> int:
        """Return the Unix time at which an unused filter's bitmaps expire; 0 is never."""
        schedule = self.config.schedule
        if schedule is None:
            return 0
        if schedule.counts_runs:
            return self.changed + RUNS_EXPIRE_SECONDS
        return self.forgotten(generation) + SLACK_SECONDS

    def expired(self, now: int) -> set[str]:
        """Return the names of the layers whose bitmaps have expired by a time."""
        gone = [g for g in self.generations if 0 < self.expires(g) <= now]
        return {layer.name for generation in gone for layer in generation.layers}

    @property
    def expiry(self) -> int:
        """Unix time at which an unused ring itself expires; 0 is never."""
        last = max(self.expires(generation) for generation in self.generations)
        return last and last + RING_OUTLIVES_SECONDS

    def live(self, current: int, newest: int) -> tuple[Generation, ...]:
        """Return the generations that are remembered in period ``current``.

        Args:
            current: the period.
            newest: the last period that one of them may count for.
        """
        counted = zip(self.generations, self._counted(self.generations, newest), strict=True)
        return tuple(g for g, period in counted if period > current - self.config.slots)

    @property
    def shift(self) -> tuple[int, int]:
        """By which part of a period, of how many, the boundaries of this block are late."""
        return (self.block, self.header.blocks) if self.header.stagger else (0, 1)

    def _start(self, period: int) -> int:
        """Return the Unix time at which a period begins; 0 if no clock decides it."""
        schedule = self.config.schedule
        if schedule is None or schedule.counts_runs:
            return 0
        return schedule.start(period, *self.shift)

    def _counted(self, generations: Iterable[Generation], newest: int) -> list[int]:
        """Return the periods that generations count for, the newest one first.

        Of several that were opened in one period, by hand or early, each but the last counts for a
        period before: there are at most as many as the window has periods, which share one error
        budget. Those of another configuration have a budget of their own.
        """
        counted = []
        for generation in generations:
            period = self.period(generation)
            if generation.number >= self.since:
                period = min(period, newest)
                newest = period - 1
            counted.append(period)
        return counted


#: Ids of runs that a ring remembers, so that none of them rotates it a second time.
RUNS_KEPT = 32
#: Seconds after which the expiry of a filter whose window is in runs is put off.
RENEW_AFTER_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Ring(RingState):
    """A block's ring as a value, and the rings that may follow it. Arguments: see ``RingState``."""

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
        empty = cls(header, config, block, (), runs=runs, changed=now)
        empty._geometry.check()
        return replace(empty, generations=(empty._new_generation(0, now),))

    def sibling(self, block: int, now: int) -> "Ring":
        """Return the empty ring of another block of the same filter."""
        return replace(
            self, block=block, generations=(self._new_generation(0, now),), since=0, changed=now
        )

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
                # Without a new run, the keys live on, and are renewed from time to time.
                is_old = now > self.changed + RENEW_AFTER_SECONDS
                return replace(self, changed=now) if is_old else self
            runs = (run, *self.runs)[:RUNS_KEPT]
            shown = replace(self, run=self.run + 1, runs=runs, changed=now)
            current = shown.run // schedule.period.count
            return shown._open(current, now, counts) if current > newest else shown
        current = self.index(now)
        if current < newest - 1:
            generations = tuple(
                replace(g, opened=min(g.opened, now), dated=min(g.dated, now))
                for g in self.generations
            )
            return replace(self, generations=generations).advance(now, counts)
        return self._open(current, now, counts) if current > newest else self

    def rotate(self, now: int, counts: Counts = NO_COUNTS) -> "Ring":
        """Return the ring with a new generation opened by hand; the oldest goes if there are G."""
        schedule = self.config.schedule
        if schedule is None:
            return self
        if not schedule.counts_runs:
            return self._open(self._current(now), now, counts)
        current = self.period(self.active) + 1
        # Never back: a ring that is united from others may have later runs in older generations.
        run = max(self.run, current * schedule.period.count)
        return replace(self, run=run)._open(current, now, counts)

    def grow(self, now: int, counts: Counts) -> "Ring":
        """Return the ring with room in a layer that is full; the same if none can be made.

        A full layer is followed by a larger one, one at a time. Where that is not allowed, the ring
        rotates early, as long as that forgets nothing of the current period: else a crawl that is
        larger than the filter would never end.
        """
        first = self._make_room(now, counts)
        if first.active.number == self.active.number:
            return first
        # Under "write-all", younger generations may be full too: forgetting one gains nothing.
        ring, following = self, first
        while following is not ring and following._full(counts):
            ring, following = following, following._make_room(now, counts)
        return self if following is ring else first

    def reconfigure(self, config: Config, now: int) -> "Ring":
        """Return the ring under other settings: layers stay as they are, times move.

        A generation that took in more than one period of the new schedule counts for the last of
        them: nothing is forgotten before its time, and some a little after it. The error budget of
        the layers made before comes on top of the new one, until they are forgotten.

        Raises:
            ConfigurationError: as ``fresh`` does.
        """
        if config == self.config:
            return self
        generations = self.generations
        if config.schedule != self.config.schedule:
            ends = (now + 1, *(generation.opened for generation in generations))
            generations = tuple(
                replace(g, dated=max(g.dated, min(end, self.closes(g) or end) - 1))
                for g, end in zip(generations, ends, strict=False)
            )
        ring = replace(self, config=config, generations=generations, since=self.active.number)
        ring._geometry.check()
        if config.schedule is None:
            return ring  # nothing is forgotten that is still there
        newest = ring.period(ring.active)
        return replace(ring, generations=ring.live(newest, newest))

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
        generations = (self._new_generation(self.active.number + 1, now),)
        return replace(self, generations=generations, changed=now)

    @property
    def has_configured_sizes(self) -> bool:
        """Whether the active generation begins as a new one would under the settings of now."""
        first = self._geometry.first_in((), self.active.number, 0)
        return self.active.layers[0] == replace(first, index=self.active.layers[0].index)

    # -- steps --

    def _open(self, current: int, now: int, counts: Counts) -> "Ring":
        """Open a generation in period ``current``; drop what is forgotten by then."""
        kept = self.live(current, current - 1)[: MAX_GENERATIONS - 1]
        dropped = [generation for generation in self.generations if generation not in kept]
        needed = max((count_in(generation.layers, counts) for generation in dropped), default=0)
        ring = replace(self, generations=kept)
        new = ring._new_generation(self.active.number + 1, now, needed)
        return replace(ring, generations=(new, *kept))

    def _current(self, now: int) -> int:
        """Return the period at a time, of runs the last one; never one before the active's."""
        newest, schedule = self.period(self.active), self.config.schedule
        return newest if schedule is None or schedule.counts_runs else max(newest, self.index(now))

    def _full(self, counts: Counts) -> list[Layer]:
        return [layer for layer in self.written if counts.get(layer.name, 0) >= layer.capacity]

    def _make_room(self, now: int, counts: Counts) -> "Ring":
        """Return the ring after one step to more room; the same if there is none to take."""
        full = self._full(counts)
        if not full:
            return self
        grown = self._geometry.grown(self.generations, full[0])
        return replace(self, generations=grown) if grown else self._rotate_early(now, counts)

    def _rotate_early(self, now: int, counts: Counts) -> "Ring":
        if self.config.schedule is None:
            return self
        current = self._current(now)
        if current > self.period(self.active):
            return self._open(current, now, counts)  # it has just become due
        # Under "write-all" it is the oldest generation that is full first.
        rest = self.generations[:-1] if self.header.order == WRITE_ALL else self.generations
        if not rest:
            return self
        opened = replace(self, generations=rest)._open(current, now, counts)
        dropped = [g for g in self.generations if g not in opened.generations]
        return self if any(self.period(g) >= current for g in dropped) else opened

    @property
    def _geometry(self) -> Geometry:
        return Geometry(self.header, self.config)

    def _new_generation(self, number: int, now: int, needed: int = 0) -> Generation:
        """Return an empty generation of the configured capacity, or of what is needed if more."""
        layer = self._geometry.first_in(self.generations, number, needed)
        return Generation(number, now, now, self.run, (layer,))
