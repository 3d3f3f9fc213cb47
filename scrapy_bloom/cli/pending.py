"""``scrapy bloom pending``: requests that workers have, that wait, or that failed."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from sys import maxsize
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.claims import FAILED, StoredClaim
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.output import (
    Column,
    listed,
    minute,
    plural,
    quoted,
    show_json,
    show_table,
    without_credentials,
)
from scrapy_bloom.cli.project import Project
from scrapy_bloom.cli.stored import FoundClaim, StoredFilter
from scrapy_bloom.crawl.workers import Worker

#: Requests that are listed unless ``--limit`` says otherwise.
LIMIT = 100


def run(project: Project, opts: argparse.Namespace) -> ExitCode:
    """List pending requests."""
    target, counts = project.target(), Counter[str]()
    with target.connect() as stored:
        stored.read()
        spider = target.spider or stored.only_spider()
        if not spider:
            raise ConfigurationError(
                f"pending requests belong to a spider. Name it with --spider: "
                f"{listed(stored.spiders)}"
            )
        found = _counted(stored.scan(spider), counts, only_failed=opts.failed)
        claims = nsmallest(opts.limit or maxsize, found, key=_by_time if opts.failed else _by_owner)
        rows = _rows(stored, spider, claims)
    total = {"pending": counts["pending"], "failed": counts["failed"]}
    if opts.json:
        head = {"key": stored.bloom.key, "address": stored.bloom.label, "spider": spider}
        show_json({**head, **total, "requests": rows})
        return ExitCode.FINE
    show_table(FAILURES if opts.failed else COLUMNS, rows)
    hidden = total["failed" if opts.failed else "pending"] - len(rows)
    more = f". {hidden:,} aren't shown (--limit 0 shows all)" if hidden > 0 else ""
    failed = f", {total['failed']:,} of them failed" if total["failed"] else ""
    print(f"{stored.bloom.key}: {plural(total['pending'], 'pending request')}{failed}{more}")
    return ExitCode.FINE


def _counted(
    claims: Iterator[FoundClaim], counts: Counter[str], *, only_failed: bool
) -> Iterator[FoundClaim]:
    """Count claims, and yield those that may be listed."""
    for found in claims:
        is_failed = found.claim.has_failed
        counts["pending"] += 1
        counts["failed"] += is_failed
        if is_failed or not only_failed:
            yield found


def _by_time(found: FoundClaim) -> tuple[int, str]:
    return found.claim.time, found.claim.field


def _by_owner(found: FoundClaim) -> tuple[str, int, str]:
    return found.claim.owner, *_by_time(found)


def _rows(stored: StoredFilter, spider: str, claims: Sequence[FoundClaim]) -> list[dict[str, Any]]:
    """Return the rows of claims, with their URLs and workers."""
    own = stored.claims(spider)
    places = {(found.block, found.claim.field): found.claim for found in claims}
    requests = stored.bloom.run(own.find(list(places)))
    now, entries = stored.bloom.run(own.beat("", 0))  # removes nobody
    workers = [worker for entry in entries if (worker := Worker.parse(entry))]
    living = {one.id: one for one in workers if entries[one.member] > now and not one.is_gone}
    queues = {worker.queue for worker in workers}
    return [
        _row(claim, requests[place][1] if place in requests else "", living, queues)
        for place, claim in places.items()
    ]


def _row(
    claim: StoredClaim, request: str, living: Mapping[str, Worker], queues: set[str]
) -> dict[str, Any]:
    """Return what is known of a pending request."""
    waits, worker = claim.owner == FAILED, living.get(claim.owner)
    state = "failed" if claim.has_failed else "running" if worker else "waits"
    if claim.owner in queues:
        state = "in a queue"
    return {
        "state": state,
        "process": worker.pid if worker else None,
        "since": None if waits else claim.time,
        "retry": claim.time if waits else None,
        "attempts": claim.attempts,
        "reason": claim.nonce if claim.has_failed else "",
        "url": _url(request),
    }


def _url(request: str) -> str | None:
    """Return the URL of a stored request; None if there is none."""
    try:
        url = json.loads(request)["url"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return without_credentials(str(url))


_URL = Column("URL", lambda row: row["url"] or "(its request isn't stored)")
_ATTEMPTS = Column("attempts", lambda row: f"{row['attempts']:,}", is_right=True)
COLUMNS: Sequence[Column] = (
    Column("state", lambda row: row["state"]),
    Column("process", lambda row: str(row["process"] or ""), is_right=True),
    Column("since, or next try (UTC)", lambda row: minute(row["since"] or row["retry"])),
    _ATTEMPTS,
    _URL,
)
FAILURES: Sequence[Column] = (
    _ATTEMPTS,
    Column("next try (UTC)", lambda row: minute(row["retry"])),
    Column("reason", lambda row: row["reason"]),
    _URL,
)


def _limit(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} isn't a number of requests. Write for example 500, or 0 for all"
        )
    return int(text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--failed", action="store_true", help="list pages that failed, and why")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        default=LIMIT,
        help=f"list at most N requests (default {LIMIT}, 0 lists all)",
    )


PENDING = Command(
    "pending",
    "list pending requests by worker, or pages that failed and why",
    """\
scrapy bloom pending
scrapy bloom pending --failed --limit 0""",
    run,
    _add_options,
)
