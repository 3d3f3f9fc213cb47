"""The faults of a soak run, one after the other, in an order that a seed chooses."""

import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from chaos.faults import INFLICT, Victims
from chaos.schedule import FAULTS


@contextmanager
def _restarted_empty(victims: Victims, level: float) -> Iterator[None]:
    """Kill the server, and start it again without its data."""
    victims.server.kill()
    shutil.rmtree(victims.server.directory / "appendonlydir")
    yield
    victims.server.start()


#: All faults of `tests/chaos`. The server has an append-only file, so that a kill loses nothing.
SOAK_FAULTS = {**INFLICT, "server_kill": _restarted_empty}
#: Seconds that a fault lasts at most, unless it is over in an instant.
LONGEST = 3.0


class Openable(Victims, Protocol):
    """Victims of which some open after a fault."""

    @property
    def is_open(self) -> bool: ...


class FaultLoop:
    """Inflicts each fault once, in random order, then again in another order, and so on.

    Args:
        victims: what there is to be harmed.
        every: seconds between the beginnings of two faults; 0 for no faults.
        seed: of the order, the lengths and the levels.
    """

    def __init__(self, victims: Openable, every: float, seed: int) -> None:
        self._victims, self._every = victims, every
        self._rng = random.Random(seed)
        self._stack = ExitStack()
        self._waiting: list[str] = []
        self._begin, self._end = every, 0.0
        #: The fault of the moment, "" for none; and how many there were.
        self.current, self.count = "", 0

    def step(self, now: float) -> None:
        """Begin or end what is due, so many seconds after the beginning of the run."""
        if self.current and now >= self._end:
            self.stop()
        is_due = self._every and not self.current and now >= self._begin
        if is_due and self._victims.is_open:
            self._inflict(now)

    def stop(self) -> None:
        """Mend what is broken."""
        self.current = ""
        self._stack.close()

    def _inflict(self, now: float) -> None:
        if not self._waiting:
            self._waiting = self._rng.sample(sorted(SOAK_FAULTS), len(SOAK_FAULTS))
        self.current, self.count = self._waiting.pop(), self.count + 1
        lasts = min(FAULTS[self.current].lasts[1] * 2, LONGEST, self._every / 2)
        self._begin, self._end = now + self._every, now + self._rng.uniform(0, lasts)
        self._stack.enter_context(SOAK_FAULTS[self.current](self._victims, self._rng.random()))
