"""When each page was crawled last, in a file that the crawlers share."""

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass
class Visits:
    """Times of pages.

    Attributes:
        last: Unix time at which a page was crawled last; before that, when the run began.
        longest: the longest time between two of its crawls so far, in seconds.
        count: how often it was crawled.
    """

    last: "memoryview[float]"
    longest: "memoryview[float]"
    count: "memoryview[float]"
    COLUMNS: ClassVar[int] = 3

    @staticmethod
    def create(path: Path, pages: int) -> None:
        """Make the file."""
        path.write_bytes(bytes(8 * Visits.COLUMNS * pages))
        with Visits.open(path) as visits:
            for page in range(pages):
                visits.last[page] = time.time()

    @staticmethod
    @contextmanager
    def open(path: Path) -> "Iterator[Visits]":
        """Map the file into memory."""
        with (
            path.open("r+b") as file,
            mmap.mmap(file.fileno(), 0) as mapped,
            memoryview(mapped) as view,
            view.cast("d") as all_columns,
        ):
            pages = len(all_columns) // Visits.COLUMNS
            parts = [
                all_columns[pages * column : pages * (column + 1)]
                for column in range(Visits.COLUMNS)
            ]
            try:
                yield Visits(*parts)
            finally:
                for part in parts:
                    part.release()

    def crawled(self, page: int) -> None:
        """Note that a page was crawled."""
        now = time.time()
        self.longest[page] = max(self.longest[page], now - self.last[page])
        self.last[page] = now
        self.count[page] += 1

    def gaps(self, now: float) -> list[float]:
        """Return the longest time that each page was not crawled, up to a moment."""
        return [
            max(longest, now - last) for longest, last in zip(self.longest, self.last, strict=True)
        ]
