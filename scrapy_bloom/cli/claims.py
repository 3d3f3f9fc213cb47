"""``scrapy bloom pending``, ``failed`` and ``gone``: claims, and pages that failed or are gone."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import nsmallest

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.ledger import GONE_AFTER
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol
from scrapy_bloom.bloom.validators import plural, whole_number
from scrapy_bloom.cli.output import Column, Document, minute, printable, with_dates
from scrapy_bloom.cli.server import (
    PAGE,
    FoundClaim,
    Stored,
    url_of,
    with_texts,
    without_credentials,
)
from scrapy_bloom.cli.session import CHANGE, FILTER, CommandSession, Option, option, subcommand
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


def _keys(found: Sequence[Stored]) -> str:
    return f"{', '.join(stored.key for stored in found)} on {found[0].server.address}"


def _url(row: Document) -> str:
    return "(its request is not kept)" if row["url"] is None else printable(row["url"])


#: What both lists of pages end with.
_WINDOW: Column[Document] = Column("window", lambda row: row["name"], is_left=True)
_PAGE: Sequence[Column[Document]] = (
    Column("reason", lambda row: printable(row["reason"]) or "(not known)", is_left=True),
    Column("URL", lambda row: _url(row) or "(not known)", is_left=True),
)
FAILED: Sequence[Column[Document]] = (
    Column("attempts", lambda row: f"{row['attempts']:,}"),
    Column("next try (UTC)", lambda row: minute(row["due"]), is_left=True),
    *_PAGE,
)
GONE: Sequence[Column[Document]] = (
    Column("windows", lambda row: f"{row['windows']:,}"),
    Column("since (UTC)", lambda row: minute(row["first"]), is_left=True),
    Column("last (UTC)", lambda row: minute(row["last"]), is_left=True),
    *_PAGE,
)


def _columns(
    columns: Sequence[Column[Document]], found: Sequence[Stored]
) -> Sequence[Column[Document]]:
    """Return columns of pages, which may be of several windows."""
    return [*columns[:-2], _WINDOW, *columns[-2:]] if len(found) > 1 else columns


def _row(session: CommandSession, one: FoundClaim, text: bytes | None) -> Document:
    """Return what both lists have of a claim."""
    url = url_of(text)
    return {
        "url": url and without_credentials(url),
        "attempts": one.claim.attempt,
        "due": one.due,
        "spider": session.spider_of(one.claim.owner),
        "block": one.block,
        "field": one.claim.field,
    }


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
def pending(session: CommandSession) -> None:
    """List claims, or end them if the user agrees."""
    owner, release = session.opts.owner, session.opts.release
    if release and not owner:
        raise ConfigurationError("say whose claims to release: --release with --owner")
    with session.connect() as server:
        stored = server.read(session.window)
        claims = (one for one in _claims(session, stored) if owner is None or _is_of(one, owner))
        if release:
            _release(session, stored, claims)
        else:
            session.report_list(
                stored.head,
                "claims",
                claims,
                PENDING,
                lambda count: f"{stored.where}: {plural(count, 'claim')}",
            )


def _claims(session: CommandSession, stored: Stored) -> Iterator[Document]:
    """Yield all claims of a filter."""
    found = workers.parse_all(stored.workers.entries)
    for one, text in with_texts(stored.claims()):
        worker = found.get(one.claim.owner)
        own = {
            "since": 0 if one.claim.failed else one.claim.time,
            "owner": one.claim.owner,
            "worker": f"{worker.process.host}:{worker.process.pid}" if worker else "",
        }
        yield with_dates(_row(session, one, text) | own)


def _is_of(claim: Document, owner: str) -> bool:
    """Whether ``--owner`` is the owner's id, its host and process, or its spider."""
    names = (claim["owner"], claim["worker"], claim["spider"])
    return owner in names or workers.is_of(claim["owner"], owner)


def _owner(claim: Document) -> str:
    """Return the worker that has a claim: none has that of a page that failed, or is left."""
    owner: str = claim["worker"] or claim["owner"]
    return "none" if owner.startswith("-") else owner


PENDING: Sequence[Column[Document]] = (
    Column("attempts", lambda row: f"{row['attempts']:,}"),
    Column(
        "since, or due if it failed",
        lambda row: f"due {row['due_utc']}" if row["due"] else row["since_utc"] or "",
        is_left=True,
    ),
    Column("owner", lambda row: printable(f"{_owner(row)} {row['spider']}"), is_left=True),
    Column("URL", _url, is_left=True),
)


