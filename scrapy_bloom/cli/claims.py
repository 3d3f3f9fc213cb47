"""``scrapy bloom pending``, ``failed`` and ``gone``: claims, and pages that failed or are gone."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol, worker_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.ledger_protocol import MissingPage
from scrapy_bloom.bloom.validators import plural, whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    Subcommand,
    add_change_options,
    add_filter_options,
    iso,
    print_json_list,
    with_dates,
)
from scrapy_bloom.cli.stored_claims import (
    PAGE,
    printable,
    scan_claims,
    stored_claims,
    url_of,
    without_credentials,
)
from scrapy_bloom.crawl.claims import workers

#: A claim or a page in the form that JSON has.
Document = dict[str, Any]

#: What happens to the pages of claims that are released.
CONSEQUENCE = "their pages are crawled only if a crawl finds the URLs again"
NOT_KEPT = "(its request is not kept)"
#: Pages that are listed, unless --limit says otherwise.
LIMIT, MAX_LIMIT = 100, 1_000_000_000


# -- tables --


def _line(cells: Sequence[str], widths: Iterable[int]) -> str:
    """Return a line of a table; its last cell is not padded, because it may be long."""
    return "  ".join([*(map(str.ljust, cells, widths)), cells[-1]])


def _print_pages(
    documents: Iterable[Document], columns: Mapping[str, str], *, several: bool
) -> int:
    """Print pages with what they have in common; return how many there are.

    Args:
        documents: the pages.
        columns: field -> heading: of a count, then of times.
        several: whether they are of several windows.
    """
    (count, *times), (first, *_) = columns, columns.values()
    widths = [len(first), *(render.TIME for _ in times), *[12] * several, 40]
    print(_line([*columns.values(), *["window"] * several, "reason", "URL"], widths))
    shown = 0
    for document in documents:
        shown += 1
        url = NOT_KEPT if document["url"] is None else printable(document["url"])
        cells = [f"{document[count]:{len(first)}}", *(render.minute(document[t]) for t in times)]
        cells += [*[document["name"]] * several, printable(document["reason"]) or "(not known)"]
        print(_line([*cells, url or "(not known)"], widths))
    return shown


def _keys(server: Server, windows: Iterable[str]) -> str:
    return f"{', '.join(map(server.key, windows))} on {server.address}"


def _add_limit(parser: argparse.ArgumentParser, pages: str) -> None:
    parser.add_argument(
        "--limit",
        metavar="N",
        default=str(LIMIT),
        help=f"list the N pages that are {pages} (default {LIMIT}; 0 lists all)",
    )


def _limit(session: CommandSession) -> int | None:
    """Return how many pages are listed; None for all."""
    meaning = "the number of pages to list, 0 for all"
    return whole_number("--limit", session.opts.limit, 0, MAX_LIMIT, meaning) or None


def _not_shown(count: int) -> str:
    return f"; {count:,} are not shown (--limit 0 shows all)" if count else ""


# -- pending --


def _add_pending_options(parser: argparse.ArgumentParser) -> None:
    add_change_options(parser)
    parser.add_argument(
        "--owner", metavar="OWNER", help="only claims of this owner (its id, HOST:PID or spider)"
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help=f"end the claims of --owner, and delete their requests, so that {CONSEQUENCE}. Not "
        "needed for workers that are dead or stopped, whose claims the next crawl takes over",
    )


def _pending(session: CommandSession) -> ExitCode:
    """List claims, or end them if the user agrees."""
    owner, release = session.opts.owner, session.opts.release
    if release and not owner:
        raise ConfigurationError("say whose claims to release: --release with --owner")
    with session.connect() as server:
        bloom, snapshot = server.filter(session.window), server.read(session.window)
        head = {"address": server.address, "name": session.window, "key": bloom.key}
        claims = _claims(session, server, bloom, snapshot.header.blocks)
        if owner is not None:
            claims = (claim for claim in claims if _is_of(claim, owner))
        if release:
            return _release(session, bloom, claims, head)
        if session.opts.json:
            print_json_list(head, "claims", claims)
        else:
            _print_claims(claims, head)
    return ExitCode.FINE


def _claims(
    session: CommandSession, server: Server, bloom: BloomFilter, blocks: int
) -> Iterator[Document]:
    """Yield all claims of a filter."""
    found = workers.parse_all(bloom.run(worker_protocol.read_workers).entries)
    spiders = {workers.tag(name): name for name in session.spiders}
    cooldown = session.settings.retry_after
    for block, page in scan_claims(bloom, blocks):
        stored = stored_claims(server, bloom, block, [claim.field for claim in page.claims])
        for claim, url in zip(page.claims, map(url_of, stored), strict=True):
            tag, worker = claim.owner[1:9], found.get(claim.owner)
            document = {
                "url": url,
                "attempts": claim.attempt,
                "since": 0 if claim.failed else claim.time,
                "due": claim.due(page.now, cooldown) if claim.failed else 0,
                "owner": claim.owner,
                "worker": f"{worker.process.host}:{worker.process.pid}" if worker else "",
                "spider": spiders.get(tag, tag),
                "block": block,
                "field": claim.field,
            }
            yield with_dates(document)


def _is_of(claim: Document, owner: str) -> bool:
    """Whether ``--owner`` is the owner's id, its host and process, or its spider."""
    names = (claim["owner"], claim["worker"], claim["spider"])
    return owner in names or workers.is_of(claim["owner"], owner)


