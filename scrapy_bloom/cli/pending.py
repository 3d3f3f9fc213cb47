"""``scrapy bloom pending``: lists requests that workers have, that wait, or that failed.

A request is pending from the moment that its URL is found until its page is crawled. A worker has
it, which is shown with its host and process number, or it's in a queue, or waits for a run with the
same arguments (`-a`). These are shown as in a URL (`domain=a`), and hashed if they have over 60
characters, or if a name sounds secret. You see the method if it isn't GET, and the callback if it
isn't the default. A request that can't be saved is shown as `(not saved)`. A page that has failed
five times has no next try, unless it's linked again or you use `recrawl --failed`. The log of the
run that failed says more than the reason.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from sys import maxsize
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.bloom.client.address import without_credentials
from scrapy_bloom.bloom.protocol.workers import Workers
from scrapy_bloom.cli.output import minute, plural, report
from scrapy_bloom.cli.project import target
from scrapy_bloom.cli.stored import Found, StoredFilter
from scrapy_bloom.crawl.owners import Worker
from scrapy_bloom.crawl.request_codec import MAX_LENGTH

HELP = "list pending requests by worker, or pages that failed and why"
EXAMPLES = """\
scrapy bloom pending
scrapy bloom pending --failed --limit 0"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("--failed", action="store_true", help="list only pages that failed")
    text = "list at most N requests (default 100, 0 lists all)"
    parser.add_argument("--limit", metavar="N", type=int, default=100, help=text)


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """List pending requests."""
    chosen = target(settings, opts)
    with chosen.connect() as stored:
        spider = stored.spider(chosen.spider)
        rows, counts, by_arguments = list_pending(
            stored, spider, failed=opts.failed, limit=opts.limit
        )
    total, failed = counts.total(), counts[True]
    hidden = (failed if opts.failed else total) - len(rows)
    more = f". {hidden:,} aren't shown (--limit 0 shows all)" if hidden > 0 else ""
    head = {**stored.head, "spider": spider, "pending": total, "failed": failed}
    text = f"{stored}: {plural(total, 'pending request')}, {failed:,} of them failed"
    if any(by_arguments):
        each = [f"{name or 'none'} ({count:,})" for name, count in by_arguments.most_common()]
        text += f". They are for runs with the arguments {', '.join(each)}"
    report(opts, {**head, "arguments": by_arguments}, rows, text + more)
    return True


def list_pending(
    stored: StoredFilter, spider: str, *, failed: bool, limit: int
) -> tuple[list[dict[str, Any]], Counter[bool], Counter[str]]:
    """Return rows of pending requests, and their numbers by whether they failed, and by arguments.

    Args:
        stored: the filter.
        spider: whose requests they are.
        failed: whether only pages that failed get a row.
        limit: rows at most; 0 for all.
    """
    counts, by_arguments = Counter[bool](), Counter[str]()

    def count() -> Iterator[Found]:
        for block, claim in stored.scan(spider):
            counts[claim.has_failed] += 1
            by_arguments[claim.arguments or ""] += 1
            if claim.has_failed or not failed:
                yield block, claim

    first = nsmallest(limit or maxsize, count(), key=lambda one: (one[1].owner, one[1].time))
    return list(_rows(stored, spider, first)), counts, by_arguments


def _rows(stored: StoredFilter, spider: str, found: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Yield the rows of claims, with their URLs and workers."""
    own = stored.claims(spider)
    saved = [(block, claim.field) for block, claim in found if claim.length <= MAX_LENGTH]
    requests = stored.bloom.run(own.find(saved))
    now, entries = stored.bloom.run(Workers(own).living())
    known = [(one, until) for text, (until, _) in entries.items() if (one := Worker.parse(text))]
    living = {one.id: one.shown for one, until in known if one.lives(until, now)}
    queues = {one.queue for one, _ in known}
    for block, claim in found:
        worker = living.get(claim.owner)
        state = "running" if worker else "in a queue" if claim.owner in queues else "waiting"
        yield {
            "state": "failed" if claim.has_failed else state,
            "worker": worker,
            "since": None if claim.waits else minute(claim.time),
            "next_try": minute(claim.due),
            "attempts": claim.attempts,
            "reason": claim.nonce if claim.has_failed else None,
            "arguments": claim.arguments or None,
            **_request(requests.get((block, claim.field), (claim, ""))[1]),
        }


def _request(text: str) -> dict[str, str | None]:
    """Return what is shown of a stored request. One of Scrapy's defaults isn't stored."""
    try:
        stored = json.loads(text)
        url = without_credentials(str(stored["url"]))
    except (ValueError, TypeError, LookupError, RecursionError):
        stored, url = {}, "(not saved)"
    others = {name: stored.get(name) for name in ("method", "callback")}
    return {**{name: str(value) if value else None for name, value in others.items()}, "url": url}
