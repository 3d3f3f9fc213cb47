"""``scrapy bloom check``: whether URLs are remembered, pending or failed."""

import argparse
from collections.abc import Sequence
from typing import Any

from scrapy import Request

from scrapy_bloom.bloom.protocol.claims import FAILED, StoredClaim
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.output import Column, Row, minute, show_json, show_table, without_credentials
from scrapy_bloom.cli.project import Project, key_of
from scrapy_bloom.cli.stored import Memory
from scrapy_bloom.cli.urls import read_urls
from scrapy_bloom.rules import RUN

REMEMBERED, NEW = "remembered", "new"


def run(project: Project, opts: argparse.Namespace) -> ExitCode:
    """Print for each URL what the filter knows of it."""
    target = project.target()
    urls, identity = read_urls(opts.urls), target.identity()
    keys = {url: key_of(identity, Request(url)) for url in urls}
    with target.connect() as stored:
        stored.read()
        known = [key for key in keys.values() if key[0] != RUN]
        memories = stored.remembered(known)
        spider = target.spider or stored.only_spider()
        claims = stored.find_claims(spider, known) if spider else {}
    rows = [_row(url, key, memories.get(key), claims.get(key)) for url, key in keys.items()]
    if opts.json:
        show_json({"key": stored.bloom.key, "address": stored.bloom.label, "urls": rows})
    else:
        show_table(COLUMNS, rows)
    return ExitCode.FINE if all(row["remembered"] for row in rows) else ExitCode.NO


def _row(url: str, key: Key, memory: Memory | None, claim: StoredClaim | None) -> dict[str, Any]:
    """Return what is known of a URL."""
    row: dict[str, Any] = {
        "url": without_credentials(url),
        "state": REMEMBERED if memory else NEW,
        "remembered": memory is not None,
        "window": key[0],
        "since": memory and (memory.since or None),
        "until": memory and (memory.until or None),
        "retry": None,
        "attempts": claim.attempts if claim else 0,
        "reason": "",
    }
    if key[0] == RUN:
        row["state"] = "crawled by each run"
    elif claim and claim.owner == FAILED:
        row |= {"retry": claim.time, "reason": claim.nonce if claim.has_failed else ""}
        row["state"] = "failed" if claim.has_failed else "to be crawled again"
    elif claim:
        row["state"] = "pending"
        row["since"] = row["since"] or claim.time
    return row


def _until(row: Row) -> str:
    if row["retry"]:
        return minute(row["retry"])
    return minute(row["until"]) or ("never" if row["remembered"] else "")


COLUMNS: Sequence[Column] = (
    Column("state", lambda row: row["state"]),
    Column("since (UTC) or later", lambda row: minute(row["since"])),
    Column("forgotten, or next try (UTC)", _until),
    Column("window", lambda row: row["window"]),
    Column("URL", lambda row: row["url"]),
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="+", metavar="URL", help="URLs; - reads them from stdin")


CHECK = Command(
    "check",
    "say whether URLs are remembered, pending or failed",
    """\
scrapy bloom check https://example.com/a https://example.com/b
# many URLs, one per line
scrapy bloom check - < urls.txt""",
    run,
    _add_options,
)
