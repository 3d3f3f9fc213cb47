"""Mistakes that a maintainer could make. The table is the text file beside this module."""

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

PACKAGE = ROOT / "scrapy_bloom"


class Mutant(NamedTuple):
    """A mistake.

    Args:
        what: describes it.
        file: in the package.
        finder: finds it: a kind of simulated runs, or a test.
        is_slow: whether the finder takes more than 10 seconds.
        old: text that occurs once in the file, whatever its white space.
        new: takes its place; all but its first line are indented like the line with the old one.
    """

    what: str
    file: str
    finder: str
    is_slow: bool
    old: str
    new: str


def read(entry: str) -> Mutant:
    """Read an entry of the table."""
    what, file, found_by, *lines = entry.strip().splitlines()
    finder, _, mark = found_by.partition(" ")
    old, new = ("\n".join(one[2:] for one in lines if one[0] == sign) for sign in "-+")
    if not old or not new or mark not in ("", "slow"):
        raise ValueError(f"this entry of the table has another form than the others: {entry}")
    return Mutant(what, file, finder, bool(mark), old, new)


_, *ENTRIES = Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n\n")
MUTANTS = [*map(read, ENTRIES)]


def of_day(day: date, count: int, mutants: Sequence[Mutant] = MUTANTS) -> list[Mutant]:
    """Return so many mutants from all parts of the package, others than on the days before.

    Those with slow finders are left out. All others come up within ``len(mutants) / count`` days.
    """
    fast = [mutant for mutant in mutants if not mutant.is_slow]
    days = -(-len(fast) // count)
    return fast[day.toordinal() % days :: days]


def mutated(mutant: Mutant) -> str:
    """Return the text of a mutant's file, with the mistake.

    Raises:
        ValueError: the text is not there, or more than once.
    """
    text = (PACKAGE / mutant.file).read_text("utf-8")
    found = [*re.finditer(r"\s+".join(map(re.escape, mutant.old.split())), text)]
    if len(found) != 1:
        raise ValueError(f"{mutant.file} has this {len(found)} times: {mutant.old}")
    start, end = found[0].span()
    line = text[text.rindex("\n", 0, start) + 1 : start]
    indent = line[: len(line) - len(line.lstrip())]
    return text[:start] + mutant.new.replace("\n", f"\n{indent}") + text[end:]
