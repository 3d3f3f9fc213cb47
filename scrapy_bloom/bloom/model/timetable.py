"""When a block's generations close, are forgotten and expire. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from scrapy_bloom.bloom.model.generations import Generation
from scrapy_bloom.bloom.model.schedule import Schedule

#: Seconds that bitmaps outlive their content, for clocks that go back a little (a failover).
SLACK_SECONDS = 86_400
#: Seconds that the keys of a filter whose window is in runs outlive its last use.
RUNS_EXPIRE_SECONDS = 400 * 86_400


@dataclass(frozen=True, slots=True)
class Timetable:
    """The schedule of a filter, applied to the generations of one block.

    Args:
        schedule: window and period; None remembers for ever.
        generations: the block's generations, newest first.
        since: number of the generation that was active when the configuration changed last.
        changed: Unix time at which the ring was changed last; windows in runs expire by it.
        shift: by which part of a period, of how many, this block's boundaries are late.
    """

    schedule: Schedule | None
    generations: tuple[Generation, ...]
    since: int
    changed: int
    shift: tuple[int, int]

    def index(self, time: int) -> int:
        """Return the number of the period that contains a time; 0 without a schedule."""
        return self.schedule.index(time, *self.shift) if self.schedule else 0

    def start(self, period: int) -> int:
        """Return the Unix time at which a period begins; 0 if no clock decides it."""
        if self.schedule is None or self.schedule.counts_runs:
            return 0
        return self.schedule.start(period, *self.shift)

    def period(self, generation: Generation) -> int:
        """Return the number of the period in which a generation was opened."""
        if self.schedule is None:
            return 0
        if self.schedule.counts_runs:
            return generation.run // self.schedule.period.count
        return self.index(generation.dated)

    def closes(self, generation: Generation) -> int:
        """Return the Unix time at which a generation stops being the active one; 0 if unknown.

        That is the end of its period, or earlier if the next one was opened by hand or early.
        """
        end = self.start(self.period(generation) + 1)
        place = self._place(generation)
        return min(end, self.generations[place - 1].opened) if place else end

    def forgotten(self, generation: Generation) -> int:
        """Return the Unix time at which a generation is forgotten; 0 if unknown.

        Later rotations by hand, early ones and changes of settings move it.
        """
        older = self.generations[: self._place(generation) + 1]
        counted = self._counted(older, self.period(self.generations[0]))
        return self.start(counted[-1] + self._slots)

    def expires(self, generation: Generation) -> int:
        """Return the Unix time at which an unused filter's bitmaps expire; 0 is never."""
        if self.schedule is None:
            return 0
        if self.schedule.counts_runs:
            return self.changed + RUNS_EXPIRE_SECONDS
        return self.forgotten(generation) + SLACK_SECONDS

    def live(self, current: int, newest: int) -> tuple[Generation, ...]:
        """Return the generations that are remembered in period ``current``.

        Args:
            current: the period.
            newest: the last period that one of them may count for.
        """
        counted = zip(self.generations, self._counted(self.generations, newest), strict=True)
        return tuple(g for g, period in counted if period > current - self._slots)

    @property
    def _slots(self) -> int:
        return self.schedule.generations if self.schedule else 1

    def _place(self, generation: Generation) -> int:
        return next(n for n, own in enumerate(self.generations) if own.number == generation.number)

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
