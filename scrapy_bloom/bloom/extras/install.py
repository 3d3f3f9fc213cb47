"""Filters that are written under a free key, from a file or of others. No I/O with the server.

Rings and bitmaps are written first, the header last. Until then, the rings' nonces say that they
are unfinished: no header is restored from them, a client that opens the key creates a filter of its
own over them, and they expire. So there is no filter, or the whole one, whatever ends this before
its time.

Each write compares the nonce of its block's ring, which no other client has. Block 0 comes first
and only where there is no ring: of several that write under one key, the first goes on. The header
is written only if block 0 still has that ring and if no client has created a filter since.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError, shown
from scrapy_bloom.bloom.extras.file import CHUNKS_PER_ROUND, ArchiveReader, Block, Chunk
from scrapy_bloom.bloom.extras.save import Progress, Saved
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.protocol import scripts
from scrapy_bloom.bloom.protocol.ring_store import UNFINISHED, Operation, StoredFilter, last_expiry
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, Reply, on_full_server
from scrapy_bloom.bloom.protocol.swaps import Drop, Swap, in_parts

T = TypeVar("T")


class Run(Protocol):
    """Runs operations on one filter, also those that clean up after others."""

    def __call__(self, operation: Operation[T], /, *, cleaning: bool = False) -> Awaitable[T]:
        """Return the operation's result."""


#: Seconds after which an unfinished filter expires.
UNFINISHED_SECONDS = 86_400
#: Seconds that all of a filter lives at least when it is finished.
MIN_LIFE_SECONDS = 60
#: Blocks that are finished in a round trip.
BLOCKS_PER_ROUND = 16


class Installer(StoredFilter):
    """Writes one filter.

    Args:
        keys: the new filter's keys.
        header: its header.

    Attributes:
        made: the same with a new id.
    """

    def __init__(self, keys: Keys, header: Header) -> None:
        super().__init__(keys)
        self.made = replace(header, id=secrets.token_hex(16))
        self._version = _unfinished_nonce()
        #: The server's clock, and when everything expires unless it is finished.
        self._now = self._until = 0
        #: The rings that were written so far.
        self._rings: list[Ring] = []
        #: Whether the header may have been written.
        self._is_sent = False

    def check(self) -> Operation[None]:
        """Make sure that the key is free.

        Raises:
            ConfigurationError: it is in use.
        """
        header = yield from self.read_header("")
        self._now, self._until = header.now, header.now + UNFINISHED_SECONDS
        replies = yield from self.read_all(range(max(self.made.blocks, DEFAULT_BLOCKS)))
        used = [reply for reply in replies.values() if reply.version]
        if used or header.status == "header":
            raise _in_use(self.keys, used)

    def write(self, block: Block) -> Operation[None]:
        """Write the ring of a block, allocate its bitmaps, and fill them.

        Raises:
            ConfigurationError: the key is in use by now.
        """
        ring = replace(block.ring, header=self.made)
        self._rings.append(ring)
        # Its bitmaps follow, each in a call of its own.
        first = ("", self._version, ring_codec.dump(ring), self._until)
        (reply,) = yield [Call(scripts.load("swap"), (self.keys.ring(ring.block),), first)]
        if reply.status != "ok" and reply.version != self._version:
            raise _in_use(self.keys, [reply])
        for layer in ring.layers:
            arguments = (layer.name, layer.memory, block.counts[layer.name], self._until)
            yield from self._make([self._call("allocate", ring, layer, *arguments)])
        writes = (
            self._call("write_range", ring, layer, layer.memory, offset, data)
            for layer, offset, data in block.chunks
            if data.strip(b"\0")
        )
        for calls in in_parts(writes, CHUNKS_PER_ROUND):
            yield from self._make(calls)

    def finish(self) -> Operation[None]:
        """Make it a filter: all of it, at once.

        Raises:
            StorageError: another client uses the key by now, or the server is short of memory.
        """
        self._rings = [self._current(ring) for ring in self._rings]
        expiry = self._expiry()
        yield from self._check_bitmaps()
        if not (yield from self._mark(self._version)):
            raise _taken(self.keys)
        self._is_sent = True
        (answer,) = yield [self.create_call(self.made, self._version, expiry)]
        if answer.status != "ok" and not (yield from self._is_there()):
            raise _taken(self.keys)

    def confirm(self) -> Operation[None]:
        """Mark the rings as finished: a lost header is restored from any of them."""
        yield from self._mark(secrets.token_hex(8))

    def discard(self) -> Operation[None]:
        """Delete what was written; if this fails, it expires, or it is a whole filter."""
        if self._is_sent:
            # A header that is still on its way finds another ring then.
            yield from self._mark(_unfinished_nonce())
            if (yield from self._is_there()):
                yield from self.confirm()
                return
        yield from self.drop(self._drops())

    # -- steps --

    def _check_bitmaps(self) -> Operation[None]:
        """Make sure that all bitmaps are there."""
        looks = (
            self._call("write_range", ring, layer, layer.memory, 0, b"")
            for ring in self._rings
            for layer in ring.layers
        )
        for calls in in_parts(looks, CHUNKS_PER_ROUND * BLOCKS_PER_ROUND):
            yield from self._make(calls)

    def _mark(self, version: str) -> Operation[bool]:
        """Give all rings a nonce and the expiries of a filter; return whether they were there."""
        before, self._version = self._version, version
        whole = True
        for rings in in_parts(self._rings, BLOCKS_PER_ROUND):
            replies = yield [self._finish_call(ring, before) for ring in rings]
            # A client that sends a command again finds that it was carried out.
            whole = whole and all(
                reply.status == "ok" or reply.version == version for reply in replies
            )
        return whole

    def _finish_call(self, ring: Ring, version: str) -> Call:
        least = self._now + MIN_LIFE_SECONDS
        call = Swap(version, ring, ring).call(self.keys, self._version, least)
        # It takes no memory, and comes before the clean-up that gives some back.
        return call._replace(script=on_full_server(call.script))

    def _call(self, name: str, ring: Ring, layer: Layer, *arguments: Argument) -> Call:
        keys = self.keys.ring(ring.block), self.keys.layer(ring.block, layer.name)
        return Call(scripts.load(name), keys, (self._version, *arguments))

    def _make(self, calls: list[Call]) -> Operation[None]:
        replies = yield calls
        for reply in replies:
            self._now = max(self._now, reply.now)
            if reply.status == "lost":
                raise _gone(self.keys)
            if reply.status != "ok":
                raise _taken(self.keys)

    def _is_there(self) -> Operation[bool]:
        reply = yield from self.read_header("")
        return reply.fields.get("id") == self.made.id

    def _drops(self) -> Iterator[Drop]:
        """Yield all keys; those of a block that another client has stay."""
        for ring in self._rings:
            for layer in ring.layers:
                key = self.keys.layer(ring.block, layer.name)
                yield Drop(ring.block, key, self._version, layer.memory)
            yield Drop(ring.block, self.keys.ring(ring.block), self._version)

    def _current(self, ring: Ring) -> Ring:
        """Return a ring as it is finished: runs do not pass while a file lies about."""
        schedule = ring.config.schedule
        return replace(ring, changed=self._now) if schedule and schedule.counts_runs else ring

    def _expiry(self) -> int:
        """Return when the last ring expires, 0 for never."""
        last = last_expiry(self._rings)
        if 0 < last <= self._now:
            raise StorageError(
                f"the filter {self.keys.prefix!r} is not written: all that it remembers is "
                "forgotten by now"
            )
        return last


