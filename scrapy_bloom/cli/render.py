"""What ``scrapy bloom`` shows in a terminal: by rich if it is installed, else in plain columns."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from scrapy_bloom.bloom.model.forecast import Forecast, Load
from scrapy_bloom.bloom.model.schedule import Schedule, parse_span
from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo, ItemInfo
from scrapy_bloom.bloom.protocol.measure import Measurement

try:
    import rich
    import rich.box
    import rich.console
    import rich.progress
    import rich.table
except ImportError:  # pip install "scrapy-bloom[cli]"
    rich = None  # type: ignore[assignment]

#: Columns of a table that goes to a file or a pipe.
PLAIN_WIDTH = 120
#: Columns that go on in a second line where a terminal is narrow; numbers do not.
TEXTS = ("opened (UTC)", "closes", "forgotten", "out of room")


def show_plan(forecast: Forecast) -> None:
    """Print what a filter will take."""
    f = forecast
    rows = [
        ("window", _window(f.window, f.period, f.ring)),
        ("a page is crawled again", f.recrawl),
        ("generations", f"{f.generations}"),
        ("hash functions (k)", f"{f.num_hashes}"),
        ("blocks", f"{f.blocks:,}"),
        ("a bitmap", f"{size(f.opened_memory / f.blocks)} ({f.num_bits:,} {_places(f.counting)})"),
        ("a generation", size(f.opened_memory)),
        ("all generations", f"{size(f.loads[0].memory)} at capacity"),
        ("limit", "none" if f.max_memory is None else size(f.max_memory)),
        ("bits per URL", f"{f.loads[0].bits_per_url:.1f} at capacity"),
        ("new pages missed", f"{_count(f.missed_at_most)} in a window at most"),
    ]
    if f.counting:
        rows.append(("discards", _discards(f.loads[0], "at capacity")))
    heading = f"A filter for {f.capacity:,} URLs a generation at an error rate of {f.error_rate:g}"
    _show_facts(heading, rows)
    headings = ("URLs a\ngeneration", "a\ngeneration", "all", "bits per\nURL", "error\nrate")
    _print_table((*headings, "out of room"), [_load_row(load) for load in f.loads])


def show_info(
    name: str,
    address: str,
    info: FilterInfo,
    blocks: Mapping[int, FilterInfo],
    measured: Measurement | None,
) -> None:
    """Print what a filter is and holds, what was measured, and each of the given blocks."""
    rate = f"{_rate(info.estimated_error_rate)} now, {_rate(info.error_rate)} at most asked for"
    growth = f"by {info.growth:g} times the last layer" if info.growth else "no"
    counters = f" of {_places(info.counting)}" if info.counting else ""
    rows = [
        ("window", f"{_window(info.window, info.period, info.ring)}"),
        ("URLs", f"{info.count:,} (made for {info.capacity:,} a generation)"),
        ("error rate", f"{rate}, {_rate(info.error_bound)} when all layers are full"),
        *([("measured", _measured(measured))] if measured else []),
        ("memory", f"{size(info.memory)} in {info.blocks:,} blocks{counters}"),
        ("bits per URL", f"{info.bits_per_url:.1f}, {info.num_hashes} hash functions"),
        ("grows", growth + ("" if info.max_memory is None else f" up to {size(info.max_memory)}")),
    ]
    if info.counting:
        rows.append(("discards", _discards(info, "now")))
    pending = f"{info.claims:,} URLs claimed, not settled yet"
    if info.claims:
        pending += " (scrapy bloom pending lists them)"
    rows.append(("pending", pending if info.claims else "none"))
    if info.lost_blocks:
        rows.append(("lost blocks", f"{info.lost_blocks} (evicted or deleted)"))
    _show_facts(f"{info.key} on {address} (window {name!r})", rows)
    columns = ("opened (UTC)", "closes", "forgotten", "URLs", "fill", "rate\nnow", "layers")
    rows_of_all = [_generation_row(info, generation) for generation in info.generations]
    _print_table((*columns, "memory"), rows_of_all)
    if blocks:
        columns = ("block", "generations", "URLs", "fill", "rate\nnow", "layers", "memory")
        _print_table(columns, [_block_row(number, block) for number, block in blocks.items()])


def show_absent(name: str, address: str, key: str) -> None:
    """Print that there is no filter."""
    show(f"{key} on {address} (window {name!r}): there is no such filter")


def item_line(item: str, info: ItemInfo) -> str:
    """Return a line about an item, which comes last because it may be long."""
    verdict, since, until = "new", "", ""
    if info.seen:
        verdict, since = "seen", minute(info.since)
        until = minute(info.until) or ("never" if info.window is None else "in a later run")
    return f"{verdict:4}  {since:16}  {until:16}  {item}"


#: What the columns of ``item_line`` are.
ITEM_HEADING = f"{'':4}  {'since (UTC)':16}  new again (UTC)"


def show(text: str) -> None:
    """Print text as it is, in lines of any length."""
    sys.stdout.write(f"{text}\n")


def _print(table: "rich.table.Table") -> None:
    """Print a table as wide as the standard output is now; nothing in a text is markup."""
    fixed = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    console = rich.console.Console(markup=False, highlight=False, emoji=False, width=fixed)
    with console.capture() as captured:
        console.print(table)
    # Not by the console, which ends the process with 1, that is "no", where a pipe is closed.
    sys.stdout.write(captured.get())


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on the standard error, if that is a terminal.

    Yields a function that counts on. The bar appears with its second call: what is over by then
    needs none.
    """
    if rich is None:
        yield lambda _: None
        return
    err = rich.console.Console(stderr=True)
    bar = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
        # Otherwise prints during the progress bar would go to the standard error.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task(title, total=total)

    def advance(count: int) -> None:
        if bar.tasks[0].completed:
            bar.start()
        bar.update(task, advance=count)

    try:
        yield advance
    finally:
        bar.stop()


