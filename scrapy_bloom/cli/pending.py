"""``scrapy bloom pending``: URLs that are claimed and not settled, by owner; and ending the claims.

Claims are read page by page, and what is known of them is kept by owner: there may be millions.
"""

import argparse
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from scrapy_bloom.cli.session import NothingThereError, Server, Session, iso, print_json, to_json
from scrapy_bloom.core import pending
from scrapy_bloom.core.pending import Claim, Failure, Page
from scrapy_bloom.core.rings import Steps
from scrapy_bloom.core.scripts import Call, load
from scrapy_bloom.core.view import View
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.takeover import Crew
from scrapy_bloom.crawl.workers import Process, Worker
from scrapy_bloom.errors import ConfigurationError

#: Claims read, and changed, at once.
PAGE = 256
#: Owners that are told apart; the others are shown together, as ``OTHERS``.
MAX_OWNERS = 1_000
OTHERS = "(others)"

#: What ``--owner`` calls the owners of failed URLs, whose ids look like options.
FAILED = "failed"
#: First letter of an owner's id -> what it is.
KINDS = {"w": "worker", "q": "queue", "-": FAILED}
#: Characters of an owner's id that are shown at least: letter and tag, and two of its own.
MIN_SHOWN = 11
HEADINGS = ("owner", "state", "claims", "oldest", "newest", "not\nkept", "requests")

#: States of claims. Of a worker: it beats; it missed a beat; it has no entry, but might just have
#: started; it is gone; it stopped and left claims; it has no entry.
ALIVE, SILENT, STARTING, DEAD, STOPPED, UNKNOWN = (
    *("alive", "silent", "starting", "dead", "stopped", "unknown"),
)
#: Of a queue: a living worker has it (alive), or it waits for one. Of failed URLs: whether they
#: may be crawled again.
WAITING, DUE, NOT_DUE = "waiting", "due", "not due"
#: Those of whom somebody will settle the claim.
LIVING = frozenset((ALIVE, SILENT, STARTING))
#: Those that are ended unless an owner is named.
LEFT = frozenset((DEAD, STOPPED, UNKNOWN, DUE, NOT_DUE))

#: What may become of a claim: it is ended; a worker is to crawl its request; one will anyway.
RELEASE, REQUEUE, ALREADY = "released", "requeued", "already"
#: What else is counted: claims of living workers; those that were not the owner's any more.
TAKEN, MISSED = "living", "missed"
#: Says of a claim in a state what is to become of it; "" if it is not meant.
Judge = Callable[[Claim, str], str]
#: Attempts that no URL has: requests are kept.
NEVER = 10**9


@dataclass(slots=True)
class Group:
    """The claims of one owner that are in one state. Times are Unix seconds, 0 for none.

    Args:
        owner: its id.
        kind: ``worker``, ``queue``, ``failed`` or ``unknown``.
        tag: what the owners of its spider have in common; None if there is none.
        spider: name of that spider; None if it is not the project's.
        host: machine of a worker; None where it is not known.
        pid: its process.
        state: what there is to say of the owner or, of failed URLs, of the claims.
        has_queue: whether a stopped worker's requests are in a queue that outlives it.
        silent: seconds since a worker's last sign of life, if it is silent or dead.
        claims: how many there are.
        oldest: when the first of them was made.
        newest: when the last of them was.
        next_due: of failed URLs, when the first is to be crawled again.
        last_due: when the last is.
        not_kept: claims without a request, which can only be found again.
        bytes: length of all requests.
    """

    owner: str
    kind: str = "unknown"
    tag: str | None = None
    spider: str | None = None
    host: str | None = None
    pid: int | None = None
    state: str = UNKNOWN
    has_queue: bool = False
    silent: int = 0
    claims: int = 0
    oldest: int = 0
    newest: int = 0
    next_due: int = 0
    last_due: int = 0
    not_kept: int = 0
    bytes: int = 0

    def add(self, claim: Claim) -> None:
        """Count a claim."""
        first, last = (self.next_due, self.last_due) if claim.failed else (self.oldest, self.newest)
        first, last = min(first or claim.time, claim.time), max(last, claim.time)
        if claim.failed:
            self.next_due, self.last_due = first, last
        else:
            self.oldest, self.newest = first, last
        self.claims += 1
        self.not_kept += not claim.length
        self.bytes += claim.length


