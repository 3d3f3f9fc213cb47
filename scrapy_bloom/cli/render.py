"""How subcommands show things: tables, names with values, lines, times and sizes, progress."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from scrapy_bloom.bloom.model.forecast import Load
from scrapy_bloom.bloom.model.schedule import MAX_TIME
from scrapy_bloom.bloom.protocol.info import FilterInfo, ItemInfo
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.summary import day

try:
    import rich.console
    import rich.progress
except ImportError:  # pip install "scrapy-bloom[cli]"
    rich = None  # type: ignore[assignment]

#: Characters of a time, and of one "or later".
TIME, _SINCE = len("2027-01-31 12:34:56"), len("2027-01-31 12:34:56 or later")
#: Characters of a line of prose.
WIDTH = 100

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table, and a member of its rows in JSON.

    Args:
        heading: stands above it; "" if the table does not show it.
        text: returns what the table shows for a row.
        name: of the member; "" if JSON does not have it.
        value: returns the member.
        is_left: whether it is aligned to the left, as the last column is that may be long.
    """

    heading: str
    text: Callable[[Row], str] = str
    name: str = ""
    value: Callable[[Row], object] = str
    is_left: bool = False


def table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    """Return rows as text."""
    shown = [column for column in columns if column.heading]
    lines = [[column.heading for column in shown]]
    lines += [[column.text(row) for column in shown] for row in rows]
    widths = [
        0 if column.is_left else max(map(len, cells))
        for column, cells in zip(shown, zip(*lines, strict=True), strict=True)
    ]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def documents(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return rows for JSON."""
    named = [column for column in columns if column.name]
    return [{column.name: column.value(row) for column in named} for row in rows]


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


def item_line(item: str, info: ItemInfo) -> str:
    """Return a line about an item, which comes last because it may be long."""
    verdict, since, until = "new", "", ""
    if info.seen:
        verdict, since = "seen", f"{minute(info.recorded_after)} or later"
        until = minute(info.until) or ("never" if info.window is None else "in a later run")
    return f"{verdict:7}  {since:{_SINCE}}  {until:{TIME}}  {item}"


def claim_line(state: str, item: str, *, since: int = 0, due: int = 0) -> str:
    """Return a line about an item that is claimed, or has failed and is due again some time."""
    return f"{state:7}  {minute(since):{_SINCE}}  {minute(due):{TIME}}  {item}"


#: The columns of ``item_line`` and ``claim_line``.
ITEM_HEADING = f"{'':7}  {'since (UTC)':{_SINCE}}  new again, or next try (UTC)"


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


def discards(numbers: Load | FilterInfo, when: str) -> str:
    """Return what discards do to other URLs, as text."""
    hit = expected(numbers.lost_by_discard)
    return (
        "one of an absent URL hits others at the error rate, and makes "
        f"{hit} of them new again (false negatives, expected {when}); "
        f"{expected(numbers.saturated)} counters are saturated for good"
    )


def two_digits(rate: float) -> str:
    """Return a rate as text."""
    return f"{rate:.2g}"


def expected(count: float | None) -> str:
    """Return an expected number of pages."""
    return "0" if not count else f"{count:,.0f}" if count >= 100 else f"{count:.2g}"