def minute(time: int) -> str:
    """Return a Unix time as the minute in UTC; "" for 0."""
    return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m-%d %H:%M}" if time else ""


def size(count: float) -> str:
    """Return a number of bytes to three digits or so."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _show_facts(heading: str, rows: Sequence[tuple[str, str]]) -> None:
    show(heading)
    if rich is None:
        width = max(len(name) for name, _ in rows)
        show("\n".join(f"  {name:{width}}  {value}" for name, value in rows))
        return
    table = rich.table.Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"  {name}", value)
    _print(table)


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rich is None:
        show(_plain_table(headings, rows))
        return
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    for heading in headings:
        is_text = heading in TEXTS
        table.add_column(heading, justify="right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print(table)


def _plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns of texts, numbers to the right."""
    lines = [[heading.replace("\n", " ") for heading in headings], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


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


def _load_row(load: Load) -> list[str]:
    room = "forgets early" if load.forgets_early else "no"
    return [
        f"{load.urls:,}",
        size(load.generation_memory),
        size(load.memory),
        f"{load.bits_per_url:.1f}",
        _rate(load.error_rate),
        f"{load.unrecorded:,} over" if load.unrecorded else room,
    ]


def _generation_row(info: FilterInfo, generation: GenerationInfo) -> list[str]:
    closes, forgotten = minute(generation.closes), minute(generation.forgotten)
    if info.window is None or info.period is None:
        closes = forgotten = "never"
    elif not closes:
        closes, forgotten = _in_runs(info, generation)
    return [
        minute(generation.opened),
        closes,
        forgotten,
        f"{generation.count:,}",
        f"{generation.fill_ratio:.1%}",
        _rate(generation.estimated_error_rate),
        str(generation.layers),
        size(generation.memory),
    ]


def _in_runs(info: FilterInfo, generation: GenerationInfo) -> tuple[str, str]:
    """Say when a generation closes and is forgotten where no time tells."""
    schedule = Schedule(parse_span("window", info.window), parse_span("period", info.period))
    age = info.generations[0].run - generation.run
    left = schedule.generations - age
    forgotten = "with the next run" if left == 1 else f"{left} runs from now"
    return "closed" if age else "with the next run", forgotten


def _block_row(number: int, block: FilterInfo) -> list[str]:
    capacity = sum(generation.capacity for generation in block.generations)
    layers = sum(generation.layers for generation in block.generations)
    return [
        str(number),
        str(len(block.generations)),
        f"{block.count:,}",
        f"{sum(generation.count for generation in block.generations) / capacity:.1%}",
        _rate(block.estimated_error_rate),
        str(layers),
        size(block.memory),
    ]


def _rate(rate: float) -> str:
    return f"{rate:.2g}"


def _count(count: float | None) -> str:
    """Return an expected number of pages."""
    return "0" if not count else f"{count:,.0f}" if count >= 100 else f"{count:.2g}"
