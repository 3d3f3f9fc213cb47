"""``scrapy bloom info``: what filters remember."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from scrapy_bloom.bloom.info import describe
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.output import Column, Row, minute, plural, show_json, show_table, size
from scrapy_bloom.cli.project import Project, Target
from scrapy_bloom.cli.stored import NoFilterError, StoredFilter


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
        failed = [one.claim.has_failed for name in stored.spiders for one in stored.scan(name)]
        found |= {"exists": True, "spiders": stored.spiders}
        found |= {"pending": len(failed), "failed": sum(failed)}
        return found | {"windows": [_window(stored, name) for name in stored.windows]}


def _window(stored: StoredFilter, name: str) -> dict[str, Any]:
    """Return what a window of a filter has."""
    views = [view for (window, _), view in stored.views.items() if window == name]
    window = describe(stored.spec, stored.bloom.session.schedule(name), views)
    generations = [
        {
            "opened": one.opened or None,
            "forgotten": one.forgotten or None,
            "urls": one.count,
            "fill": one.fill_ratio,
            "error_rate": one.error_rate,
            "bytes": one.memory,
        }
        for one in window.generations
    ]
    total = {"urls": window.count, "error_rate": window.error_rate, "bytes": window.memory}
    lasts = {"window": name, "remembers": str(window.schedule)}
    return {**lasts, **total, "generations": generations}


def _heading(found: Row) -> str:
    where = f"{found['key']} on {found['address']}"
    if not found["exists"]:
        return f"{where}: there is no such filter"
    failed = f", {found['failed']:,} of them failed" if found["failed"] else ""
    hint = " (scrapy bloom pending lists them)" if found["pending"] else ""
    return f"{where}: {plural(found['pending'], 'pending request')}{failed}{hint}"


def _lines(found: Row) -> Iterator[Row]:
    """Yield a line for each generation, and one for each window that has several."""
    for window in found["windows"]:
        generations = window["generations"]
        if len(generations) > 1:
            yield window
        for one in generations:
            yield {**one, "window": window["window"]} if len(generations) == 1 else one


COLUMNS: Sequence[Column] = (
    Column("window", lambda row: row.get("window", "")),
    Column("generation (UTC)", lambda row: minute(row.get("opened"))),
    Column("URLs", lambda row: f"{row['urls']:,}", is_right=True),
    Column("fill", lambda row: f"{row['fill']:.1%}" if "fill" in row else "", is_right=True),
    Column("error rate", lambda row: f"{row['error_rate']:.2g}", is_right=True),
    Column("memory", lambda row: size(row["bytes"]), is_right=True),
    Column("forgotten (UTC)", lambda row: _forgotten(row) if "forgotten" in row else ""),
)


def _forgotten(row: Row) -> str:
    return minute(row["forgotten"]) or "never"


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
