"""What a filter is meant to remember: per block, the items of each generation, as exact sets."""

from dataclasses import dataclass, field

from scrapy_bloom.bloom.model.schedule import Schedule, parse_span


@dataclass
class Generation:
    """What came since it was opened."""

    number: int
    opened: int
    dated: int
    run: int
    items: set[str] = field(default_factory=set)


class Block:
    """The generations of a block, newest first, as exact sets."""

    def __init__(self, part: tuple[int, int], write_all: bool, now: int, run: str) -> None:
        self.part = part
        self.write_all = write_all
        self.schedule: Schedule | None = None
        self.run = 0
        self.runs = [run]
        self.generations = [Generation(0, now, now, 0)]
        #: Number of the oldest generation that was written under the settings of now.
        self.since = 0

    @property
    def slots(self) -> int:
        return self.schedule.generations if self.schedule else len(self.generations)

    @property
    def remembered(self) -> set[str]:
        if self.write_all:
            return self.generations[-1].items
        return set().union(*(generation.items for generation in self.generations))

    def add(self, item: str) -> bool:
        if item in self.remembered:
            return False
        for generation in self.generations if self.write_all else self.generations[:1]:
            generation.items.add(item)
        return True

    def period(self, generation: Generation) -> int:
        if self.schedule is None:
            return 0
        if self.schedule.counts_runs:
            return generation.run // self.schedule.period.count
        return self.schedule.index(generation.dated, *self.part)

    def next_boundary(self, now: int) -> int | None:
        if self.schedule is None or self.schedule.counts_runs:
            return None
        return self.schedule.start(self.schedule.index(now, *self.part) + 1, *self.part)

    def advance(self, now: int, run: str) -> None:
        if self.schedule is None:
            return
        if self.schedule.counts_runs:
            if run in self.runs:
                return
            self.run += 1
            self.runs.append(run)
            current = self.run // self.schedule.period.count
        else:
            current = self.schedule.index(now, *self.part)
            if current < self.period(self.generations[0]) - 1:
                for generation in self.generations:
                    generation.opened = min(generation.opened, now)
                    generation.dated = min(generation.dated, now)
        if current > self.period(self.generations[0]):
            self.open(current, now)

    def open(self, current: int, now: int) -> None:
        live = self.live(current, current)
        number = self.generations[0].number + 1
        self.generations = [Generation(number, now, now, self.run), *live]

    def live(self, current: int, before: int) -> list[Generation]:
        """Return what is remembered: of the settings of now, one counts for each period."""
        live = []
        for generation in self.generations:
            period = self.period(generation)
            if generation.number >= self.since:
                before = period = min(period, before - 1)
            if period > current - self.slots:
                live.append(generation)
        return live

    def rotate(self, now: int) -> None:
        assert self.schedule is not None
        current = self.period(self.generations[0])
        if self.schedule.counts_runs:
            current += 1
            self.run = current * self.schedule.period.count
        else:
            current = max(current, self.schedule.index(now, *self.part))
        self.open(current, now)

    def reconfigure(self, schedule: Schedule | None, now: int) -> None:
        """Take up other settings; the sizes, which are not modelled, may differ alone."""
        self.since = self.generations[0].number
        if schedule == self.schedule:
            return
        ends = [now + 1, *(generation.opened for generation in self.generations)]
        for generation, end in zip(self.generations, ends, strict=False):
            closes = self.closes(generation)
            generation.dated = max(generation.dated, min(end, closes or end) - 1)
        self.schedule = schedule
        if schedule is not None:
            current = self.period(self.generations[0])
            self.generations = self.live(current, current + 1)

    def closes(self, generation: Generation) -> int | None:
        if self.schedule is None or self.schedule.counts_runs:
            return None
        return self.schedule.start(self.period(generation) + 1, *self.part)

    def clear(self, now: int) -> None:
        number = self.generations[0].number + 1
        self.generations = [Generation(number, now, now, self.run)]


@dataclass(frozen=True)
class Settings:
    """What a client asks for, and the id of its run."""

    size: tuple[int, float]
    window: tuple[str, str | None]
    run: str

    @property
    def schedule(self) -> Schedule | None:
        window, period = self.window
        if window == "never":
            return None
        return Schedule.of(parse_span("w", window), parse_span("p", period) if period else None)
