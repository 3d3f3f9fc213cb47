"""Blocks of a filter as they are read and changed, with their bitmaps. No I/O."""

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.extras.archive import CHUNKS_PER_ROUND, spans
from scrapy_bloom.bloom.extras.block_bitmaps import Contents
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import BYTES, Call, Reply, load
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")

#: Bytes of a bitmap whose bits are counted in one call: 0.7 ms.
COUNTED_BYTES = 4 << 20


class RefusedError(Exception):
    """A script has done nothing, because the ring is another one, or bitmaps are gone."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def try_block(
    session: FilterSession,
    header: Header,
    block: int,
    attempt: Callable[[CachedRing], Operation[T]],
) -> Operation[T]:
    """Run an attempt on a block, and repeat it whenever the ring has changed.

    Args:
        session: the filter.
        header: its header; a filter that was replaced is refused.
        block: the block.
        attempt: called with the ring; may raise RefusedError.

    Raises:
        StorageError: the filter keeps changing, or was replaced.
    """
    for _ in range(MAX_ROUNDS):
        yield from session.ensure_open()
        if session.header != header:
            raise StorageError(f"the filter {session.keys.prefix!r} was deleted and created again")
        held = session.held[block]
        try:
            return (yield from attempt(held))
        except RefusedError as refusal:
            yield from session.refresh([(held, refusal.reply)])
    raise session.unstable()


def read_block(held: CachedRing, layers: Sequence[Layer]) -> Operation[Contents]:
    """Read some layers of a block.

    The filter may be in use: an item that is recorded at the same time may be there in part.

    Raises:
        RefusedError: the ring is another one, or a bitmap is not there.
    """
    block = held.ring.block
    (reply,) = yield [Call(load("read"), (held.keys.ring(block), held.keys.claims(block)), ())]
    if reply.version != held.version or held.ring.advance(reply.now) is not held.ring:
        raise RefusedError(reply)
    counts = StoredFilter(held.keys).counts_in(held.ring, reply)
    bits = {}
    for layer in layers:
        chunks = yield from read_layer(held.keys, block, layer, held.version)
        bits[layer.name] = int.from_bytes(b"".join(chunks), "big")
    return Contents(held.ring, counts, bits)


def count_ones(held: CachedRing) -> Operation[list[int]]:
    """Return how many bits are set in each of the layers of a block that are tested.

    Raises:
        RefusedError: the ring is another one, or a bitmap is not there.
    """
    counted = []
    for layer in held.ring.tested:
        keys = _keys(held, layer)
        calls = [
            Call(load("bitcount"), keys, (held.version, layer.memory, start, start + size - 1))
            for start, size in spans(layer, COUNTED_BYTES)
        ]
        replies = yield from _all(calls, "ok")
        counted.append(sum(map(_number, replies)))
    return counted


def _number(reply: Reply) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", reply.verdicts):
        raise StorageError(f"a script answered {reply.verdicts!r:.40}, and counts bits")
    return int(reply.verdicts)


def merge_bits(
    held: CachedRing, token: str, layer: Layer, missing: int, more: int
) -> Operation[None]:
    """Set bits of a layer that is in use.

    Args:
        held: the ring of its block.
        token: random; names where the server keeps them for the moment.
        layer: the layer.
        missing: the bits, as an integer of the bitmap's size.
        more: how many items they are.

    Raises:
        RefusedError: the ring is another one, or the bitmap is not there; some bits may be set.
    """
    data = missing.to_bytes(layer.memory, "big")
    block, scratch = held.ring.block, (f"{layer.name}.a", f"{layer.name}.b")
    keys = (*_keys(held, layer), *(held.keys.scratch(block, token, name) for name in scratch))
    calls = []
    for start, size in spans(layer):
        chunk = data[start : start + size]
        if any(chunk):
            args = (held.version, layer.memory, start, chunk, f"n:{layer.name}", more)
            calls.append(Call(load("merge"), keys, args))
            more = 0  # they are counted once
    yield from _all(calls, "ok")


def read_layer(keys: Keys, block: int, layer: Layer, version: str) -> Operation[list[bytes]]:
    """Read a bitmap, in chunks.

    Raises:
        RefusedError: the ring is another one, or the bitmap is not there.
    """
    names = keys.ring(block), keys.layer(block, layer.name)
    calls = [
        Call(load("read_range"), names, (version, layer.memory, offset, size), binary=True)
        for offset, size in spans(layer)
    ]
    replies = yield from _all(calls, BYTES)
    chunks = [reply.data for reply in replies]
    size = sum(map(len, chunks))
    if size != layer.memory:
        raise StorageError(f"a script answered {size} bytes where there are {layer.memory}")
    return chunks


def _all(calls: Sequence[Call], status: str) -> Operation[list[Reply]]:
    """Make calls, a few in a round trip.

    Raises:
        RefusedError: one of them has another status.
    """
    replies: list[Reply] = []
    rest = iter(calls)
    while batch := list(islice(rest, CHUNKS_PER_ROUND)):
        for reply in (yield batch):
            if reply.status != status:
                raise RefusedError(reply)
            replies.append(reply)
    return replies


def _keys(held: CachedRing, layer: Layer) -> tuple[str, str]:
    return held.keys.ring(held.ring.block), held.keys.layer(held.ring.block, layer.name)
