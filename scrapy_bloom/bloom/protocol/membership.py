"""Membership: add and contains, as script calls on a filter's rings. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.bloom.model.generations import Generation
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.cached_ring import BY_CODE, NO_ROOM, CachedRing, Verdict, is_answer
from scrapy_bloom.bloom.protocol.ring_store import FILLING, Operation, count_round
from scrapy_bloom.bloom.protocol.scripts import Call, Reply, on_full_server
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.swaps import in_parts

T = TypeVar("T")
#: URLs whose calls are sent together.
MAX_URLS_PER_ROUND = 8_192
#: Claims ended, or pages added to a ledger, in one call.
MAX_PER_CALL = 256

UNKNOWN = Verdict.UNKNOWN.value
#: Character in a reply of ``contains`` or ``discard``: the item seems to be there.
PRESENT = "1"


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Items of one block.

    Args:
        held: the ring that the offsets belong to.
        places: where the items are in the caller's list.
        packed: their packed offsets.
    """

    held: CachedRing
    places: list[int]
    packed: bytes


#: An item's ring, and the generation that remembers it.
Found = tuple[Ring, Generation | None]
#: Makes the call for a batch.
MakeCall = Callable[[BlockBatch], Call]


def add(
    session: FilterSession, items: Sequence[bytes], *, if_absent: bool = True
) -> Operation[list[Verdict]]:
    """Test and set: NEW, SEEN, UNRECORDED or UNCOUNTED per item.

    Args:
        session: the filter.
        items: the items.
        if_absent: a counting filter counts new items only. Otherwise it counts each item, also one
            that seems to be seen (UNCOUNTED if there is no room): if a false positive were not
            counted, others would lose what is discarded for it.
    """

    def make_call(batch: BlockBatch) -> Call:
        return batch.held.add(batch.packed, if_absent=if_absent)

    return to_verdicts((yield from ask(session, items, make_call)))


def renew(session: FilterSession, items: Sequence[bytes]) -> Operation[list[Verdict]]:
    """Record items that were crawled now: also seen ones are remembered from now on.

    A server without memory does it too.
    """

    def make_call(batch: BlockBatch) -> Call:
        call = batch.held.renew(batch.packed)
        return call._replace(script=on_full_server(call.script))

    return to_verdicts((yield from ask(session, items, make_call)))


def to_verdicts(codes: str) -> list[Verdict]:
    """Return a verdict for each character of a reply."""
    return [BY_CODE[code] for code in codes]


def contains(session: FilterSession, items: Sequence[bytes]) -> Operation[list[bool]]:
    """Test without recording: True is "seen"."""
    codes = yield from ask(session, items, lambda batch: batch.held.contains(batch.packed))
    return [code == PRESENT for code in codes]


def discard(session: FilterSession, items: Sequence[bytes]) -> Operation[list[bool]]:
    """Take items out of the newest layers they are in, once each: True if it was there.

    Raises:
        ConfigurationError: the filter does not count.
    """

    def make_call(batch: BlockBatch) -> Call:
        if not batch.held.ring.header.counting:
            raise ConfigurationError(
                f"items cannot be discarded from the filter {session.keys.prefix!r}, which does "
                "not count them: take a new one (another `key`) with `counting` = True"
            )
        return batch.held.discard(batch.packed)

    codes = yield from ask(session, items, make_call)
    return [code == PRESENT for code in codes]


def find(session: FilterSession, items: Sequence[bytes]) -> Operation[list[Found]]:
    """Return per item its ring, and the newest generation that remembers it, if one does."""
    found: dict[int, Found] = {}
    pending, wasted = list(range(len(items))), 0
    while pending:
        yield from session.ensure_open()
        batches = _batches(session, items, pending)
        calls = [b.held.contains(b.packed, g) for b in batches for g in b.held.ring.generations]
        replies, before = iter((yield calls)), len(pending)
        pending, refused = [], []
        for batch in batches:
            ring, size = batch.held.ring, len(batch.places)
            answers = [(generation, next(replies)) for generation in ring.generations]
            refusals = [reply for _, reply in answers if not is_answer(reply, size)]
            if refusals:
                refused.append((batch.held, refusals[0]))
                pending += batch.places
                continue
            for number, place in enumerate(batch.places):
                there = [g for g, reply in answers if reply.verdicts[number] == PRESENT]
                found[place] = ring, there[0] if there else None
        wasted = count_round(session, wasted, is_wasted=len(pending) == before)
        yield from session.refresh(refused)
    return [found[place] for place in range(len(items))]


