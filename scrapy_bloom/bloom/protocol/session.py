"""One client's view of a filter: opened as the user wants it, and kept up to date. No I/O.

Each operation is a generator that yields a list of script calls, which may be sent together, and
receives the list of their replies; ``driver.py`` sends them. So synchronous and asynchronous
clients share one implementation.
"""

import random
import re
from dataclasses import replace
from functools import partial

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import NO_COUNTS, Config, Counts
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS, MAX_BLOCKS
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.bloom.protocol.ring_store import (
    FULL,
    MAX_RACES,
    MAX_ROUNDS,
    UNFINISHED,
    Decide,
    Notify,
    Operation,
    RaceCounter,
    RingStore,
    Snapshot,
)
from scrapy_bloom.bloom.protocol.scripts import Call, Reply, load


class FilterSession(RingStore):
    """One client's view of one filter, and the operations on it.

    Args:
        keys: the filter's keys.
        wanted: what the user asks for.
        default: configuration of a filter that is created without any.
        notify: is told what happens to rings.
    """

    def __init__(self, keys: Keys, wanted: FilterOptions, default: Config, notify: Notify) -> None:
        super().__init__(keys, notify)
        self.wanted = wanted
        self.default = default
        #: How items are placed under the header.
        self.hasher: Hasher
        #: The configuration that was stored before the user's was applied, if they differed.
        self.replaced_config: Config | None = None
        #: Whether the user's settings have been applied to block 0, and then to the others.
        self._is_applied = self._is_configured = False
        #: The server's clock when the header was read last, Unix time in seconds.
        self.now = 0
        #: Per block, the nonce of a ring that is full and cannot grow.
        self._stuck: dict[int, str] = {}

    def twin(self) -> "FilterSession":
        """Return another view of the filter that knows what this one knows."""
        twin = FilterSession(self.keys, self.wanted, self.default, self.notify)
        if self.header is not None and self._is_configured:
            twin.header, twin.hasher, twin.now = self.header, self.hasher, self.now
            twin.held = dict(self.held)
            twin._is_applied = twin._is_configured = True
        return twin

    def open(self, *, writable: bool = False) -> Operation[Header]:
        """Read the filter's header and the rings not held yet, and bring them up to date.

        What is missing is created, what is due is rotated, and, the first time, settings of the
        user's that differ from the stored ones are applied.

        Args:
            writable: make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter is another one than was asked for.
            StorageError: what is stored cannot be read.
            ConfigurationError: the filter that was asked for is impossible.
        """
        for _ in range(MAX_RACES):
            header = yield from self._load_header()
            missing = yield from self._load_rings(header)
            # Another filter's ring is a leftover, unless the filter was created anew meanwhile.
            if any(reply.state for _, reply in missing):
                again = yield from self._load_header()
                if again != header:
                    continue
            for block, reply in missing:
                yield from self._create_ring(header, block, reply)
            if self.complete and (yield from self._settle()):
                expiry, known = self._last_expiry(), self._header_expiry
                # A header restored from one ring may end before another ring does.
                if writable or self.replaced_config or known not in (None, expiry):
                    yield from self._touch_header(expiry)
                self._header_expiry = None
                return header
        raise self.unstable(MAX_RACES)

    def clear(self) -> Operation[None]:
        """Forget everything, one block at a time; other clients notice at their next call."""
        yield from self._change_all(lambda ring, now, _: ring.cleared(now), quiet=True)
        yield from self.clear_claims()

    def clear_claims(self) -> Operation[None]:
        """Forget what is claimed, and not recorded yet."""
        yield from self.open()
        for block, held in self.held.copy().items():
            yield [
                Call(
                    load("drop"), (self.keys.ring(block), self.keys.claims(block)), (held.version,)
                )
            ]

    def delete(self) -> Operation[bool]:
        """Delete the filter, and forget it; whether there was one."""
        blocks = yield from self.stored_blocks()
        walked: dict[str, list[str]] = {}
        # Last the block that the header is with: until then, it can be deleted again.
        for block in reversed(range(blocks)):
            yield from self._remove(block, walked)
        self.header = None
        self.held.clear()
        self._is_applied = self._is_configured = False
        return blocks > 0

    def stored_blocks(self) -> Operation[int]:
        """Return how many blocks are stored, also if little is left of them; 0 for no filter."""
        reply = yield from self._read_header("")
        if reply.status == "header":
            text = reply.fields.get("blocks", "")
            good = re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= MAX_BLOCKS
            blocks = int(text) if good else DEFAULT_BLOCKS
        else:
            blocks = 0
        try:
            ring = yield from self._surviving_ring(reply, unfinished=True)
        except StorageError:
            return max(blocks, DEFAULT_BLOCKS)  # there is one, and it cannot be read
        # Where they disagree, what the larger number names is deleted too.
        return max(blocks, ring.header.blocks) if ring else blocks

    def all_keys(self) -> Operation[list[str]]:
        """Return the keys that there are."""
        header = yield from self._read_header("")
        keys = [self.keys.header()] if header.status == "header" else []
        blocks = range((yield from self.stored_blocks()))
        replies = (yield [self._read_call(block) for block in blocks]) if blocks else []
        for block, reply in zip(blocks, replies, strict=True):
            if reply.state:
                ring = self._parse(ring_codec.parse, reply.state, self.keys.ring(block))
                keys += [self.keys.ring(block), *self._kept(ring)]
            keys += [self.keys.claims(block)] * (reply.fields.get("claims", "0") != "0")
        return keys

    def rotate(self) -> Operation[None]:
        """Open a new generation in every block; where there are G, the oldest is forgotten."""
        yield from self._change_all(Ring.rotate)

    def read(self) -> Operation[Snapshot]:
        """Bring all rings up to date, and return them with their counts."""
        answers, rings = dict[int, Reply](), dict[int, Ring]()
        header, races = self.header, RaceCounter(self)
        while True:
            if not self.complete:
                yield from self.open()
            if header is None or header != self.header:
                # Another filter has taken its place: start again.
                header = self.header
                answers.clear()
                rings.clear()
            asked = {block: held for block, held in self.held.items() if block not in answers}
            if header is not None and not asked:
                return self._snapshot(header, answers, rings)
            replies = yield [self._read_call(block) for block in asked]
            for (block, held), reply in zip(asked.items(), replies, strict=True):
                is_current = reply.version == held.version and not self._is_due(held.ring, reply)
                races.note(block, won=is_current)
                if is_current:
                    answers[block], rings[block] = reply, held.ring
                else:
                    yield from self.refresh(block, held.version, reply)

    def look(self) -> Operation[Snapshot | None]:
        """Read the filter without changing anything; None if there is none."""
        reply = yield from self._read_header("")
        if reply.status != "header":
            return None
        header = self._parse_header(reply)
        blocks = range(header.blocks)
        replies = yield [self._read_call(block) for block in blocks]
        answers = dict(zip(blocks, replies, strict=True))
        found = {block: self._ring(block, reply, header) for block, reply in answers.items()}
        rings = {block: ring for block, ring in found.items() if ring is not None}
        return self._snapshot(header, answers, rings)

    def refresh(self, block: int, version: str, reply: Reply) -> Operation[None]:
        """Bring the view of a block up to date after a script refused ring ``v``."""
        held = self.held.get(block)
        if held is None or held.version != version:
            return  # another reply of the same round has seen to it
        if reply.status == "lost":
            lost = reply.fields.get("layers", "").split()
            if not set(lost) <= held.ring.expired(reply.now):
                self._note_lost(held.ring)
            yield from self.change(
                block, lambda ring, *_: ring.without(lost), version=version, lost=lost
            )
        elif not self._hold(block, reply, self.header):
            # The ring is gone, or the filter was deleted and created anew: look at the header.
            yield from self.open()
        elif self._is_due(self.held[block].ring, reply):
            yield from self.change(block, Ring.advance)

    def grow(self, block: int, version: str) -> Operation[bool]:
        """Make room in a block that was full under ring ``v``; return whether to try again."""
        held = self.held.get(block)
        if held is None or held.version != version:
            return True
        if self.is_stuck(block):
            return False
        yield from self.change(block, Ring.grow)
        after = self.held.get(block)
        if after is not None and after.version == version:
            self._stuck[block] = version
            self.notify(FULL, held.ring)
        return not self.is_stuck(block)

    def is_stuck(self, block: int) -> bool:
        """Whether a block, as it is held, is known to be full and cannot grow."""
        return block in self.held and self._stuck.get(block) == self.held[block].version

    # -- header and rings --

    def _load_header(self) -> Operation[Header]:
        for _ in range(MAX_ROUNDS):
            reply = yield from self._read_header("")
            self.now = reply.now
            if reply.status == "header":
                header = self._parse_header(reply)
                self._ring(0, reply, header)  # before any of the header's blocks is read or created
                self._adopt(header)
                return header
            # Restored if it is known or left in any ring: seeds drawn anew would forget everything.
            ring = self._any_ring() or (yield from self._surviving_ring(reply))
            yield from self._create_header(ring, reply)
        raise self.unstable()

    def _create_header(self, ring: Ring | None, reply: Reply) -> Operation[None]:
        if ring is None:
            header = self.header or self.wanted.new_header(self.default)
            ring = Ring.fresh(header, self.wanted.config(self.default), reply.now)
        # What this client holds may have expired long ago: with its end, so would the header.
        expiry = max(ring.expiry, ring.cleared(reply.now).expiry)
        (answer,) = yield [self._create_call(ring.header, reply.version, expiry)]
        self._header_expiry = expiry if answer.status == "ok" else None

    def _surviving_ring(self, first: Reply, *, unfinished: bool = False) -> Operation[Ring | None]:
        """Return a ring that is stored, or None; one of an unfinished filter if that is wanted."""

        def counts(reply: Reply) -> bool:
            return bool(reply.state) and (unfinished or not reply.version.startswith(UNFINISHED))

        replies = [first]
        if not counts(first):
            blocks = range(max(self.wanted.blocks or 0, DEFAULT_BLOCKS))
            replies = yield [self._read_call(block) for block in blocks]
        for block, reply in enumerate(replies):
            if counts(reply):
                return self._parse(ring_codec.parse, reply.state, self.keys.ring(block))
        return None

    def _adopt(self, header: Header) -> None:
        """Take a stored header as the filter's, unless the user asked for another filter."""
        self.wanted.check(header, self.keys.prefix)
        if header != self.header:
            self.header = header
            self.hasher = Hasher(header.seeds, header.blocks)
            self.held.clear()

    def _load_rings(self, header: Header) -> Operation[list[tuple[int, Reply]]]:
        """Hold the rings that are there; return the other blocks, and what is there instead."""
        blocks = [block for block in range(header.blocks) if block not in self.held]
        if not blocks:
            return []
        replies = yield [self._read_call(block) for block in blocks]
        found = zip(blocks, replies, strict=True)
        missing = [(block, reply) for block, reply in found if not self._hold(block, reply, header)]
        # In random order, so that workers that start together share the work; block 0 first, so
        # that all blocks are created with its configuration.
        random.shuffle(missing)
        return sorted(missing, key=lambda pair: pair[0] > 0)

    def _create_ring(self, header: Header, block: int, reply: Reply) -> Operation[None]:
        like = self._any_ring()
        if like is not None:
            ring = like.sibling(block, reply.now)
        else:
            config = self.wanted.config(self.default)
            ring = Ring.fresh(header, config, reply.now, block=block, run=self.wanted.run)
        other = None
        if reply.state:
            # The ring of another filter that was here: it counts as lost, and its bitmaps go.
            other = self._parse(ring_codec.parse, reply.state, self.keys.ring(block))
            ring = replace(ring, generations=other.generations).cleared(reply.now)
        yield from self._swap(block, reply.version, ring, other)

    def _settle(self) -> Operation[bool]:
        """Rotate what is due and, the first time, apply the user's settings; whether all went well.

        Block 0 decides: the settings are applied to it first, and the other blocks follow it. So
        clients that open with different settings at once, or are killed, leave one configuration.
        """
        first_time = not self._is_configured
        if first_time and not (yield from self._configure()):
            return False
        config = self.held[0].ring.config
        follow = partial(self._follow, config) if first_time else Ring.advance
        settled, changed = True, self.replaced_config is not None
        for block in random.sample(sorted(self.held), len(self.held)):  # workers share the work
            ring = self.held[block].ring
            if follow(ring, self.now, NO_COUNTS) is not ring:
                # After a failure, the others: of all that are gone, one round is to tell.
                settled = (yield from self.change(block, follow)) and settled
                changed = True
        if settled and first_time and changed:
            blocks = sorted(self.held)
            replies = yield [self._read_call(block) for block in blocks]
            for block, reply in zip(blocks, replies, strict=True):
                held = self._hold(block, reply, self.header)
                settled = settled and held and self.held[block].ring.config == config
        self._is_configured |= settled
        return settled

    def _configure(self) -> Operation[bool]:
        """Apply the user's settings to block 0, once; they may be replaced by somebody else's."""
        stored = self.held[0].ring.config
        wanted = stored if self._is_applied else self.wanted.config(stored)
        decide = partial(self._follow, wanted)
        if decide(self.held[0].ring, self.now, NO_COUNTS) is not self.held[0].ring:
            if not (yield from self.change(0, decide)):
                return False
            if wanted != stored:
                self.replaced_config = stored
        self._is_applied = True
        return True

    def _follow(self, config: Config, ring: Ring, now: int, counts: Counts) -> Ring:
        """Return a ring under a configuration, and in this run."""
        return ring.reconfigure(config, now).advance(now, counts, self.wanted.run)

    def _is_due(self, ring: Ring, reply: Reply) -> bool:
        return ring.advance(reply.now) is not ring

    def _change_all(self, decide: Decide, *, quiet: bool = False) -> Operation[None]:
        header = yield from self.open()
        for block in random.sample(range(header.blocks), header.blocks):
            for _ in range(MAX_RACES):
                if (yield from self.change(block, decide, quiet=quiet)):
                    break
                if block not in self.held and block >= (yield from self.open()).blocks:
                    break  # the filter was created anew meanwhile, with fewer blocks
            else:
                raise self.unstable(MAX_RACES)
