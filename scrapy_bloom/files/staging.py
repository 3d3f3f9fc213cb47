"""Bitmaps that are written beside a filter, under names of their own. No I/O with the server.

They expire, unless they are put into a ring: see ``installing``.
"""

import secrets
from collections.abc import Sequence

from scrapy_bloom.core.generations import Layer
from scrapy_bloom.core.keys import Keys
from scrapy_bloom.core.rings import Rings, Steps
from scrapy_bloom.core.scripts import Call, load
from scrapy_bloom.errors import StorageError
from scrapy_bloom.files.archive import Block

#: Seconds that what is staged outlives the last that was heard of it, and seconds after which its
#: end is put off.
STAGED_FOR, RENEW_AFTER = 3_600, 600
#: Parts of bitmaps that are read or written in a round trip.
BATCH = 4


class Staging(Rings):
    """The bitmaps of one filter, as they are written.

    Args:
        keys: the keys that the filter is to have.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys, lambda *_: None)
        self._token = secrets.token_hex(8)
        #: What was written so far, by block.
        self._blocks: dict[int, Block] = {}
        self._waiting: list[Call] = []
        self._now = self._renewed = 0

    def begin(self, block: Block) -> Steps[None]:
        """Allocate the bitmaps of a block; those of the same block as it was before go."""
        yield from self._send()
        before = self._blocks.get(block.ring.block)
        if before is not None:
            yield from self._unstage(before)
        self._blocks[block.ring.block] = block
        for layer in block.ring.layers:
            key = self._staged(block, layer)
            yield [Call(load("stage"), (key,), (layer.memory, STAGED_FOR))]

    def fill(self, layer: Layer, offset: int, data: bytes) -> Steps[None]:
        """Write a part of a bitmap of the block that was begun last."""
        block = next(reversed(self._blocks.values()))
        self._waiting.append(self._fill_call(block, layer, offset, data))
        if len(self._waiting) == BATCH:
            yield from self._send()

    def flush(self) -> Steps[None]:
        """Write what waits, and make sure that all is there for some time."""
        yield from self._send()
        yield from self._renew()

    def _unstage(self, block: Block) -> Steps[None]:
        for layer in block.ring.layers:
            yield [Call(load("stage"), (self._staged(block, layer),), (0, 0))]

    def _send(self) -> Steps[None]:
        calls, self._waiting = self._waiting, []
        if calls:
            yield from self._make(calls)
        if self._now >= self._renewed + RENEW_AFTER:
            yield from self._renew()

    def _renew(self) -> Steps[None]:
        """Put off the end of what is staged, and make sure that it is there."""
        self._renewed = self._now
        for block in list(self._blocks.values()):
            layers = block.ring.layers
            yield from self._make([self._fill_call(block, layer, 0, b"") for layer in layers])

    def _make(self, calls: Sequence[Call]) -> Steps[None]:
        replies = yield list(calls)
        for reply in replies:
            self._now = max(self._now, reply.now)
            if reply.status != "ok":
                raise self._gone()

    def _fill_call(self, block: Block, layer: Layer, offset: int, data: bytes) -> Call:
        arguments = (layer.memory, STAGED_FOR, offset, data)
        return Call(load("fill"), (self._staged(block, layer),), arguments)

    def _staged(self, block: Block, layer: Layer) -> str:
        return self.keys.staged(block.ring.block, self._token, layer.name)

    def _gone(self) -> StorageError:
        return StorageError(
            f"what was written for the filter {self.keys.prefix!r} is gone again: the server is "
            "out of memory and evicts (raise its maxmemory), or something else deletes its keys"
        )