def ask(session: FilterSession, items: Sequence[bytes], make_call: MakeCall) -> Operation[str]:
    """Return a character per item: in rounds, and again where a block has changed or is full.

    Raises:
        StorageError: with the verdicts of the replies that have come.
    """
    verdicts = [UNKNOWN] * len(items)
    try:
        for places in in_parts(range(len(items)), MAX_URLS_PER_ROUND):
            yield from _ask_part(session, items, places, make_call, verdicts)
    except StorageError as error:
        # Whether there is no room is not known either: a block may have grown.
        error.verdicts = "".join(UNKNOWN if one in NO_ROOM else one for one in verdicts)
        raise
    return "".join(verdicts)


def _ask_part(
    session: FilterSession,
    items: Sequence[bytes],
    pending: list[int],
    make_call: MakeCall,
    verdicts: list[str],
) -> Operation[None]:
    """Fill in the characters of the items in some places."""
    wasted = 0
    while pending:
        yield from session.ensure_open()
        batches = _batches(session, items, pending)
        try:
            replies = yield [make_call(batch) for batch in batches]
        except StorageError as error:
            known = [
                pair for pair in zip(batches, error.replies, strict=True) if pair[1] is not None
            ]
            _note_answers(session, known, verdicts)
            raise
        refused, full = _note_answers(session, zip(batches, replies, strict=True), verdicts)
        yield from session.refresh((batch.held, reply) for batch, reply in refused)
        before = len(pending)
        pending = [place for batch, _ in refused for place in batch.places]
        with_room = yield from session.grow(batch.held for batch in full)
        for batch in full:
            if batch.held.ring.block in with_room:
                pending += [place for place in batch.places if verdicts[place] in NO_ROOM]
        pending.sort()
        wasted = count_round(session, wasted, is_wasted=len(pending) == before)


def _note_answers(
    session: FilterSession, answers: Iterable[tuple[BlockBatch, Reply]], verdicts: list[str]
) -> tuple[list[tuple[BlockBatch, Reply]], list[BlockBatch]]:
    """Fill in the characters in replies; return those that hold none, and batches without room."""
    refused, full = [], []
    for batch, reply in answers:
        if not is_answer(reply, len(batch.places)):
            refused.append((batch, reply))
            continue
        for place, verdict in zip(batch.places, reply.verdicts, strict=True):
            verdicts[place] = verdict
        if reply.mark == FILLING:
            session.notify(FILLING, batch.held.ring)
        if not NO_ROOM.isdisjoint(reply.verdicts):
            full.append(batch)
    return refused, full


def by_block(session: FilterSession, items: Iterable[bytes]) -> Operation[dict[int, list[bytes]]]:
    """Return items by their blocks."""
    yield from session.ensure_open()
    found: dict[int, list[bytes]] = defaultdict(list)
    for item in items:
        found[session.hasher.block(item)].append(item)
    return found


def parts_of(blocks: Mapping[int, Sequence[T]]) -> Iterator[tuple[int, Sequence[T]]]:
    """Yield what there is of each block in parts that one call ends or adds, with the block."""
    for block, all_of_it in blocks.items():
        for part in in_parts(all_of_it, MAX_PER_CALL):
            yield block, part


def _batches(
    session: FilterSession, items: Sequence[bytes], places: Sequence[int]
) -> list[BlockBatch]:
    """Sort items by block, in calls of bounded size; items of a block keep their order."""
    by_block: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for place in places:
        block, hashes = session.hasher.hashes(items[place])
        by_block[block].append((place, session.held[block].pack(hashes)))
    batches = []
    for block, members in by_block.items():
        held = session.held[block]
        for part in in_parts(members, held.max_urls):
            packed = b"".join(offsets for _, offsets in part)
            batches.append(BlockBatch(held, [place for place, _ in part], packed))
    return batches
