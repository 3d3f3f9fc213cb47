"""``scrapy bloom report``: what filters hold, as one self-contained HTML page.

It changes nothing on the server. All texts are escaped: names of keys, windows and hosts may be
anything. Numbers stand in ``<data>`` elements, whose ``value`` is the number that
``scrapy bloom info --json`` has.
"""

import re
import sys
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo, Measurement
from scrapy_bloom.cli.claims import FAILED, GONE
from scrapy_bloom.cli.files import STREAM
from scrapy_bloom.cli.info import MEASURE, generations
from scrapy_bloom.cli.output import Column, Document, Row, minute, size
from scrapy_bloom.cli.panel import SHOWN, Panel, WorkerRow, read_panel
from scrapy_bloom.cli.session import FILTER, CommandSession, ExitCode, option, subcommand

#: Seconds of URLs without which there is no forecast; and a time beyond which it is not worth a
#: date: 100 years.
DAY, FAR = 86_400, 100 * 366 * 86_400

_FILES = resources.files("scrapy_bloom.cli")
_STYLE = _FILES.joinpath("report.css").read_text("utf-8")
_, *_NAMED = re.split(r"<!-- (\w+) -->\n", _FILES.joinpath("report.html").read_text("utf-8"))
#: The parts of report.html, by the name in the comment before each.
_PARTS = {name: Template(text) for name, text in zip(_NAMED[::2], _NAMED[1::2], strict=True)}


@subcommand(
    "write what filters hold to an HTML page; changes nothing on the server",
    *FILTER,
    MEASURE,
    option(
        "--html",
        metavar="FILE",
        required=True,
        help="file to write, or to write again; - is the standard output",
    ),
)
def report(session: CommandSession) -> ExitCode:
    """Write the page of the chosen filters.

    Raises:
        ConfigurationError: the file cannot be written.
        StorageError: the server did not answer, or a filter cannot be read.
    """
    file, panels = session.opts.html, list[Panel]()
    if file == STREAM and session.opts.json:
        raise ConfigurationError("--html - and --json both use the standard output: name a file")
    with session.connect() as server:
        for name, stored in session.chosen(server):
            panels.append(read_panel(session, stored) if stored else Panel(name, server.key(name)))
        # Keys may hold bytes that are no text.
        html = page(server.address, panels).encode(errors="backslashreplace")
        if file == STREAM:
            sys.stdout.write(html.decode())
        else:
            _write(file, html)
            text = f"{file}: the filters on {server.address}, {len(html):,} bytes"
            document = {"address": server.address, "file": file, "bytes": len(html)}
            session.report(document, text)
    return ExitCode.of(any(panel.info is not None for panel in panels))


def _write(file: str, html: bytes) -> None:
    try:
        Path(file).write_bytes(html)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"--html {file!r} cannot be written: {reason}; name a file in a directory that you may "
            "write to"
        ) from error


# -- the page: pure --


def page(address: str, panels: Sequence[Panel]) -> str:
    """Return the page."""
    now = max((panel.info.now for panel in panels if panel.info), default=0)
    read = f" &middot; read {minute(now)} UTC" if now else ""
    panels_html = "".join(map(_panel, panels))
    return _fill("page", address=escape(address), read=read, style=_STYLE, panels=panels_html)


def fits_until(info: FilterInfo) -> int | None:
    """Return when the newest generation is full, if URLs keep coming as they have of late.

    Returns:
        A Unix time; the present if it is full already; None if that is not known, or far away.
    """
    newest, count = info.generations[0], 0
    left = newest.capacity - newest.count
    if left <= 0:
        return info.now
    for generation in info.generations:
        count, age = count + generation.count, info.now - generation.opened
        # The newest generations that have the URLs of a day at least.
        if age >= DAY:
            seconds = left * age // count if count else FAR
            return info.now + seconds if seconds < FAR else None
    return None


def _fill(part: str, **values: str) -> str:
    """Return a part of report.html with values, which are HTML."""
    return _PARTS[part].substitute(values)


