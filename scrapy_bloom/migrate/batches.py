"""What a migration reads: items in batches, and how many entries they were made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Entries of a batch, about: one SSCAN call of that size takes the server about a millisecond.
BATCH = 1_024
#: Items by the window that they are recorded for.
Items = Mapping[str, Sequence[bytes]]


@dataclass(slots=True)
class Counts:
    """How many entries were read.

    Args:
        read: all entries, including those below.
        skipped: those that are no fingerprint or URL.
        run_only: URLs of the window "run", which no filter remembers.
        example: the first that was skipped; "" if none was.
    """

    read: int = 0
    skipped: int = 0
    run_only: int = 0
    example: str = ""

    def skip(self, example: str) -> None:
        """Count a malformed entry."""
        self.skipped += 1
        self.example = self.example or example


class Source(Protocol):
    """A source of entries.

    Attributes:
        name: what it is and where, without credentials.
        total: about how many entries it has.
    """

    name: str
    total: int

    def batches(self, size: int, counts: Counts) -> Iterator[Items]:
        """Read all entries from the start, in batches of about ``size``, and count them.

        Raises:
            StorageError: not all entries could be read.
        """
