"""Loads a filter from a file into a server. No I/O with the server.

It is a filter when the file has been read to its end: see ``installer.py``. So a damaged file
leaves nothing.
"""

from scrapy_bloom.bloom.extras.archive import ArchiveReader, Block, Chunk
from scrapy_bloom.bloom.extras.installer import Installer, or_discard
from scrapy_bloom.bloom.extras.multi import MultiOperation, on
from scrapy_bloom.bloom.extras.saver import Progress, Saved
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation


class Loader(Installer):
    """Loads one filter: run it with ``load``.

    Args:
        keys: the new filter's keys.
        reader: reads the file.
        progress: called with the bytes of bitmaps done and in all, about.
    """

    def __init__(
        self, keys: Keys, reader: ArchiveReader, *, progress: Progress | None = None
    ) -> None:
        super().__init__(keys, reader.header)
        self._reader = reader
        self._progress = progress or (lambda *_: None)
        #: Bytes of bitmaps that are done.
        self._done = 0

    def run(self) -> Operation[Saved]:
        """Read the file, and put the filter into the server.

        Raises:
            ArchiveError: the file is damaged.
            ConfigurationError: the key is in use.
            StorageError: the server is short of memory or cannot be used, or all that the filter
                remembers is forgotten by now.
        """
        yield from self.check()
        for part in self._reader:
            if isinstance(part, Block):
                yield from self.begin(part)
            else:
                yield from self._load_chunk(part)
        yield from self.finish()
        rings = [(block.ring, block.counts) for block in self._blocks.values()]
        count = sum(ring.count(counts) for ring, counts in rings)
        memory = sum(ring.memory for ring, _ in rings)
        return Saved(self._new, self._reader.saved, count, memory)

    def _load_chunk(self, chunk: Chunk) -> Operation[None]:
        if chunk.data.strip(b"\0"):
            yield from self.fill(chunk.layer, chunk.offset, chunk.data)
        self._done += len(chunk.data)
        self._progress(self._done, max(self._done, self._reader.memory))


def load(
    keys: Keys, reader: ArchiveReader, progress: Progress | None = None
) -> MultiOperation[Saved]:
    """Load a filter, number 0, whole or not at all: see ``Loader``."""
    loading = Loader(keys, reader, progress=progress)
    return or_discard(loading, 0, on(0, loading.run()))