def _print_claims(claims: Iterable[Document], head: Mapping[str, str]) -> None:
    total, widths = 0, (8, 26, 30)
    print(_line(("attempts", "since, or due if it failed", "owner", "URL"), widths))
    for claim in claims:
        total += 1
        when = f"due {iso(claim['due'])}" if claim["due"] else iso(claim["since"]) or ""
        owner = printable(f"{claim['worker'] or claim['owner']} {claim['spider']}")
        url = NOT_KEPT if claim["url"] is None else printable(claim["url"])
        print(_line((f"{claim['attempts']:8}", when, owner, url), widths))
    print(f"{head['key']} on {head['address']}: {plural(total, 'claim')}")


def _release(
    session: CommandSession, bloom: BloomFilter, claims: Iterable[Document], head: Mapping[str, str]
) -> ExitCode:
    fields = defaultdict(list)
    for claim in claims:
        fields[claim["owner"], claim["block"]].append(claim["field"])
    count, where = sum(map(len, fields.values())), f"{bloom.key} on {head['address']}"
    if count and not session.confirm(f"Release {plural(count, 'claim')} of {where}; {CONSEQUENCE}"):
        return ExitCode.NO
    released = 0
    for (owner, block), part in fields.items():
        # A claim that has another owner by now is left alone.
        release = partial(claim_protocol.release_fields, fields={block: part}, owner=owner)
        released += bloom.run(release)
    text = f"{where}: {plural(released, 'claim')} released; {CONSEQUENCE}"
    session.report({**head, "released": released}, text)
    return ExitCode.FINE


PENDING = Subcommand(
    "list all URLs that are claimed, by owner, and end claims (failed says why pages failed)",
    _add_pending_options,
    _pending,
)


# -- failed --


@dataclass(frozen=True, slots=True)
class FailedPage:
    """The claim of a page that failed, and when it is due."""

    due: int
    window: str
    block: int
    claim: StoredClaim


def _add_failed_options(parser: argparse.ArgumentParser) -> None:
    add_filter_options(parser)
    _add_limit(parser, "due first")


def _failed(session: CommandSession) -> ExitCode:
    """List the pages that failed."""
    with session.connect() as server:
        blocks = session.stored_blocks(server)
        failed = due = 0

        def pages() -> Iterator[FailedPage]:
            nonlocal failed, due
            for window, count in blocks.items():
                for block, part in scan_claims(server.filter(window), count):
                    found = _failed_pages(session, window, block, part)
                    failed += len(found)
                    due += sum(page.due <= part.now for page in found)
                    yield from found

        by_time = attrgetter("due", "window", "claim.field")
        first = nsmallest(_limit(session) or sys.maxsize, pages(), by_time)
        documents = _failed_documents(session, server, first)
        if session.opts.json:
            head = {"address": server.address, "failed": failed, "due": due}
            print_json_list(head, "pages", documents)
            return ExitCode.FINE
        columns = {"attempts": "attempts", "due": "next try (UTC)"}
        shown = _print_pages(documents, columns, several=len(blocks) > 1)
        text = f"{plural(failed, 'page')} failed, "
        text += f"{plural(due, 'of them is', 'of them are')} due{_not_shown(failed - shown)}"
        print(f"{_keys(server, blocks)}: {text}")
    return ExitCode.FINE


