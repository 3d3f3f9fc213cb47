"""What a migration reads: batches of entries, how many of them, and how fast."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from scrapy_bloom.fingerprinter import bounded

#: Entries of a batch, about: SSCAN holds a server for about a millisecond then.
BATCH = 1_024


@dataclass(slots=True)
class MemberCounts:
    """How many entries there were.

    Args:
        read: all entries, those below included.
        skipped: those that are no fingerprint or URL.
        run_only: URLs of the window "run", which no filter remembers.
        example: the first that was skipped; "" if none was.
    """

    read: int = 0
    skipped: int = 0
    run_only: int = 0
    example: str = ""

    def add(self, other: "MemberCounts") -> None:
        """Add the counts of a batch."""
        self.read += other.read
        self.skipped += other.skipped
        self.run_only += other.run_only
        self.example = self.example or other.example


@dataclass(slots=True)
class MemberBatch(MemberCounts):
    """Entries that were read together.

    Args:
        items: what is to be recorded, by window.
    """

    items: dict[str, list[bytes]] = field(default_factory=dict)

    def take(self, window: str, item: bytes) -> None:
        """Add an item."""
        self.items.setdefault(window, []).append(bounded(item))
        self.read += 1

    def skip(self, example: str) -> None:
        """Count a malformed entry, with an example."""
        self.read += 1
        self.skipped += 1
        self.example = self.example or example


class Source(Protocol):
    """A source of recorded entries.

    Attributes:
        name: what it is and where, without credentials.
    """

    name: str

    def total(self) -> int:
        """Return how many entries it has, about."""

    def batches(self, size: int = BATCH) -> Iterator[MemberBatch]:
        """Read it from its beginning, in batches of about that size."""

    def problem(self, read: int) -> str:
        """Return why these entries, read to its end, may not be all of it; "" if they are."""


class Pace:
    """Limits the rate of entries.

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
