"""Saves a filter to a file while it is in use, one block at a time. No I/O with the server.

Bits are only ever set, so the bits that a block has when its ring is read are in the bitmaps that
are read after it. (Items that are discarded during the save may be in the file in part.) Claims are
not saved: they belong to a crawl.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import ArchiveError, StorageError
from scrapy_bloom.bloom.extras.file import CHUNKS_PER_ROUND, MAX_LAYERS, ArchiveWriter, spans
from scrapy_bloom.bloom.model.generations import Counts, Layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import BYTES, Call, Reply, load
from scrapy_bloom.bloom.protocol.swaps import in_parts

#: Called with the bytes of bitmaps done and in all, about.
Progress = Callable[[int, int], object]
#: The chunks of bitmaps, by the names of their layers. A lost one is missing.
Bitmaps = dict[str, list[bytes]]


class RefusedError(Exception):
    """A script has done nothing, because the ring is another one, or bitmaps are gone."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def call_all(calls: Sequence[Call], status: str) -> Operation[list[Reply]]:
    """Make calls, a few in a round trip; another status raises a RefusedError."""
    replies: list[Reply] = []
    for batch in in_parts(calls, CHUNKS_PER_ROUND):
        for reply in (yield batch):
            if reply.status != status:
                raise RefusedError(reply)
            replies.append(reply)
    return replies


def read_layer(keys: Keys, block: int, layer: Layer, version: str) -> Operation[list[bytes]]:
    """Read a bitmap, in chunks; RefusedError if it is gone, or the ring is another one."""
    names = keys.ring(block), keys.layer(block, layer.name)
    calls = [
        Call(load("read_range"), names, (version, layer.memory, offset, size), binary=True)
        for offset, size in spans(layer)
    ]
    chunks = [reply.data for reply in (yield from call_all(calls, BYTES))]
    size = sum(map(len, chunks))
    if size != layer.memory:
        raise StorageError(f"a script answered {size} bytes where there are {layer.memory}")
    return chunks


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


def save(keys: Keys, writer: ArchiveWriter, progress: Progress | None = None) -> Operation[Saved]:
    """Save a filter as it is stored, and change nothing.

    Raises:
        StorageError: there is no filter, or it was deleted during the save.
        ArchiveError: the file cannot be written.
    """
    stored = StoredFilter(keys)
    found = yield from stored.look()
    if found is None or not found.rings:
        raise StorageError(
            f"there is no filter {keys.prefix!r} to be saved: nothing was recorded in it "
            "yet, it has expired or was deleted, or it is on another server or under another "
            "key"
        )
    layers = sum(len(ring.layers) for ring in found.rings.values())
    if layers > MAX_LAYERS:
        raise ArchiveError(f"a file may hold {MAX_LAYERS:,} layers; this filter has {layers:,}")
    total = sum(ring.memory for ring in found.rings.values())
    writer.begin(found.header, found.now, total)
    done = count = lost = 0
    for number in range(found.header.blocks):
        ring, counts, bitmaps = yield from _read_block(stored, number, found.header)
        writer.block(ring, counts)
        for layer in ring.layers:
            empty = (bytes(size) for _, size in spans(layer))
            for chunk in bitmaps.get(layer.name, empty):
                writer.chunk(chunk)
                done += len(chunk)
                if progress:
                    progress(done, total)
        count += ring.count(counts)
        lost += not counts.keys() <= bitmaps.keys()
    writer.end()
    return Saved(found.header, found.now, count, done, lost)


def _read_block(
    stored: StoredFilter, number: int, header: Header
) -> Operation[tuple[Ring, Counts, Bitmaps]]:
    """Read a block, without bitmaps that are lost; start again if its ring changes."""
    for _ in range(MAX_ROUNDS):
        (reply,) = yield [stored.read_call(number)]
        ring = stored.ring_in(number, reply, header)
        if ring is None:
            raise StorageError(
                f"block {number} of the filter {stored.keys.prefix!r} was deleted or evicted: "
                "open the filter, which creates the block again, empty, and save it then"
            )
        bitmaps = yield from _read_bitmaps(stored.keys, ring, reply)
        if bitmaps is not None:
            # The counts were read before the bits: there are enough bits for them.
            counted = stored.counts_in(ring, reply)
            ring = ring.without(counted.keys() - bitmaps.keys())
            names = [layer.name for layer in ring.layers]
            return ring, {n: counted[n] if n in bitmaps else 0 for n in names}, bitmaps
    raise stored.unstable()


def _read_bitmaps(keys: Keys, ring: Ring, reply: Reply) -> Operation[Bitmaps | None]:
    """Read the bitmaps of a ring but those that are lost; None if the ring has changed."""
    bitmaps = {}
    for layer in ring.layers:
        if layer in ring.written and f"n:{layer.name}" not in reply.fields:
            continue  # its count is lost
        try:
            bitmaps[layer.name] = yield from read_layer(keys, ring.block, layer, reply.version)
        except RefusedError as refusal:
            if refusal.reply.status != "lost":
                return None
    return bitmaps