@dataclass(frozen=True, slots=True)
class Census:
    """All workers of a filter, and whether they are alive.

    Args:
        now: Unix time in seconds on the server.
        patience: seconds that a worker gets to show that it is alive.
        workers: by id.
        states: of each of them.
        queues: those that a living worker has.
    """

    now: int
    patience: float
    workers: Mapping[str, Worker]
    states: Mapping[str, str]
    queues: frozenset[str]

    @classmethod
    def take(cls, now: int, entries: Mapping[str, str], patience: float) -> "Census":
        """Judge all workers."""
        found = workers.parse_all(entries)
        states = {worker.id: _state(worker, now) for worker in found.values()}
        queues = frozenset(worker.queue for worker in found.values() if states[worker.id] in LIVING)
        return cls(now, patience, found, states, queues)

    def state(self, claim: Claim) -> str:
        """Return the state of a claim."""
        kind = _kind(claim.owner)
        if kind == FAILED:
            return DUE if claim.time <= self.now else NOT_DUE
        if kind == "queue":
            return ALIVE if claim.owner in self.queues else WAITING
        if kind == "worker" and claim.owner not in self.states:
            # Its first sign of life may come after its first claims.
            return UNKNOWN if self.now - claim.time >= self.patience else STARTING
        return self.states.get(claim.owner, UNKNOWN)


class Claims:
    """The claims of the filter that was asked for.

    Args:
        session: says which one.
        server: has it.

    Raises:
        NothingThereError: there is no filter.
    """

    def __init__(self, session: Session, server: Server) -> None:
        self._session = session
        snapshot = server.read(session.window)
        #: A lost block may have claims.
        self._blocks = [b for b in range(snapshot.header.blocks) if snapshot.claims.get(b, 1)]
        self._total = sum(snapshot.claims.values())
        # As in a crawl, where an owner without an entry gets that long.
        self._patience = 2 * session.settings.heartbeat
        self.name, self.address = session.window, server.address
        self.bloom = server.filter(session.window)

    def pages(self, title: str) -> Iterator[tuple[int, Page, Census]]:
        """Read all claims; yields them in parts of a block, with those who may have them."""
        with self._session.progress(title, self._total) as advance:
            for block in self._blocks:
                # For each block anew: who was silent may be back.
                census = self.census()
                cursor = ""
                while cursor != "0":
                    page = self.bloom.run(
                        partial(pending.scan, block=block, cursor=cursor or "0", count=PAGE)
                    )
                    cursor = page.cursor
                    advance(len(page.claims) + len(page.damaged))
                    yield block, page, census

    def census(self) -> Census:
        """Return who may have claims now."""
        return Census.take(*self.bloom.run(_entries), self._patience)


def run(session: Session) -> bool:
    """Do what the options ask; return whether it was done, False if the user said no.

    Raises:
        NothingThereError: there is no filter, or the owner that was named has no claims.
        ConfigurationError: the options are wrong.
        StorageError: the server did not answer; some claims may have been ended.
    """
    opts = session.opts
    if opts.owner is not None and not opts.owner.strip():
        raise ConfigurationError(
            f"--owner takes the beginning of an owner's id, or {FAILED!r}: scrapy bloom pending "
            "shows them"
        )
    with session.connect() as server:
        claims = Claims(session, server)
        if opts.release or opts.requeue:
            return _end(session, claims)
        _show(session, claims)
        return True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what only this subcommand has."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--release",
        action="store_true",
        help="end claims, so that their URLs are crawled when they are found again. Those that "
        "nobody will settle (of dead, stopped, unknown workers, of failed URLs), or --owner's",
    )
    group.add_argument(
        "--requeue",
        action="store_true",
        help="have the requests of these claims crawled by the next worker that looks for what "
        "was left behind",
    )
    parser.add_argument(
        "--owner",
        metavar="PREFIX",
        help=f"only claims whose owner's id begins so, living or not ({FAILED} for failed URLs)",
    )


def _kind(owner: str) -> str:
    return KINDS.get(owner[0], "unknown")


