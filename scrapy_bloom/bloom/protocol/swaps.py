"""A block's next ring, the calls that put it in place of the one before, and waves of them. No I/O.

A server carries out what it has read of a client before it turns to the next one. So a wave, which
is sent in one round trip, is small: it holds the server for a few milliseconds at most.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Counts
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, load

T = TypeVar("T")
#: Decides what becomes of a ring, from the server's clock and counts; the same ring is no change.
Decide = Callable[[Ring, int, Counts], Ring]

#: Of a bitmap in a swap: no bytes, no time to expire at.
GONE = 0, 0
#: Of a bitmap in a swap: its bytes if it stays as it is.
STAYS = -1
#: Calls of one wave at most: to read or swap a ring takes the server some 10 to 50 us.
MAX_CALLS = 256
#: Bytes of bitmaps that one wave allocates or deletes at most: 8 MiB are allocated in about 3 ms.
MAX_BYTES = 8 << 20


class Change(NamedTuple):
    """What becomes of a block's ring.

    Args:
        block: the block.
        decide: returns the next ring.
        version: nonce that the ring must have; None for any.
        lost: names of layers that have to be allocated again if they stay.
    """

    block: int
    decide: Decide
    version: str | None = None
    lost: Collection[str] = ()


class Drop(NamedTuple):
    """A key that is deleted if its block's ring is still the one that the caller knows.

    Args:
        block: the block.
        key: the key.
        version: nonce of the ring.
        memory: bytes that the server frees at once.
        more: further keys of the block.
    """

    block: int
    key: str
    version: str
    memory: int = 0
    more: tuple[str, ...] = ()

    def call(self, keys: Keys) -> Call:
        """Return the call that deletes it."""
        return Call(load("drop"), (keys.ring(self.block), self.key, *self.more), (self.version,))


@dataclass(frozen=True, slots=True)
class Swap:
    """A ring that takes the place of another one, if that is still there.

    Args:
        version: nonce of the ring that goes, "" if there is none.
        ring: the ring that comes.
        old: the ring that goes.
        lost: names of its layers that have to be allocated again if they stay.
    """

    version: str
    ring: Ring
    old: Ring | None = None
    lost: Collection[str] = ()

    @property
    def memory(self) -> int:
        """Bytes of the bitmaps that it allocates."""
        there = self._there
        return sum(layer.memory for layer in self.ring.layers if layer not in there)

    def call(self, keys: Keys, version: str, least: int = 0) -> Call:
        """Return the call that compares and sets.

        Args:
            keys: the filter's keys.
            version: nonce of the ring that comes.
            least: Unix time before which nothing expires.
        """
        there = self._there
        # What is lost goes too: its count, and whatever lies under its key.
        bitmaps = {layer.name: GONE for layer in self.old.layers} if self.old else {}
        for generation in self.ring.generations:
            time = self.ring.expires(generation)
            for layer in generation.layers:
                size = STAYS if layer in there else layer.memory
                bitmaps[layer.name] = size, time and max(time, least)
        triples: list[Argument] = []
        for name, values in bitmaps.items():
            triples += [name, *values]
        expiry = self.ring.expiry and max(self.ring.expiry, least)
        arguments = (self.version, version, ring_codec.dump(self.ring), expiry, *triples)
        block = self.ring.block
        names = (keys.layer(block, name) for name in bitmaps)
        return Call(load("swap"), (keys.ring(block), *names), arguments)

    def drops(self, keys: Keys, version: str) -> list[Drop]:
        """Return the bitmaps that are no longer needed under the new ring's nonce."""
        block, names = self.ring.block, {layer.name for layer in self.ring.layers}
        return [
            Drop(block, keys.layer(block, layer.name), version, layer.memory)
            for layer in (self.old.layers if self.old else ())
            if layer.name not in names
        ]

    @property
    def _there(self) -> set[object]:
        layers = self.old.layers if self.old else ()
        return {layer for layer in layers if layer.name not in self.lost}


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Divide items into lists of one size; the last may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def in_waves(items: Iterable[T], memory: Callable[[T], int] = lambda _: 0) -> Iterator[list[T]]:
    """Divide items, of which each is one call, into waves.

    Args:
        items: the items.
        memory: returns the bytes of bitmaps that an item allocates or deletes. One of more than
            ``MAX_BYTES`` is a wave of its own.
    """
    wave, total = list[T](), 0
    for item in items:
        size = memory(item)
        if wave and (len(wave) == MAX_CALLS or total + size > MAX_BYTES):
            yield wave
            wave, total = [], 0
        wave.append(item)
        total += size
    if wave:
        yield wave
