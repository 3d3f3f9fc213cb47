"""The texts of ``scrapy bloom plan``, ``info`` and ``check``, and the progress bar."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from scrapy_bloom.bloom.model.forecast import Forecast, Load, Site
from scrapy_bloom.bloom.model.ledger import CHUNK_ENTRIES
from scrapy_bloom.bloom.model.schedule import MAX_TIME, Schedule, parse_span
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo, ItemInfo
from scrapy_bloom.bloom.protocol.measure import Measurement
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.summary import day

try:
    import rich.console
    import rich.progress
except ImportError:  # pip install "scrapy-bloom[cli]"
    rich = None  # type: ignore[assignment]

#: Bytes that the ledger takes for a page, and for one whose request is not packed yet, about:
#: measured in decision 050.
LEDGER_BYTES, ENTRY_BYTES = 30, 300
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


def plan(forecast: Forecast) -> str:
    """Return what a filter will take, as text."""
    f = forecast
    facts = {
        "window": _window(f.window, f.period, f.ring),
        "a page is crawled again": f.recrawl,
        "generations": f"{f.generations}",
        "URLs in all": _in_all(f),
        "hash functions (k)": f"{f.num_hashes}",
        "blocks": f"{f.blocks:,}",
        "a bitmap": f"{size(f.opened_memory / f.blocks)} ({f.num_bits:,} {_places(f.counting)})",
        "a generation": size(f.opened_memory),
        "all generations": f"{size(f.loads[0].memory)} at capacity",
        "a ledger": _ledger(f),
        "limit": "none" if f.max_memory is None else size(f.max_memory),
        "bits per URL": f"{f.loads[0].bits_per_url:.1f} at capacity",
        "new pages missed": f"{_count(f.missed_at_most)} in a window at most",
    }
    if f.counting:
        facts["discards"] = _discards(f.loads[0], "at capacity")
    heading = f"A filter for {f.capacity:,} URLs a generation at an error rate of {f.error_rate:g}"
    return "\n".join((_facts(heading, facts), "", table(LOADS, f.loads)))


def info(name: str, address: str, info: FilterInfo, measured: Measurement | None) -> str:
    """Return what a filter is and holds, as text."""
    rate, room = f"{_rate(info.estimated_error_rate)} now", _room(info)
    if info.has_configured_sizes:
        rate += f", {_rate(info.error_rate)} at most asked for"
    growth = f"by {info.growth:g} times the last layer" if info.growth else "no"
    counters = f" of {_places(info.counting)}" if info.counting else ""
    facts = {
        "window": _window(info.window, info.period, info.ring),
        "URLs": f"{info.count:,} ({room})",
        "error rate": f"{rate}, {_rate(info.error_bound)} when all layers are full",
        "memory": f"{size(info.memory)} in {plural(info.blocks, 'block')}{counters}",
        "bits per URL": f"{info.bits_per_url:.1f}, {plural(info.num_hashes, 'hash function')}",
        "grows": growth + ("" if info.max_memory is None else f" up to {size(info.max_memory)}"),
        "pending": "none",
    }
    if not info.has_configured_sizes:
        facts["new sizes"] = _new_sizes(info)
    if info.claims:
        claims = f"{plural(info.claims, 'URL')} claimed, not settled yet"
        facts["pending"] = f"{claims} (scrapy bloom pending lists them)"
    if measured is not None:
        facts["measured"] = _measured(measured)
    if info.counting:
        facts["discards"] = _discards(info, "now")
    if info.lost_blocks:
        facts["lost blocks"] = f"{info.lost_blocks} (evicted or deleted)"
    heading = f"{info.key} on {address} (window {name!r})"
    return "\n".join((_facts(heading, facts), "", table(_generations(info), info.generations)))


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


def _facts(heading: str, facts: Mapping[str, str]) -> str:
    """Return a heading and names with their values, in two columns."""
    width = max(map(len, facts))
    return "\n".join([heading, *(f"  {name:{width}}  {value}" for name, value in facts.items())])


def site(site: Site, forecast: Forecast) -> str:
    """Return what a filter for a site takes, as text."""
    new = site.in_all - site.urls
    span = f"in {forecast.window}" if forecast.window else "in a year"
    grown = "which grows to" if site.at_once > site.capacity else "which has room for them:"
    room = "" if site.has_room else " (more than it may take: it forgets early, or records less)"
    facts = {
        "URLs in all": f"{site.in_all:,}"
        + (f": {site.urls:,} now, and {new:,} new ones {span}" if new else ""),
        "set": f"BLOOM_CAPACITY = {site.capacity:_} (URLs a generation)",
        "memory": f"{size(forecast.loads[0].memory)} with URLs spread evenly over the window",
        "a first crawl": f"{site.at_once:,} URLs in one generation, {grown} "
        f"{size(site.generation_memory)}; {size(site.memory)} in all{room}",
        "error rate": f"{_rate(forecast.error_rate)} at most, in both cases",
    }
    return _facts("For this site", facts)


def _ledger(f: Forecast) -> str:
    """Return what BLOOM_LEDGER adds."""
    if f.window is None:
        return "none: nothing is forgotten"
    packed, waiting = f.capacity_in_all * LEDGER_BYTES, f.blocks * CHUNK_ENTRIES * ENTRY_BYTES
    return (
        f"about {size(packed)} more at capacity, {LEDGER_BYTES} bytes a URL, and up to "
        f"{size(waiting)} that is not packed yet (BLOOM_LEDGER)"
    )


def _in_all(f: Forecast) -> str:
    if f.generations == 1:
        return f"{f.capacity_in_all:,}"
    if f.capacity_in_all == f.capacity:
        return f"{f.capacity_in_all:,}: each generation has those of a whole window"
    return f"{f.capacity_in_all:,} in {f.generations} generations of {f.capacity:,}"


def _window(window: str | None, period: str | None, ring: str) -> str:
    return f"{window}, rotated every {period} ({ring})" if window else "never forgets"


def _measured(m: Measurement) -> str:
    return (
        f"{m.seen:,} of {m.probes:,} random fingerprints are seen: {_rate(m.rate)} "
        f"({_rate(m.low)} to {_rate(m.high)} with 95% confidence) of all new URLs are hidden now"
    )


def _places(counting: bool) -> str:
    return "4-bit counters, 4 times the memory of bits" if counting else "bits"


def _discards(numbers: Load | FilterInfo, when: str) -> str:
    return (
        "one of an absent URL hits others at the error rate, and makes "
        f"{_count(numbers.lost_by_discard)} of them new again (false negatives, expected {when}); "
        f"{_count(numbers.saturated)} counters are saturated for good"
    )


def _room_of(load: Load) -> str:
    if load.unrecorded:
        return f"{load.unrecorded:,} over"
    return "forgets early" if load.forgets_early else "no"


#: What a filter takes with some URLs.
LOADS: Sequence[Column[Load]] = (
    Column("URLs a generation", lambda load: f"{load.urls:,}"),
    Column("a generation", lambda load: size(load.generation_memory)),
    Column("all", lambda load: size(load.memory)),
    Column("bits per URL", lambda load: f"{load.bits_per_url:.1f}"),
    Column("error rate", lambda load: _rate(load.error_rate)),
    Column("out of room", _room_of),
)


def _generations(info: FilterInfo) -> Sequence[Column[GenerationInfo]]:
    return (
        Column("opened (UTC)", lambda one: minute(one.opened)),
        Column("closes", lambda one: _ends(info, one)[0]),
        Column("forgotten", lambda one: _ends(info, one)[1]),
        Column("URLs", lambda one: f"{one.count:,}"),
        Column("fill", lambda one: f"{one.fill_ratio:.1%}"),
        Column("rate now", lambda one: _rate(one.estimated_error_rate)),
        Column("layers", lambda one: str(one.layers)),
        Column("memory", lambda one: size(one.memory)),
    )


def _ends(info: FilterInfo, generation: GenerationInfo) -> tuple[str, str]:
    """Return when a generation closes and is forgotten."""
    if info.window is None or info.period is None:
        return "never", "never"
    if generation.closes:
        return minute(generation.closes), minute(generation.forgotten)
    return _in_runs(info.window, info.period, info.generations[0].run - generation.run)


def _in_runs(window: str, period: str, age: int) -> tuple[str, str]:
    """Return when a generation closes and is forgotten, in runs of the crawl."""
    schedule = Schedule(parse_span("window", window), parse_span("period", period))
    left = schedule.generations - age
    forgotten = "with the next run" if left == 1 else f"{left} runs from now"
    return "closed" if age else "with the next run", forgotten


def _room(info: FilterInfo) -> str:
    if info.has_configured_sizes:
        return f"made for {info.capacity:,} a generation, {info.capacity_in_all:,} in all"
    return f"room for {info.generations[0].capacity:,} in the active generation"


def _new_sizes(info: FilterInfo) -> str:
    """Return which sizes are set that the active generation does not have, and since when."""
    closes = minute(info.generations[0].closes) or "with the next run"
    since = f"generation on ({closes})" if info.window else "layer on, when those there are full"
    return (
        f"{info.capacity:,} URLs a generation, an error rate of {info.error_rate:g}: from the next "
        f"{since}"
    )


def _rate(rate: float) -> str:
    return f"{rate:.2g}"


def _count(count: float | None) -> str:
    """Return an expected number of pages."""
    return "0" if not count else f"{count:,.0f}" if count >= 100 else f"{count:.2g}"