def _failed_pages(
    session: CommandSession, window: str, block: int, part: claim_protocol.ClaimPage
) -> list[FailedPage]:
    """Return the pages that failed; with ``--spider``, of that spider."""
    spider, cooldown = session.opts.spider, session.settings.retry_after
    return [
        FailedPage(claim.due(part.now, cooldown), window, block, claim)
        for claim in part.claims
        if claim.was_tried and (spider is None or workers.is_of(claim.owner, spider))
    ]


def _failed_documents(
    session: CommandSession, server: Server, pages: Sequence[FailedPage]
) -> Iterator[Document]:
    """Yield what is known of pages; their requests are read part by part."""
    spiders = {workers.tag(name): name for name in session.spiders}
    for start in range(0, len(pages), PAGE):
        part = pages[start : start + PAGE]
        urls = _urls(server, part)
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


def _urls(server: Server, pages: Iterable[FailedPage]) -> dict[FailedPage, str | None]:
    """Return the pages' URLs, None for those whose requests are not kept; one call a block."""
    by_block = defaultdict(list)
    for page in pages:
        by_block[page.window, page.block].append(page)
    urls: dict[FailedPage, str | None] = {}
    for (window, block), part in by_block.items():
        fields = [page.claim.field for page in part]
        stored = stored_claims(server, server.filter(window), block, fields)
        for page, url in zip(part, map(url_of, stored), strict=True):
            urls[page] = url and without_credentials(url)
    return urls


FAILED = Subcommand(
    "list pages that failed, why, and when they are tried again (pending lists all claims, also "
    "those that workers have now)",
    _add_failed_options,
    _failed,
)


# -- gone --


def _add_gone_options(parser: argparse.ArgumentParser) -> None:
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
    _add_limit(parser, "missing longest")


def _gone(session: CommandSession) -> ExitCode:
    """List the pages that are gone."""
    limit, opts = _limit(session), session.opts
    with session.connect() as server:
        blocks = session.stored_blocks(server)
        filters = {window: server.filter(window) for window in blocks}
        noted = [
            (page, _gone_document(page, window, block))
            for window, bloom in filters.items()
            for block in range(blocks[window])
            for page in bloom.run(partial(ledger_protocol.missing, block=block, count=PAGE))
        ]
        gone = sum(page.is_gone for page, _ in noted)
        listed = [document for page, document in noted if opts.all_missing or page.is_gone]
        listed.sort(key=lambda document: (document["first"], document["name"], document["field"]))
        if opts.forget:
            for bloom in filters.values():
                bloom.run(ledger_protocol.forget_missing)
        if opts.json:
            head = {"address": server.address, "gone": gone, "missing": len(noted)}
            print_json_list({**head, "forgotten": bool(opts.forget)}, "pages", listed[:limit])
            return ExitCode.FINE
        if listed:
            columns = {"windows": "windows", "first": "since (UTC)", "last": "last (UTC)"}
            _print_pages(listed[:limit], columns, several=len(filters) > 1)
        not_shown = len(listed) - len(listed[:limit])
        print(f"{_keys(server, filters)}: {_total(session, gone, len(noted), not_shown)}")
    return ExitCode.FINE


def _gone_document(page: MissingPage, window: str, block: int) -> Document:
    return with_dates(
        {
            "url": without_credentials(page.url),
            "name": window,
            "first": page.first,
            "last": page.last,
            "windows": page.times,
            "reason": page.reason,
            "block": block,
            "field": page.field,
        }
    )


def _total(session: CommandSession, gone: int, noted: int, not_shown: int) -> str:
    text = f"{plural(gone, 'page is', 'pages are')} gone"
    if others := noted - gone:
        hint = "" if session.opts.all_missing else " (--all lists them)"
        text += f"; {plural(others, 'was', 'were')} missing in one window so far{hint}"
    text += _not_shown(not_shown)
    if session.opts.forget:
        text += "; the notes are deleted"
    if not noted and not session.settings.ledger:
        text += "; crawls note them with BLOOM_LEDGER = True"
    return text


GONE = Subcommand(
    "list pages that were not found, or failed for good, for two windows (crawls with BLOOM_LEDGER "
    "note them)",
    _add_gone_options,
    _gone,
)