def _tag(owner: str) -> str | None:
    """Return what the owners of a spider have in common; None if there is none in it."""
    match = re.match("[wq-]([0-9a-f]{8})", owner)
    return match[1] if match else None


def _state(worker: Worker, now: int) -> str:
    """Return the state of a worker that has an entry."""
    if worker.until == 0:
        return STOPPED
    # As any other worker judges.
    if Crew(worker, "", {}, now).is_dead(worker):
        return DEAD
    return SILENT if worker.silent(now) > worker.heartbeat + 1 else ALIVE


def _entries(view: View) -> Steps[tuple[int, Mapping[str, str]]]:
    """Return the server's clock and all workers' entries; unlike ``pending.beat``, only read."""
    (reply,) = yield [Call(load("beat"), (view.keys.workers(),), ("", 0, "", 0))]
    return reply.now, reply.fields


def _is_chosen(owner: str, prefix: str | None) -> bool:
    if prefix == FAILED:
        return _kind(owner) == FAILED
    return prefix is None or owner.startswith(prefix)


def _no_such_owner(claims: Claims, prefix: str) -> NothingThereError:
    return NothingThereError(
        f"{claims.bloom.key!r} on {claims.address} has no claims whose owner begins with "
        f"{prefix!r:.80}: scrapy bloom pending shows all"
    )


# -- showing --


def _show(session: Session, claims: Claims) -> None:
    groups, damaged, census = _gather(session, claims)
    if session.opts.owner is not None and not groups:
        raise _no_such_owner(claims, session.opts.owner)
    if session.tables is None:
        _print_json(claims, groups, damaged, census.now)
    else:
        _print_table(session.tables, claims, groups, damaged, census.now)


def _gather(session: Session, claims: Claims) -> tuple[list[Group], int, Census]:
    """Return claims by owner and state, how many cannot be read, and who may have them."""
    names = {workers.tag(name): name for name in session.spiders}
    groups: dict[tuple[str, str], Group] = {}
    damaged, census = 0, claims.census()
    for _, page, _ in claims.pages("claims read"):
        damaged += len(page.damaged)
        for claim in page.claims:
            if not _is_chosen(claim.owner, session.opts.owner):
                continue
            place = claim.owner, census.state(claim)
            if place not in groups:
                if len(groups) >= MAX_OWNERS:
                    place = OTHERS, UNKNOWN
                groups.setdefault(place, _group(*place, census, names))
            groups[place].add(claim)
    found = sorted(groups.values(), key=lambda group: (-group.claims, group.owner, group.state))
    return found, damaged, census


def _group(owner: str, state: str, census: Census, names: Mapping[str, str]) -> Group:
    worker, tag = census.workers.get(owner), _tag(owner)
    group = Group(owner, _kind(owner), tag, names.get(tag or ""), state=state)
    if worker is not None:
        group.host, group.pid = worker.process.host, worker.process.pid
        group.has_queue = state == STOPPED and bool(worker.jobdir)
        group.silent = worker.silent(census.now) if state in (SILENT, DEAD) else 0
    return group


def _print_json(claims: Claims, groups: Sequence[Group], damaged: int, now: int) -> None:
    print_json(
        _head(claims)
        | {
            "claims": sum(group.claims for group in groups),
            "not_kept": sum(group.not_kept for group in groups),
            "bytes": sum(group.bytes for group in groups),
            "damaged": damaged,
            "owners": to_json(tuple(groups)),
            "now": now,
            "now_utc": iso(now),
        }
    )


def _head(claims: Claims) -> dict[str, object]:
    return {"address": claims.address, "name": claims.name, "key": claims.bloom.key}


def _print_table(
    tables: ModuleType, claims: Claims, groups: Sequence[Group], damaged: int, now: int
) -> None:
    total = sum(group.claims for group in groups)
    where = f"{claims.bloom.key} on {claims.address} (window {claims.name!r})"
    tables.show(f"{where}: {total:,} claims" if total else f"{where}: there are no claims")
    if groups:
        shown = _shown(groups)
        rows = [_row(tables, group, shown, now) for group in groups]
        not_kept, size = sum(g.not_kept for g in groups), sum(g.bytes for g in groups)
        rest = (f"{total:,}", "", "", f"{not_kept:,}", tables.size(size))
        tables.show_table(HEADINGS, rows, ("total", "", *rest))
    if damaged:
        tables.show(
            f"{damaged:,} more cannot be read: they are damaged, and the next worker that looks "
            "for what was left behind deletes them"
        )