def _unfinished_nonce() -> str:
    return UNFINISHED + secrets.token_hex(8)


def _in_use(keys: Keys, replies: Iterable[Reply]) -> ConfigurationError:
    what = "there is a filter under it"
    if any(reply.version.startswith(UNFINISHED) for reply in replies):
        what = "a filter is being written under it, or writing one was interrupted"
    return ConfigurationError(
        f"the key {shown(keys.prefix)} is in use, {what}: choose another key, or delete this one "
        "first (filter.delete(), scrapy bloom delete)"
    )


def _taken(keys: Keys) -> StorageError:
    return StorageError(
        f"the key {shown(keys.prefix)} was opened by another client (a crawl?), deleted or evicted "
        "while a filter was written under it: nothing of that filter is left"
    )


def _gone(keys: Keys) -> StorageError:
    return StorageError(
        f"what was written for the filter {keys.prefix!r} is gone again: the server is out of "
        "memory and evicts (raise its maxmemory), or something else deletes its keys"
    )


@asynccontextmanager
async def installing(keys: Keys, header: Header, run: Run) -> AsyncIterator[Installer]:
    """Make what is written a filter; discard it if that fails or is cancelled."""
    new = Installer(keys, header)
    try:
        await run(new.check())
        yield new
        await run(new.finish())
    except GeneratorExit:
        raise  # the coroutine was dropped: nothing more can be sent
    except BaseException:
        with suppress(BloomError):
            await run(new.discard(), cleaning=True)
        raise
    with suppress(BloomError):
        await run(new.confirm())


# -- from a file --


async def load(
    run: Run, keys: Keys, reader: ArchiveReader, progress: Progress | None = None
) -> Saved:
    """Load a filter from a file: when it has been read to its end, or not at all.

    Raises:
        ArchiveError: the file is damaged.
        ConfigurationError: the key is in use.
        StorageError: the server is short of memory or cannot be used, or all that the filter
            remembers is forgotten by now.
    """
    done = count = 0

    def told(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        nonlocal done
        for chunk in chunks:
            yield chunk
            done += len(chunk.data)
            if progress:
                progress(done, max(done, reader.memory))

    async with installing(keys, reader.header, run) as new:
        for block in reader:
            await run(new.write(block._replace(chunks=told(block.chunks))))
            count += block.ring.count(block.counts)
    return Saved(new.made, reader.saved, count, done)
