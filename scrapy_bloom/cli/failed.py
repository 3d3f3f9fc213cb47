"""``scrapy bloom failed``: pages that failed, why, and when they are tried again."""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.validators import whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    print_json_list,
    with_dates,
)
from scrapy_bloom.cli.stored_claims import (
    PAGE,
    printable,
    scan_block,
    stored_claims,
    url_of,
    without_credentials,
)
from scrapy_bloom.crawl.claims import workers

#: A page in the form that JSON has.
Document = dict[str, Any]

HELP = (
    "list pages that failed, why, and when they are tried again (pending lists all claims, also "
    "those that workers have now)"
)
#: Pages that are listed, unless --limit says otherwise.
LIMIT = 100
MAX_LIMIT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FailedPage:
    """A page that failed.

    Args:
        window: of its filter.
        block: of its claim.
        claim: its claim.
        due: when it is due.
        is_due: whether the next look of a crawl takes it up.
    """

    window: str
    block: int
    claim: StoredClaim
    due: int
    is_due: bool

    @property
    def order(self) -> tuple[int, str, str]:
        """By which pages are sorted: when they are due."""
        return self.due, self.window, self.claim.field


@dataclass(slots=True)
class Totals:
    """How many pages failed, and how many of them are due."""

    failed: int = 0
    due: int = 0

    def count(self, pages: Iterable[FailedPage]) -> Iterator[FailedPage]:
        """Pass pages on, and count them."""
        for page in pages:
            self.failed += 1
            self.due += page.is_due
            yield page


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument(
        "--limit",
        metavar="N",
        default=str(LIMIT),
        help=f"list the N pages that are due first (default {LIMIT}; 0 lists all)",
    )


def run(session: CommandSession) -> ExitCode:
    """List the pages that failed.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: an option is wrong.
        StorageError: the server did not answer.
    """
    meaning = "the number of pages to list, 0 for all"
    limit = whole_number("--limit", session.opts.limit, 0, MAX_LIMIT, meaning)
    with session.connect() as server:
        blocks = session.stored_blocks(server)
        cooldown = session.settings.retry_after
        filters, totals = {name: server.filter(name) for name in blocks}, Totals()
        pages = totals.count(
            page
            for name, bloom in filters.items()
            for page in _failed(bloom, name, blocks[name], session.opts.spider, cooldown)
        )
        first = _first(pages, limit)
        documents = _documents(session, server, filters, first)
        if session.opts.json:
            head = {"address": server.address, "failed": totals.failed, "due": totals.due}
            print_json_list(head, "pages", documents)
        else:
            _print(documents, totals, server, filters)
    return ExitCode.FINE


def _first(pages: Iterable[FailedPage], limit: int) -> list[FailedPage]:
    """Return the pages that are due first; all for the limit 0."""
    if not limit:
        return sorted(pages, key=lambda page: page.order)
    return nsmallest(limit, pages, key=lambda page: page.order)


def _failed(
    bloom: BloomFilter, window: str, blocks: int, spider: str | None, cooldown: int
) -> Iterator[FailedPage]:
    """Yield the failed pages of a filter, each once."""
    for block in range(blocks):
        found = dict[str, FailedPage]()
        for part in scan_block(bloom, block):
            for claim in part.claims:
                if claim.was_tried and (spider is None or workers.is_of(claim.owner, spider)):
                    due = claim.due(part.now, cooldown)
                    is_due = due <= part.now
                    found[claim.field] = FailedPage(window, block, claim, due, is_due)
        yield from found.values()


def _documents(
    session: CommandSession,
    server: Server,
    filters: Mapping[str, BloomFilter],
    pages: Sequence[FailedPage],
) -> Iterator[Document]:
    """Yield what is known of pages; the requests are read page by page."""
    spiders = {workers.tag(name): name for name in session.spiders}
    for start in range(0, len(pages), PAGE):
        part = pages[start : start + PAGE]
        urls = _urls(server, filters, part)
        for page in part:
            claim, tag = page.claim, page.claim.owner[1:9]
            yield with_dates(
                {
                    "url": urls[page],
                    "name": page.window,
                    "attempts": claim.attempt,
                    "due": page.due,
                    "reason": claim.reason,
                    "spider": spiders.get(tag, tag),
                    "block": page.block,
                    "field": claim.field,
                }
            )


def _urls(
    server: Server, filters: Mapping[str, BloomFilter], pages: Sequence[FailedPage]
) -> dict[FailedPage, str | None]:
    """Return the pages' URLs, None for those whose requests are not kept; one call a block."""
    by_block = defaultdict(list)
    for page in pages:
        by_block[page.window, page.block].append(page)
    found: dict[FailedPage, str | None] = {}
    for (window, block), part in by_block.items():
        fields = [page.claim.field for page in part]
        stored = stored_claims(server, filters[window], block, fields)
        for page, text in zip(part, stored, strict=True):
            url = url_of(text)
            found[page] = url if url is None else without_credentials(url)
    return found


def _print(
    documents: Iterator[Document],
    totals: Totals,
    server: Server,
    filters: Mapping[str, BloomFilter],
) -> None:
    shown, several = 0, len(filters) > 1
    print(_line("attempts", "next try (UTC)", "window" if several else None, "reason", "URL"))
    for document in documents:
        shown += 1
        url = document["url"]
        print(
            _line(
                f"{document['attempts']:8}",
                render.minute(document["due"]),
                document["name"] if several else None,
                printable(document["reason"]) or "(not known)",
                "(its request is not kept)" if url is None else printable(url),
            )
        )
    names = ", ".join(bloom.key for bloom in filters.values())
    left = totals.failed - shown
    more = f"; {left:,} are not shown (--limit 0 shows all)" if left else ""
    print(
        f"{names} on {server.address}: {plural(totals.failed, 'page')} failed, "
        f"{plural(totals.due, 'of them is', 'of them are')} due{more}"
    )


def _line(attempts: str, due: str, window: str | None, reason: str, url: str) -> str:
    """Return a line; the URL comes last because it may be long."""
    name = "" if window is None else f"{window:12}  "
    return f"{attempts:8}  {due:{render.TIME}}  {name}{reason:40}  {url}"
