"""One client's view of a filter: its header and rings, kept up to date. No I/O.

Each operation is a generator that yields a list of script calls, which may be sent together, and
receives the list of their replies; ``driver.py`` sends them. So synchronous and asynchronous
clients share one implementation.

Every change of a ring has one form: read it with its counts, let a pure function decide what comes
next, and swap that in if nobody was faster.
"""

import random
import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from scrapy_bloom import state
from scrapy_bloom.calls import Held
from scrapy_bloom.errors import StorageError
from scrapy_bloom.hashing import Hasher
from scrapy_bloom.header import Header
from scrapy_bloom.keys import Keys
from scrapy_bloom.ring import NO_COUNTS, SLACK, Config, Counts, Ring
from scrapy_bloom.scripts import Argument, Call, Reply, load
from scrapy_bloom.sizing import DEFAULT_BLOCKS
from scrapy_bloom.wanted import Wanted

S = TypeVar("S")
T = TypeVar("T")
#: An operation: yields calls, receives their replies, returns its result.
Steps = Generator[list[Call], list[Reply], T]
#: Decides what becomes of a ring, from the server's clock and counts; the same ring is no change.
Decide = Callable[[Ring, int, Counts], Ring]

#: What a client may be told about a block: a part of it was gone; a generation was opened; one was
#: full and has got a further layer; one is full and cannot get any; one is filled to 80%.
LOST, ROTATED, GROWN, FULL, FILLING = "lost", "rotated", "grown", "full", "filling"
#: Is told what happens to which ring (the new one; of a lost block, the old one).
Notify = Callable[[str, Ring], None]

