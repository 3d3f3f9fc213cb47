"""Claims on URLs that are not recorded yet: claim, release, scan and reassign. No I/O.

A claim is one field of its block's hash of claims: its owner, since when, and the request itself.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.cached_ring import Verdict, is_answer
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept, decode_reason, encode_reason
from scrapy_bloom.bloom.protocol.membership import (
    BlockBatch,
    ask,
    by_block,
    parts_of,
    to_verdicts,
)
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply, load, on_full_server, on_known_server
from scrapy_bloom.bloom.protocol.session import FilterSession

#: Fingerprints of requests that are kept, but not remembered, begin so.
KEPT = b"kept:"

#: Of a claim: a request takes 65,536 characters at most; one that takes many more is damaged.
_HEAD = re.compile(r"([!-~]{1,60}) ([!-~]{1,240}) ([0-9]{1,12}) ([0-9]{1,9}) ([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """A claim as a scan shows it.

    Args:
        field: its field in the block's hash.
        owner: whose it is.
        nonce: of the call that made it its owner's; of a failed URL, why it failed.
        time: when it was made, in Unix seconds on the server; of a failed URL, when it is due.
        attempt: times that the URL failed.
        length: of the request in characters, 0 if it is not kept; in another spider's claim, of
            that of the spider which looks.
    """

    field: str
    owner: str
    nonce: str
    time: int
    attempt: int
    length: int

    @classmethod
    def parse(cls, field: str, head: str) -> "StoredClaim | None":
        """Read what a scan returns; None if it is damaged."""
        match = _HEAD.fullmatch(head)
        if match is None:
            return None
        return cls(field, match[1], match[2], int(match[3]), int(match[4]), int(match[5]))

    @property
    def failed(self) -> bool:
        """Whether it keeps a failed URL from being crawled again at once."""
        return self.owner.startswith("-")

    def due(self, now: int, cooldown: int) -> int:
        """Return when a failed URL is due; now, if it failed while the clock was ahead.

        Args:
            now: Unix time in seconds on the server.
            cooldown: seconds that it waits; 0 if that is not known.
        """
        return min(self.time, now) if cooldown and self.time - now > cooldown else self.time

    @property
    def was_tried(self) -> bool:
        """Whether its URL failed; not if it is one that is to be crawled again, and waits."""
        return self.failed and self.attempt > 0

    @property
    def reason(self) -> str:
        """Why the URL failed last, as it is stored; "" if it did not fail, or that is not known."""
        return decode_reason(self.nonce) if self.failed else ""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What becomes of the claims of URLs that failed.

    Args:
        owner: their new owner, which begins with ``-``.
        seconds: until they are due again.
        attempts: after how many their requests are no longer kept.
        reasons: field of a claim -> why its URL failed.
        hides: whether callers that find the URL have to wait, too; if not, there are reasons.
    """

    owner: str
    seconds: int
    attempts: int
    reasons: Mapping[str, str] = field(default_factory=dict)
    hides: bool = True

    def pairs(self, fields: Sequence[str]) -> Iterable[str]:
        """Yield each field and its reason as it is stored."""
        for name in fields:
            yield name
            yield encode_reason(self.reasons.get(name, ""), hides=self.hides)


@dataclass(frozen=True, slots=True)
class ClaimPage:
    """A part of a block's claims.

    Args:
        cursor: where the scan goes on; "0" at its end.
        claims: those that can be read.
        damaged: fields of those that cannot.
        now: Unix time in seconds on the server.
    """

    cursor: str
    claims: tuple[StoredClaim, ...]
    damaged: tuple[str, ...]
    now: int


#: Scans some blocks; returns a page of each.
ClaimScan = Callable[[FilterSession], Operation[dict[int, ClaimPage]]]


