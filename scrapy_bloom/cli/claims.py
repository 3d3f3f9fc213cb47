"""``scrapy bloom pending``, ``failed`` and ``gone``: claims, and pages that failed or are gone."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol
from scrapy_bloom.bloom.validators import plural, whole_number
from scrapy_bloom.cli.output import Column, Document, minute, printable, with_dates
from scrapy_bloom.cli.server import PAGE, Stored, url_of, without_credentials
from scrapy_bloom.cli.session import (
    CHANGE,
    FILTER,
    CommandSession,
    ExitCode,
    Option,
    option,
    subcommand,
)
from scrapy_bloom.crawl import workers

#: What happens to the pages of claims that are released.
CONSEQUENCE = "their pages are crawled only if a crawl finds the URLs again"
#: Pages that are listed, unless --limit says otherwise.
LIMIT, MAX_LIMIT = 100, 1_000_000_000


# -- what they have in common --


def _limit_option(pages: str) -> Option:
    text = f"list the N pages that are {pages} (default {LIMIT}; 0 lists all)"
    return option("--limit", metavar="N", default=str(LIMIT), help=text)


def _limit(session: CommandSession) -> int:
    """Return how many pages are listed."""
    meaning = "the number of pages to list, 0 for all"
    return whole_number("--limit", session.opts.limit, 0, MAX_LIMIT, meaning) or sys.maxsize


def _not_shown(count: int) -> str:
    return f"; {count:,} are not shown (--limit 0 shows all)" if count else ""


def _keys(found: Collection[Stored]) -> str:
    address = next(iter(found)).server.address
    return f"{', '.join(stored.key for stored in found)} on {address}"


def _time(field: str) -> Callable[[Document], str]:
    return lambda row: minute(row[field])


def _url(row: Document) -> str:
    return "(its request is not kept)" if row["url"] is None else printable(row["url"])


def _columns(*first: Column[Document], several: bool) -> list[Column[Document]]:
    """Return columns of pages, which may be of several windows."""
    window: Column[Document] = Column("window", lambda row: row["name"], is_left=True)
    return [
        *first,
        *[window] * several,
        Column("reason", lambda row: printable(row["reason"]) or "(not known)", is_left=True),
        Column("URL", lambda row: _url(row) or "(not known)", is_left=True),
    ]


def _spider_of(session: CommandSession) -> Callable[[str], str]:
    """Return what tells the spider of a claim's owner: its name, or else its tag."""
    spiders = {workers.tag(name): name for name in session.spiders}
    return lambda owner: spiders.get(owner[1:9], owner[1:9])


# -- pending --


@subcommand(
    "list all URLs that are claimed, by owner, and end claims (failed says why pages failed)",
    *CHANGE,
    option(
        "--owner", metavar="OWNER", help="only claims of this owner (its id, HOST:PID or spider)"
    ),
    option(
        "--release",
        action="store_true",
        help=f"end the claims of --owner, and delete their requests, so that {CONSEQUENCE}. Not "
        "needed for workers that are dead or stopped, whose claims the next crawl takes over",
    ),
)
def pending(session: CommandSession) -> ExitCode:
    """List claims, or end them if the user agrees."""
    owner, release = session.opts.owner, session.opts.release
    if release and not owner:
        raise ConfigurationError("say whose claims to release: --release with --owner")
    with session.connect() as server:
        stored = server.read(session.window)
        claims = (one for one in _claims(session, stored) if owner is None or _is_of(one, owner))
        if release:
            return _release(session, stored, claims)

        def summary(count: int) -> str:
            return f"{stored.where}: {plural(count, 'claim')}"

        session.report_list(stored.head, "claims", claims, PENDING, summary)
    return ExitCode.FINE


def _claims(session: CommandSession, stored: Stored) -> Iterator[Document]:
    """Yield all claims of a filter."""
    found, spider_of = workers.parse_all(stored.workers.entries), _spider_of(session)
    for block, page in stored.claims():
        requests = stored.stored_claims(block, [claim.field for claim in page.claims])
        for claim, url in zip(page.claims, map(url_of, requests), strict=True):
            worker = found.get(claim.owner)
            due = claim.due(page.now, session.settings.retry_after) if claim.failed else 0
            document = {
                "url": url,
                "attempts": claim.attempt,
                "since": 0 if claim.failed else claim.time,
                "due": due,
                "owner": claim.owner,
                "worker": f"{worker.process.host}:{worker.process.pid}" if worker else "",
                "spider": spider_of(claim.owner),
                "block": block,
                "field": claim.field,
            }
            yield with_dates(document)


def _is_of(claim: Document, owner: str) -> bool:
    """Whether ``--owner`` is the owner's id, its host and process, or its spider."""
    names = (claim["owner"], claim["worker"], claim["spider"])
    return owner in names or workers.is_of(claim["owner"], owner)


PENDING: Sequence[Column[Document]] = (
    Column("attempts", lambda row: f"{row['attempts']:,}"),
    Column(
        "since, or due if it failed",
        lambda row: f"due {row['due_utc']}" if row["due"] else row["since_utc"] or "",
        is_left=True,
    ),
    Column(
        "owner",
        lambda row: printable(f"{row['worker'] or row['owner']} {row['spider']}"),
        is_left=True,
    ),
    Column("URL", _url, is_left=True),
)


