"""A block in memory, filled as the scripts do it: what pure tests put together and take apart."""

from collections.abc import Iterable

from scrapy_bloom.bloom.extras.bitmaps import Contents
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.hashing import Hasher, offsets
from scrapy_bloom.bloom.model.ring import Ring


class Block:
    """The only block of a filter.

    Args:
        ring: its ring, empty.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.bits = {layer.name: 0 for layer in ring.layers}
        self.counts = dict.fromkeys(self.bits, 0)

    @classmethod
    def of(cls, contents: Contents) -> "Block":
        block = cls(contents.ring)
        block.bits, block.counts = dict(contents.bits), dict(contents.counts)
        return block

    @property
    def contents(self) -> Contents:
        return Contents(self.ring, dict(self.counts), dict(self.bits))

    def go_on(self, now: int, run: str | None = None) -> None:
        """Let time pass."""
        self._take(self.ring.advance(now, self.counts, run))

    def add(self, items: Iterable[str], now: int) -> None:
        for item in items:
            if item not in self:
                self._take(self.ring.grow(now, self.counts))
                for layer in self.ring.written:
                    self.bits[layer.name] |= self._mask(item, layer)
                    self.counts[layer.name] += 1

    def __contains__(self, item: str) -> bool:
        return any(self._has(item, layer) for layer in self.ring.tested)

    def _has(self, item: str, layer: Layer) -> bool:
        mask = self._mask(item, layer)
        return self.bits[layer.name] & mask == mask

    def _mask(self, item: str, layer: Layer) -> int:
        _, hashes = Hasher(self.ring.header.seeds, 1).hashes(item.encode())
        mask = 0
        for offset in offsets(hashes, layer.num_bits):
            byte, bit = divmod(offset, 8)
            mask |= 0x80 >> bit << 8 * (layer.memory - 1 - byte)
        return mask

    def _take(self, ring: Ring) -> None:
        self.ring = ring
        self.bits = {layer.name: self.bits.get(layer.name, 0) for layer in ring.layers}
        self.counts = {layer.name: self.counts.get(layer.name, 0) for layer in ring.layers}
