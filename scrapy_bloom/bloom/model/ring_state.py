"""What a block's ring holds, and until when. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from scrapy_bloom.bloom.model.generations import (
    Config,
    Counts,
    Generation,
    Layer,
    count_in,
    error_rate_of,
)
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header

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
