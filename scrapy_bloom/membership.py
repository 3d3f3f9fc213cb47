"""Asking a filter about items: claim and contains, as script calls on its rings. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scrapy_bloom.errors import StorageError
from scrapy_bloom.hashing import offsets
from scrapy_bloom.scripts import Call, Reply, load
from scrapy_bloom.view import MAX_ROUNDS, Steps, View

#: URLs in one script call: at ~5 us each, a call holds the server for about 1 ms.
MAX_URLS_PER_CALL = 256
#: URLs whose calls are sent together.
MAX_URLS_PER_ROUND = 8_192

#: Verdicts of a claim.
NEW, SEEN, UNRECORDED = "1", "0", "2"
#: Verdicts of contains.
PRESENT, ABSENT = "1", "0"


@dataclass(frozen=True, slots=True)
class Batch:
    """Items of one block.

    Args:
        block: the block.
        v: nonce of the ring that the offsets belong to.
        places: where the items are in the caller's list.
        packed: their packed offsets.
    """

    block: int
    v: str
    places: list[int]
    packed: bytes


#: Makes the call for packed offsets of one block.
MakeCall = Callable[[View, int, bytes], Call]


def claim(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Test and set: one of NEW, SEEN, UNRECORDED (new, but the layer is full) per item."""
    return (yield from _ask(view, items, _claim_call))


def claim_one(view: View, item: bytes) -> Call:
    """Return the call that claims one item, if the rings are as ``view`` holds them.

    A reply other than "ok" has changed nothing: ``claim`` then does what is needed.
    """
    return _claim_call(view, *_locate(view, item))


def is_answer(reply: Reply, items: int) -> bool:
    """Whether a reply holds the verdicts on so many items, and not the reason why it holds none.

    Raises:
        StorageError: it holds verdicts, but not on so many items.
    """
    if reply.status == "ok" and len(reply.verdicts) != items:
        raise StorageError(f"a script answered {len(reply.verdicts)} verdicts on {items} items")
    return reply.status == "ok"


def contains(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Test only: PRESENT or ABSENT per item."""
    return (yield from _ask(view, items, _contains_call))


def _ask(view: View, items: Sequence[bytes], make_call: MakeCall) -> Steps[str]:
    answers = []
    for start in range(0, len(items), MAX_URLS_PER_ROUND):
        part = items[start : start + MAX_URLS_PER_ROUND]
        answers.append((yield from _ask_part(view, part, make_call)))
    return "".join(answers)


def _ask_part(view: View, items: Sequence[bytes], make_call: MakeCall) -> Steps[str]:
    verdicts = [""] * len(items)
    pending = list(range(len(items)))
    for _ in range(MAX_ROUNDS):
        if not view.complete:
            yield from view.open()
        batches = _batches(view, items, pending)
        replies = yield [make_call(view, batch.block, batch.packed) for batch in batches]
        refused = []
        for batch, reply in zip(batches, replies, strict=True):
            if is_answer(reply, len(batch.places)):
                for place, verdict in zip(batch.places, reply.verdicts, strict=True):
                    verdicts[place] = verdict
            else:
                refused.append((batch, reply))
        if not refused:
            return "".join(verdicts)
        for batch, reply in refused:
            yield from view.refresh(batch.block, batch.v, reply)
        pending = sorted(place for batch, _ in refused for place in batch.places)
    raise view.unstable()


def _batches(view: View, items: Sequence[bytes], places: Sequence[int]) -> list[Batch]:
    """Sort items by block, in calls of bounded size; items of a block keep their order."""
    by_block: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for place in places:
        block, packed = _locate(view, items[place])
        by_block[block].append((place, packed))
    return [
        Batch(
            block,
            view.held[block].v,
            [place for place, _ in members[start : start + MAX_URLS_PER_CALL]],
            b"".join(packed for _, packed in members[start : start + MAX_URLS_PER_CALL]),
        )
        for block, members in by_block.items()
        for start in range(0, len(members), MAX_URLS_PER_CALL)
    ]


def _locate(view: View, item: bytes) -> tuple[int, bytes]:
    """Return an item's block and its packed offsets in the active layer."""
    block, hashes = view.hasher.hashes(item)
    num_bits = view.held[block].ring.active.num_bits
    return block, view.packer.pack(*offsets(hashes, num_bits))


def _claim_call(view: View, block: int, packed: bytes) -> Call:
    held = view.held[block]
    layer, k = held.ring.active, len(view.hasher.seeds)
    args = (held.v, f"n:{layer.name}", layer.memory, layer.capacity, k, packed)
    return Call(load("claim"), held.keys, args)


def _contains_call(view: View, block: int, packed: bytes) -> Call:
    held = view.held[block]
    layer, k = held.ring.active, len(view.hasher.seeds)
    return Call(load("contains"), held.keys, (held.v, layer.memory, k, packed))
