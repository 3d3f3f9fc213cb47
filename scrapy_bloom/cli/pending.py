"""``scrapy bloom pending``: the claims of a filter, one a line; ``--release`` ends them.

Claims are read and shown page by page: there may be millions.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, load
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_change_options,
    iso,
    print_json,
)
from scrapy_bloom.crawl.claims import workers

HELP = "list URLs that are claimed, and end claims"
#: Claims read, and released, at once.
PAGE = 256
#: States of claims. ALIVE: the owner's heartbeat is heard, or has yet to start. DEAD: it is not.
#: STOPPED: the worker has ended, and left its claims to the next one. WAITING: in a queue that no
#: living worker has. FAILED: the page failed, and is crawled again when it is due.
ALIVE, DEAD, STOPPED, WAITING, FAILED = STATES = ("alive", "dead", "stopped", "waiting", "failed")
#: What becomes of the pages of claims that are released.
CONSEQUENCE = "their pages are crawled only if a crawl finds the URLs again"
HEADING = f"{'state':8}  {'attempts':8}  {'since, or due if failed':23}  {'owner':30}  URL"


@dataclass(frozen=True, slots=True)
class Pending:
    """A claim, and what is known of its owner.

    Args:
        block: the block it is in.
        claim: the claim.
        state: one of STATES.
        worker: host and process of the owner; "" if that is not known.
        spider: name of the owner's spider, or its tag if it is not the project's; "" if it has
            none.
    """

    block: int
    claim: StoredClaim
    state: str
    worker: str
    spider: str

    def is_of(self, owner: str) -> bool:
        """Whether the owner is called that: by id, host and process, or spider of any project."""
        names = (self.claim.owner, self.worker, self.spider)
        return owner != "" and (owner in names or workers.is_of(self.claim.owner, owner))


class Owners:
    """All owners of claims on a filter.

    Args:
        now: Unix time in seconds on the server.
        entries: what workers have stored of themselves, by id.
        spiders: names of the project's spiders.
        patience: seconds until a worker without an entry counts as dead: its first heartbeat may
            come after its first claims.
    """

    def __init__(
        self, now: int, entries: Mapping[str, str], spiders: Sequence[str], patience: float
    ) -> None:
        self._now, self._patience = now, patience
        self._workers = workers.parse_all(entries)
        self._spiders = {workers.tag(name): name for name in spiders}
        self._states: dict[str, str] = {}
        for worker in self._workers.values():
            is_dead = worker.until <= now or worker.process.is_gone
            state = STOPPED if not worker.until else DEAD if is_dead else ALIVE
            self._states[worker.id] = state
            if state == ALIVE and worker.shared_queue:
                self._states[worker.shared_queue] = ALIVE

    def describe(self, block: int, claim: StoredClaim) -> Pending:
        """Return what is known of a claim."""
        worker, tag = self._workers.get(claim.owner), claim.owner[1:9]
        process = f"{worker.process.host}:{worker.process.pid}" if worker else ""
        return Pending(block, claim, self._state(claim), process, self._spiders.get(tag, tag))

    def _state(self, claim: StoredClaim) -> str:
        if claim.failed:
            return FAILED
        if claim.owner in self._states:
            return self._states[claim.owner]
        if claim.owner.startswith("q"):
            return WAITING
        is_new = claim.owner.startswith("w") and self._now - claim.time < self._patience
        return ALIVE if is_new else DEAD


class Claims:
    """The claims that the options choose.

    Args:
        session: has the options.
        server: has the filter.

    Raises:
        NothingThereError: there is no filter.
    """

    def __init__(self, session: CommandSession, server: Server) -> None:
        self._session, self._server = session, server
        self._snapshot = server.read(session.window)
        self._bloom = server.filter(session.window)
        self._keys = Keys(self._bloom.key)
        #: Claims that cannot be read.
        self.damaged = 0
        self.head = {"address": server.address, "name": session.window, "key": self._bloom.key}
        self.where = f"{self._bloom.key} on {server.address}"

    def pages(self, title: str) -> Iterator[list[Pending]]:
        """Read all claims; yields those that are chosen, each list from one block."""
        session, snapshot = self._session, self._snapshot
        self.damaged = 0
        # Lines on a terminal say themselves how far it is.
        is_listed = not session.opts.release and sys.stdout.isatty()
        bar = session.progress(title, sum(snapshot.claims.values()))
        with nullcontext(lambda _: None) if is_listed else bar as advance:
            for block in range(snapshot.header.blocks):
                if not snapshot.claims.get(block, 1):  # a lost block may have claims
                    continue
                # For each block: a worker that was silent may be back.
                now, entries = self._bloom.run(_entries)
                owners = Owners(now, entries, session.spiders, 2 * session.settings.heartbeat)
                cursor = ""
                while cursor != "0":
                    scan = partial(
                        claim_protocol.scan, block=block, cursor=cursor or "0", count=PAGE
                    )
                    page = self._bloom.run(scan)
                    cursor = page.cursor
                    self.damaged += len(page.damaged)
                    found = [owners.describe(block, claim) for claim in page.claims]
                    yield [one for one in found if self._is_chosen(one)]
                    advance(len(page.claims) + len(page.damaged))

    def _is_chosen(self, found: Pending) -> bool:
        opts = self._session.opts
        return (opts.state is None or found.state == opts.state) and (
            opts.owner is None or found.is_of(opts.owner)
        )

    def urls(self, page: Sequence[Pending]) -> list[str | None]:
        """Return the URLs of claims of one block; None where the request is not kept."""
        if not page:
            return []
        fields = [found.claim.field for found in page]
        return [_url(text) for text in self._server.hmget(self._keys.claims(page[0].block), fields)]

    def release(self, page: Sequence[Pending]) -> int:
        """End claims of one block, each if its owner still is who it was; return how many."""
        fields = defaultdict(list)
        for found in page:
            fields[found.claim.owner].append(found.claim.field)
        return sum(
            self._bloom.run(
                partial(claim_protocol.release_fields, fields={page[0].block: names}, owner=owner)
            )
            for owner, names in fields.items()
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_change_options(parser)
    parser.add_argument(
        "--owner", metavar="OWNER", help="only claims of this owner (its id, HOST:PID or spider)"
    )
    parser.add_argument("--state", choices=STATES, help="only claims in this state")
    parser.add_argument(
        "--release",
        action="store_true",
        help="end the claims that --owner and --state choose, and delete their requests, so that "
        f"{CONSEQUENCE}. Not needed for workers that are dead or stopped, whose claims the next "
        "crawl takes over",
    )


def run(session: CommandSession) -> ExitCode:
    """List claims, or end them if the user agrees.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: the options are wrong.
        StorageError: the server did not answer; some claims may have been released.
    """
    opts = session.opts
    if opts.release and opts.owner is None and opts.state is None:
        raise ConfigurationError("say which claims to release: --release with --owner or --state")
    with session.connect() as server:
        claims = Claims(session, server)
        if opts.release:
            return ExitCode.of(_release(session, claims))
        _show(session, claims)
    return ExitCode.FINE


def _show(session: CommandSession, claims: Claims) -> None:
    states = Counter[str]()
    separator = f'{json.dumps(claims.head)[:-1]}, "claims": [\n'
    for page in claims.pages("claims read"):
        for found, url in zip(page, claims.urls(page), strict=True):
            if session.printer is None:
                sys.stdout.write(f"{separator}  {json.dumps(_document(found, url))}")
                separator = ",\n"
            else:
                if not states:
                    session.printer.show(HEADING)
                session.printer.show(_line(found, url))
            states[found.state] += 1
    if session.printer is None:
        end = {"total": states.total(), "states": states, "damaged": claims.damaged}
        start = separator if not states else ""
        sys.stdout.write(f"{start}\n], {json.dumps(end)[1:]}\n")
        return
    listed = ", ".join(f"{states[state]:,} {state}" for state in STATES if states[state])
    session.printer.show(f"{claims.where}: {listed or 'no'} claims")
    if claims.damaged:
        session.printer.show(
            f"{claims.damaged:,} more are damaged and cannot be read: the next crawl deletes them"
        )


def _document(found: Pending, url: str | None) -> dict[str, object]:
    claim, is_failed = found.claim, found.state == FAILED
    return {
        "url": url,
        "state": found.state,
        "attempts": claim.attempt,
        "since": 0 if is_failed else claim.time,
        "since_utc": None if is_failed else iso(claim.time),
        "due": claim.time if is_failed else 0,
        "due_utc": iso(claim.time) if is_failed else None,
        "owner": claim.owner,
        "worker": found.worker,
        "spider": found.spider,
        "field": claim.field,
    }


def _line(found: Pending, url: str | None) -> str:
    claim = found.claim
    owner = _plain(f"{found.worker or claim.owner} {found.spider}")
    text = "(its request is not kept)" if url is None else _plain(url)
    return f"{found.state:8}  {claim.attempt:8}  {iso(claim.time) or '':23}  {owner:30}  {text}"


def _release(session: CommandSession, claims: Claims) -> bool:
    if not session.opts.yes:
        states = Counter(found.state for page in claims.pages("claims read") for found in page)
        living = f", {states[ALIVE]:,} of them of living workers" if states[ALIVE] else ""
        question = f"Release {states.total():,} claims of {claims.where}{living}; {CONSEQUENCE}"
        if states and not session.confirm(question):
            return False
    count = sum(claims.release(page) for page in claims.pages("claims released"))
    if session.printer is None:
        print_json(claims.head | {"released": count})
    else:
        session.printer.show(f"{claims.where}: {count:,} claims released; {CONSEQUENCE}")
    return True


def _entries(session: FilterSession) -> Operation[tuple[int, Mapping[str, str]]]:
    """Return the server's clock and all workers' entries, without a heartbeat."""
    (reply,) = yield [Call(load("heartbeat"), (session.keys.workers(),), ("", 0, "", 0))]
    return reply.now, reply.fields


def _url(stored: bytes) -> str | None:
    """Return the URL of a claim as it is stored."""
    try:
        url = json.loads(stored.split(b" ", 4)[4])["url"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return url if isinstance(url, str) else None


def _plain(text: str) -> str:
    """Return a stored text as it can be shown: a terminal obeys what is in it."""
    return text if text.isprintable() else ascii(text)[1:-1]
