"""Simulated runs that have failed: their kinds and seeds, a line each in ``failing.txt``."""

from collections.abc import Iterable
from datetime import date
from pathlib import Path

#: The tests simulate all runs in it, so that what was mended stays so.
FAILING = Path(__file__).with_name("failing.txt")
#: Seeds of a day.
SEEDS_A_DAY = 10_000


def first_seed(today: date) -> int:
    """Return the first seed of a day: ``2026-11-23`` has 202611230000."""
    return int(f"{today:%Y%m%d}") * SEEDS_A_DAY


def read(path: Path = FAILING) -> list[tuple[str, int]]:
    """Return the kinds and seeds of a file, in which ``#`` begins a comment."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [(kind, int(seed)) for kind, seed in filter(None, lines)]


def note(kind: str, seed: int, violations: Iterable[str], path: Path = FAILING) -> None:
    """Append a run that fails to a file, with the first of what does not hold."""
    if (kind, seed) in read(path):
        return
    why = next(iter(violations), "")
    with path.open("a") as file:
        file.write(f"{kind} {seed}  # {' '.join(why.split())[:80]}\n")
