"""``scrapy bloom gone``: pages that were not found, or failed for good, for two windows."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import MissingPage
from scrapy_bloom.bloom.validators import whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.failed import LIMIT, MAX_LIMIT
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    add_filter_options,
    print_json_list,
    with_dates,
)
from scrapy_bloom.cli.stored_claims import printable, without_credentials

HELP = (
    "list pages that were not found, or failed for good, for two windows (crawls with BLOOM_LEDGER "
    "note them)"
)
#: Pages read at once.
PAGE = 256


@dataclass(frozen=True, slots=True)
class NotedPage:
    """A page that is missing, and where that is noted."""

    window: str
    block: int
    page: MissingPage

    @property
    def order(self) -> tuple[int, str, str]:
        """By which pages are sorted: since when they are missing."""
        return self.page.first, self.window, self.page.field

    def document(self) -> dict[str, Any]:
        """Return it in the form that JSON has."""
        page = self.page
        return with_dates(
            {
                "url": without_credentials(page.url),
                "name": self.window,
                "first": page.first,
                "last": page.last,
                "windows": page.times,
                "reason": page.reason,
                "block": self.block,
                "field": page.field,
            }
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument(
        "--all",
        dest="all_missing",
        action="store_true",
        help="list those that were missing in one window only, too",
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="delete all notes, also of pages that were missing in one window only; pages that are "
        "gone are not in the ledger any more, and are fetched when they are linked",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        default=str(LIMIT),
        help=f"list the N pages that are missing longest (default {LIMIT}; 0 lists all)",
    )


def run(session: CommandSession) -> ExitCode:
    """List the pages that are gone.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: an option is wrong.
        StorageError: the server did not answer.
    """
    meaning = "the number of pages to list, 0 for all"
    limit = whole_number("--limit", session.opts.limit, 0, MAX_LIMIT, meaning)
    with session.connect() as server:
        blocks = session.stored_blocks(server)
        filters = {name: server.filter(name) for name in blocks}
        noted = [page for name in blocks for page in _noted(filters[name], name, blocks[name])]
        gone = [page for page in noted if page.page.is_gone]
        listed = sorted(noted if session.opts.all_missing else gone, key=lambda page: page.order)
        shown = listed[: limit or None]
        if session.opts.forget:
            for bloom in filters.values():
                bloom.run(ledger_protocol.forget_missing)
        if session.opts.json:
            head = {
                "address": server.address,
                "gone": len(gone),
                "missing": len(noted),
                "forgotten": bool(session.opts.forget),
            }
            print_json_list(head, "pages", (page.document() for page in shown))
        else:
            _print(shown, several=len(filters) > 1)
            keys = ", ".join(bloom.key for bloom in filters.values())
            print(f"{keys} on {server.address}: {_total(session, noted, gone, listed, shown)}")
    return ExitCode.FINE


def _noted(bloom: BloomFilter, window: str, blocks: int) -> Iterator[NotedPage]:
    """Yield the missing pages of a filter, each once."""
    for block in range(blocks):
        found, cursor = dict[str, NotedPage](), ""
        while cursor != "0":
            read = partial(ledger_protocol.missing, block=block, cursor=cursor or "0", count=PAGE)
            cursor, pages = bloom.run(read)
            found |= {page.field: NotedPage(window, block, page) for page in pages}
        yield from found.values()


def _print(pages: Sequence[NotedPage], *, several: bool) -> None:
    name = "window" if several else None
    if pages:
        print(_line(("windows", "since (UTC)", "last (UTC)"), name, "reason", "URL"))
    for noted in pages:
        page = noted.page
        numbers = f"{page.times:7}", render.minute(page.first), render.minute(page.last)
        reason = printable(page.reason) or "(not known)"
        url = printable(without_credentials(page.url)) or "(not known)"
        print(_line(numbers, noted.window if several else None, reason, url))


def _line(numbers: tuple[str, str, str], window: str | None, reason: str, url: str) -> str:
    """Return a line; the URL comes last because it may be long."""
    windows, since, last = numbers
    name = "" if window is None else f"{window:12}  "
    return f"{windows:7}  {since:{render.TIME}}  {last:{render.TIME}}  {name}{reason:40}  {url}"


def _total(
    session: CommandSession,
    noted: Sequence[NotedPage],
    gone: Sequence[NotedPage],
    listed: Sequence[NotedPage],
    shown: Sequence[NotedPage],
) -> str:
    text = f"{plural(len(gone), 'page is', 'pages are')} gone"
    others = len(noted) - len(gone)
    if others:
        hint = "" if session.opts.all_missing else " (--all lists them)"
        text += f"; {plural(others, 'was', 'were')} missing in one window so far{hint}"
    if len(listed) > len(shown):
        text += f"; {len(listed) - len(shown):,} are not shown (--limit 0 shows all)"
    if session.opts.forget:
        text += "; the notes are deleted"
    if not noted and not session.settings.ledger:
        text += "; crawls note them with BLOOM_LEDGER = True"
    return text
