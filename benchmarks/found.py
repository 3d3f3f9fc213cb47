"""What a benchmark has found, and arithmetic that all of them use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Found:
    """What a benchmark has found.

    Args:
        rows: of the page's table: a quantity, scrapy-bloom's value, and those of others.
        text: sentences for the page.
        chart: numbers for the chart; JSON.
    """

    rows: Sequence[Sequence[str]]
    text: str = ""
    chart: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """How much a benchmark measures.

    Args:
        rounds: times that the contestants take turns.
        part: the share of the usual number of pages, items or seconds.
    """

    rounds: int = 5
    part: float = 1.0

    def of(self, usual: int) -> int:
        """Return the share of a usual number."""
        return max(1, round(usual * self.part))


def ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of pairs from the same turns."""
    return median(a / b for a, b in zip(ours, others, strict=False))


def counted(number: float) -> str:
    """Return a number with at least three digits that count."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def megabytes(used: float) -> str:
    """Return bytes in megabytes, with at least two digits that count."""
    return f"{used / 1e6:.0f}" if used >= 1e7 else f"{used / 1e6:.1f}"
