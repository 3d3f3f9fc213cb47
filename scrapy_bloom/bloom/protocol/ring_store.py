"""The rings of a filter that a client holds, and how they are changed. No I/O.

Every change of a ring has one form: read it with its counts, let a pure function decide what comes
next, and swap that in unless another client was faster.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Counts
from scrapy_bloom.bloom.model.header import Header, check
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.ring_state import SLACK_SECONDS
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, Reply, load, on_full_server

S = TypeVar("S")
T = TypeVar("T")
#: An operation: yields calls, receives their replies, returns its result.
Operation = Generator[list[Call], list[Reply], T]
#: Decides what becomes of a ring, from the server's clock and counts; the same ring is no change.
Decide = Callable[[Ring, int, Counts], Ring]

#: Events of a block: a part of it was gone; a generation was opened; a full one got a further
#: layer; one is full and cannot grow; one is filled to 80%.
LOST, ROTATED, GROWN, FULL, FILLING = "lost", "rotated", "grown", "full", "filling"
#: Called with an event and the ring (the new one; of a lost block, the old one).
Notify = Callable[[str, Ring], object]

#: Of a bitmap in a swap: no bytes, no time to expire at.
GONE = 0, 0
#: Of a bitmap in a swap: its bytes if it stays as it is.
STAYS = -1
#: Digits of a stored count: what a filter may hold has 14.
MAX_DIGITS = 15
#: What the nonce of a ring begins with until the filter's header is written: a load or a copy is
#: under way, or was interrupted.
UNFINISHED = "unfinished:"
#: Rounds after which an operation gives up on a filter that is different each time it looks.
MAX_ROUNDS = 20
#: Rounds in a row in which an operation may get nowhere with a block. Each change by another client
#: costs one of them, and in a filter that many clients fill, a ring lives for one call only.
MAX_RACES = 10 * MAX_ROUNDS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A filter as it was read, without changing anything.

    Args:
        header: its header.
        rings: its rings as of ``now``, by block; a lost one is not there.
        counts: URLs per layer, by block.
        claims: number of claims, by block.
        now: the server's clock, Unix time in seconds.
    """

    header: Header
    rings: Mapping[int, Ring]
    counts: Mapping[int, Counts]
    claims: Mapping[int, int]
    now: int


