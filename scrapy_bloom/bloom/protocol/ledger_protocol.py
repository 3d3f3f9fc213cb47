"""The ledger: keeps the requests of recorded pages, packs them, and returns due ones. No I/O."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_plus

from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.ledger import LedgerChunk, LedgerEntry
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.protocol import rights
from scrapy_bloom.bloom.protocol.cached_ring import is_answer
from scrapy_bloom.bloom.protocol.membership import by_block, parts_of
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, Reply, load, with_ledger
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.swaps import Drop, in_waves

#: Missing pages that are noted in each block: a dead site must not fill the server.
MAX_MISSING = 4_096
#: Chunks of all tags that are looked at for one of a tag: more are due only after long breaks.
MAX_DUE = 4_096
#: Stored for a page that is missing for no known reason; for one that is there.
_UNKNOWN, _THERE = "!unknown", "-"
_MISSING = re.compile(r"([0-9]{1,12}) ([0-9]{1,12}) ([0-9]{1,9}) ([!-~]{1,240}) (.*)", re.DOTALL)
#: Why a URL failed is stored in the place of its claim's nonce, which a failed URL does not need:
#: ``HTTP 503`` as ``!HTTP+503``. No nonce begins with a mark. The second mark says that the URL is
#: new to callers that find it before it is due (``claim.lua``).
_MARK, _VISIBLE = "!", "~"
#: Characters of a stored reason at most, without the mark.
MAX_REASON = 200
_SAFE = "".join(map(chr, range(0x21, 0x7F))).translate({ord(c): None for c in "%+"})
#: An escape whose end is cut off.
_CUT = re.compile("%[0-9A-F]?$")


def encode_reason(reason: str, *, hides: bool = True) -> str:
    """Return a reason as it is stored, shortened if it is long; "" for none.

    Args:
        reason: any text.
        hides: whether the URL stays hidden until it is due.
    """
    encoded = quote_plus(" ".join(reason.split()), safe=_SAFE, errors="replace")
    if len(encoded) > MAX_REASON:
        encoded = _CUT.sub("", encoded[:MAX_REASON])
    return encoded and f"{_MARK if hides else _VISIBLE}{encoded}"


def decode_reason(nonce: str) -> str:
    """Return the reason in the place of a nonce, which may be any text; "" if there is none."""
    # Of a character whose bytes are cut off, nothing is left.
    return unquote_plus(nonce[1:], errors="ignore") if nonce.startswith((_MARK, _VISIBLE)) else ""


@dataclass(frozen=True, slots=True)
class Kept:
    """How the requests of pages are kept.

    Args:
        tag: whose they are.
        missing: of the pages that were not found, or failed: why.
    """

    tag: str
    missing: Mapping[bytes, str]

    def arguments(
        self, session: FilterSession, block: int, items: Iterable[bytes], tries: int = 0
    ) -> tuple[Argument, ...]:
        """Return the arguments of ``prelude_ledger.lua`` for pages of a block."""
        whys = (
            encode_reason(self.missing[i]) or _UNKNOWN if i in self.missing else _THERE
            for i in items
        )
        bounds = (MAX_MISSING, ledger.GONE_AFTER)
        return (" ".join(whys), tries, *session.held[block].ledger_times, *bounds, self.tag)

    def keep(self, session: FilterSession, block: int, items: Iterable[bytes], call: Call) -> Call:
        """Return a call that confirms pages as one that keeps their requests."""
        keys = (*call.keys, *_places(session, block))
        args = (*call.args, *self.arguments(session, block, items))
        return call._replace(script=with_ledger(call.script), keys=keys, args=args)


def _places(session: FilterSession, block: int) -> tuple[str, str]:
    return session.keys.entries(block), session.keys.missing(block)


@dataclass(frozen=True, slots=True)
class Entries:
    """The first entries of a block's ledger, as they are stored.

    Args:
        texts: the entries that were read.
        count: how many there are in all.
        digest: of those that were read, as bytes: damaged ones may be no text.
    """

    texts: tuple[str, ...]
    count: int
    digest: str

    @classmethod
    def of(cls, reply: Reply) -> "Entries":
        """Read a reply."""
        count = int(reply.version) if reply.version.isdigit() else 0
        return cls(tuple(reply.fields.values()), count, reply.state)


@dataclass(frozen=True, slots=True)
class MissingPage:
    """A page that was not found, or failed for good.

    Args:
        field: its fingerprint, as claims name it.
        first: when it was counted first, in Unix seconds on the server.
        last: when it was counted last: once a window.
        times: in how many windows it was.
        reason: why; "" if that is not known.
        url: its URL; "" if that is not known.
    """

    field: str
    first: int
    last: int
    times: int
    reason: str
    url: str

    @classmethod
    def parse(cls, field: str, text: str) -> "MissingPage | None":
        """Read what ``prelude_ledger.lua`` has written; None if it is damaged."""
        match = _MISSING.fullmatch(text)
        if match is None:
            return None
        first, last, times, why, url = match.groups()
        reason = "" if why == _UNKNOWN else decode_reason(why)
        return cls(field, int(first), int(last), int(times), reason, url)


def check_rights(session: FilterSession) -> Operation[None]:
    """Make sure that the user has the rights that a ledger needs.

    Raises:
        RightsError: the user lacks some.
    """
    error = rights.missing((yield rights.test_ledger(session.keys, DEFAULT_BLOCKS)))
    if error is not None:
        raise error


def add_failed(
    session: FilterSession, items: Sequence[bytes], owners: Sequence[str], kept: Kept, tries: int
) -> Operation[int]:
    """Keep the requests of pages that have failed, if this was the last try; return how many.

    A second time, it adds them again, which does no harm: a request is crawled only if its page is
    forgotten.

    Args:
        session: the filter.
        items: their fingerprints.
        owners: whose claims they are, which are there still.
        kept: how they are kept.
        tries: after how many a page is not tried again.
    """
    blocks = yield from by_block(session, items)
    script, head = load("ledger_add"), f" {' '.join(owners)} "
    calls = list[Call]()
    for block, part in parts_of(blocks):
        keys = (session.keys.claims(block), *_places(session, block))
        args = kept.arguments(session, block, part, tries)
        calls.append(Call(script, keys, (head, *map(field_of, part), *args)))
    replies = (yield calls) if calls else []
    for reply in replies:
        is_answer(reply, len(reply.verdicts))
    return sum(reply.verdicts.count("1") for reply in replies)


def to_pack(session: FilterSession, *, is_all: bool = False) -> Operation[list[int]]:
    """Return the blocks with entries to pack; with any entries, if all are to be packed."""
    found = []
    for wave in in_waves(session.held):
        for block, entries in (yield from read_first(session, wave, 1)).items():
            oldest = next(map(LedgerEntry.parse, entries.texts), None)
            # A damaged one is packed away with the others.
            time = oldest.time if oldest else entries.count and 1
            ring = session.held[block].ring
            if entries.count and (is_all or ledger.is_to_pack(ring, entries.count, time)):
                found.append(block)
    return found


def read(session: FilterSession, block: int) -> Operation[Entries]:
    """Return the first entries of a block, of which each makes a part of a chunk."""
    return (yield from read_first(session, [block], ledger.CHUNK_ENTRIES))[block]


def read_first(
    session: FilterSession, blocks: Sequence[int], count: int
) -> Operation[dict[int, Entries]]:
    """Return so many of the first entries of each of some blocks, by block."""
    script, length = load("ledger_read"), ledger.CHUNK_LENGTH
    calls = [Call(script, (session.keys.entries(block),), (count, length)) for block in blocks]
    replies = (yield calls) if calls else []
    return dict(zip(blocks, map(Entries.of, replies), strict=True))


def pack(
    session: FilterSession, block: int, entries: Entries, chunks: Sequence[LedgerChunk], nonce: str
) -> Operation[bool]:
    """Replace entries by chunks; return whether no other client has done so.

    Args:
        session: the filter.
        block: the block.
        entries: as they were read.
        chunks: what they make.
        nonce: random, of this call.
    """
    keys, expiry = session.keys, session.held[block].ring.expiry
    args: list[Argument] = [entries.digest, len(entries.texts), expiry]
    for place, chunk in enumerate(chunks):
        args += chunk.time, f"{chunk.tag} {nonce}.{place}", chunk.data
    names = (keys.entries(block), keys.ledger(block), keys.chunks(block))
    (reply,) = yield [Call(load("ledger_pack"), names, tuple(args))]
    return is_answer(reply, 1) and reply.verdicts == "1"


@dataclass(frozen=True, slots=True)
class DueChunk:
    """A chunk whose pages are forgotten.

    Args:
        block: its block.
        member: its name there; a damaged one may be no text.
        data: the requests, packed.
    """

    block: int
    member: bytes
    data: bytes


def due(session: FilterSession, tag: str, place: int = 0) -> Operation[list[DueChunk]]:
    """Return a chunk of some blocks that have chunks whose pages are forgotten; they stay.

    It is empty only if no block has one.

    Args:
        session: the filter.
        tag: whose requests.
        place: which chunks; a random number, so that workers take different ones.
    """
    found: list[DueChunk] = []
    snapshot, script, keys = (yield from session.read()), load("ledger_due"), session.keys
    before = {b: ledger.due_before(ring, snapshot.now) for b, ring in snapshot.rings.items()}
    start = place % max(1, len(before))
    for wave in in_waves([*before][start:] + [*before][:start]):
        calls = list[Call]()
        for block in wave:
            names = (keys.ledger(block), keys.chunks(block))
            args = (before[block], tag, place, MAX_DUE)
            calls.append(Call(script, names, args, binary=True))
        for block, reply in zip(wave, (yield calls), strict=True):
            member, _, data = reply.data.partition(b"\n")
            if member:
                found.append(DueChunk(block, member, data))
        if found:  # those of all blocks of a large filter would be too many
            break
    return found


@dataclass(frozen=True, slots=True)
class Listing:
    """What a spider has in a filter's ledger.

    Args:
        has_entries: whether entries are not packed.
        members: block and member of each chunk.
    """

    has_entries: bool
    members: tuple[tuple[int, str], ...]


def chunks(session: FilterSession, tag: str) -> Operation[Listing]:
    """Return which chunks a spider has in the ledger of a filter, also of one that is not open."""
    snapshot = yield from session.look()
    script, has_entries, members = load("ledger_list"), False, list[tuple[int, str]]()
    for wave in in_waves(range(snapshot.header.blocks if snapshot else 0)):
        names = ((session.keys.entries(block), session.keys.ledger(block)) for block in wave)
        replies = yield [Call(script, keys, (tag,)) for keys in names]
        for block, reply in zip(wave, replies, strict=True):
            has_entries |= reply.version == "1"
            members += ((block, member) for member in reply.fields)
    return Listing(has_entries, tuple(members))


def chunk(session: FilterSession, block: int, member: str) -> Operation[DueChunk | None]:
    """Return a chunk; None if it is not there any more."""
    keys, name = (session.keys.chunks(block),), member.encode("utf-8", "surrogatepass")
    (reply,) = yield [Call(load("ledger_chunk"), keys, (name,), binary=True)]
    return DueChunk(block, name, reply.data) if reply.data else None


def rules(session: FilterSession, tag: str) -> Operation[str]:
    """Return by which rules a spider's requests in all ledgers were looked up; "" for none."""
    return (yield from _rules(session, tag, "", "", "0"))


