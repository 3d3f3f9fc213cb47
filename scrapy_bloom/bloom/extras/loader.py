"""Loads a filter from a file into a server. No I/O with the server.

It is a filter when the file has been read to its end: see ``installer.py``. So a damaged file
leaves nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras.archive import ArchiveReader, Block, Chunk
from scrapy_bloom.bloom.extras.installer import Installer, or_discard
from scrapy_bloom.bloom.extras.multi import MultiOperation, on, run_together, run_together_async
from scrapy_bloom.bloom.extras.saver import Progress, Saved
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation


class Loader(Installer):
    """One loading of a filter: to be run by ``load`` or ``load_async``.

    Args:
        keys: the keys it is to have.
        reader: what it is read by.
        progress: called with the bytes of bitmaps done and in all, about.
    """

    def __init__(
        self, keys: Keys, reader: ArchiveReader, *, progress: Progress | None = None
    ) -> None:
        super().__init__(keys, reader.header)
        self._reader = reader
        self._progress = progress or (lambda *_: None)
        #: Bytes of bitmaps that are done, and of those before the block that is being read.
        self._done = self._done_before = 0

    def run(self) -> Operation[Saved]:
        """Read the file, and put the filter into the server.

        Raises:
            ArchiveError: the file is damaged, or what it remembers was forgotten long ago.
            ConfigurationError: the key is in use.
            StorageError: the server is short of memory, or cannot be used.
        """
        yield from self.check()
        for part in self._reader:
            if isinstance(part, Block):
                if part.ring.block in self._blocks:
                    self._done = self._done_before
                self._done_before = self._done
                yield from self.begin(part)
            else:
                yield from self._load_chunk(part)
        yield from self.finish()
        rings = [(block.ring, block.counts) for block in self._blocks.values()]
        count = sum(ring.count(counts) for ring, counts in rings)
        memory = sum(ring.memory for ring, _ in rings)
        return Saved(self._new, self._reader.saved, count, memory)

    def _load_chunk(self, chunk: Chunk) -> Operation[None]:
        if chunk.data is not None:
            yield from self.fill(chunk.layer, chunk.offset, chunk.data)
        self._done += chunk.size
        self._progress(self._done, max(self._done, self._reader.memory))

    def _over(self, problem: str) -> ArchiveError:
        return self._reader.error(problem)


def load(run: Callable[[Operation[Any]], Any], loading: Loader) -> Saved:
    """Load a filter, whole or not at all: after an error or a crash, no part is used as one.

    Args:
        run: runs an operation, as ``Driver.run``.
        loading: what is to be loaded.

    Raises:
        BloomError: as ``Loading.run``.
    """
    return run_together(_whole(loading), lambda _, steps: run(steps))


async def load_async(
    run: Callable[[Operation[Any]], Awaitable[Any]],
    loading: Loader,
    clean_up: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None,
) -> Saved:
    """``load`` for a driver that is awaited.

    Args:
        run: runs an operation, as ``AsyncDriver.run``.
        loading: what is to be loaded.
        clean_up: see ``run_together_async``.
    """
    return await run_together_async(_whole(loading), lambda _, steps: run(steps), clean_up)


def _whole(loading: Loader) -> MultiOperation[Saved]:
    return or_discard(loading, 0, on(0, loading.run()))
