"""Saves a filter to a file while it is in use. No I/O with the server.

Bits are only ever set, so what a block holds when its ring is read is in the chunks that are read
after it. (Items that are discarded during the save may be in the file in part.) Claims
are not saved: they belong to a crawl.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import ArchiveError, StorageError
from scrapy_bloom.bloom.extras.archive import CHUNKS_PER_ROUND, MAX_LAYERS, ArchiveWriter, spans
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import BYTES, Call, Reply, load

#: Names of layers.
Names = Collection[str]
#: Called with the bytes of bitmaps done and in all, about.
Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Saved:
    """What was saved or loaded.

    Args:
        header: the filter's header.
        saved: when it was saved, on its server's clock, Unix time in seconds.
        count: URLs it remembers.
        memory: bytes of its bitmaps.
        lost: blocks that were found lost when it was saved, and are empty in the file.
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
        writer: what it is written by.
        progress: called with the bytes of bitmaps done and in all, about.
    """

    def __init__(self, keys: Keys, writer: ArchiveWriter, progress: Progress | None = None) -> None:
        super().__init__(keys)
        self._writer = writer
        self._progress = progress or (lambda *_: None)
        self._count = self._memory = self._done = self._total = self._lost = 0

    def run(self) -> Operation[Saved]:
        """Save the filter as it is stored, and change nothing.

        Raises:
            StorageError: there is no filter, or it was deleted during the save.
            ArchiveError: the file cannot be written.
        """
        now, header, rings = yield from self._look()
        like = next(iter(rings.values()))
        layers = sum(len(ring.layers) for ring in rings.values())
        if layers > MAX_LAYERS:
            raise ArchiveError(f"a file may hold {MAX_LAYERS:,} layers; this filter has {layers:,}")
        self._total = sum(ring.memory for ring in rings.values())
        self._writer.begin(header, now, self._total)
        for block in range(header.blocks):
            yield from self._save(block, like)
        yield from self._make_sure_it_is_there()
        self._writer.end()
        return Saved(header, now, self._count, self._memory, self._lost)

    def _look(self) -> Operation[tuple[int, Header, dict[int, Ring]]]:
        reply = yield from self.read_header("")
        if reply.status != "header":
            raise self._absent()
        header = self.header = self.header_in(reply)
        replies = yield [self.read_call(block) for block in range(header.blocks)]
        found = {block: self.ring_in(block, reply, header) for block, reply in enumerate(replies)}
        rings = {block: ring for block, ring in found.items() if ring is not None}
        if not rings:
            raise StorageError(
                f"there is nothing left of the filter {self.keys.prefix!r} to be saved: what it "
                "remembered has expired or was deleted"
            )
        return reply.now, header, rings

    def _save(self, block: int, like: Ring) -> Operation[None]:
        """Save a block; start it again whenever it loses layers during the save."""
        done = self._done
        for _ in range(MAX_ROUNDS):
            self._done = done
            (reply,) = yield [self.read_call(block)]
            found = yield from self._find(block, reply, like)
            if found is None:
                continue
            ring, lost = found
            # They were read before the bits: there are never fewer bits than URLs are counted.
            stored = self.counts_in(ring, reply)
            counts = {name: 0 if name in lost else count for name, count in stored.items()}
            self._writer.block(ring, counts)
            if (yield from self._save_layers(ring, reply.version, lost)):
                self._count += ring.count(counts)
                self._memory += ring.memory
                self._lost += bool(lost)
                return
        raise self.unstable()

    def _find(self, block: int, reply: Reply, like: Ring) -> Operation[tuple[Ring, Names] | None]:
        """Return a ring to be saved and which layers of it are lost; None if it has changed."""
        ring = self.ring_in(block, reply, self.header)
        if ring is None:
            yield from self._make_sure_it_is_there()
            # As the next client that opens the filter would create it.
            ring = like.sibling(block, reply.now)
            return ring, {layer.name for layer in ring.layers}
        lost = {layer.name for layer in ring.written if f"n:{layer.name}" not in reply.fields}
        answers = yield [self._fetch(ring, layer, reply.version, 0, 0) for layer in ring.layers]
        if any(answer.status == "stale" for answer in answers):
            return None
        gone = zip(ring.layers, answers, strict=True)
        lost |= {layer.name for layer, answer in gone if answer.status != BYTES}
        return ring.without(lost), lost

    def _save_layers(self, ring: Ring, version: str, lost: Names) -> Operation[bool]:
        """Write the layers of a ring; return whether all were there until they were read."""
        changes = 0
        for layer in ring.layers:
            todo = list(spans(layer))
            if layer.name in lost:
                for _, size in todo:
                    self._writer.zeros()
                    self._advance(size)
                continue
            while todo:
                now, rest = todo[:CHUNKS_PER_ROUND], todo[CHUNKS_PER_ROUND:]
                replies = yield [self._fetch(ring, layer, version, *span) for span in now]
                refused = [reply for reply in replies if reply.status != BYTES]
                if refused:
                    changes += 1
                    if changes > MAX_ROUNDS or not self._has_layers(ring, refused[0]):
                        return False
                    version = refused[0].version
                    continue
                for (_, size), reply in zip(now, replies, strict=True):
                    self._write(reply.data, size)
                todo = rest
        return True

    def _has_layers(self, ring: Ring, reply: Reply) -> bool:
        """Whether a ring that has taken another's place still has all its layers."""
        if reply.status != "stale":
            return False
        after = self.ring_in(ring.block, reply, self.header)
        return after is not None and set(ring.layers) <= set(after.layers)

    def _write(self, data: bytes, size: int) -> None:
        if len(data) != size:
            raise StorageError(f"a script answered {len(data)} bytes where {size} were asked for")
        self._writer.chunk(data)
        self._advance(size)

    def _advance(self, size: int) -> None:
        self._done += size
        self._progress(self._done, self._total)

    def _fetch(self, ring: Ring, layer: Layer, version: str, offset: int, size: int) -> Call:
        keys = (self.keys.ring(ring.block), self.keys.layer(ring.block, layer.name))
        return Call(load("read_range"), keys, (version, layer.memory, offset, size), binary=True)

    def _make_sure_it_is_there(self) -> Operation[None]:
        reply = yield from self.read_header("")
        if self.header is None or reply.fields.get("id") != self.header.id:
            raise StorageError(f"the filter {self.keys.prefix!r} was deleted while it was saved")

    def _absent(self) -> StorageError:
        return StorageError(
            f"there is no filter {self.keys.prefix!r} to be saved: nothing was recorded in it yet, "
            "it has expired or was deleted, or it is on another server or under another key"
        )


def save(keys: Keys, writer: ArchiveWriter, progress: Progress | None = None) -> Operation[Saved]:
    """Save a filter: see ``Saver``."""
    return (yield from Saver(keys, writer, progress).run())