def _panel(panel: Panel) -> str:
    info = panel.info
    content = _fill("missing")
    if info is not None:
        table = _table("generations", generations(info), info.generations)
        pages = _pages("Failed pages", "failed", FAILED, panel.failed_pages, panel.failed)
        pages += _pages(
            "Pages that are gone", "gone", GONE, panel.gone_pages, len(panel.gone_pages)
        )
        tables = _fill("generations", table=table) + _workers(panel) + pages
        content = _tiles(panel, info) + _time_line(info) + tables
    return _fill("panel", name=escape(panel.name), key=escape(panel.key), content=content)


def _tiles(panel: Panel, info: FilterInfo) -> str:
    newest = info.generations[0]
    failed = f"{_data('failed', panel.failed)} failed, {_data('due', panel.due)} due now"
    if panel.next_due:
        failed += f"; next due {minute(panel.next_due)} UTC"
    tiles = [
        _tile("URLs", _data("count", info.count), f"made for {info.capacity:,} a generation"),
        _tile(
            "Fill of the newest generation",
            _data("fill_ratio", newest.fill_ratio, f"{newest.fill_ratio:.1%}"),
            _fill("bar", width=f"{100 * min(1.0, newest.fill_ratio):.2f}"),
        ),
        _tile(
            "Predicted error rate",
            _rate("estimated_error_rate", info.estimated_error_rate),
            f"{_rate('error_rate', info.error_rate)} asked for, "
            f"{_rate('error_bound', info.error_bound)} when full",
        ),
        _tile("Fits until", *_forecast(info)),
        _tile("Next rotation", *_rotation(info)),
        _tile("Claims", _data("claims", info.claims), failed),
        _tile(
            "Memory",
            _data("memory", info.memory, size(info.memory)),
            f"in {info.blocks:,} blocks",
        ),
    ]
    if panel.measured is not None:
        tiles.insert(3, _measured(panel.measured))
    if panel.ledger is not None:
        pages = _data("ledger_pages", panel.ledger.pages, f"about {panel.ledger.pages:,}")
        due = _data("ledger_due", panel.ledger.due_pages)
        note = f"pages in {size(panel.ledger.memory)}; {due} due"
        tiles.append(_tile("Ledger", pages, note))
    if info.lost_blocks:
        lost = _data("lost_blocks", info.lost_blocks)
        tiles.append(_tile("Lost blocks", lost, "evicted or deleted", "bad"))
    return _fill("tiles", tiles="".join(tiles))


def _tile(name: str, value: str, note: str, kind: str = "") -> str:
    return _fill("tile", name=name, value=value, note=note, kind=kind)


def _forecast(info: FilterInfo) -> tuple[str, str]:
    """Return until when the newest generation has room, and what happens then."""
    until, closes = fits_until(info), info.generations[0].closes
    if until is None and info.now - info.generations[-1].opened < DAY:
        return "not known yet", "it takes the URLs of a day"
    if until is None:
        return "no end in sight", "at the rate of URLs so far"
    if closes and until > closes:
        return _time("fits_until", closes), "has room until it rotates"
    if info.growth:
        limit = "" if info.max_memory is None else f" up to {size(info.max_memory)}"
        return _time("fits_until", until), f"then it grows{limit}, at the same error rate"
    then = "stops recording" if info.window is None else "forgets the oldest URLs early"
    return _time("fits_until", until), f"then it {then}: growth is off"


def _measured(m: Measurement) -> str:
    low, high = _rate("low", m.low), _rate("high", m.high)
    seen = f"{_data('seen', m.seen)} of {_data('probes', m.probes)} probes; 95%: {low} to {high}"
    return _tile("Measured error rate", _rate("rate", m.rate), seen)


def _rotation(info: FilterInfo) -> tuple[str, str]:
    """Return when the filter rotates, and what it forgets next."""
    newest, oldest = info.generations[0], info.generations[-1]
    if info.window is None:
        return "never", "no URL is forgotten"
    window = f"window {escape(info.window)}"
    if not newest.closes:
        return "with the next run", window
    note = f"{window}; the oldest URLs go {minute(oldest.forgotten)}"
    return _time("rotation", newest.closes), note


