"""What a migration reads: batches of entries, each with the position where the next begins."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from scrapy_bloom.fingerprinter import bounded

#: Entries of a batch, about: SSCAN holds a server for about a millisecond then.
BATCH = 1_024
#: The position of a source that was read to its end; the beginning is "".
END = "end"
#: Any source's positions.
POSITION = re.compile(rf"(?:(?:text |binary )?[0-9]{{1,20}}|{END}|)")


@dataclass(slots=True)
class Batch:
    """Entries that were read together.

    Args:
        position: where the next batch begins; END after the last one.
        items: what is to be recorded, by window.
        read: entries read, those below included.
        rejected: those that are no fingerprint or URL.
        incomplete: those that were cut off when a crawl was killed.
        run_only: URLs of the window "run", which no filter remembers.
        example: one that was rejected; "" if none was.
    """

    position: str = END
    items: dict[str, list[bytes]] = field(default_factory=dict)
    read: int = 0
    rejected: int = 0
    incomplete: int = 0
    run_only: int = 0
    example: str = ""

    def take(self, window: str, item: bytes) -> None:
        """Add an item."""
        self.items.setdefault(window, []).append(bounded(item))
        self.read += 1

    def reject(self, example: str) -> None:
        """Add an entry that is not what it should be, and say which."""
        self.read += 1
        self.rejected += 1
        self.example = self.example or example


class Source(Protocol):
    """What was seen.

    Attributes:
        name: what it is and where, without credentials.
        readable_again: whether it can be read more than once.
    """

    name: str
    readable_again: bool

    def identity(self) -> str:
        """Return what changes when positions in it lose their meaning; "" if they have none."""

    def total(self) -> int | None:
        """Return how many entries it has, about; None if that is not known."""

    def size(self) -> int:
        """Return how many entries it has at least; 0 where its identity tells of all changes."""

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:
        """Read it from a position on, in batches of about that size."""