def _release(session: CommandSession, stored: Stored, claims: Iterable[Document]) -> ExitCode:
    fields = defaultdict(list)
    for claim in claims:
        fields[claim["owner"], claim["block"]].append(claim["field"])
    count = plural(sum(map(len, fields.values())), "claim")
    if fields and not session.confirm(f"Release {count} of {stored.where}; {CONSEQUENCE}"):
        return ExitCode.NO
    released = 0
    for (owner, block), part in fields.items():
        # A claim that has another owner by now is left alone.
        release = partial(claim_protocol.release_fields, fields={block: part}, owner=owner)
        released += stored.bloom.run(release)
    text = f"{stored.where}: {plural(released, 'claim')} released; {CONSEQUENCE}"
    session.report({**stored.head, "released": released}, text)
    return ExitCode.FINE


# -- failed --


@subcommand(
    "list pages that failed, why, and when they are tried again (pending lists all claims, also "
    "those that workers have now)",
    *FILTER,
    _limit_option("due first"),
)
def failed(session: CommandSession) -> ExitCode:
    """List the pages that failed."""
    with session.connect() as server:
        found = session.stored(server)
        count = due = 0

        def pages() -> Iterator[Document]:
            nonlocal count, due
            for stored in found.values():
                for page, now in _failed_pages(session, stored):
                    count, due = count + 1, due + (page["due"] <= now)
                    yield page

        first = nsmallest(
            _limit(session), pages(), lambda page: (page["due"], page["name"], page["field"])
        )

        def summary(shown: int) -> str:
            text = f"{_keys(found.values())}: {plural(count, 'page')} failed, "
            text += plural(due, "of them is", "of them are")
            return f"{text} due{_not_shown(count - shown)}"

        columns = _columns(
            Column("attempts", lambda row: f"{row['attempts']:,}"),
            Column("next try (UTC)", _time("due"), is_left=True),
            several=len(found) > 1,
        )
        head = {"address": server.address, "failed": count, "due": due}
        session.report_list(head, "pages", _with_urls(found, first), columns, summary)
    return ExitCode.FINE


def _failed_pages(session: CommandSession, stored: Stored) -> Iterator[tuple[Document, int]]:
    """Yield a filter's pages that failed, with ``--spider`` that spider's; and the present."""
    spider, spider_of = session.opts.spider, _spider_of(session)
    for block, part in stored.claims():
        for claim in part.claims:
            if claim.was_tried and (spider is None or workers.is_of(claim.owner, spider)):
                document = {
                    "url": None,
                    "name": stored.window,
                    "attempts": claim.attempt,
                    "due": claim.due(part.now, session.settings.retry_after),
                    "reason": claim.reason,
                    "spider": spider_of(claim.owner),
                    "block": block,
                    "field": claim.field,
                }
                yield with_dates(document), part.now


def _with_urls(found: Mapping[str, Stored], pages: Sequence[Document]) -> Iterator[Document]:
    """Yield pages with their URLs, unless their requests are not kept; one call a block."""
    remaining = iter(pages)
    while part := list(islice(remaining, PAGE)):
        by_block = defaultdict[tuple[str, int], list[Document]](list)
        for page in part:
            by_block[page["name"], page["block"]].append(page)
        for (window, block), those in by_block.items():
            requests = found[window].stored_claims(block, [page["field"] for page in those])
            for page, url in zip(those, map(url_of, requests), strict=True):
                page["url"] = url and without_credentials(url)
        yield from part


# -- gone --


@subcommand(
    "list pages that were not found, or failed for good, for two windows (crawls with BLOOM_LEDGER "
    "note them)",
    *FILTER,
    option(
        "--all",
        dest="all_missing",
        action="store_true",
        help="list those that were missing in one window only, too",
    ),
    option(
        "--forget",
        action="store_true",
        help="delete all notes, also of pages that were missing in one window only; pages that are "
        "gone are not in the ledger any more, and are fetched when they are linked",
    ),
    _limit_option("missing longest"),
)
def gone(session: CommandSession) -> ExitCode:
    """List the pages that are gone."""
    limit, opts = _limit(session), session.opts
    with session.connect() as server:
        found = [*session.stored(server).values()]
        noted = [one for stored in found for one in _missing_pages(stored)]
        count = sum(is_gone for is_gone, _ in noted)
        listed = [document for is_gone, document in noted if opts.all_missing or is_gone]
        listed.sort(key=lambda document: (document["first"], document["name"], document["field"]))
        if opts.forget:
            for stored in found:
                stored.bloom.run(ledger_protocol.forget_missing)

        def summary(shown: int) -> str:
            total = _total(session, count, len(noted), len(listed) - shown)
            return f"{_keys(found)}: {total}"

        columns = _columns(
            Column("windows", lambda row: f"{row['windows']:,}"),
            Column("since (UTC)", _time("first"), is_left=True),
            Column("last (UTC)", _time("last"), is_left=True),
            several=len(found) > 1,
        )
        head: dict[str, Any] = {"address": server.address, "gone": count, "missing": len(noted)}
        head["forgotten"] = bool(opts.forget)
        session.report_list(head, "pages", listed[:limit], columns, summary)
    return ExitCode.FINE


def _missing_pages(stored: Stored) -> Iterator[tuple[bool, Document]]:
    """Yield the pages that were missing, and whether they are gone."""
    for block in range(stored.snapshot.header.blocks):
        missing = partial(ledger_protocol.missing, block=block, count=PAGE)
        for page in stored.bloom.run(missing):
            document = {
                "url": without_credentials(page.url),
                "name": stored.window,
                "first": page.first,
                "last": page.last,
                "windows": page.times,
                "reason": page.reason,
                "block": block,
                "field": page.field,
            }
            yield page.is_gone, with_dates(document)


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
