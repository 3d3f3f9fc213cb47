"""The page that the benchmarks are written to, made of what each of them has found.

What a benchmark finds is kept in its own file. So the page can be made of several runs, and one
that fails takes nothing from the others.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import Outcome, Table, Target, command, machine, packages, wrapped

PAGE = "performance.md"
#: Benchmarks whose charts are on the page.
PICTURES = ("crawl", "size")
INTRODUCTION = "Figures are medians on real servers. `make bench` writes this page."
SUMMARY_COLUMNS = ("", "scrapy-bloom", "beside it", "target")


@dataclass(frozen=True)
class Kept:
    """What one benchmark has found, as it is on the page.

    Args:
        name: of the benchmark.
        facts: machine and packages; what was found with others does not belong on the same page.
        command: what was run.
        headline: sentences that the page begins with; "" if this has none for it.
        targets: how it compares with its targets.
        summary: rows of the page's table.
        chart: its chart; "" without one.
    """

    name: str
    facts: str
    command: str
    headline: str
    targets: Sequence[Target]
    summary: Sequence[Sequence[str]]
    chart: str

    @classmethod
    def of(cls, name: str, outcome: Outcome) -> "Kept":
        """Put what was found into markdown."""
        chart = f"![{outcome.tables[0].title}]({outcome.plot.name})" if outcome.plot else ""
        return cls(
            name,
            facts(),
            command(),
            outcome.headline,
            outcome.targets,
            outcome.summary,
            chart,
        )

    @classmethod
    def load(cls, text: str) -> "Kept":
        """Read what ``dump`` returned."""
        stored = json.loads(text)
        return cls(**{**stored, "targets": [Target(**target) for target in stored["targets"]]})

    def dump(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


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
        self._file(kept.name).write_text(kept.dump(), encoding="utf-8")

    def of(self, names: Iterable[str]) -> list[Kept]:
        """Return what was found by those, on this machine and with these packages."""
        files = [file for file in map(self._file, names) if file.exists()]
        found = [Kept.load(file.read_text("utf-8")) for file in files]
        return [kept for kept in found if kept.facts == facts()]

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def facts() -> str:
    """Return what the numbers depend on."""
    return f"- Machine: {machine()}\n- Packages: {packages()}"


def write(directory: Path, results: Sequence[Kept]) -> None:
    """Write the page."""
    (directory / PAGE).write_text(_page(results), encoding="utf-8")


def _page(results: Sequence[Kept]) -> str:
    """Return the page."""
    summary = Table("", SUMMARY_COLUMNS, [row for kept in results for row in kept.summary])
    commands = sorted({f"`{kept.command}`" for kept in results})
    sentences = [kept.headline for kept in results if kept.headline]
    sections = [
        "# Performance",
        wrapped(" ".join([*sentences, _judged(results)])),
        summary.grid(),
        *(kept.chart for kept in results if kept.name in PICTURES and kept.chart),
        _list([*facts().splitlines(), f"- Command: {', '.join(commands)}"]),
        INTRODUCTION,
    ]
    return "\n\n".join(sections) + "\n"


def _list(entries: Iterable[str]) -> str:
    return "\n".join(map(wrapped, entries))


def _judged(results: Sequence[Kept]) -> str:
    """Say how many targets are met."""
    targets = [target for kept in results for target in kept.targets]
    met = sum(target.is_met for target in targets)
    return f"Of {len(targets)} targets, {met} are met and {len(targets) - met} missed."
