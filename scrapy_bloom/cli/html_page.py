"""The HTML page of ``scrapy bloom report``: one self-contained file. Pure.

All texts are escaped: names of keys, windows and hosts may be anything. Numbers stand in
``<data>`` elements, whose ``value`` is the number that ``scrapy bloom info --json`` has.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo
from scrapy_bloom.bloom.protocol.measure import Measurement
from scrapy_bloom.cli.html_style import STYLE
from scrapy_bloom.cli.render import minute, size

#: A time beyond which a forecast is not worth a date, in seconds: 100 years.
FAR = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as the page shows it.

    Args:
        name: its host and process.
        spider: name of its spider, or the tag in its id.
        state: "alive", "dead" or "stopped".
        claims: URLs that it has claimed.
    """

    name: str
    spider: str
    state: str
    claims: int


@dataclass(frozen=True, slots=True)
class ClaimTally:
    """The claims of a filter, counted.

    Args:
        failed: URLs that failed, and wait until they are due.
        due: failed URLs that are due by now.
        next_due: when the next failed URL is due, as Unix time; 0 for none.
        elsewhere: claims of shared queues, and of workers that are not registered.
        workers: all workers.
    """

    failed: int = 0
    due: int = 0
    next_due: int = 0
    elsewhere: int = 0
    workers: Sequence[WorkerRow] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """What the page shows of a window's filter.

    Args:
        name: of the window.
        key: key prefix of the filter.
        info: None if there is no such filter.
        measured: None if nothing was measured.
        claims: its claims, counted.
    """

    name: str
    key: str
    info: FilterInfo | None = None
    measured: Measurement | None = None
    claims: ClaimTally = ClaimTally()


def page(address: str, panels: Sequence[Panel]) -> str:
    """Return the page."""
    now = max((panel.info.now for panel in panels if panel.info), default=0)
    read = f" &middot; read {minute(now)} UTC" if now else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Bloom filters on {escape(address)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<header><h1>Bloom filters</h1>\n<p>{escape(address)}{read}</p></header>\n"
        f"{''.join(map(_panel, panels))}</main>\n</body>\n</html>\n"
    )


def fits_until(info: FilterInfo) -> int | None:
    """Return when the newest generation is full, if URLs keep coming as they have so far.

    Returns:
        A Unix time; the present if it is full already; None if that is not known, or far away.
    """
    newest = info.generations[0]
    left, age = newest.capacity - newest.count, info.now - newest.opened
    if left <= 0:
        return info.now
    if not newest.count or age <= 0:
        return None
    seconds = left * age // newest.count
    return info.now + seconds if seconds < FAR else None


def _panel(panel: Panel) -> str:
    head = f"<h2>{escape(panel.name)}</h2>\n<p><code>{escape(panel.key)}</code></p>\n"
    section = f'<section data-key="{escape(panel.key)}">\n'
    if panel.info is None:
        return f'{section}{head}<p class="none">There is no such filter.</p>\n</section>\n'
    parts = (
        head,
        _tiles(panel, panel.info),
        _time_line(panel.info),
        _generations(panel.info),
        _workers(panel.claims),
    )
    return f"{section}{''.join(parts)}</section>\n"


