"""Prints and writes what the runs have shown."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.upstream.outcomes import Comparison
from tools.upstream.projects import Suite

#: Not narrower than the table, whatever the terminal says.
console = Console(width=max(100, Console().width))
#: Characters of a failure's text in the list of differences, from its end.
TEXT = 4000


def show(comparisons: Mapping[Suite, Comparison]) -> None:
    """Print a table with a row a suite, and the differences."""
    table = Table(title="With BloomDupeFilter as the default dupefilter")
    for column in ("suite", "BLOOM_REMEMBER"):
        table.add_column(column)
    for column in ("filters", "passed", "in neither run", "known differences", "unknown"):
        table.add_column(column, justify="right")
    for suite, found in comparisons.items():
        known = sum(map(len, found.explained.values()))
        counts = (found.filters, found.passed, found.neither, known, len(found.unknown))
        table.add_row(suite.name, suite.remember, *map(str, counts))
    console.print(table)
    for suite, found in comparisons.items():
        console.print(f"\n{suite.name}, {suite.remember}:", style="bold")
        for line in lines(found):
            console.print(line, markup=False, highlight=False)


def lines(found: Comparison) -> list[str]:
    """Return a line for each reason of a difference, and each difference without one."""
    return [
        *(["NO FILTER WAS MADE: that tests pass says nothing"] if not found.filters else []),
        *(f"known, {len(tests)} tests: {e.why}" for e, tests in found.explained.items()),
        *(f"UNKNOWN, {outcome.outcome}: {test}" for test, outcome in found.unknown.items()),
        *(f"NO LONGER OCCURS: {' '.join(entry.tests)}" for entry in found.gone),
        *(f"unstable (failed, and passed when repeated): {test}" for test in found.unstable),
    ]


def write(found: Comparison, path: Path) -> None:
    """Write the differences, with the ends of the failures' texts."""
    parts = lines(found)
    for tests in (found.unknown, *found.explained.values()):
        for test, outcome in tests.items():
            parts += ["", f"== {test}: {outcome.outcome}", outcome.why[-TEXT:]]
    path.write_text("\n".join(parts) + "\n")
