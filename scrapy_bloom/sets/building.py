"""Blocks of a filter as they are read, changed and written whole. No I/O."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from scrapy_bloom.core.calls import Held
from scrapy_bloom.core.generations import Layer
from scrapy_bloom.core.header import Header
from scrapy_bloom.core.rings import MAX_ROUNDS, Steps
from scrapy_bloom.core.scripts import BYTES, Call, Reply, load
from scrapy_bloom.core.view import View
from scrapy_bloom.errors import StorageError
from scrapy_bloom.files.archive import Block
from scrapy_bloom.files.installing import Installing
from scrapy_bloom.sets.contents import Contents

T = TypeVar("T")

#: Bytes of a bitmap that are read or written in one call (0.3 ms), and such calls in a round trip.
CHUNK, BATCH = 256 << 10, 4
#: Bytes of a bitmap whose bits are counted in one call: 0.7 ms.
COUNTED = 4 << 20


class RefusedError(Exception):
    """A script has done nothing, because the ring is another one, or bitmaps are gone."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def try_block(
    view: View, header: Header, block: int, attempt: Callable[[Held], Steps[T]]
) -> Steps[T]:
    """Do something with a block, once more from its beginning whenever its ring changes meanwhile.

    Args:
        view: the filter.
        header: its header; a filter that was created anew is refused.
        block: the block.
        attempt: what is to be done with the ring; may raise RefusedError.

    Raises:
        StorageError: the filter does not keep still, or was created anew.
    """
    for _ in range(MAX_ROUNDS):
        if not view.complete:
            yield from view.open()
        if view.header != header:
            raise StorageError(f"the filter {view.keys.prefix!r} was created anew meanwhile")
        held = view.held[block]
        try:
            return (yield from attempt(held))
        except RefusedError as refusal:
            yield from view.refresh(block, held.v, refusal.reply)
    raise view.unstable()


def read_block(held: Held, layers: Sequence[Layer]) -> Steps[Contents]:
    """Read bitmaps of a block.

    The filter may be in use: an item that is recorded meanwhile may be there in part.

    Args:
        held: its ring.
        layers: those that are wanted.

    Raises:
        RefusedError: the ring is another one, or they are not there.
    """
    block = held.ring.block
    (reply,) = yield [Call(load("read"), (held.keys.ring(block), held.keys.claims(block)), ())]
    if reply.v != held.v or held.ring.advance(reply.now) is not held.ring:
        raise RefusedError(reply)
    counts = {layer.name: _count(held, reply, layer) for layer in layers}
    bits = {}
    for layer in layers:
        bits[layer.name] = int.from_bytes((yield from _read_layer(held, layer)), "big")
    return Contents(held.ring, counts, bits)


def count_ones(held: Held) -> Steps[list[int]]:
    """Return how many bits are set in each of the layers of a block that are tested.

    Raises:
        RefusedError: the ring is another one, or a bitmap is not there.
    """
    counted = []
    for layer in held.ring.tested:
        calls = [
            Call(load("ones"), _keys(held, layer), (held.v, layer.memory, start, end - 1))
            for start, end in _spans(layer, COUNTED)
        ]
        replies = yield from _all(calls, "ok")
        counted.append(sum(int(reply.verdicts) for reply in replies))
    return counted


def merge_bits(held: Held, token: str, layer: Layer, missing: int, more: int) -> Steps[None]:
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
    for start, end in _spans(layer, CHUNK):
        if any(data[start:end]):
            args = (held.v, layer.memory, start, data[start:end], f"n:{layer.name}", more)
            calls.append(Call(load("merge"), keys, args))
            more = 0  # they are counted once
    yield from _all(calls, "ok")


class Building(Installing):
    """A filter that is written a block at a time, from memory: to be run by ``or_discard``."""

    def put(self, contents: Contents) -> Steps[None]:
        """Write a block."""
        yield from self.begin(Block(contents.ring, contents.counts))
        for layer in contents.ring.layers:
            data = contents.bits[layer.name].to_bytes(layer.memory, "big")
            for start, end in _spans(layer, CHUNK):
                if any(data[start:end]):
                    yield from self.fill(layer, start, data[start:end])


def _read_layer(held: Held, layer: Layer) -> Steps[bytes]:
    calls = [
        Call(
            load("fetch"),
            _keys(held, layer),
            (held.v, layer.memory, start, end - start),
            binary=True,
        )
        for start, end in _spans(layer, CHUNK)
    ]
    replies = yield from _all(calls, BYTES)
    data = b"".join(reply.data for reply in replies)
    if len(data) != layer.memory:
        raise StorageError(f"a script answered {len(data)} bytes where there are {layer.memory}")
    return data


def _all(calls: Sequence[Call], status: str) -> Steps[list[Reply]]:
    """Make calls, a few in a round trip.

    Raises:
        RefusedError: one of them has another status.
    """
    replies: list[Reply] = []
    rest = iter(calls)
    while batch := list(islice(rest, BATCH)):
        for reply in (yield batch):
            if reply.status != status:
                raise RefusedError(reply)
            replies.append(reply)
    return replies


def _spans(layer: Layer, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, layer.memory, size):
        yield start, min(start + size, layer.memory)


def _keys(held: Held, layer: Layer) -> tuple[str, str]:
    return held.keys.ring(held.ring.block), held.keys.layer(held.ring.block, layer.name)


def _count(held: Held, reply: Reply, layer: Layer) -> int:
    text = reply.fields.get(f"n:{layer.name}", "0")
    if not text.isdecimal() or len(text) > 18:
        key = held.keys.ring(held.ring.block)
        raise StorageError(f"the Redis key {key!r} counts {text!r:.40} items in {layer.name}")
    return int(text)
