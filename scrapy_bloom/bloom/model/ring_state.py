"""What a block's ring holds, and until when. Pure."""

from dataclasses import dataclass

from scrapy_bloom.bloom.model.generations import (
    Config,
    Counts,
    Generation,
    Layer,
    count_in,
    error_rate_of,
    lost_by_discard_from,
    saturated_in,
)
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.timetable import Timetable

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

    def lost_by_discard(self, counts: Counts) -> float:
        """Return how many URLs one discard of an absent URL makes unseen; 0 without counters."""
        return lost_by_discard_from(self.layers, counts, len(self.header.seeds))

    def saturated(self, counts: Counts) -> float:
        """Return how many counters are saturated, as expected; 0 without counters."""
        return saturated_in(self.layers, counts, len(self.header.seeds))

    @property
    def memory(self) -> int:
        """Bytes of all bitmaps."""
        return sum(layer.memory for layer in self.layers)

    # -- times --

    @property
    def timetable(self) -> Timetable:
        """When each generation closes, is forgotten and expires."""
        shift = (self.block, self.header.blocks) if self.header.stagger else (0, 1)
        return Timetable(self.config.schedule, self.generations, self.since, self.changed, shift)

    def period(self, generation: Generation) -> int:
        """Return the number of the period in which a generation was opened."""
        return self.timetable.period(generation)

    @property
    def ends(self) -> int:
        """Unix time from which nothing may be written to the active generation; 0 is never."""
        return self.closes(self.active)

    def closes(self, generation: Generation) -> int:
        """See ``Timetable.closes``."""
        return self.timetable.closes(generation)

    def forgotten(self, generation: Generation) -> int:
        """See ``Timetable.forgotten``."""
        return self.timetable.forgotten(generation)

    def expires(self, generation: Generation) -> int:
        """See ``Timetable.expires``."""
        return self.timetable.expires(generation)

    def expired(self, now: int) -> set[str]:
        """Return the names of the layers whose bitmaps have expired by a time."""
        gone = [g for g in self.generations if 0 < self.expires(g) <= now]
        return {layer.name for generation in gone for layer in generation.layers}

    @property
    def expiry(self) -> int:
        """Unix time at which an unused ring itself expires; 0 is never."""
        last = max(self.expires(generation) for generation in self.generations)
        return last and last + RING_OUTLIVES_SECONDS