#: Of a bitmap in a swap: no bytes, no time to expire at.
GONE = 0, 0
#: Rounds after which an operation gives up on a filter that is different each time it looks.
MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A filter as it was read, without changing anything.

    Args:
        header: its header.
        rings: its rings as of ``now``, by block; a lost one is not there.
        counts: URLs per layer, by block.
        now: the server's clock, Unix time in seconds.
    """

    header: Header
    rings: Mapping[int, Ring]
    counts: Mapping[int, Counts]
    now: int


class View:
    """One client's view of one filter, and the operations on it.

    Args:
        keys: the filter's keys.
        wanted: what the user asks for.
        default: configuration of a filter that is created without any.
        notify: is told what happens to rings.
    """

    def __init__(self, keys: Keys, wanted: Wanted, default: Config, notify: Notify) -> None:
        self.keys = keys
        self.wanted = wanted
        self.default = default
        self.notify = notify
        self.header: Header | None = None
        #: How items are placed under that header.
        self.hasher: Hasher
        self.held: dict[int, Held] = {}
        #: Blocks whose ring or bitmaps were found missing in a filter that was open.
        self.lost_blocks = 0
        #: The configuration that was stored before the user's was applied, if they differed.
        self.replaced_config: Config | None = None
        self._is_configured = False
        #: Until when the header lives as far as is known; 0 for ever.
        self._header_expiry: int | None = None
        #: The server's clock when the header was read last.
        self._now = 0
        #: Per block, the nonce of a ring that is full and cannot grow.
        self._stuck: dict[int, str] = {}

    @property
    def complete(self) -> bool:
        """Whether the header and the rings of all blocks are held."""
        return self.header is not None and len(self.held) == self.header.blocks

    def open(self, *, writable: bool = False) -> Steps[Header]:
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
        for _ in range(MAX_ROUNDS):
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
                return header
        raise self.unstable()

    def clear(self) -> Steps[None]:
        """Forget everything, one block at a time; other clients notice at their next call."""
        yield from self._change_all(lambda ring, now, _: ring.cleared(now), quiet=True)

    def rotate(self) -> Steps[None]:
        """Open a new generation in every block; where there are G, the oldest is forgotten."""
        yield from self._change_all(Ring.rotate)

    def read(self) -> Steps[Snapshot]:
        """Bring all rings up to date, and return them with their counts."""
        for _ in range(MAX_ROUNDS):
            if not self.complete:
                yield from self.open()
            known = {block: held.v for block, held in self.held.items()}
            replies = yield [self._read_call(block) for block in known]
            answers = dict(zip(known, replies, strict=True))
            changed = [b for b in known if answers[b].v != known[b] or self._is_due(b, answers[b])]
            if not changed and self.header is not None:
                rings = {block: held.ring for block, held in self.held.items()}
                return self._snapshot(self.header, answers, rings)
            for block in changed:
                yield from self.refresh(block, known[block], answers[block])
        raise self.unstable()

    def look(self) -> Steps[Snapshot | None]:
        """Read the filter without changing anything; None if there is none."""
        reply = yield from self._read_header("")
        if reply.status != "header":
            return None
        header = self._parse(Header.from_fields, reply.fields, self.keys.header())
        replies = yield [self._read_call(block) for block in range(header.blocks)]
        answers = dict(enumerate(replies))
        found = {block: self._ring(block, reply, header) for block, reply in answers.items()}
        rings = {block: ring for block, ring in found.items() if ring is not None}
        return self._snapshot(header, answers, rings)

    def refresh(self, block: int, v: str, reply: Reply) -> Steps[None]:
        """Bring the view of a block up to date after a script refused ring ``v``."""
        held = self.held.get(block)
        if held is None or held.v != v:
            return  # another reply of the same round has seen to it
        if reply.status == "lost":
            self._note_lost(held.ring)
            lost = reply.fields.get("layers", "").split()
            yield from self.change(block, lambda ring, *_: ring.without(lost), v=v, lost=lost)
        elif not self._hold(block, reply, self.header):
            # The ring is gone, or the filter was deleted and created anew: look at the header.
            yield from self.open()
        elif self._is_due(block, reply):
            yield from self.change(block, self._advance)

    def grow(self, block: int, v: str) -> Steps[bool]:
        """Make room in a block that was full under ring ``v``; return whether to try again."""
        held = self.held.get(block)
        if held is None or held.v != v:
            return True
        if self.is_stuck(block):
            return False
        yield from self.change(block, Ring.grow)
        after = self.held.get(block)
        if after is not None and after.v == v:
            self._stuck[block] = v
            self.notify(FULL, held.ring)
        return not self.is_stuck(block)

    def is_stuck(self, block: int) -> bool:
        """Whether a block, as it is held, is known to be full and cannot grow."""
        return block in self.held and self._stuck.get(block) == self.held[block].v

    def change(
        self,
        block: int,
        decide: Decide,
        *,
        v: str | None = None,
        lost: Collection[str] = (),
        quiet: bool = False,
    ) -> Steps[bool]:
        """Replace a block's ring by what ``decide`` makes of it; False if somebody was faster.

        Args:
            block: the block.
            decide: returns the next ring.
            v: nonce that the ring must have; None for any.
            lost: names of layers that have to be allocated anew if they stay.
            quiet: tell nobody that a generation was opened.
        """
        (reply,) = yield [self._read_call(block)]
        if not self._hold(block, reply, self.header) or v not in (None, reply.v):
            return False
        old = self.held[block].ring
        new = decide(old, reply.now, self._counts(old, reply))
        if new is old:
            return True
        if not (yield from self._swap(block, reply.v, new, old, lost)):
            return False
        if new.active.number > old.active.number and not quiet:
            self.notify(ROTATED, new)
        elif len(new.layers) > len(old.layers):
            self.notify(GROWN, new)
        return True

    # -- header and rings --

    def _load_header(self) -> Steps[Header]:
        for _ in range(MAX_ROUNDS):
            reply = yield from self._read_header("")
            self._now = reply.now
            if reply.status == "header":
                header = self._parse(Header.from_fields, reply.fields, self.keys.header())
                self._adopt(header)
                return header
            # Restored if it is known or left in any ring: seeds drawn anew would forget everything.
            ring = self._any_ring() or (yield from self._surviving_ring(reply))
            yield from self._create_header(ring, reply)
        raise self.unstable()

    def _create_header(self, ring: Ring | None, reply: Reply) -> Steps[None]:
        if ring is None:
            header = self.header or self.wanted.new_header(self.default)
            ring = Ring.fresh(header, self.wanted.config(self.default), reply.now)
        # What this client holds may have expired long ago: with its end, so would the header.
        expiry = max(ring.last_expiry, ring.cleared(reply.now).last_expiry)
        arguments: list[Argument] = [reply.v, expiry and expiry + SLACK]
        for pair in ring.header.to_fields().items():
            arguments += pair
        keys = (self.keys.header(), self.keys.ring(0))
        (answer,) = yield [Call(load("create"), keys, tuple(arguments))]
        self._header_expiry = expiry if answer.status == "ok" else None

    def _read_header(self, until: int | str) -> Steps[Reply]:
        keys = (self.keys.header(), self.keys.ring(0))
        (reply,) = yield [Call(load("header"), keys, (until,))]
        return reply

    def _touch_header(self, expiry: int) -> Steps[None]:
        """Make sure that the header lives longer than a ring that expires then (0 is never)."""
        yield from self._read_header(expiry and expiry + SLACK)
        self._header_expiry = expiry

    def _any_ring(self) -> Ring | None:
        held = self.held.get(0) or next(iter(self.held.values()), None)
        return None if held is None else held.ring

    def _surviving_ring(self, first: Reply) -> Steps[Ring | None]:
        replies = [first]
        if not first.state:
            blocks = range(max(self.wanted.blocks or 0, DEFAULT_BLOCKS))
            replies = yield [self._read_call(block) for block in blocks]
        for block, reply in enumerate(replies):
            if reply.state:
                return self._parse(state.parse, reply.state, self.keys.ring(block))
        return None

    def _adopt(self, header: Header) -> None:
        """Take a stored header as the filter's, unless the user asked for another filter."""
        self.wanted.check(header, self.keys.prefix)
        if header != self.header:
            self.header = header
            self.hasher = Hasher(header.seeds, header.blocks)
            self.held.clear()

    def _load_rings(self, header: Header) -> Steps[list[tuple[int, Reply]]]:
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

    def _create_ring(self, header: Header, block: int, reply: Reply) -> Steps[None]:
        like = self._any_ring()
        config = like.config if like else self.wanted.config(self.default)
        ring = Ring.fresh(header, config, reply.now, block=block, run=self.wanted.run)
        other = None
        if reply.state:
            # The ring of another filter that was here: it counts as lost, and its bitmaps go.
            other = self._parse(state.parse, reply.state, self.keys.ring(block))
            ring = replace(ring, generations=other.generations).cleared(reply.now)
        yield from self._swap(block, reply.v, ring, other)

    def _settle(self) -> Steps[bool]:
        """Apply the user's settings, once, and rotate what is due; whether all went well."""
        stored = self.held[0].ring.config
        settled = True
        for block in random.sample(sorted(self.held), len(self.held)):  # workers share the work
            ring = self.held[block].ring
            if self._advance(ring, self._now) is not ring:
                # After a failure, the others: of all that are gone, one round is to tell.
                settled = (yield from self.change(block, self._advance)) and settled
        first = self.held.get(0)
        if not self._is_configured and first is not None and first.ring.config != stored:
            self.replaced_config = stored
        self._is_configured |= settled
        return settled

    def _advance(self, ring: Ring, now: int, counts: Counts = NO_COUNTS) -> Ring:
        if not self._is_configured:
            ring = ring.reconfigure(self.wanted.config(ring.config))
        return ring.advance(now, counts, self.wanted.run)

    def _is_due(self, block: int, reply: Reply) -> bool:
        ring = self.held[block].ring
        return self._advance(ring, reply.now) is not ring

    def _change_all(self, decide: Decide, *, quiet: bool = False) -> Steps[None]:
        header = yield from self.open()
        for block in random.sample(range(header.blocks), header.blocks):
            for _ in range(MAX_ROUNDS):
                if (yield from self.change(block, decide, quiet=quiet)):
                    break
                if block not in self.held and block >= (yield from self.open()).blocks:
                    break  # the filter was created anew meanwhile, with fewer blocks
            else:
                raise self.unstable()

    def _swap(
        self, block: int, v: str, ring: Ring, old: Ring | None, lost: Collection[str] = ()
    ) -> Steps[bool]:
        """Compare and set: put ``ring`` in the place of the one under nonce ``v``.

        Returns whether it worked; if not, the ring of whoever was faster is held, if it is usable.
        """
        expiry = ring.last_expiry
        # Also if less is needed than was once: another client may have made the header anew since.
        if expiry != self._header_expiry:
            yield from self._touch_header(expiry)
        there = {layer for layer in old.layers if layer.name not in lost} if old else set()
        # What is lost goes too: its count, and whatever lies under its key.
        bitmaps = {layer.name: GONE for layer in old.layers} if old else {}
        for generation in ring.generations:
            time = ring.expires(generation)
            for layer in generation.layers:
                bitmaps[layer.name] = (-1 if layer in there else layer.memory, time)
        keys = (self.keys.ring(block), *(self.keys.layer(block, name) for name in bitmaps))
        triples: list[Argument] = []
        for name, values in bitmaps.items():
            triples += [name, *values]
        new_v = secrets.token_hex(8)
        arguments = (v, new_v, state.dump(ring), expiry, *triples)
        (reply,) = yield [Call(load("swap"), keys, arguments)]
        if reply.status != "ok":
            self._hold(block, reply, self.header)
            return False
        self.held[block] = Held.of(new_v, ring, self.keys)
        for name, key in zip(bitmaps, keys[1:], strict=True):
            if bitmaps[name] == GONE:
                yield [Call(load("drop"), (keys[0], key), (new_v,))]
        return True

    def _hold(self, block: int, reply: Reply, header: Header | None) -> bool:
        """Hold the ring in a reply; not one that is missing or belongs to another filter."""
        before = self.held.pop(block, None)
        ring = self._ring(block, reply, header)
        if ring is None:
            expired = before is not None and 0 < before.ring.last_expiry <= reply.now
            if before is not None and not expired:
                self._note_lost(before.ring)
            return False
        self.held[block] = Held.of(reply.v, ring, self.keys)
        return True

    def _ring(self, block: int, reply: Reply, header: Header | None) -> Ring | None:
        """Return the ring in a reply; None if it is missing or belongs to another filter."""
        if not reply.state:
            return None
        ring = self._parse(state.parse, reply.state, self.keys.ring(block))
        good = header is not None and ring.header.id == header.id and ring.block == block
        return ring if good else None

    def _last_expiry(self) -> int:
        expiries = [held.ring.last_expiry for held in self.held.values()]
        return max(expiries) if all(expiries) else 0

    def _read_call(self, block: int) -> Call:
        return Call(load("read"), (self.keys.ring(block),), ())

    def _snapshot(
        self, header: Header, replies: Mapping[int, Reply], rings: Mapping[int, Ring]
    ) -> Snapshot:
        now = max(reply.now for reply in replies.values())
        counts = {block: self._counts(ring, replies[block]) for block, ring in rings.items()}
        current = {block: ring.advance(now) for block, ring in rings.items()}
        return Snapshot(header, current, counts, now)

    def _counts(self, ring: Ring, reply: Reply) -> Counts:
        key = self.keys.ring(ring.block)
        fields = {layer.name: reply.fields.get(f"n:{layer.name}", "0") for layer in ring.layers}
        return {name: self._parse(int, text, key) for name, text in fields.items()}

    # -- trouble --

    def _note_lost(self, ring: Ring) -> None:
        self.lost_blocks += 1
        self.notify(LOST, ring)

    def _parse(self, parse: Callable[[S], T], text: S, key: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise StorageError(
                f"cannot use the Redis key {key!r}: {error}. Delete the filter's keys to start "
                "anew, set another BLOOM_KEY, or use the version of scrapy-bloom that wrote it"
            ) from None

    def unstable(self) -> StorageError:
        """Return the error for a filter that does not keep still."""
        return StorageError(
            f"the filter {self.keys.prefix!r} was different each of {MAX_ROUNDS} times it was "
            "read: does something else write or delete its keys?"
        )
