"""What a filter is meant to remember: per block, the items of each generation, as exact sets.

It's written anew from the promises, and knows nothing of rings and bitmaps.
"""

from dataclasses import dataclass, field

from scrapy_bloom.bloom.model.schedule import DAY, Schedule


@dataclass
class Generation:
    """What came in one period of a schedule, or since a filter without one was made."""

    schedule: Schedule
    starts: int
    ends: int
    items: set[str] = field(default_factory=set)
    #: When it's deleted, as far as any client has asked for; 0 for never.
    deleted: int = 0

    def forgotten(self, schedule: Schedule) -> int:
        """Return when a client with a schedule forgets it; 0 for never."""
        if schedule.period is None:
            return 0
        if self.ends and schedule.bounds(self.starts) == (self.starts, self.ends):
            return schedule.forgets(self.ends)  # the same period, so it's its own
        return self.deleted and self.deleted - DAY


class Block:
    """The generations of a block, which clients with different schedules use.

    Args:
        write_all: whether an item is written to all generations, and only the oldest one is tested.
    """

    def __init__(self, *, write_all: bool) -> None:
        self.write_all = write_all
        self.generations: list[Generation] = []

    def use(self, schedule: Schedule, now: int) -> Generation:
        """Do what happens when a client uses it; return the generation that it writes."""
        starts, ends = schedule.bounds(now)
        for one in self.generations:
            if not ends:
                one.deleted = 0 if one.ends else one.deleted
            elif not one.ends and not one.deleted:  # made without a window: counts as seen now
                one.deleted = schedule.forgets(ends) + DAY
            elif one.ends and one.deleted:
                one.deleted = max(one.deleted, one.forgotten(schedule) + DAY)
        for one in self.generations:
            if (one.starts, one.ends) == (starts, ends):
                return one
        made = Generation(schedule, starts, ends)
        made.deleted = schedule.forgets(ends) + DAY if ends else 0
        self.generations.append(made)
        return made

    def expire(self, now: int) -> None:
        """Delete what is to be deleted by now."""
        self.generations = [one for one in self.generations if not 0 < one.deleted <= now]

    def live(self, schedule: Schedule, now: int) -> list[Generation]:
        """Return the generations that a client with a schedule has not forgotten."""
        live = [one for one in self.generations if not 0 < one.forgotten(schedule) <= now]
        return sorted(live, key=lambda one: (one.starts, one.ends))

    def remembered(self, schedule: Schedule, now: int) -> set[str]:
        """Return what a client with a schedule has seen."""
        return set().union(*(one.items for one in self.tested(schedule, now)))

    def tested(self, schedule: Schedule, now: int) -> list[Generation]:
        """Return the generations that say what a client has seen."""
        live = self.live(schedule, now)
        return live[:1] if self.write_all else live

    def add(self, item: str, schedule: Schedule, now: int) -> bool:
        """Record an item; return whether it was new."""
        own = self.use(schedule, now)
        if item in self.remembered(schedule, now):
            return False
        for one in self.live(schedule, now) if self.write_all else [own]:
            one.items.add(item)
        return True