class StoredFilter:
    """A filter as it is stored: the calls that read it, and what their replies hold.

    Args:
        keys: the filter's keys.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def look(self) -> Operation[Snapshot | None]:
        """Read the filter without changing anything; None if there is none."""
        reply = yield from self.read_header("")
        if reply.status != "header":
            return None
        header = self.header_in(reply)
        blocks = range(header.blocks)
        replies = yield [self.read_call(block) for block in blocks]
        answers = dict(zip(blocks, replies, strict=True))
        found = {block: self.ring_in(block, reply, header) for block, reply in answers.items()}
        rings = {block: ring for block, ring in found.items() if ring is not None}
        return self._snapshot(header, answers, rings)

    def surviving_ring(
        self, first: Reply, blocks: int | None = None, *, unfinished: bool = False
    ) -> Operation[Ring | None]:
        """Return any ring that is stored, or None.

        Args:
            first: what was read of the header, with the ring of block 0.
            blocks: blocks to look at, if more than the default.
            unfinished: whether the ring of an unfinished filter counts.
        """

        def counts(reply: Reply) -> bool:
            return bool(reply.state) and (unfinished or not reply.version.startswith(UNFINISHED))

        replies = [first]
        if not counts(first):
            numbers = range(max(blocks or 0, DEFAULT_BLOCKS))
            replies = yield [self.read_call(block) for block in numbers]
        for block, reply in enumerate(replies):
            if counts(reply):
                return self.parse(ring_codec.parse, reply.state, self.keys.ring(block))
        return None

    # -- calls --

    def read_header(self, until: int | str) -> Operation[Reply]:
        """Read the header, with the ring of block 0.

        Args:
            until: Unix time until which the header has to live at least, 0 for ever; "" changes
                nothing.
        """
        keys = (self.keys.header(), self.keys.ring(0))
        script = load("header") if until == "" else on_full_server(load("header"))
        (reply,) = yield [Call(script, keys, (until,))]
        return reply

    def read_call(self, block: int) -> Call:
        """Return the call that reads a ring with its counts."""
        return Call(load("read"), (self.keys.ring(block), self.keys.claims(block)), ())

    def create_call(self, header: Header, version: str, expiry: int) -> Call:
        """Return the call that writes the header, where block 0's ring has the nonce."""
        arguments: list[Argument] = [version, expiry and expiry + SLACK_SECONDS]
        for pair in header.to_fields().items():
            arguments += pair
        return Call(load("create"), (self.keys.header(), self.keys.ring(0)), tuple(arguments))

    # -- replies --

    def ring_in(self, block: int, reply: Reply, header: Header | None) -> Ring | None:
        """Return the ring in a reply; None if it is missing or belongs to another filter."""
        if not reply.state:
            return None
        ring = self.parse(ring_codec.parse, reply.state, self.keys.ring(block))
        if header is None or ring.header.id != header.id or ring.block != block:
            return None
        if ring.header != header:
            raise self._disagree(ring, header)
        return ring

    def _snapshot(
        self, header: Header, replies: Mapping[int, Reply], rings: Mapping[int, Ring]
    ) -> Snapshot:
        now = max(reply.now for reply in replies.values())
        counts = {block: self.counts_in(ring, replies[block]) for block, ring in rings.items()}
        current = {block: ring.advance(now) for block, ring in rings.items()}
        claims = {
            block: self.parse(
                int, replies[block].fields.get("claims", "0"), self.keys.claims(block)
            )
            for block in rings
        }
        return Snapshot(header, current, counts, claims, now)

    def counts_in(self, ring: Ring, reply: Reply) -> Counts:
        """Return the counts of a ring's layers."""
        key = self.keys.ring(ring.block)
        return {
            layer.name: self.parse(_count, reply.fields.get(f"n:{layer.name}", "0"), key)
            for layer in ring.layers
        }

    def parse(self, parse: Callable[[S], T], text: S, key: str) -> T:
        """Parse what a key holds.

        Raises:
            StorageError: it is damaged; names the key and the remedy.
        """
        try:
            return parse(text)
        except ValueError as error:
            raise StorageError(
                f"cannot use the Redis key {key!r}: {error}. Delete the filter's keys to start "
                "again, use another `key`, or the version of scrapy-bloom that wrote it"
            ) from None

    def header_in(self, reply: Reply) -> Header:
        """Return the header in a reply."""
        return self.parse(Header.from_fields, reply.fields, self.keys.header())

    def _disagree(self, ring: Ring, header: Header) -> StorageError:
        key, other = self.keys.header(), self.keys.ring(ring.block)
        stored = header.to_fields()
        names = ", ".join(n for n, copy in ring.header.to_fields().items() if copy != stored[n])
        return StorageError(
            f"the Redis key {key!r} and the copy of it in {other!r} differ in {names}: something "
            f"else has changed one of them. Delete {key!r} if it is the wrong one (it is restored "
            "from the copies), or else delete the filter, or use another `key`"
        )

    def unstable(self, rounds: int = MAX_ROUNDS) -> StorageError:
        """Return the error for a filter that keeps changing."""
        return StorageError(
            f"the filter {self.keys.prefix!r} was different each of {rounds} times it was "
            "read: does something else write or delete its keys?"
        )