def _tiles(panel: Panel, info: FilterInfo) -> str:
    newest, claims = info.generations[0], panel.claims
    failed = f"{_data('failed', claims.failed)} failed, {_data('due', claims.due)} due now"
    if claims.next_due:
        failed += f"; next due {minute(claims.next_due)} UTC"
    tiles = [
        _tile("URLs", _data("count", info.count), f"made for {info.capacity:,} a generation"),
        _tile(
            "Fill of the newest generation",
            _data("fill_ratio", newest.fill_ratio, f"{newest.fill_ratio:.1%}"),
            _bar(newest.fill_ratio),
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
    if info.lost_blocks:
        lost = _data("lost_blocks", info.lost_blocks)
        tiles.append(_tile("Lost blocks", lost, "evicted or deleted", "bad"))
    return f'<dl class="tiles">\n{"".join(tiles)}</dl>\n'


def _tile(name: str, value: str, note: str, kind: str = "") -> str:
    return (
        f'<div class="tile {kind}"><dt>{name}</dt><dd class="value">{value}</dd>'
        f'<dd class="note">{note}</dd></div>\n'
    )


def _forecast(info: FilterInfo) -> tuple[str, str]:
    """Return until when the newest generation has room, and what happens then."""
    until, closes = fits_until(info), info.generations[0].closes
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
    place = f"{now / 10:.2f}%"
    side = "left" if now > 850 else "right" if now < 150 else "middle"
    axis = f'<span class="now {side}" style="left:{place}">now, {minute(info.now)}</span>'
    return (
        f'<h3>Time line</h3>\n<div class="line">\n{rows}<div class="row axis"><span></span>'
        f'<div class="scale">{axis}</div><span></span></div>\n</div>\n'
        '<p class="key"><i class="open"></i>collects URLs <i class="kept"></i>remembers them</p>\n'
    )


def _time_row(g: GenerationInfo, closes: int, start: int, scale: float, now: float) -> str:
    left = (g.opened - start) * scale
    right = (g.forgotten - start) * scale if g.forgotten else 1000.0
    closed = min(right, (closes - start) * scale) if closes else right
    until = minute(g.forgotten) or "no date"
    title = f"opened {minute(g.opened)}, forgotten: {until}"
    return (
        f'<div class="row"><span>{minute(g.opened)[:10]}</span>'
        f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{title}">'
        f'<rect class="kept" x="{left:.1f}" width="{max(2.0, right - left):.1f}" height="10"/>'
        f'<rect class="open" x="{left:.1f}" width="{max(2.0, closed - left):.1f}" height="10"/>'
        f'<line x1="{now:.1f}" x2="{now:.1f}" y1="0" y2="10"/></svg>'
        f"<span>{g.fill_ratio:.1%}</span></div>\n"
    )


def _generations(info: FilterInfo) -> str:
    rows = [
        {
            "Opened (UTC)": _time("opened", g.opened),
            "Closes": _time("closes", g.closes),
            "Forgotten": _time("forgotten", g.forgotten),
            "URLs": _data("count", g.count),
            "Fill": _data("fill_ratio", g.fill_ratio, f"{g.fill_ratio:.1%}"),
            "Error rate": _rate("estimated_error_rate", g.estimated_error_rate),
            "Layers": _data("layers", g.layers),
            "Memory": _data("memory", g.memory, size(g.memory)),
        }
        for g in info.generations
    ]
    return f"<h3>Generations</h3>\n{_table('generations', rows)}"


def _workers(claims: ClaimTally) -> str:
    rows = [
        {
            "Worker": escape(worker.name),
            "Spider": escape(worker.spider),
            "State": f'<span class="state {worker.state}">{worker.state}</span>',
            "Claims": _data("worker_claims", worker.claims),
        }
        for worker in claims.workers
    ]
    table = _table("workers", rows) if rows else '<p class="none">None is registered.</p>\n'
    if claims.elsewhere:
        table += (
            f'<p class="none">{_data("elsewhere", claims.elsewhere)} more claims belong to shared '
            "queues, or to workers that are no longer registered.</p>\n"
        )
    return f"<h3>Workers</h3>\n{table}"


def _table(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table; on narrow screens each row becomes a card."""
    head = "".join(f'<th scope="col">{column}</th>' for column in rows[0])
    body = "".join(f"<tr>{_cells(row.items())}</tr>\n" for row in rows)
    return (
        f'<table class="{name}">\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n'
    )


def _cells(cells: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<td data-label="{column}">{cell}</td>' for column, cell in cells)


def _bar(share: float) -> str:
    width = 100 * min(1.0, share)
    return (
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="kept" width="100" height="4"/><rect class="open" width="{width:.2f}" '
        'height="4"/></svg>'
    )


def _data(name: str, value: float, text: str = "") -> str:
    return f'<data class="{name}" value="{value!r}">{text or f"{value:,}"}</data>'


def _rate(name: str, value: float) -> str:
    return _data(name, value, f"{value:.2g}")


def _time(name: str, time: int) -> str:
    return _data(name, time, minute(time) or "&ndash;")
