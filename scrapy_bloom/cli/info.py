"""``scrapy bloom info``: what filters remember.

In a project with several spiders it shows the filters of all. The fill is the share of the URLs
that fit in before a bitmap is added, and the error rate is the share of new URLs that the filter
takes for seen now.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.bloom.info import describe
from scrapy_bloom.cli.output import complain, minute, plural, report
from scrapy_bloom.cli.project import targets
from scrapy_bloom.cli.stored import NoFilterError, StoredFilter

HELP = "show what a filter remembers, by window and generation"
EXAMPLES = """\
scrapy bloom info
# outside a project
scrapy bloom info -s BLOOM_REDIS_URL=redis://localhost:6379 --key shop:bloom"""


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Print what the chosen filters remember; return whether there are any."""
    heads, rows, lines = list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    chosen = {(one.settings.redis_url, one.settings.key): one for one in targets(settings, opts)}
    for target in chosen.values():
        try:
            with target.connect() as stored:
                failed = [one.has_failed for name in stored.spiders for _, one in stored.scan(name)]
                views = list(_rows(stored))
        except NoFilterError as error:
            complain(str(error))
            continue
        heads.append({**stored.head, "pending": len(failed), "failed": sum(failed)})
        rows += views
        text = plural(len(failed), "pending request") + f", {sum(failed):,} of them failed"
        lines.append(f"{stored}: {text}")
    if heads:
        report(opts, {"filters": heads}, rows, "\n".join(lines))
    return bool(heads)


def _rows(stored: StoredFilter) -> Iterator[dict[str, Any]]:
    """Yield a row for each generation, and before it one for its window if that has several."""
    for name in stored.windows:
        views = [view for (window, _), view in stored.views.items() if window == name]
        window = describe(stored.spec, stored.bloom.session.schedule(name), views)
        head = {"filter": stored.bloom.key, "window": name}
        if len(window.generations) > 1:
            numbers = {"fill": None, "error_rate": window.error_rate, "memory": window.memory}
            yield {**head, "generation": "all", "urls": window.count, **numbers, "forgotten": ""}
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
