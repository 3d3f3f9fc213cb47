"""Shows rows as a table or as JSON, and errors in one line, so that all commands look alike."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from time import monotonic
from typing import Any

from scrapy_bloom.bloom.client.address import without_credentials
from scrapy_bloom.settings import in_settings

#: A line of a table, and an object of ``--json``: heading -> value.
Row = Mapping[str, Any]
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
#: The last second that a date can show.
MAX_TIME = 253_402_300_799
#: What is between two columns.
GAP = "  "
#: Characters of a word that a terminal shows whole if it can.
MAX_WORD = 16
#: Error rates that are told apart.
MIN_RATE = 1e-9
#: Seconds between two changes of what is shown of long work.
SHOW_SECONDS = 0.2


def report(opts: argparse.Namespace, head: Row, rows: Sequence[Row], summary: str) -> None:
    """Print JSON, or a table and a summary below it."""
    if opts.json:
        print(json.dumps({**head, "rows": rows}, indent=2))
        return
    # What says nothing is left out: an empty column, and the name of the only filter.
    names = [name for name in (rows[0] if rows else ()) if any(cell(row, name) for row in rows)]
    names = [name for name in names if name != "filter" or len({row[name] for row in rows}) > 1]
    lines = [[name.replace("_", " ") for name in names]]
    lines += [[cell(row, name) for name in names] for row in rows]
    aligns = ["<" if any(isinstance(row[name], str) for row in rows) else ">" for name in names]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if names and sys.stdout.isatty():  # other programs read one line per row
        room = get_terminal_size().columns - len(GAP) * (len(names) - 1)
        words = [" ".join(cells).split() for cells in zip(*lines, strict=True)]
        least = [min(MAX_WORD, max(map(len, own))) for own in words]
        while sum(widths) > room and min(widths) > 1:
            widths[max(range(len(names)), key=lambda place: widths[place] - least[place])] -= 1
    for line in lines if names else ():
        folded = [_folded(*one) for one in zip(line, widths, strict=True)]
        for texts in zip_longest(*folded, fillvalue=""):
            cells = zip(texts, aligns, widths, strict=True)
            print(GAP.join(f"{text:{align}{width}}" for text, align, width in cells).rstrip())
    print("\n".join(map(printable, summary.splitlines())))


def cell(row: Row, name: str) -> str:
    """Return a value of a row as tables show it."""
    value = row[name]
    if value is None or isinstance(value, str):
        return printable(value or "")
    return _FORMATS.get(name, "{:,}".format)(value)


def _folded(text: str, width: int) -> list[str]:
    return [text] if len(text) <= width else wrap(text, width, break_on_hyphens=False)


@contextmanager
def progress(what: str, total: int = 0) -> Iterator[Callable[[int], None]]:
    """Show at a terminal how far long work is; yields what is told how much is done."""
    last, is_shown = monotonic(), sys.stderr.isatty()

    def show(done: int) -> None:
        nonlocal last
        if is_shown and monotonic() - last > SHOW_SECONDS:
            last = monotonic()
            share = f" of {total:,} ({min(1.0, done / total):.0%})" if total else ""
            print(f"\r{done:,}{share} {what}\x1b[K", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """Print one line to the standard error, with the names of settings."""
    print(f"scrapy bloom: {printable(' '.join(in_settings(text).split()))}", file=sys.stderr)


def printable(text: str) -> str:
    """Return a text with escapes for control characters, which a terminal would obey."""
    return text if text.isprintable() else ascii(text)[1:-1]


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
    "error_rate": rate,
}