def _time_line(info: FilterInfo) -> str:
    """Return a row per generation: from when it was opened until it is forgotten."""
    start = min(generation.opened for generation in info.generations)
    ends = [time for g in info.generations for time in (g.closes, g.forgotten)]
    end = max(info.now, *ends)
    # The bars of generations without an end go on beyond the present.
    end += max(1, (end - start) // (20 if any(ends) else 3))
    scale = 1000 / (end - start)
    now = (info.now - start) * scale
    # A generation collects URLs until the next newer one is opened, early or by a run.
    newer = [0, *(generation.opened for generation in info.generations)]
    rows = "".join(
        _time_row(g, next_opened or g.closes, start, scale, now)
        for g, next_opened in zip(info.generations, newer, strict=False)
    )
    side = "left" if now > 850 else "right" if now < 150 else "middle"
    return _fill("line", rows=rows, side=side, place=f"{now / 10:.2f}", now=minute(info.now))


def _time_row(g: GenerationInfo, closes: int, start: int, scale: float, now: float) -> str:
    left = (g.opened - start) * scale
    right = (g.forgotten - start) * scale if g.forgotten else 1000.0
    closed = min(right, (closes - start) * scale) if closes else right
    return _fill(
        "generation",
        day=minute(g.opened)[:10],
        opened=minute(g.opened),
        forgotten=minute(g.forgotten) or "no date",
        left=f"{left:.1f}",
        kept=f"{max(2.0, right - left):.1f}",
        open=f"{max(2.0, closed - left):.1f}",
        now=f"{now:.1f}",
        fill=f"{g.fill_ratio:.1%}",
    )


def _workers(panel: Panel) -> str:
    table = _fill("unregistered")
    if panel.workers:
        table = _table("workers", WORKERS, panel.workers)
    if panel.elsewhere:
        table += _fill("elsewhere", claims=_data("elsewhere", panel.elsewhere))
    return _fill("workers", table=table)


def _pages(
    title: str,
    command: str,
    columns: Sequence[Column[Document]],
    rows: Sequence[Document],
    count: int,
) -> str:
    """Return a table of the first pages; nothing if there are none."""
    if not rows:
        return ""
    more = _fill("more", count=f"{count:,}", command=command) if count > SHOWN else ""
    return _fill("pages", title=title, table=_table("pages", columns, rows[:SHOWN]), more=more)


def _table(name: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """Return a table; on narrow screens each row becomes a card."""

    def part(kind: str, column: Column[Row], **values: str) -> str:
        heading = column.heading[0].upper() + column.heading[1:]
        return _fill(kind, column=heading, side="left" if column.is_left else "right", **values)

    def cell(column: Column[Row], row: Row) -> str:
        text = escape(column.text(row))
        number = column.field and _data(column.field, getattr(row, column.field), text)
        return part("cell", column, text=text, cell=number or text)

    head = "".join(part("heading", column) for column in columns)
    lines = ("".join(cell(column, row) for column in columns) for row in rows)
    body = "".join(_fill("row", cells=cells) for cells in lines)
    return _fill("table", name=name, head=head, body=body)


def _data(name: str, value: float, text: str = "") -> str:
    return _fill("data", name=name, value=repr(value), text=text or f"{value:,}")


def _rate(name: str, value: float) -> str:
    return _data(name, value, f"{value:.2g}")


def _time(name: str, time: int) -> str:
    return _data(name, time, minute(time) or "&ndash;")


WORKERS: Sequence[Column[WorkerRow]] = (
    Column("worker", lambda one: one.name, is_left=True),
    Column("spider", lambda one: one.spider, is_left=True),
    Column("state", lambda one: one.state, is_left=True),
    Column("claims", lambda one: f"{one.worker_claims:,}", field="worker_claims"),
)
