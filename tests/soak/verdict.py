"""Whether what was measured has grown: a straight line through the samples after the warm-up."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from soak.stand import WARM_UP, End, Options


@dataclass(frozen=True)
class Measure:
    """What must not grow.

    Two bounds, and a measure fails beyond both. The first finds leaks in long runs; the second
    keeps short ones from failing because of noise.

    Args:
        column: of the samples.
        meaning: for the table.
        per_million: growth per million requests at most.
        per_run: growth over the run at most.
    """

    column: str
    meaning: str
    per_million: float
    per_run: float


#: A leak worth finding loses one small object (100 bytes) in twenty requests: 5 MB and 50,000
#: objects per million. A file, thread or task that is lost once in an outage adds up to 10 in an
#: hour. `per_run` is a queue of pages more or less, and what the allocator makes of it.
MEASURES = (
    Measure("rss_mb", "memory of the crawler, MB", 5.0, 15.0),
    Measure("objects", "Python objects of the crawler", 50_000, 100_000),
    Measure("entries", "entries in scrapy-bloom's containers", 5_000, 10_000),
    Measure("files", "open file descriptors", 0.5, 5),
    Measure("threads", "threads", 0.2, 2),
    Measure("tasks", "asyncio tasks", 2, 40),
    Measure("server_mb", "memory of the server, MB", 1.0, 8.0),
    Measure("keys", "keys on the server", 2, 60),
    Measure("claims", "claims on the server", 500, 10_000),
)


@dataclass(frozen=True)
class Growth:
    """How a measure has changed after the warm-up.

    Args:
        measure: the measure.
        first: the line's value at the end of the warm-up.
        last: its value at the end.
        most: the largest sample.
        per_million: its growth per million requests.
    """

    measure: Measure
    first: float
    last: float
    most: float
    per_million: float

    @property
    def has_grown(self) -> bool:
        """Whether it is beyond both bounds."""
        measure = self.measure
        over_run = self.last - self.first
        return self.per_million > measure.per_million and over_run > measure.per_run


def read_samples(path: Path) -> list[dict[str, str]]:
    """Read the samples."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(samples: Sequence[dict[str, str]], name: str) -> tuple[list[float], list[float]]:
    """Return the requests at each sample of a column, and its values; without gaps."""
    pairs = [(float(s["requests"]), float(s[name])) for s in samples if s["requests"] and s[name]]
    return [x for x, _ in pairs], [y for _, y in pairs]


def growth(samples: Sequence[dict[str, str]], measure: Measure) -> Growth:
    """Fit a line through a column, without the warm-up."""
    requests, values = column(samples, measure.column)
    begin = requests[-1] * WARM_UP
    pairs = [pair for pair in zip(requests, values, strict=True) if pair[0] >= begin]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    slope, start = linear_regression(xs, ys)
    return Growth(measure, start + slope * xs[0], start + slope * xs[-1], max(ys), slope * 1e6)


def failures(growths: Sequence[Growth], end: End, options: Options) -> list[str]:
    """Return what is wrong, in words."""
    found = [
        f"{one.measure.meaning}: {one.per_million:+,.1f} per million requests"
        for one in growths
        if one.has_grown
    ]
    if end.exit_codes != [0, 0]:
        found.append(f"crawlers ended with {end.exit_codes}")
    if end.claims:
        found.append(f"{end.claims} claims of crawlers that have ended cleanly")
    if end.lasting_keys:
        found.append(f"{len(end.lasting_keys)} keys never expire, such as {end.lasting_keys[0]}")
    hidden = sum(gap > options.longest_gap for gap in end.gaps)
    if hidden:
        found.append(f"{hidden} pages were not crawled for {options.longest_gap:.0f} seconds")
    return found
