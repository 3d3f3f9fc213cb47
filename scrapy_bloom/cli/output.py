"""How subcommands show things: JSON, tables, names with values, times and sizes, progress.

What is listed is a JSON document a row, and a table is a view of such rows: `Column`.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from scrapy_bloom.bloom.model.schedule import MAX_TIME
from scrapy_bloom.crawl.advice import Finding, day

try:
    import rich.console
    import rich.progress
except ImportError:  # pip install "scrapy-bloom[cli]"
    rich = None  # type: ignore[assignment]

#: Fields that are Unix times: JSON also has each of them as text.
TIMES = frozenset(
    (
        *("opened", "closes", "forgotten", "since", "until", "due", "claimed", "saved", "now"),
        *("first", "last", "recorded_after"),
    )
)
#: Properties that JSON has in addition to the fields.
PROPERTIES = ("fill_ratio", "bits_per_url", "rate", "low", "high")
#: Rows of a table that say how wide its columns are.
MEASURED_ROWS = 256
#: Characters of a line of prose.
WIDTH = 100

Row = TypeVar("Row")
#: What JSON has of a row.
Document = dict[str, Any]


# -- JSON --


def to_json(value: Any) -> Any:
    """Return a dataclass as a JSON object of its fields, times also as ``<field>_utc``."""
    if isinstance(value, tuple):
        return [to_json(member) for member in value]
    if not is_dataclass(value):
        return value
    document = with_dates(
        {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    )
    return document | {name: getattr(value, name) for name in PROPERTIES if hasattr(value, name)}


def with_dates(document: Mapping[str, Any]) -> Document:
    """Return a JSON object with each Unix time also as ``<field>_utc``."""
    found: Document = {}
    for name, value in document.items():
        found[name] = value
        if name in TIMES:
            found[f"{name}_utc"] = iso(value)
    return found


def iso(time: int) -> str | None:
    """Return a Unix time in UTC in the form of ISO 8601; None for 0, and beyond the calendar."""
    if time > MAX_TIME:
        return None  # damaged: anybody may have written it
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}" if time else None


def json_list(head: Mapping[str, Any], name: str, rows: Iterable[Document]) -> Iterator[str]:
    """Yield the lines of a JSON document that ends with a list, which may be very long."""
    yield f"{json.dumps(head)[:-1]}, {json.dumps(name)}: ["
    before = ""
    for row in rows:
        if before:
            yield f"{before},"
        before = f"  {json.dumps(row)}"
    yield from [before] * bool(before)
    yield "]}"


# -- tables --


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table.

    Args:
        heading: stands above it.
        text: returns what the table shows of a row.
        is_left: whether it is aligned to the left.
        field: name of the row's number that it shows, for the HTML page; "" for a text.
    """

    heading: str
    text: Callable[[Row], str] = str
    is_left: bool = False
    field: str = ""


def table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table, none without rows. There may be very many rows."""
    lines = ([column.text(row) for column in columns] for row in rows)
    first = list(islice(lines, MEASURED_ROWS))
    headings = [column.heading for column in columns]
    widths = [max(map(len, cells)) for cells in zip(headings, *first, strict=True)]
    has_heading = bool(first) and any(headings)
    for line in chain([headings] * has_heading, first, lines):
        cells = [
            cell.ljust(width) if column.is_left else cell.rjust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        # What comes last may be long.
        yield "  ".join(cells).rstrip()


# -- text --


def finding(finding: Finding, head: str = "") -> str:
    """Return what is wrong, why it matters and what to do, below each other."""
    return "\n".join(
        (
            wrapped(f"{head}{finding.problem}"),
            wrapped(f"why: {finding.why}", 10),
            wrapped(f"do:  {finding.remedy}", 10),
        )
    )


def wrapped(text: str, indent: int = 0) -> str:
    """Return a text in lines of ``WIDTH``, the first one indented, the others more."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 5 if indent else 10),
        break_long_words=False,
        break_on_hyphens=False,
    )


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], object]]:
    """Show a progress bar on the standard error, if that is a terminal and rich is installed.

    Yields a function that is called with what is done, and what there is in all.
    """
    if rich is None or not sys.stderr.isatty():
        yield lambda *_: None
        return
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def complain(text: str) -> None:
    """Print one line to the standard error."""
    print(f"scrapy bloom: {' '.join(text.split())}", file=sys.stderr)


def printable(text: str) -> str:
    """Return a text with escapes: a terminal would obey control characters in it."""
    return text if text.isprintable() else ascii(text)[1:-1]


def minute(time: int) -> str:
    """Return a Unix time in UTC, with seconds if there are any.

    "" for 0, and "?" beyond the calendar.
    """
    if time > MAX_TIME:
        return "?"  # damaged: anybody may have written it
    return day(time).removesuffix(" UTC") if time else ""


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits: 46.6 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def under(heading: str, facts: Mapping[str, str]) -> str:
    """Return a heading and names with their values, in two columns."""
    width = max(map(len, facts))
    return "\n".join([heading, *(f"  {name:{width}}  {value}" for name, value in facts.items())])


def window_and_period(window: str | None, period: str | None, ring: str) -> str:
    """Return for how long URLs are remembered, as text."""
    return f"{window}, rotated every {period} ({ring})" if window else "never forgets"


def places(counting: bool) -> str:
    """Return what bitmaps hold, as text."""
    return "4-bit counters, 4 times the memory of bits" if counting else "bits"


def two_digits(rate: float) -> str:
    """Return a rate as text."""
    return f"{rate:.2g}"


def expected(count: float | None) -> str:
    """Return an expected number of pages."""
    return "0" if not count else f"{count:,.0f}" if count >= 100 else f"{count:.2g}"
