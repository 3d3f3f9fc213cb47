"""Saves a filter to a file while it is in use, one block at a time. No I/O with the server.

Bits are only ever set, so the bits that a block has when its ring is read are in the bitmaps that
are read after it. (Items that are discarded during the save may be in the file in part.) Claims are
not saved: they belong to a crawl.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import ArchiveError, StorageError
from scrapy_bloom.bloom.extras.archive import MAX_LAYERS, ArchiveWriter, Block, spans
from scrapy_bloom.bloom.extras.builder import RefusedError, read_layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import Reply

#: Called with the bytes of bitmaps done and in all, about.
Progress = Callable[[int, int], object]
#: The chunks of bitmaps, by the names of their layers. A lost one is missing.
Bitmaps = dict[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class Saved:
    """What was saved or loaded.

    Args:
        header: the filter's header.
        saved: when it was saved, on its server's clock, Unix time in seconds.
        count: URLs it remembers.
        memory: bytes of its bitmaps.
        lost: blocks that had lost a bitmap when it was saved, which is empty in the file.
    """

    header: Header
    saved: int
    count: int
    memory: int
    lost: int = 0


class Saver(StoredFilter):
    """One saving of a filter.

    Args:
        keys: the filter's keys.
        writer: writes the file.
        progress: called with the bytes of bitmaps done and in all, about.
    """

    def __init__(self, keys: Keys, writer: ArchiveWriter, progress: Progress | None = None) -> None:
        super().__init__(keys)
        self._writer = writer
        self._progress = progress or (lambda *_: None)
        self._done = self._total = 0

    def run(self) -> Operation[Saved]:
        """Save the filter as it is stored, and change nothing.

        Raises:
            StorageError: there is no filter, or it was deleted during the save.
            ArchiveError: the file cannot be written.
        """
        found = yield from self.look()
        if found is None or not found.rings:
            raise StorageError(
                f"there is no filter {self.keys.prefix!r} to be saved: nothing was recorded in it "
                "yet, it has expired or was deleted, or it is on another server or under another "
                "key"
            )
        layers = sum(len(ring.layers) for ring in found.rings.values())
        if layers > MAX_LAYERS:
            raise ArchiveError(f"a file may hold {MAX_LAYERS:,} layers; this filter has {layers:,}")
        self._total = sum(ring.memory for ring in found.rings.values())
        self._writer.begin(found.header, found.now, self._total)
        count = lost = 0
        for number in range(found.header.blocks):
            block, bitmaps = yield from self._read(number, found.header)
            self._write(block, bitmaps)
            count += block.ring.count(block.counts)
            lost += len(bitmaps) < len(block.ring.layers)
        self._writer.end()
        return Saved(found.header, found.now, count, self._done, lost)

    def _read(self, number: int, header: Header) -> Operation[tuple[Block, Bitmaps]]:
        """Read a block; start again if its ring changes."""
        for _ in range(MAX_ROUNDS):
            (reply,) = yield [self.read_call(number)]
            ring = self.ring_in(number, reply, header)
            if ring is None:
                raise StorageError(
                    f"block {number} of the filter {self.keys.prefix!r} was deleted or evicted: "
                    "open the filter, which creates the block again, empty, and save it then"
                )
            bitmaps = yield from self._read_bitmaps(ring, reply)
            if bitmaps is not None:
                stored = self.counts_in(ring, reply)
                ring = ring.without({layer.name for layer in ring.layers} - bitmaps.keys())
                names = [layer.name for layer in ring.layers]
                # The counts were read before the bits: there are enough bits for them.
                counts = {name: stored[name] if name in bitmaps else 0 for name in names}
                return Block(ring, counts), {n: bitmaps[n] for n in names if n in bitmaps}
        raise self.unstable()

    def _read_bitmaps(self, ring: Ring, reply: Reply) -> Operation[Bitmaps | None]:
        """Read the bitmaps of a ring; None if the ring has changed."""
        bitmaps = {}
        for layer in ring.layers:
            if layer in ring.written and f"n:{layer.name}" not in reply.fields:
                continue  # its count is lost
            try:
                chunks = yield from read_layer(self.keys, ring.block, layer, reply.version)
            except RefusedError as refusal:
                if refusal.reply.status != "lost":
                    return None
            else:
                bitmaps[layer.name] = chunks
        return bitmaps

    def _write(self, block: Block, bitmaps: Bitmaps) -> None:
        self._writer.block(block.ring, block.counts)
        for layer in block.ring.layers:
            empty = (bytes(size) for _, size in spans(layer))
            for chunk in bitmaps.get(layer.name, empty):
                self._writer.chunk(chunk)
                self._done += len(chunk)
                self._progress(self._done, self._total)
