"""How far a migration is, and how it goes on after a kill.

The position of a batch is stored once its items are recorded. Recording what is recorded already
changes nothing, so a position that is too early costs time only.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scrapy_bloom.errors import shown
from scrapy_bloom.migration.batches import BATCH, POSITION, Batch

#: Bytes of a stored state at most, and the largest number in one.
_MAX_STATE, _MANY = 1 << 16, 1 << 62


@dataclass(frozen=True, slots=True)
class State:
    """How far a migration is.

    Args:
        source: identity of the source.
        target: the filters it goes to.
        expected: URLs that they must have in all, or some were lost.
        position: where in the source to go on.
        read: entries read.
        new: those that were not in a filter before.
        rejected: those that are no fingerprint or URL.
        incomplete: those that were cut off when a crawl was killed.
        run_only: URLs that no filter remembers.
        example: one that was rejected; "" if none was.
        size: entries that the source had when it was begun; 0 if its identity tells of changes.
    """

    source: str
    target: str
    expected: int = 0
    position: str = ""
    read: int = 0
    new: int = 0
    rejected: int = 0
    incomplete: int = 0
    run_only: int = 0
    example: str = ""
    size: int = 0

    @property
    def known(self) -> int:
        """Entries that were in a filter before."""
        return self.read - self.new - self.rejected - self.run_only

    def after(self, batch: Batch, new: int) -> "State":
        """Return the state after a batch was recorded, of which so many items were new."""
        return replace(
            self,
            expected=self.expected + new,
            position=batch.position,
            read=self.read + batch.read,
            new=self.new + new,
            rejected=self.rejected + batch.rejected,
            incomplete=self.incomplete + batch.incomplete,
            run_only=self.run_only + batch.run_only,
            example=self.example or batch.example,
        )

    def dump(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "State":
        """Read it back.

        Raises:
            ValueError: it is none.
        """
        try:
            values = json.loads(text)
            state = cls(**values)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"it is damaged ({error!r:.80})") from None
        for name, kind in cls.__annotations__.items():
            value = getattr(state, name)
            if type(value) is not kind or (kind is int and not 0 <= value <= _MANY):
                raise ValueError(f"it is damaged ({name} is {shown(value, 40)})")
        if not POSITION.fullmatch(state.position):
            raise ValueError(f"it is damaged (position is {shown(state.position, 40)})")
        return state


def resume(stored: State | None, fresh: State) -> tuple[State, str]:
    """Return where to start, and why at the beginning if there is something stored.

    Args:
        stored: what an earlier call has left.
        fresh: the state of one that starts now; ``expected`` is what the filters have, ``size``
            what the source has.
    """
    if stored is None or not fresh.source:
        return fresh, ""
    if stored.source != fresh.source:
        return fresh, "the source has changed since, or its server was started anew"
    if stored.size > fresh.size:
        return fresh, "the source has lost entries since"
    if stored.target != fresh.target or stored.expected > fresh.expected:
        return fresh, "the filter has lost URLs since (cleared, rotated, or restored)"
    return stored, ""


class StateFile:
    """Keeps the state of a migration.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> State | None:
        """Return what is stored; None if there is nothing that can be used."""
        try:
            with self._path.open(encoding="utf-8") as file:
                return State.parse(file.read(_MAX_STATE))
        except (OSError, ValueError):
            return None

    def save(self, state: State) -> None:
        """Store a state, in the place of the one before.

        Raises:
            OSError: that is not possible.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A process that is killed leaves the old state or the new one.
        new = self._path.with_suffix(f".{os.getpid()}")
        # An entry that was rejected is the user's, and nobody else's.
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(state.dump())
        new.replace(self._path)

    def delete(self) -> None:
        """Forget it, and what processes that were killed have left of states."""
        with suppress(OSError):  # what could not be stored is not there
            for path in self._path.parent.glob(f"{self._path.stem}.*"):
                path.unlink()


class Pace:
    """Holds back what would be too fast.

    Args:
        rate: entries per second at most; None for no limit.
        clock: tells the time in seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        rate: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free = 0.0

    @property
    def batch(self) -> int:
        """Entries to read at once, so that it does not wait for longer than a second."""
        return BATCH if self._rate is None else max(1, min(BATCH, self._rate))

    def spend(self, entries: int) -> None:
        """Wait for as long as entries take."""
        if self._rate is None:
            return
        now = self._clock()
        self._free = max(self._free, now) + entries / self._rate
        self._sleep(self._free - now)
