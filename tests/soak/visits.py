"""When pages were crawled, in a file that the crawlers share: a line for each visit."""

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path


class Visits:
    """Adds visits to the file. A line is one write, so that a kill -9 leaves no half of one."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def crawled(self, page: int) -> None:
        """Note that a page was crawled."""
        self._file.write(f"{page} {time.time()}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_visits(path: Path, pages: int) -> list[list[float]]:
    """Return the times at which each page was crawled."""
    visits: list[list[float]] = [[] for _ in range(pages)]
    with path.open() as file:
        for line in file:
            page, moment = line.split()
            visits[int(page)].append(float(moment))
    return visits


def gaps(visits: Iterable[Sequence[float]], began: float, ended: float) -> list[float]:
    """Return the longest time that each page was not crawled, from a moment to another one."""
    whole = ([began, *moments, ended] for moments in visits)
    return [max(after - before for before, after in pairwise(sorted(one))) for one in whole]