def _release(session: CommandSession, stored: Stored, claims: Iterable[Document]) -> None:
    fields = defaultdict(list)
    for claim in claims:
        fields[claim["owner"], claim["block"]].append(claim["field"])
    count = plural(sum(map(len, fields.values())), "claim")
    if fields:
        session.confirm(f"Release {count} of {stored.where}; {CONSEQUENCE}")
    released = 0
    for (owner, block), part in fields.items():
        # A claim that has another owner by now is left alone.
        release = partial(claim_protocol.release_fields, fields={block: part}, owner=owner)
        released += stored.bloom.run(release)
    text = f"{stored.where}: {plural(released, 'claim')} released; {CONSEQUENCE}"
    session.report({**stored.head, "released": released}, text)


# -- failed --


@subcommand(
    "list pages that failed, why, and when they are tried again (pending lists all claims, also "
    "those that workers have now)",
    *FILTER,
    _limit_option("due first"),
)
def failed(session: CommandSession) -> None:
    """List the pages that failed."""
    limit, counts = _limit(session), Counter[str]()
    with session.connect() as server:
        found = [*session.stored(server).values()]
        first = nsmallest(limit, _failures(found, session.opts.spider, counts), due_first)

        def summary(shown: int) -> str:
            pages = f"{_keys(found)}: {plural(counts['failed'], 'page')} failed"
            due = plural(counts["due"], "of them is", "of them are")
            now = "; scrapy bloom recrawl --failed lets the next crawl try them now"
            later = now if counts["due"] < counts["failed"] else ""
            return f"{pages}, {due} due{_not_shown(counts['failed'] - shown)}{later}"

        head = {"address": server.address, "failed": counts["failed"], "due": counts["due"]}
        session.report_list(
            head, "pages", failed_pages(session, first), _columns(FAILED, found), summary
        )


def _failures(
    found: Iterable[Stored], spider: str | None, counts: Counter[str]
) -> Iterator[FoundClaim]:
    """Yield the claims of pages that failed, of one spider or of all; count them."""
    for stored in found:
        for one in stored.claims():
            if one.claim.was_tried and (spider is None or workers.is_of(one.claim.owner, spider)):
                counts["failed"] += 1
                counts["due"] += one.due <= one.now
                yield one


def due_first(one: FoundClaim) -> tuple[int, str, str]:
    """Return what failed pages are sorted by."""
    return one.due, one.stored.window, one.claim.field


def failed_pages(session: CommandSession, failures: Iterable[FoundClaim]) -> Iterator[Document]:
    """Yield pages that failed, by their claims."""
    for one, text in with_texts(failures):
        own = {"name": one.stored.window, "reason": one.claim.reason}
        yield with_dates(_row(session, one, text) | own)


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
def gone(session: CommandSession) -> None:
    """List the pages that are gone."""
    limit, opts = _limit(session), session.opts
    with session.connect() as server:
        found = [*session.stored(server).values()]
        noted = missing_pages(found)
        are_gone = [page for page in noted if page["windows"] >= GONE_AFTER]
        listed = noted if opts.all_missing else are_gone
        if opts.forget:
            for stored in found:
                stored.bloom.run(ledger_protocol.forget_missing)

        def summary(shown: int) -> str:
            text = f"{_keys(found)}: {plural(len(are_gone), 'page is', 'pages are')} gone"
            if others := len(noted) - len(are_gone):
                hint = "" if opts.all_missing else " (--all lists them)"
                text += f"; {plural(others, 'was', 'were')} missing in one window so far{hint}"
            text += _not_shown(len(listed) - shown)
            if opts.forget:
                text += "; the notes are deleted"
            if not noted and not session.settings.ledger:
                text += "; crawls note them with BLOOM_LEDGER = True"
            return text

        head = {"address": server.address, "gone": len(are_gone), "missing": len(noted)}
        head["forgotten"] = bool(opts.forget)
        session.report_list(head, "pages", listed[:limit], _columns(GONE, found), summary)


def missing_pages(found: Iterable[Stored]) -> list[Document]:
    """Return the pages that were missing, those that are missing longest first."""
    pages = list[Document]()
    for stored in found:
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
                pages.append(with_dates(document))
    return sorted(pages, key=lambda page: (page["first"], page["name"], page["field"]))
