"""How commands show things: tables, JSON, times, sizes and errors."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

try:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError:  # pip install "scrapy-bloom[cli]"
    Console = None  # type: ignore[assignment, misc]

#: What a table shows a line of, and ``--json`` an object.
Row = Mapping[str, Any]
#: Characters of an argument that an error shows.
MAX_SHOWN = 80
_USER = re.compile(r"//[^/?#\s]*@")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        heading: stands above it.
        text: returns what it shows of a row.
        is_right: whether it's aligned to the right.
    """

    heading: str
    text: Callable[[Row], str]
    is_right: bool = False


def show_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print a table: as wide as the terminal, or one line per row for other programs."""
    if not rows:
        return
    lines = [[printable(column.text(row)) for column in columns] for row in rows]
    if Console is not None and sys.stdout.isatty():
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            justify = "right" if column.is_right else "left"
            table.add_column(column.heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for line in lines:
            table.add_row(*map(Text, line))
        Console().print(table)
        return
    headings = [column.heading for column in columns]
    widths = [max(map(len, cells)) for cells in zip(headings, *lines, strict=True)]
    for line in (headings, *lines):
        cells = (
            cell.rjust(width) if column.is_right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        print("  ".join(cells).rstrip())


def show_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document."""
    print(json.dumps(document, indent=2))


def complain(text: str) -> None:
    """Print one line to the standard error."""
    print(f"scrapy bloom: {printable(' '.join(text.split()))}", file=sys.stderr)


def silence() -> None:
    """Drop what is still printed, because the reader of a pipe has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- values as text --


def printable(text: str) -> str:
    """Return a text with escapes for control characters, which a terminal would obey."""
    return text if text.isprintable() else ascii(text)[1:-1]


def without_credentials(url: str) -> str:
    """Return a URL with its user and password hidden."""
    return _USER.sub("//***@", url)


def quoted(value: str) -> str:
    """Return an argument as an error shows it."""
    text = without_credentials(value)
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def minute(time: int | None) -> str:
    """Return a Unix time in UTC, such as 2026-11-28 01:02; "" for none."""
    if not time:
        return ""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "?"  # damaged


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits, such as 46.6 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as "1 URL" or "2,000 URLs"."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Iterable[str]) -> str:
    """Return names for a sentence; "none" if there are none."""
    return ", ".join(sorted(names)) or "none"
