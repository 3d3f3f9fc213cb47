"""Asking a filter about items: claim and contains, as script calls on its rings. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scrapy_bloom.hashing import offset_packer, offsets
from scrapy_bloom.ring import Layer
from scrapy_bloom.scripts import Call, load
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
    """Items of one block: their places in the caller's list and their packed offsets."""

    block: int
    places: list[int]
    packed: bytes


def claim(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Test and set: one of NEW, SEEN, UNRECORDED (new, but the layer is full) per item."""
    return (yield from _ask(view, items, _claim_call))


def contains(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Test only: PRESENT or ABSENT per item."""
    return (yield from _ask(view, items, _contains_call))


def _ask(
    view: View, items: Sequence[bytes], make_call: Callable[[View, Batch], Call]
) -> Steps[str]:
    answers = []
    for start in range(0, len(items), MAX_URLS_PER_ROUND):
        part = items[start : start + MAX_URLS_PER_ROUND]
        answers.append((yield from _ask_part(view, part, make_call)))
    return "".join(answers)


def _ask_part(
    view: View, items: Sequence[bytes], make_call: Callable[[View, Batch], Call]
) -> Steps[str]:
    verdicts = [""] * len(items)
    pending = list(range(len(items)))
    for _ in range(MAX_ROUNDS):
        if not view.complete:
            yield from view.open()
        batches = _batches(view, items, pending)
        replies = yield [make_call(view, batch) for batch in batches]
        refused = []
        for batch, reply in zip(batches, replies, strict=True):
            if reply.status == "ok":
                for place, verdict in zip(batch.places, reply.verdicts, strict=True):
                    verdicts[place] = verdict
            else:
                refused.append((batch, reply))
        if not refused:
            return "".join(verdicts)
        for batch, reply in refused:
            yield from view.refresh(batch.block, reply)
        pending = sorted(place for batch, _ in refused for place in batch.places)
    raise view.unstable()


def _batches(view: View, items: Sequence[bytes], places: Sequence[int]) -> list[Batch]:
    """Sort items by block, in calls of bounded size; items of a block keep their order."""
    packer = offset_packer(len(view.hasher.seeds))
    by_block: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for place in places:
        block, hashes = view.hasher.hashes(items[place])
        num_bits = view.held[block].ring.active.num_bits
        by_block[block].append((place, packer.pack(*offsets(hashes, num_bits))))
    return [
        Batch(
            block,
            [place for place, _ in members[start : start + MAX_URLS_PER_CALL]],
            b"".join(packed for _, packed in members[start : start + MAX_URLS_PER_CALL]),
        )
        for block, members in by_block.items()
        for start in range(0, len(members), MAX_URLS_PER_CALL)
    ]


def _claim_call(view: View, batch: Batch) -> Call:
    v, layer, keys, k = _target(view, batch.block)
    args = (v, layer.name, layer.memory, layer.capacity, k, batch.packed)
    return Call(load("claim"), keys, args)


def _contains_call(view: View, batch: Batch) -> Call:
    v, layer, keys, k = _target(view, batch.block)
    return Call(load("contains"), keys, (v, layer.memory, k, batch.packed))


def _target(view: View, block: int) -> tuple[str, Layer, tuple[str, str], int]:
    held = view.held[block]
    layer = held.ring.active
    keys = (view.keys.ring(block), view.keys.layer(block, layer.name))
    return held.v, layer, keys, len(view.hasher.seeds)
