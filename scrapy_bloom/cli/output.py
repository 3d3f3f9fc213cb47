"""Shows rows as a table or as JSON, and errors in one line, so that all commands look alike."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from time import monotonic
from typing import Any

try:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError:  # pip install "scrapy-bloom[cli]"
    Console = None  # type: ignore[assignment, misc]

#: A line of a table, and an object of ``--json``: heading -> value.
Row = Mapping[str, Any]
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
#: The last second that a date can show.
MAX_TIME = 253_402_300_799
#: Columns of a narrow terminal, and characters of a word that is kept whole in a table.
NARROW, MAX_WORD = 80, 12
#: Error rates that are told apart.
MIN_RATE = 1e-9
#: Seconds between two looks at a progress bar.
SHOW_SECONDS = 0.2
_USER = re.compile(r"//[^/?#\s]*@")


def report(opts: argparse.Namespace, head: Row, rows: Sequence[Row], summary: str) -> None:
    """Print JSON, or a table and a summary below it."""
    if opts.json:
        print(json.dumps({**head, "rows": rows}, indent=2))
        return
    # What says nothing is left out: an empty column, and the name of the only filter.
    names = [name for name in (rows[0] if rows else ()) if any(_cell(row, name) for row in rows)]
    names = [name for name in names if name != "filter" or len({row[name] for row in rows}) > 1]
    lines = [[_cell(row, name) for name in names] for row in rows]
    is_text = [any(isinstance(row[name], str) for row in rows) for name in names]
    headings = [name.replace("_", " ") for name in names]
    if Console is not None and sys.stdout.isatty():
        console = Console()
        gap = 2 if console.width >= NARROW else 1
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        texts = [" ".join(cells) for cells in zip(headings, *lines, strict=True)]
        widths = [min(MAX_WORD, max(map(len, text.split()))) for text in texts]
        has_room = sum(widths) + gap * (len(widths) - 1) <= console.width
        for heading, is_left, width in zip(headings, is_text, widths, strict=True):
            justify: Any = "left" if is_left else "right"
            least = width if has_room else None
            table.add_column(heading, justify=justify, overflow="fold", min_width=least)
        for line in lines:
            table.add_row(*map(Text, line))
        console.print(table)
    elif rows:  # one line per row, for other programs
        widths = [max(map(len, cells)) for cells in zip(headings, *lines, strict=True)]
        for line in (headings, *lines):
            cells = zip(line, widths, is_text, strict=True)
            print("  ".join(f"{one:{'<' if left else '>'}{n}}" for one, n, left in cells).rstrip())
    print("\n".join(map(printable, summary.splitlines())))


def _cell(row: Row, name: str) -> str:
    value = row[name]
    if value is None or isinstance(value, str):
        return printable(value or "")
    return _FORMATS.get(name, "{:,}".format)(value)


@contextmanager
def progress(what: str, total: int = 0) -> Iterator[Callable[[int], None]]:
    """Show at a terminal how far long work is; yields what is told how much is done."""
    last = start = monotonic()

    def show(done: int) -> None:
        nonlocal last
        if sys.stderr.isatty() and monotonic() - last > SHOW_SECONDS:
            last = monotonic()
            share = min(1.0, done / total) if total else 0
            bar = f"[{'#' * int(16 * share):16}] {share:4.0%}  " if total else ""
            more = f" of {total:,}" if total else ""
            print(f"\r{bar}{done:,}{more} {what}\x1b[K", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if last > start:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """Print one line to the standard error."""
    print(f"scrapy bloom: {printable(' '.join(text.split()))}", file=sys.stderr)


def printable(text: str) -> str:
    """Return a text with escapes for control characters, which a terminal would obey."""
    return text if text.isprintable() else ascii(text)[1:-1]


def without_credentials(url: str) -> str:
    """Return a URL without its user and password."""
    return _USER.sub("//***@", url)


def quoted(value: object) -> str:
    """Return an argument as an error shows it."""
    text = without_credentials(str(value))
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def minute(time: int) -> str | None:
    """Return a Unix time in UTC, such as 2026-11-28 01:02; None for 0."""
    known = min(time, MAX_TIME)  # a later one is damaged
    return f"{datetime.fromtimestamp(known, UTC):%Y-%m-%d %H:%M}" if time else None


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, such as "1 URL" or "2,000 URLs"."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def size(count: int) -> str:
    """Return a number of bytes with its unit."""
    power = min(4, max(0, count.bit_length() - 1) // 10)
    return f"{count / 1024**power:,.{min(power, 1)}f} {UNITS[power]}"


def rate(share: float) -> str:
    """Return an error rate, such as 1.2e-5."""
    small = f"<{MIN_RATE:g}" if 0 < share < MIN_RATE else f"{share:.2g}"
    return small.replace("e-0", "e-")


#: Numbers that tables show in another form than JSON.
_FORMATS: dict[str, Callable[[Any], str]] = {
    "memory": size,
    "fill": "{:.1%}".format,
    "bits_per_url": "{:.1f}".format,
    **dict.fromkeys(("error_rate", "measured"), rate),
}