def _row(tables: ModuleType, group: Group, shown: int, now: int) -> tuple[str, ...]:
    names = [FAILED if group.kind == FAILED else group.owner[:shown]]
    if group.host is not None:
        names.append(f"{_plain(group.host)}:{group.pid}")
    elif group.kind != FAILED:
        names.append(group.kind)
    if group.tag is not None:
        names.append(_plain(group.spider or group.tag))
    state = f"{group.state}, has a queue" if group.has_queue else group.state
    if group.silent:
        state = f"{'dead, ' * (state == DEAD)}silent for {tables.duration(group.silent)}"
    return (
        " ".join(names),
        state,
        f"{group.claims:,}",
        *_ages(tables, group, now),
        f"{group.not_kept:,}",
        tables.size(group.bytes),
    )


def _ages(tables: ModuleType, group: Group, now: int) -> tuple[str, str]:
    """Say how old the oldest and the newest claim are; of failed URLs, since or in when due."""
    if group.owner == OTHERS:
        return "", ""
    if group.kind != FAILED:
        return tables.duration(now - group.oldest), tables.duration(now - group.newest)
    times = group.next_due - now, group.last_due - now
    first, last = ("in " * (time > 0) + tables.duration(abs(time)) for time in times)
    return first, last


def _shown(groups: Sequence[Group]) -> int:
    """Return how many characters of the owners' ids tell them apart."""
    owners = {group.owner for group in groups}
    longest = max(map(len, owners))
    lengths = range(MIN_SHOWN, longest)
    return next((n for n in lengths if len({o[:n] for o in owners}) == len(owners)), longest)


def _plain(text: str) -> str:
    """Return a stored text as it can be shown: a terminal obeys what is in it."""
    return text.encode("unicode_escape").decode()[:60]


# -- ending --


def _end(session: Session, claims: Claims) -> bool:
    """Release or requeue claims; return whether it was done."""
    judge = partial(_fate, prefix=session.opts.owner, is_requeued=session.opts.requeue)
    if session.opts.yes:
        done = _Ending(claims).run(judge)
    else:
        done = _count(claims, judge)
        if done[RELEASE] or done[REQUEUE]:
            if not session.confirm(_question(claims, done, is_requeued=session.opts.requeue)):
                return False
            done = _Ending(claims).run(judge)
    if session.opts.owner is not None and not done.total():
        raise _no_such_owner(claims, session.opts.owner)
    _report(session, claims, done)
    return True


def _count(claims: Claims, judge: Judge) -> Counter[str]:
    """Return what would become of how many claims, and how many of them are living workers'."""
    counts = Counter[str]()
    for _, page, census in claims.pages("claims read"):
        for claim in page.claims:
            state = census.state(claim)
            fate = judge(claim, state)
            if fate:
                counts[fate] += 1
                counts[TAKEN] += state in LIVING
    return counts


def _question(claims: Claims, counts: Counter[str], *, is_requeued: bool) -> str:
    where = f"of {claims.bloom.key!r} on {claims.address}"
    if counts[TAKEN]:
        where += f", {counts[TAKEN]:,} of them of living workers"
    if not is_requeued:
        return f"Release {counts[RELEASE]:,} claims {where}; their URLs are then not seen"
    if counts[RELEASE]:
        where += f"; {counts[RELEASE]:,} without a request or a spider are released instead"
    total = counts[REQUEUE] + counts[RELEASE]
    return f"Requeue {total:,} claims {where}; the next worker that looks crawls them"


def _fate(claim: Claim, state: str, *, prefix: str | None, is_requeued: bool) -> str:
    """Return what is to become of a claim; "" if it is not meant."""
    if not _is_chosen(claim.owner, prefix) or (prefix is None and state not in LEFT):
        return ""
    if not is_requeued or not claim.length or _tag(claim.owner) is None:
        # Without its request, or the spider's mark, no worker can take it up.
        return RELEASE
    return ALREADY if state in (DEAD, STOPPED) else REQUEUE