def claim(
    session: FilterSession,
    items: Sequence[bytes],
    requests: Sequence[str],
    owner: str,
    nonce: str,
    *,
    pages: Sequence[str] = (),
    memory: int = 0,
    tested: bool = True,
    cooldown: int = 0,
) -> Operation[list[Verdict]]:
    """Claim items without recording them.

    Returns a verdict per item: NEW, UNKEPT, SEEN (recorded), MINE, MINE_UNKEPT, YIELD_AGAIN,
    OTHERS, OTHERS_UNKEPT or OTHER_SPIDERS.

    Args:
        session: the filter.
        items: their fingerprints.
        requests: their requests as JSON, "" for those that are not kept.
        owner: the new owner of the claims.
        nonce: of this call; repeated with it, nothing changes.
        pages: fields of the claims of the pages that yielded them, "" for none.
        memory: bytes that all claims on the filter take at most; 0 for no limit.
        tested: whether to leave out items that are recorded already.
        cooldown: seconds that a failed item waits; 0 if that is not known.
    """

    def make_call(batch: BlockBatch) -> Call:
        claims = [text for place in batch.places for text in parts[place]]
        limits = room(), cooldown
        return batch.held.claim(batch.packed, owner, nonce, claims, limits=limits, tested=tested)

    def room() -> int:
        """Return the bytes for the claims of one block."""
        return max(1, memory // session.header.blocks) if memory and session.header else 0

    fields = map(field_of, items)
    parts = [*zip(fields, pages or [""] * len(items), requests, strict=True)]
    return to_verdicts((yield from ask(session, items, make_call)))


def release(
    session: FilterSession,
    items: Iterable[bytes],
    owner: str = "",
    failure: RetryPolicy | None = None,
    *,
    server: str = "",
) -> Operation[int]:
    """End the claims of items; return how many there were.

    Args:
        session: the filter.
        items: their fingerprints.
        owner: whose claims to end; "" for any.
        failure: what becomes of them; None if they go.
        server: id of the only process that may do it; "" for any.

    Raises:
        RestartedError: the server is another process.
    """
    fields = yield from _fields_by_block(session, items)
    return (yield from release_fields(session, fields, owner, failure, server=server))


def release_fields(
    session: FilterSession,
    fields: Mapping[int, Sequence[str]],
    owner: str = "",
    failure: RetryPolicy | None = None,
    *,
    server: str = "",
) -> Operation[int]:
    """End claims by their fields, by block: see ``release``."""
    failure = failure or RetryPolicy("", 0, 0)
    head = (owner, failure.owner, failure.seconds, failure.attempts)
    calls = [
        (Call(load("release"), (session.keys.claims(block),), (*head, *failure.pairs(part))), part)
        for block, part in parts_of(fields)
    ]
    if not calls:
        return 0
    replies = yield [_on(server, call) for call, _ in calls]
    for reply, (_, part) in zip(replies, calls, strict=True):
        is_answer(reply, len(part))
    return sum(reply.verdicts.count("1") for reply in replies)


def _on(server: str, call: Call) -> Call:
    """Return a call that only one process of the server carries out, if one is named."""
    if not server:
        return call
    return call._replace(script=on_known_server(call.script), args=(*call.args, server))


def confirm(
    session: FilterSession,
    items: Sequence[bytes],
    owners: Sequence[str],
    *,
    server: str = "",
    kept: Kept | None = None,
) -> Operation[list[Verdict]]:
    """Record pages that are crawled, and end their claims, in one step per item.

    A page whose claim is gone is not recorded (NOT_CLAIMED): the claims of its links may be gone as
    well. Nor is one that another owner claims, who may wait for its links. A server without memory
    does it too.

    Args:
        session: the filter.
        items: their fingerprints.
        owners: whose claims they are.
        server: id of the only process that may do it; "" for any.
        kept: how the ledger keeps their requests; None if it does not.

    Raises:
        RestartedError: the server is another process; some pages may be recorded.
    """

    def make_call(batch: BlockBatch) -> Call:
        own = [fields[place] for place in batch.places]
        call = batch.held.confirm(batch.packed, own, owners)
        if kept is not None:
            pages = [items[place] for place in batch.places]
            call = kept.keep(session, batch.held.ring.block, pages, call)
        return _on(server, call._replace(script=on_full_server(call.script)))

    fields = [field_of(item) for item in items]
    verdicts = to_verdicts((yield from ask(session, items, make_call)))
    # The script keeps their claims, because the block may grow, and they are sent again.
    full = [item for item, v in zip(items, verdicts, strict=True) if v is Verdict.UNRECORDED]
    if full:
        yield from release(session, full, server=server)
    return verdicts


def hold(
    session: FilterSession, items: Iterable[bytes], owner: str, nonce: str
) -> Operation[set[str]]:
    """Assign the claims of items to an owner, from any owner; return the fields that exist.

    Not those of failed items.
    """
    wanted, found = set(items), set[str]()
    for _ in range(2):
        header = session.header
        fields = yield from _fields_by_block(session, wanted)
        calls = [
            Call(load("reassign"), (session.keys.claims(block),), ("", owner, nonce, "", 0, *part))
            for block, part in parts_of(fields)
        ]
        replies = (yield calls) if calls else []
        found = {name for reply in replies for name in reply.fields}
        if len(found) == len(wanted):
            break
        # Under another header, they are in other blocks: no script compares it here.
        yield from session.open()
        if session.header == header:
            break
    return found


def make_due(
    session: FilterSession, items: Iterable[bytes], owner: str, nonce: str
) -> Operation[dict[str, Verdict]]:
    """Let failed items be crawled at once, with all their attempts; return field -> verdict.

    Verdicts: MINE (it is due, with its request), OTHERS (it has not failed, and is unchanged), or
    SEEN (it has no claim, or none with a request of this owner).

    Args:
        session: the filter.
        items: their fingerprints.
        owner: of the failed items whose requests count.
        nonce: is stored in the place of the reason.
    """
    fields = yield from _fields_by_block(session, items)
    parts = [*parts_of(fields)]
    calls = [
        Call(load("make_due"), (session.keys.claims(block),), (owner, nonce, *part))
        for block, part in parts
    ]
    replies = (yield calls) if calls else []
    found: dict[str, Verdict] = {}
    for reply, (_, part) in zip(replies, parts, strict=True):
        if is_answer(reply, len(part)):
            found |= zip(part, to_verdicts(reply.verdicts), strict=True)
    return found


def reassign(
    session: FilterSession,
    block: int,
    claims: Sequence[StoredClaim],
    owner: str,
    nonce: str,
    *,
    cooldown: int = 0,
) -> Operation[dict[str, str]]:
    """Take over claims of a block if they are still whose they were; return field -> request."""
    by_owner: dict[str, list[str]] = defaultdict(list)
    for claim in claims:
        by_owner[claim.owner].append(claim.field)
    names, args = (session.keys.claims(block),), (owner, nonce, "1", cooldown)
    replies = yield [
        Call(load("reassign"), names, (before, *args, *fields))
        for before, fields in by_owner.items()
    ]
    return {field: text for reply in replies for field, text in reply.fields.items()}


def scan(
    session: FilterSession, cursors: Mapping[int, str], count: int, tag: str = ""
) -> Operation[dict[int, ClaimPage]]:
    """Return some claims of each of some blocks, from a cursor each: "0" at first.

    Args:
        session: the filter.
        cursors: block -> cursor.
        count: claims of each block, about.
        tag: of the spider that looks: of other spiders' claims, only those are returned that have a
            line of it. "" for all claims.
    """
    replies = yield [
        Call(load("scan"), (session.keys.claims(block),), (cursor, count, tag))
        for block, cursor in cursors.items()
    ]
    return {block: _page(reply) for block, reply in zip(cursors, replies, strict=True)}


def scan_all(
    run: Callable[[ClaimScan], dict[int, ClaimPage]],
    blocks: Iterable[int],
    count: int,
    tag: str = "",
) -> Iterator[tuple[int, ClaimPage]]:
    """Yield all claims of some blocks, page by page, with their block. A claim may come twice."""
    cursors = dict.fromkeys(blocks, "0")
    while cursors:
        pages = run(partial(scan, cursors=cursors, count=count, tag=tag))
        yield from pages.items()
        cursors = {block: page.cursor for block, page in pages.items() if page.cursor != "0"}


def _page(reply: Reply) -> ClaimPage:
    found = {field: StoredClaim.parse(field, head) for field, head in reply.fields.items()}
    claims = tuple(claim for claim in found.values() if claim is not None)
    damaged = tuple(field for field, claim in found.items() if claim is None)
    return ClaimPage(reply.version, claims, damaged, reply.now)


def _fields_by_block(
    session: FilterSession, items: Iterable[bytes]
) -> Operation[dict[int, list[str]]]:
    blocks = yield from by_block(session, items)
    return {block: [*map(field_of, same)] for block, same in blocks.items()}