class RingStore(StoredFilter):
    """The rings of one filter that one client holds.

    Args:
        keys: the filter's keys.
        notify: called with what happens to rings.
    """

    def __init__(self, keys: Keys, notify: Notify) -> None:
        super().__init__(keys)
        self.notify = notify
        self.header: Header | None = None
        self.held: dict[int, CachedRing] = {}
        #: Blocks whose ring or bitmaps were found missing in a filter that was open.
        self.lost_blocks = 0
        #: Until when the header lives as far as is known, 0 for ever; known only while opening.
        self._header_expiry: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the header and the rings of all blocks are held."""
        return self.header is not None and len(self.held) == self.header.blocks

    def change(
        self,
        block: int,
        decide: Decide,
        *,
        version: str | None = None,
        lost: Collection[str] = (),
        quiet: bool = False,
    ) -> Operation[bool]:
        """Replace a block's ring by what ``decide`` returns; False if another client was faster.

        Args:
            block: the block.
            decide: returns the next ring.
            version: nonce that the ring must have; None for any.
            lost: names of layers that have to be allocated again if they stay.
            quiet: do not notify of a new generation.
        """
        (reply,) = yield [self.read_call(block)]
        if not self._hold(block, reply, self.header) or version not in (None, reply.version):
            return False
        old = self.held[block].ring
        new = decide(old, reply.now, self.counts_in(old, reply))
        if new is old:
            return True
        new = replace(new, changed=reply.now)
        if not (yield from self._swap(block, reply.version, new, old, lost)):
            return False
        if new.active.number > old.active.number and not quiet:
            self.notify(ROTATED, new)
        elif len(new.layers) > len(old.layers):
            self.notify(GROWN, new)
        return True

    # -- steps --

    def _hold(self, block: int, reply: Reply, header: Header | None) -> bool:
        """Hold the ring in a reply; not one that is missing or belongs to another filter."""
        before = self.held.pop(block, None)
        ring = self.ring_in(block, reply, header)
        if ring is None:
            expired = before is not None and 0 < before.ring.expiry <= reply.now
            if before is not None and not expired:
                self._note_lost(before.ring)
            return False
        self.held[block] = CachedRing.of(reply.version, ring, self.keys)
        return True

    def _any_ring(self) -> Ring | None:
        held = self.held.get(0) or next(iter(self.held.values()), None)
        return None if held is None else held.ring

    def _last_expiry(self) -> int:
        expiries = [held.ring.expiry for held in self.held.values()]
        return max(expiries) if all(expiries) else 0

    def _swap(
        self, block: int, version: str, ring: Ring, old: Ring | None, lost: Collection[str] = ()
    ) -> Operation[bool]:
        """Compare and set: put ``ring`` in place of the one under nonce ``version``.

        Returns whether it worked; if not, the ring of the faster client is held, if it is usable.
        """
        expiry = ring.expiry
        # Also if less is needed than was once: another client may have restored the header since.
        if expiry != self._header_expiry:
            yield from self._touch_header(expiry)
        there = {layer for layer in old.layers if layer.name not in lost} if old else set()
        # What is lost goes too: its count, and whatever lies under its key.
        bitmaps = {layer.name: GONE for layer in old.layers} if old else {}
        for generation in ring.generations:
            time = ring.expires(generation)
            for layer in generation.layers:
                bitmaps[layer.name] = (STAYS if layer in there else layer.memory, time)
        keys = (self.keys.ring(block), *(self.keys.layer(block, name) for name in bitmaps))
        triples: list[Argument] = []
        for name, values in bitmaps.items():
            triples += [name, *values]
        new_version = secrets.token_hex(8)
        arguments = (version, new_version, ring_codec.dump(ring), expiry, *triples)
        (reply,) = yield [Call(load("swap"), keys, arguments)]
        if reply.status != "ok":
            self._hold(block, reply, self.header)
            return False
        self.held[block] = CachedRing.of(new_version, ring, self.keys)
        for name, key in zip(bitmaps, keys[1:], strict=True):
            if bitmaps[name] == GONE:
                yield [Call(load("drop"), (keys[0], key), (new_version,))]
        return True

    def _touch_header(self, expiry: int) -> Operation[None]:
        """Make sure that the header lives longer than a ring that expires then (0 is never)."""
        yield from self.read_header(expiry and expiry + SLACK_SECONDS)
        self._header_expiry = expiry

    def _note_lost(self, ring: Ring) -> None:
        self.lost_blocks += 1
        self.notify(LOST, ring)


class RaceCounter:
    """Counts, per block, the rounds in a row in which an operation got nowhere.

    Args:
        rings: the filter.
    """

    def __init__(self, rings: RingStore) -> None:
        self._rings = rings
        self._lost = Counter[int]()

    def note(self, block: int, *, won: bool) -> None:
        """Note a round; one with any progress starts the count again.

        Raises:
            StorageError: these were ``MAX_RACES`` rounds without progress.
        """
        self._lost[block] = 0 if won else self._lost[block] + 1
        if self._lost[block] >= MAX_RACES:
            raise self._rings.unstable(MAX_RACES)


def _count(text: str) -> int:
    """Read a stored count, trusting nothing.

    Raises:
        ValueError: it is damaged.
    """
    good = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    check(good, "count", text)
    return int(text)