def _report(session: Session, claims: Claims, done: Counter[str]) -> None:
    """Say what became of the claims."""
    counts = {fate: done[fate] for fate in (RELEASE, REQUEUE, ALREADY, MISSED)}
    if session.tables is None:
        print_json(_head(claims) | counts)
        return
    is_requeued = session.opts.requeue
    texts = [
        f"{done[REQUEUE]:,} claims requeued"
        if is_requeued
        else f"{done[RELEASE]:,} claims released"
    ]
    if done[ALREADY]:
        texts.append(f"{done[ALREADY]:,} left to the next worker as they were")
    if is_requeued and done[RELEASE]:
        texts.append(f"{done[RELEASE]:,} released instead (without a request or a spider)")
    if done[MISSED]:
        texts.append(f"{done[MISSED]:,} had been settled or taken over meanwhile")
    session.tables.show(f"{claims.bloom.key} on {claims.address}: {', '.join(texts)}")


class _Ending:
    """Ends claims, each if its owner is still the one that was read.

    Requests to be crawled are given to an heir: a worker that was never there, and has stopped. All
    workers of its spider take over what it has as soon as they see it. Failed URLs, too: that one
    is due is only noticed by a worker that starts or looks anyway.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims, self._bloom = claims, claims.bloom
        #: Stopped workers that are given claims, by the tag of their spiders.
        self._heirs: dict[str, Worker] = {}

    def run(self, judge: Judge) -> Counter[str]:
        """End what is meant; return what became of how many claims."""
        done = Counter[str]()
        for block, page, census in self._claims.pages("claims ended"):
            chosen: dict[tuple[str, str], list[Claim]] = defaultdict(list)
            for claim in page.claims:
                fate = judge(claim, census.state(claim))
                # A page may show again what has changed hands.
                if fate and not self._is_heirs(claim):
                    chosen[claim.owner, fate].append(claim)
            for (owner, fate), members in chosen.items():
                ended = self._end(block, owner, fate, members)
                done[fate] += ended
                done[MISSED] += len(members) - ended
        for heir in self._heirs.values():
            # A worker may have taken it for one that left nothing, and forgotten it.
            self._register(heir)
        return done

    def _is_heirs(self, claim: Claim) -> bool:
        return any(heir.id == claim.owner for heir in self._heirs.values())

    def _end(self, block: int, owner: str, fate: str, claims: Sequence[Claim]) -> int:
        """Do to claims of one owner what is to become of them; return how many still were."""
        if fate == ALREADY:
            return len(claims)
        if fate == REQUEUE:
            return self._requeue(block, owner, claims)
        fields = {block: [claim.field for claim in claims]}
        return self._bloom.run(partial(pending.release_fields, fields=fields, owner=owner))

    def _requeue(self, block: int, owner: str, claims: Sequence[Claim]) -> int:
        heir = self._heir(owner)
        if _kind(owner) == FAILED:
            # What is not due is not given away. To fail once more, and be the heir's then, works.
            fields, again = {block: [claim.field for claim in claims]}, Failure(heir.id, 0, NEVER)
            return self._bloom.run(
                partial(pending.release_fields, fields=fields, owner=owner, failure=again)
            )
        count = 0
        for start in range(0, len(claims), PAGE):
            part, nonce = claims[start : start + PAGE], secrets.token_hex(4)
            count += len(
                self._bloom.run(
                    partial(pending.adopt, block=block, claims=part, owner=heir.id, nonce=nonce)
                )
            )
        return count

    def _heir(self, owner: str) -> Worker:
        """Return who is to have an owner's claims, known to all workers."""
        tag = _tag(owner) or ""
        if tag not in self._heirs:
            id_ = f"w{tag}{secrets.token_hex(8)}"
            self._heirs[tag] = Worker(id_, until=0, heartbeat=1.0, process=Process.own())
        self._register(self._heirs[tag])
        return self._heirs[tag]

    def _register(self, heir: Worker) -> None:
        self._bloom.run(partial(pending.beat, worker=heir.id, life=0, description=heir.describe()))
