"""``scrapy bloom info``: what filters remember."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from scrapy_bloom.bloom.model.ring import Layer, Ring
from scrapy_bloom.bloom.model.sizing import any_of, predicted_error_rate
from scrapy_bloom.bloom.protocol.claims import FAILED
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.output import Column, Row, minute, plural, show_json, show_table, size
from scrapy_bloom.cli.project import Project, Target
from scrapy_bloom.cli.stored import NoFilterError, StoredFilter

#: A ring, and those of its layers that a row is about.
Part = tuple[Ring, list[Layer]]


def run(project: Project, opts: argparse.Namespace) -> ExitCode:
    """Print what the chosen filters remember."""
    targets = {(one.settings.redis_url, one.settings.key): one for one in project.targets()}
    found = [_describe(target) for target in targets.values()]
    if opts.json:
        show_json({"filters": found})
    for place, one in enumerate(() if opts.json else found):
        print("\n" * (place > 0) + _heading(one))
        show_table(COLUMNS, list(_lines(one)))
    return ExitCode.FINE if any(one["exists"] for one in found) else ExitCode.NO


def _describe(target: Target) -> dict[str, Any]:
    """Return what a filter remembers, and how much is pending."""
    with target.connect() as stored:
        found: dict[str, Any] = {"key": stored.bloom.key, "address": stored.bloom.label}
        try:
            stored.read()
        except NoFilterError:
            return found | {"exists": False, "windows": []}
        owners = [one.claim.owner for name in stored.spiders for one in stored.scan(name)]
        found |= {"exists": True, "spiders": stored.spiders}
        found |= {"pending": len(owners), "failed": owners.count(FAILED)}
        return found | {"windows": [_window(stored, name) for name in stored.windows]}


def _window(stored: StoredFilter, name: str) -> dict[str, Any]:
    """Return what a window of a filter has."""
    rings = [ring for (window, _), ring in stored.rings.items() if window == name]
    live = {ring.block: (ring, stored.live(ring)) for ring in rings}
    generations = sorted({layer.generation for _, layers in live.values() for layer in layers})
    rows = [
        _row(
            stored, [(r, [one for one in ls if one.generation == which]) for r, ls in live.values()]
        )
        for which in reversed(generations)
    ]
    tested = generations if stored.spec.tests_all else generations[:1]
    parts = [(r, [one for one in ls if one.generation in tested]) for r, ls in live.values()]
    total = _row(stored, parts)
    memory = sum(row["bytes"] for row in rows)
    fill = rows[0]["fill"] if rows else 0.0
    return {"window": name, **total, "bytes": memory, "fill": fill, "generations": rows}


def _row(stored: StoredFilter, parts: Sequence[Part]) -> dict[str, Any]:
    """Return what some layers of each block have."""
    hashes = len(stored.spec.seeds)
    layers = [(ring, layer) for ring, own in parts for layer in own]
    count = sum(ring.count([layer]) for ring, layer in layers)
    rates = [
        any_of(predicted_error_rate(ring.count([one]), one.bits, hashes) for one in own)
        for ring, own in parts
    ]
    ends = [stored.forgets(ring, layer) for ring, layer in layers]
    return {
        "opened": min((layer.opened for _, layer in layers), default=0) or None,
        "urls": count,
        "fill": count / max(1, sum(layer.capacity for _, layer in layers)),
        "error_rate": sum(rates) / max(1, len(rates)),
        "bytes": sum(layer.memory for _, layer in layers),
        "forgotten": min((end for end in ends if end), default=0) or None,
    }


def _heading(found: Row) -> str:
    where = f"{found['key']} on {found['address']}"
    if not found["exists"]:
        return f"{where}: there is no such filter"
    failed = f", {found['failed']:,} of them failed" if found["failed"] else ""
    hint = " (scrapy bloom pending lists them)" if found["pending"] else ""
    return f"{where}: {plural(found['pending'], 'pending request')}{failed}{hint}"


def _lines(found: Row) -> Iterator[Row]:
    """Yield a line for each window, and below it one for each generation if there are several."""
    for window in found["windows"]:
        generations = window["generations"]
        several = len(generations) > 1
        yield {**window, "opened": None} if several else window
        yield from generations if several else ()


COLUMNS: Sequence[Column] = (
    Column("window", lambda row: row.get("window", "")),
    Column("generation (UTC)", lambda row: minute(row["opened"])),
    Column("URLs", lambda row: f"{row['urls']:,}", is_right=True),
    Column("fill", lambda row: f"{row['fill']:.1%}", is_right=True),
    Column("error rate", lambda row: f"{row['error_rate']:.2g}", is_right=True),
    Column("memory", lambda row: size(row["bytes"]), is_right=True),
    Column("forgotten (UTC)", lambda row: minute(row["forgotten"]) or "never"),
)

INFO = Command(
    "info",
    "show what a filter remembers, by window and generation",
    """\
scrapy bloom info
scrapy bloom info --json
# outside a project
scrapy bloom info -s BLOOM_REDIS_URL=redis://localhost:6379 --key shop:bloom""",
    run=run,
)