def note_rules(session: FilterSession, tag: str, before: str, now: str) -> Operation[bool]:
    """Note other rules, if the note is what it was; return whether it was."""
    return (yield from _rules(session, tag, before, now, "1")) == before


def _rules(session: FilterSession, tag: str, *args: str) -> Operation[str]:
    script = load("ledger_rules")
    (reply,) = yield [Call(script, (session.keys.header(),), (tag, *args))]
    return reply.version


def drop(session: FilterSession, chunk: DueChunk) -> Operation[None]:
    """Delete a chunk."""
    keys, block = session.keys, chunk.block
    names = (keys.ledger(block), keys.chunks(block))
    yield [Call(load("ledger_drop"), names, (chunk.member,))]


def missing(session: FilterSession, block: int, count: int) -> Operation[list[MissingPage]]:
    """Return the missing pages of a block, read ``count`` at a time, about."""
    script, names = load("ledger_missing"), (session.keys.missing(block),)
    texts, cursor = dict[str, str](), ""
    while cursor != "0":
        (reply,) = yield [Call(script, names, (cursor or "0", count))]
        cursor = reply.version
        texts |= reply.fields
    found = (MissingPage.parse(field, text) for field, text in texts.items())
    return [page for page in found if page is not None]


def forget_missing(session: FilterSession) -> Operation[None]:
    """Delete the notes of missing pages."""
    yield from session.open()
    held = session.held.items()
    yield from session.drop([Drop(b, session.keys.missing(b), one.version) for b, one in held])
