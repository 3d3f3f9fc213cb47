"""Asking a filter about items: claim and contains, as script calls on its rings. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scrapy_bloom.core.calls import Held
from scrapy_bloom.core.generations import Generation
from scrapy_bloom.core.ring import Ring
from scrapy_bloom.core.rings import FILLING, Races, Steps
from scrapy_bloom.core.scripts import Call, Reply, on_full_server
from scrapy_bloom.core.view import View
from scrapy_bloom.errors import StorageError

#: URLs whose calls are sent together.
MAX_URLS_PER_ROUND = 8_192

#: Verdicts of a claim.
NEW, SEEN, UNRECORDED = "1", "0", "2"
#: Verdict of an addition to a counting filter: seen, but not counted, because there is no room.
UNCOUNTED = "5"
#: Verdicts for want of room.
NO_ROOM = frozenset((UNRECORDED, UNCOUNTED))
#: All verdicts there are, with those on claims in ``pending``.
VERDICTS = "01234567"
#: Verdicts of contains.
PRESENT, ABSENT = "1", "0"


@dataclass(frozen=True, slots=True)
class Batch:
    """Items of one block.

    Args:
        held: the ring that the offsets belong to.
        places: where the items are in the caller's list.
        packed: their packed offsets.
    """

    held: Held
    places: list[int]
    packed: bytes


#: An item's ring, and the generation that remembers it.
Found = tuple[Ring, Generation | None]
#: Makes the call for a batch.
MakeCall = Callable[[Batch], Call]


def claim(view: View, items: Sequence[bytes], *, on_full: bool = False) -> Steps[str]:
    """Test and set: one of NEW, SEEN, UNRECORDED (new, but there is no room) per item.

    Args:
        view: the filter.
        items: the items.
        on_full: whether a server without memory does it too; the bits are allocated already.
    """

    def make_call(batch: Batch) -> Call:
        call = batch.held.claim(batch.packed)
        return call._replace(script=on_full_server(call.script)) if on_full else call

    return (yield from ask(view, items, make_call))


def locate(view: View, item: bytes) -> tuple[Held, bytes]:
    """Return the ring of an item's block and its packed offsets in layers of all sizes."""
    block, hashes = view.hasher.hashes(item)
    held = view.held[block]
    return held, held.pack(hashes)


def verdict_on_one(view: View, held: Held, reply: Reply) -> str | None:
    """Return the verdict in the reply to a claim, or an addition, of one item.

    None if there is none, and ``claim`` has to do what is needed; nothing has changed then.
    """
    if not is_answer(reply, 1) or (
        reply.verdicts in NO_ROOM and not view.is_stuck(held.ring.block)
    ):
        return None
    if reply.mark == FILLING:
        view.notify(FILLING, held.ring)
    return reply.verdicts


def is_answer(reply: Reply, items: int) -> bool:
    """Whether a reply holds the verdicts on so many items, and not the reason why it holds none.

    Raises:
        StorageError: it holds verdicts, but not on so many items, or such as there are none.
    """
    if reply.status != "ok":
        return False
    if len(reply.verdicts) != items or reply.verdicts.strip(VERDICTS):
        raise StorageError(f"a script answered {reply.verdicts!r:.40} on {items} items")
    return True


def contains(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Test only: PRESENT or ABSENT per item."""
    return (yield from ask(view, items, lambda batch: batch.held.contains(batch.packed)))


def find(view: View, items: Sequence[bytes]) -> Steps[list[Found]]:
    """Return per item its ring, and the newest generation that remembers it, if one does."""
    found: dict[int, Found] = {}
    pending, races = list(range(len(items))), Races(view)
    while pending:
        if not view.complete:
            yield from view.open()
        batches = _batches(view, items, pending)
        asked = [(b, generation) for b in batches for generation in b.held.ring.generations]
        replies = yield [b.held.contains_in(generation, b.packed) for b, generation in asked]
        refused = []
        for (batch, generation), reply in zip(asked, replies, strict=True):
            if not is_answer(reply, len(batch.places)):
                refused.append((batch, reply))
                continue
            for place, verdict in zip(batch.places, reply.verdicts, strict=True):
                if found.get(place, (None, None))[1] is None:
                    there = generation if verdict == PRESENT else None
                    found[place] = batch.held.ring, there
        # Of some generations a batch may have been answered: it is asked about as a whole again.
        again = {place for batch, _ in refused for place in batch.places}
        pending = sorted(again)
        for place in pending:
            found.pop(place, None)
        _note(races, batches, pending)
        for batch, reply in refused:
            yield from view.refresh(batch.held.ring.block, batch.held.v, reply)
    return [found[place] for place in range(len(items))]


def ask(view: View, items: Sequence[bytes], make_call: MakeCall) -> Steps[str]:
    """Return a verdict per item: in rounds, and again where a block has changed or is full."""
    answers = []
    for start in range(0, len(items), MAX_URLS_PER_ROUND):
        part = range(start, min(start + MAX_URLS_PER_ROUND, len(items)))
        answers.append((yield from _ask_part(view, items, part, make_call)))
    return "".join(answers)


def _ask_part(
    view: View, items: Sequence[bytes], places: Sequence[int], make_call: MakeCall
) -> Steps[str]:
    verdicts: dict[int, str] = {}
    pending, races = list(places), Races(view)
    while pending:
        if not view.complete:
            yield from view.open()
        batches = _batches(view, items, pending)
        replies = yield [make_call(batch) for batch in batches]
        refused, full = [], []
        for batch, reply in zip(batches, replies, strict=True):
            if not is_answer(reply, len(batch.places)):
                refused.append((batch, reply))
                continue
            verdicts.update(zip(batch.places, reply.verdicts, strict=True))
            if reply.mark == FILLING:
                view.notify(FILLING, batch.held.ring)
            if not NO_ROOM.isdisjoint(reply.verdicts):
                full.append(batch)
        pending = []
        for batch, reply in refused:
            yield from view.refresh(batch.held.ring.block, batch.held.v, reply)
            pending += batch.places
        for batch in full:
            if (yield from view.grow(batch.held.ring.block, batch.held.v)):
                pending += [place for place in batch.places if verdicts[place] in NO_ROOM]
        pending.sort()
        _note(races, batches, pending)
    return "".join(verdicts[place] for place in places)


def _note(races: Races, batches: Sequence[Batch], pending: Sequence[int]) -> None:
    """Note for each block whether a round left fewer of its items pending."""
    if not pending:
        return
    left = set(pending)
    before, after = Counter[int](), Counter[int]()
    for batch in batches:
        before[batch.held.ring.block] += len(batch.places)
        after[batch.held.ring.block] += sum(place in left for place in batch.places)
    for block, count in before.items():
        races.note(block, won=after[block] < count)


def _batches(view: View, items: Sequence[bytes], places: Sequence[int]) -> list[Batch]:
    """Sort items by block, in calls of bounded size; items of a block keep their order."""
    by_block: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for place in places:
        held, packed = locate(view, items[place])
        by_block[held.ring.block].append((place, packed))
    return [
        Batch(
            view.held[block],
            [place for place, _ in members[start : start + size]],
            b"".join(packed for _, packed in members[start : start + size]),
        )
        for block, members in by_block.items()
        for size in (view.held[block].max_urls,)
        for start in range(0, len(members), size)
    ]
