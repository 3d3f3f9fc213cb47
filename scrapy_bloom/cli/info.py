"""``scrapy bloom info``: shows how full filters are, and when they forget.

In a project with several spiders you see the filters of all. The fill is the share of a
generation's capacity that is used, and falls when a full generation gets another bitmap. A
generation without a date was made without a window. The error rate is the share of new URLs that
you would miss now, computed from the number of URLs. `--measure` tests fresh fingerprints instead,
for five seconds a window.
"""

import argparse
import os
from collections.abc import Iterator
from time import monotonic
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.bloom.info import WindowInfo, describe
from scrapy_bloom.cli.output import minute, plural, progress, report
from scrapy_bloom.cli.project import filters
from scrapy_bloom.cli.stored import LOOKED_UP_TOGETHER, StoredFilter

HELP = "show how many URLs filters remember, by window and generation"
EXAMPLES = """\
scrapy bloom info
scrapy bloom info --measure
# outside a project
scrapy bloom info -s BLOOM_REDIS_URL=redis://localhost:6379 --all"""
#: Of one window: fingerprints that are tested at most, for so many seconds at most.
MOST_PROBES, MEASURE_SECONDS = 1_000_000, 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("--all", action="store_true", help="show all filters on the server")
    text = "measure the error rate with fresh fingerprints"
    parser.add_argument("--measure", action="store_true", help=text)


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Print the generations of the chosen filters; return whether there are any."""
    heads, rows, lines = list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    for stored in filters(settings, opts, every=opts.all):
        for name in stored.windows:
            probed = measure(stored, name) if opts.measure else {}
            rows += window_rows(stored, name, probed)
        failed = [one.has_failed for name in stored.spiders for _, one in stored.scan(name)]
        heads.append({**stored.head, "pending": len(failed), "failed": sum(failed)})
        text = plural(len(failed), "pending request") + f", {sum(failed):,} of them failed"
        lines.append(f"{stored}: {text}")
    if heads:
        report(opts, {"filters": heads}, rows, "\n".join(lines))
    return bool(heads)


def window_info(stored: StoredFilter, name: str) -> WindowInfo:
    """Return the generations of a window."""
    views = [view for (window, _), view in stored.views.items() if window == name]
    return describe(stored.spec, stored.schedules.get(name), views)


def window_rows(
    stored: StoredFilter, name: str, probed: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each generation, and before it one for its window if that has several."""
    window = window_info(stored, name)
    head = {"filter": stored.bloom.key, "window": name}
    if len(window.generations) > 1:
        numbers = {"fill": None, "error_rate": window.error_rate, **probed}
        total = {"urls": window.count, **numbers, "memory": window.memory, "forgotten": ""}
        yield {**head, "generation": "all", **total}
        probed = dict.fromkeys(probed)
    for one in window.generations:
        yield {
            **head,
            "generation": minute(one.opened),
            "urls": one.count,
            "fill": one.fill_ratio,
            "error_rate": one.error_rate,
            **probed,
            "memory": one.memory,
            "forgotten": minute(one.forgotten) or "never",
        }


def measure(stored: StoredFilter, window: str) -> dict[str, Any]:
    """Return how many fresh fingerprints were tested, and the share that was taken for seen."""
    probes, seen, end = 0, 0, monotonic() + MEASURE_SECONDS
    with progress(f"fingerprints tested in {window!r}", MOST_PROBES) as show:
        while probes < MOST_PROBES and monotonic() < end:
            keys = [(window, os.urandom(20)) for _ in range(LOOKED_UP_TOGETHER)]
            seen += len(stored.remembered(keys))
            probes += len(keys)
            show(probes)
    return {"measured": seen / (probes or 1), "probes": probes}
