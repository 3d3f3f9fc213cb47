"""``scrapy bloom info``: shows how full filters are, and when they forget.

In a project with several spiders you see the filters of all. The fill is the share of a
generation's capacity that is used, and falls when a full generation gets another bitmap. A
generation without a date was made without a window. The error rate is the share of new URLs that
you would miss now, computed from the number of URLs.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.bloom.info import WindowInfo, describe
from scrapy_bloom.cli.output import minute, plural, report
from scrapy_bloom.cli.project import filters
from scrapy_bloom.cli.stored import StoredFilter

HELP = "show how many URLs filters remember, by window and generation"
EXAMPLES = """\
scrapy bloom info
# outside a project
scrapy bloom info -s BLOOM_REDIS_URL=redis://localhost:6379 --all"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("--all", action="store_true", help="show all filters on the server")


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Print the generations of the chosen filters; return whether there are any."""
    heads, rows, lines = list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    for stored in filters(settings, opts, every=opts.all):
        for name in stored.windows:
            rows += window_rows(stored, name)
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


def window_rows(stored: StoredFilter, name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each generation, and before it one for its window if that has several."""
    window = window_info(stored, name)
    head = {"filter": stored.bloom.key, "window": name}
    if len(window.generations) > 1:
        total = {"urls": window.count, "fill": None, "error_rate": window.error_rate}
        yield {**head, "generation": "all", **total, "memory": window.memory, "forgotten": ""}
    for one in window.generations:
        yield {
            **head,
            "generation": minute(one.opened),
            "urls": one.count,
            "fill": one.fill_ratio,
            "error_rate": one.error_rate,
            "memory": one.memory,
            "forgotten": minute(one.forgotten) or "never",
        }
