"""Loads a filter from a file into a server. No I/O with the server.

It is loaded beside the filter: bitmaps are written under names of the load's own, which expire, and
are put into rings when the file has been read to its end. So a file that turns out to be damaged
changes nothing.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scrapy_bloom.core import state
from scrapy_bloom.core.generations import Layer
from scrapy_bloom.core.header import Header
from scrapy_bloom.core.keys import Keys
from scrapy_bloom.core.ring import SLACK, Ring
from scrapy_bloom.core.rings import MAX_ROUNDS, Rings, Steps
from scrapy_bloom.core.scripts import Argument, Call
from scrapy_bloom.core.scripts import load as script
from scrapy_bloom.errors import BloomError, ConfigurationError, StorageError, shown
from scrapy_bloom.files.archive import Block, Reader
from scrapy_bloom.files.saving import BATCH, Progress, Saved

#: Seconds that what is loaded outlives the last that was heard of its load, and seconds after which
#: its end is put off.
STAGED_FOR, RENEW_AFTER = 3_600, 600


class Loading(Rings):
    """One loading of a filter. Whatever ends it before its time: ``discard`` has to follow.

    Args:
        keys: the keys it is to have.
        reader: what it is read by.
        replace: whether it may take the place of a filter.
        progress: is told how far it is.
    """

    def __init__(
        self,
        keys: Keys,
        reader: Reader,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(keys, lambda *_: None)
        self.header = reader.header
        self._reader = reader
        self._replace = replace
        self._progress = progress or (lambda *_: None)
        self._token = secrets.token_hex(8)
        #: What was read so far, by block.
        self._blocks: dict[int, Block] = {}
        self._waiting: list[Call] = []
        self._now = self._renewed = 0
        #: Bytes of bitmaps that are done, and of those before the block that is being read.
        self._done = self._done_before = 0

    def run(self) -> Steps[Saved]:
        """Read the file, and put the filter into the server.

        Raises:
            ArchiveError: the file is damaged, or what it remembers was forgotten long ago.
            ConfigurationError: there is a filter, and it is not to be replaced.
            StorageError: the server is short of memory, or cannot be used.
        """
        header = self._reader.header
        old = yield from self._look(header)
        for part in self._reader:
            if isinstance(part, Block):
                yield from self._begin(part)
            else:
                if part.data is not None:
                    yield from self._fill(part.layer, part.offset, part.data)
                self._done += part.size
                self._progress(self._done, max(self._done, self._reader.memory))
        yield from self._send()
        yield from self._renew()
        yield from self._put_in(header, old)
        rings = [(block.ring, block.counts) for block in self._blocks.values()]
        count = sum(ring.count(counts) for ring, counts in rings)
        return Saved(header, self._reader.saved, count, sum(ring.memory for ring, _ in rings))

    def discard(self) -> Steps[None]:
        """Delete what was loaded and not put in. Nothing is left for ever if this fails, too."""
        for block in self._blocks.values():
            yield from self._unstage(block)

    # -- what is there --

    def _look(self, header: Header) -> Steps[Header | None]:
        """Return the header of the filter that is to be replaced, if there is one."""
        reply = yield from self._read_header("")
        self._now = self._renewed = reply.now
        old = None
        if reply.status == "header":
            old = self._parse(Header.from_fields, reply.fields, self.keys.header())
        blocks = max(header.blocks, old.blocks if old else 0)
        replies = yield [self._read_call(block) for block in range(blocks)]
        for block, reply in enumerate(replies):
            if reply.state:
                self._parse(state.parse, reply.state, self.keys.ring(block))
        if (old or any(reply.v for reply in replies)) and not self._replace:
            raise self._exists()
        return old

    def _exists(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is a filter under the key {shown(self.keys.prefix)} already: load into another "
            "key, or replace it (replace=True; scrapy bloom import --replace)"
        )

    # -- beside the filter --

    def _begin(self, block: Block) -> Steps[None]:
        """Allocate the bitmaps of a block; those of the same block as it was before go."""
        yield from self._send()
        before = self._blocks.get(block.ring.block)
        if before is not None:
            self._done = self._done_before
            yield from self._unstage(before)
        self._done_before = self._done
        self._blocks[block.ring.block] = block
        for layer in block.ring.layers:
            key = self._staged(block, layer)
            yield [Call(script("stage"), (key,), (layer.memory, STAGED_FOR))]

    def _unstage(self, block: Block) -> Steps[None]:
        for layer in block.ring.layers:
            yield [Call(script("stage"), (self._staged(block, layer),), (0, 0))]

    def _fill(self, layer: Layer, offset: int, data: bytes) -> Steps[None]:
        block = next(reversed(self._blocks.values()))
        self._waiting.append(self._fill_call(block, layer, offset, data))
        if len(self._waiting) == BATCH:
            yield from self._send()

    def _send(self) -> Steps[None]:
        calls, self._waiting = self._waiting, []
        if calls:
            yield from self._make(calls)
        if self._now >= self._renewed + RENEW_AFTER:
            yield from self._renew()

    def _renew(self) -> Steps[None]:
        """Put off the end of what was loaded, and make sure that it is there."""
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
        return Call(script("fill"), (self._staged(block, layer),), arguments)

    def _staged(self, block: Block, layer: Layer) -> str:
        return self.keys.staged(block.ring.block, self._token, layer.name)

    def _gone(self) -> StorageError:
        return StorageError(
            f"what was loaded for the filter {self.keys.prefix!r} is gone again: the server is out "
            "of memory and evicts (raise its maxmemory), or something else deletes its keys"
        )

    # -- into its place --

    def _put_in(self, header: Header, old: Header | None) -> Steps[None]:
        """Make what was loaded the filter: the header first, so that nobody makes another."""
        rings = {number: self._current(block.ring) for number, block in self._blocks.items()}
        expiries = [ring.expiry for ring in rings.values()]
        expiry = max(expiries) if all(expiries) else 0
        if 0 < expiry <= self._now:
            raise self._reader.error("it ends, and all that it remembers is forgotten by now")
        yield from self._put_header_in(header, expiry)
        for ring in rings.values():
            yield from self._put_ring_in(ring, keep_claims=old is None or old.id == header.id)
        for block in range(header.blocks, old.blocks if old else 0):
            yield from self._remove(block)

    def _current(self, ring: Ring) -> Ring:
        """Return a ring as it is put in: runs do not pass while a file lies about."""
        schedule = ring.config.schedule
        return replace(ring, changed=self._now) if schedule and schedule.counts_runs else ring

    def _put_header_in(self, header: Header, expiry: int) -> Steps[None]:
        keys = (self.keys.header(), self.keys.ring(0))
        arguments: list[Argument] = ["*" if self._replace else "", expiry and expiry + SLACK]
        for pair in header.to_fields().items():
            arguments += pair
        (reply,) = yield [Call(script("create"), keys, tuple(arguments))]
        if reply.status != "ok":
            raise self._exists()

    def _put_ring_in(self, ring: Ring, *, keep_claims: bool) -> Steps[None]:
        """Put a ring in the place of whatever is there; others may have made one by now."""
        block = self._blocks[ring.block]
        ring_key, v = self.keys.ring(ring.block), secrets.token_hex(8)
        for _ in range(MAX_ROUNDS):
            (reply,) = yield [self._read_call(ring.block)]
            old = self._parse(state.parse, reply.state, ring_key) if reply.state else None
            call = self._install(block, ring, reply.v, v, old)
            (answer,) = yield [call]
            if answer.status == "ok":
                break
            if answer.status == "lost":
                raise self._gone()
        else:
            raise self.unstable()
        names = {layer.name for layer in old.layers} if old else set()
        loaded = {layer.name: self._staged(block, layer) for layer in ring.layers}
        left = [loaded.get(name, self.keys.layer(ring.block, name)) for name in names]
        for key in left if keep_claims else (*left, self.keys.claims(ring.block)):
            yield [Call(script("drop"), (ring_key, key), (v,))]

    def _install(self, block: Block, ring: Ring, v: str, new_v: str, old: Ring | None) -> Call:
        number, names = ring.block, {layer.name for layer in ring.layers}
        keys = [self.keys.ring(number), self.keys.staged(number, self._token, "free")]
        keys += [self._staged(block, layer) for layer in ring.layers]
        keys += [self.keys.layer(number, layer.name) for layer in ring.layers]
        for layer in old.layers if old else ():
            keys += [self.keys.layer(number, layer.name)] * (layer.name not in names)
        arguments: list[Argument] = [v, new_v, state.dump(ring), ring.expiry]
        for generation in ring.generations:
            time = ring.expires(generation)
            for layer in generation.layers:
                arguments += [layer.name, layer.memory, block.counts[layer.name], time]
        return Call(script("install"), tuple(keys), tuple(arguments))


def load(run: Callable[[Steps[Any]], Any], loading: Loading) -> Saved:
    """Load a filter; whatever fails, nothing of it is left.

    Args:
        run: runs an operation, as ``Driver.run``.
        loading: what is to be loaded.

    Raises:
        BloomError: as ``Loading.run``.
    """
    try:
        saved: Saved = run(loading.run())
    except BaseException:
        with suppress(BloomError):
            run(loading.discard())
        raise
    return saved
