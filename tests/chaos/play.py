"""Let a schedule's faults happen to a crawl that is under way."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from chaos.crew import Crew
from chaos.failovers import INFLICT, OnStand
from chaos.schedule import Event, Schedule
from chaos.site import SlowSite

#: The crawl has got going when so many pages are fetched.
FIRST_PAGES = 6
#: Seconds a run may take, faults and all, until it counts as hung. None should be as slow.
RUN_TIMEOUT = 300.0
_TICK = 0.01


class HungError(Exception):
    """A run did not end."""


def await_end(crew: Crew) -> None:
    """Wait for all crawlers.

    Raises:
        HungError: some did not end, and were killed.
    """
    deadline = time.monotonic() + RUN_TIMEOUT
    while crew.running:
        _check(crew, deadline)


def await_first_pages(crew: Crew, web: SlowSite) -> None:
    """Wait until the crawl has got going, or is over already."""
    while crew.running and web.hits().total() < FIRST_PAGES:
        time.sleep(_TICK)


class Play:
    """A schedule on a running crawl.

    Args:
        schedule: the faults.
        victims: what they harm.
        crew: the crawlers.
        over: called when the last fault is mended.

    Attributes:
        struck: the events that came while the crawl was running.
    """

    def __init__(
        self, schedule: Schedule, victims: OnStand, crew: Crew, over: Callable[[], None]
    ) -> None:
        self.struck: list[Event] = []
        self._over = over
        self._due = list(schedule.events)
        self._victims = victims
        self._crew = crew
        self._mend_at: float | None = None

    def run(self) -> None:
        """Inflict and mend, each in its time, until no crawler runs; then all is mended.

        Raises:
            HungError: some crawlers did not end, and were killed.
        """
        began = time.monotonic()
        with ExitStack() as faults:
            while self._crew.running or self._mend_at is not None:
                self._step(began, faults)
                _check(self._crew, began + RUN_TIMEOUT)

    def _step(self, began: float, faults: ExitStack) -> None:
        now = time.monotonic() - began
        if self._mend_at is not None:
            if now >= self._mend_at:
                self._mend_at = None
                faults.close()
                if not self._due:
                    self._over()
        elif self._due and now >= self._due[0].at:
            event = self._due.pop(0)
            self._victims.stand.aim(event.level)
            faults.enter_context(INFLICT[event.fault](self._victims, event.level))
            # A server that is replaced takes its time.
            self._mend_at = time.monotonic() - began + event.lasts
            self.struck.append(event)


def _check(crew: Crew, deadline: float) -> None:
    """Wait for a moment; end what is overdue."""
    time.sleep(_TICK)
    if time.monotonic() > deadline:
        hung = sum(crew.kill(number) for number in range(len(crew)))
        raise HungError(f"{hung} of {len(crew)} crawlers did not end in {RUN_TIMEOUT:.0f} seconds")
