"""The page that the benchmarks are written to, made of what each of them has found.

What a benchmark finds is kept in a file of its own. So the page can be made of several runs, and
one that fails takes nothing from the others.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import Outcome, Table, command, machine, packages

INTRODUCTION = """\
scrapy-bloom beside Scrapy's own dupefilter and the ones for Redis that people use: in whole crawls,
with the server near and far; then what an addition costs, part by part; what size, growth and
rotation cost. All on real servers. `make bench` makes this
page anew, `make bench-full` too, with the largest filters and the slowest peers."""
COLUMNS = ("", "minutes", "command")


@dataclass(frozen=True)
class Kept:
    """What one benchmark has found, as it is on the page.

    Args:
        name: of the benchmark.
        facts: machine and packages; what was found with others does not belong on the same page.
        command: what was run.
        minutes: how long that took.
        headline: what the page begins with; "" if this has nothing for it.
        verdict: how it compares with its targets; "" if there are none.
        sections: tables, charts and text.
    """

    name: str
    facts: str
    command: str
    minutes: float
    headline: str
    verdict: str
    sections: str

    @classmethod
    def of(cls, name: str, outcome: Outcome, minutes: float) -> "Kept":
        """Put what was found into markdown."""
        parts = [*(table.to_markdown() for table in outcome.tables)]
        chart = f"![{outcome.tables[0].title}]({outcome.plot.name})" if outcome.plot else ""
        headline = "\n\n".join(filter(None, (outcome.headline, chart))) if outcome.headline else ""
        parts += [chart] * (not headline) + [outcome.text]
        sections = "\n\n".join(filter(None, parts))
        return cls(name, facts(), command(), minutes, headline, outcome.verdict, sections)


class Results:
    """What was found so far: a file for each benchmark.

    Args:
        directory: where they are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def forget(self, name: str) -> None:
        """Forget what a benchmark has found."""
        self._file(name).unlink(missing_ok=True)

    def keep(self, kept: Kept) -> None:
        """Keep what a benchmark has found."""
        self._file(kept.name).write_text(json.dumps(asdict(kept)), encoding="utf-8")

    def of(self, names: Iterable[str]) -> list[Kept]:
        """Return what was found by those, on this machine and with these packages."""
        files = [file for file in map(self._file, names) if file.exists()]
        found = [Kept(**json.loads(file.read_text("utf-8"))) for file in files]
        return [kept for kept in found if kept.facts == facts()]

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def facts() -> str:
    """Return what the numbers depend on."""
    return f"- Machine: {machine()}\n- Packages: {packages()}"


def page(results: Sequence[Kept]) -> str:
    """Return the markdown page."""
    targets = [f"- {kept.verdict}" for kept in results if kept.verdict]
    made = Table("How this page was made", COLUMNS)
    for kept in results:
        made.add(kept.name, f"{kept.minutes:.1f}", f"`{kept.command}`")
    sections = [
        "# Performance",
        *(kept.headline for kept in results if kept.headline),
        INTRODUCTION,
        facts(),
        "\n".join(["Targets:", "", *targets]),
        *(kept.sections for kept in results),
        made.to_markdown(),
    ]
    return "\n\n".join(sections) + "\n"
