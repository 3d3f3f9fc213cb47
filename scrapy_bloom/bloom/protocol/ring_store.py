"""A filter as it is stored: what reads it, and how its rings are changed. No I/O.

Every change of a ring has one form: read it with its counts, let a pure function decide what comes
next, and swap that in unless another client was faster.
"""

import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Counts
from scrapy_bloom.bloom.model.header import Header, check
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import SLACK_SECONDS, Ring
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, Reply, load, on_full_server
from scrapy_bloom.bloom.protocol.swaps import Change, Drop, Swap, in_waves

S = TypeVar("S")
T = TypeVar("T")
#: An operation: yields calls, receives their replies, returns its result.
Operation = Generator[list[Call], list[Reply], T]

#: Events of a block: a part of it was gone; a generation was opened; a full one got a further
#: layer; one is full and cannot grow; one is filled to 80%. Of block 0: this client has changed the
#: configuration of the filter.
LOST, ROTATED, GROWN, FULL, FILLING = "lost", "rotated", "grown", "full", "filling"
CHANGED = "changed"
#: Called with an event and the ring (the new one; of a lost block, the old one).
Notify = Callable[[str, Ring], object]

#: Digits of a stored count: what a filter may hold has 14.
MAX_DIGITS = 15
#: What the nonce of a ring begins with until the filter's header is written: a load or a copy is
#: under way, or was interrupted.
UNFINISHED = "unfinished:"
#: Rounds after which an operation gives up on a filter that is different each time it looks.
MAX_ROUNDS = 20
#: Rounds in a row in which an operation may get nowhere. Each change by another client costs one of
#: them, and in a filter that many clients fill, a ring lives for one call only.
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


def ignore(*_: object) -> None:
    """Stands for a caller who wants no events."""


class StoredFilter:
    """A filter as it is stored, and those of its rings that this client holds.

    Args:
        keys: the filter's keys.
        notify: called with what happens to rings.
    """

    def __init__(self, keys: Keys, notify: Notify = ignore) -> None:
        self.keys, self.notify = keys, notify
        self.header: Header | None = None
        self.held: dict[int, CachedRing] = {}
        #: Blocks whose ring or bitmaps were found missing in a filter that was open.
        self.lost_blocks = 0
        #: Until when the header lives as far as is known, 0 for ever; known only while opening.
        self._header_expiry: int | None = None

    def look(self) -> Operation[Snapshot | None]:
        """Read the filter without changing anything; None if there is none."""
        reply = yield from self.read_header("")
        if reply.status != "header":
            return None
        header = self.header_in(reply)
        answers = yield from self.read_all(range(header.blocks))
        found = {block: self.ring_in(block, reply, header) for block, reply in answers.items()}
        rings = {block: ring for block, ring in found.items() if ring is not None}
        return snapshot_of(self, header, answers, rings)

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

        replies = {0: first}
        if not counts(first):
            replies = yield from self.read_all(range(max(blocks or 0, DEFAULT_BLOCKS)))
        for block, reply in replies.items():
            if counts(reply):
                return self.parse(ring_codec.parse, reply.state, self.keys.ring(block))
        return None

    @property
    def complete(self) -> bool:
        """Whether the header and the rings of all blocks are held."""
        return self.header is not None and len(self.held) == self.header.blocks

    def change(self, changes: Iterable[Change], *, quiet: bool = False) -> Operation[set[int]]:
        """Replace rings by what is decided; return the blocks where another client was faster.

        Args:
            changes: of one block each.
            quiet: do not notify of new generations.
        """
        lost_races = set[int]()
        for wave in in_waves(changes):
            replies = yield [self.read_call(change.block) for change in wave]
            swaps = []
            for (block, decide, version, lost), reply in zip(wave, replies, strict=True):
                if not self._hold(block, reply, self.header) or version not in (
                    None,
                    reply.version,
                ):
                    lost_races.add(block)
                    continue
                old = self.held[block].ring
                new = decide(old, reply.now, self.counts_in(old, reply))
                if new is not old:
                    new = replace(new, changed=reply.now)
                    swaps.append(Swap(reply.version, new, old, lost))
            lost_races |= yield from self._swap(swaps)
            for swap in swaps:
                ring, before = swap.ring, swap.old
                if ring.block in lost_races or before is None:
                    continue
                if ring.active.number > before.active.number and not quiet:
                    self.notify(ROTATED, ring)
                elif len(ring.layers) > len(before.layers):
                    self.notify(GROWN, ring)
        return lost_races

    # -- calls --

    def read_all(self, blocks: Iterable[int]) -> Operation[dict[int, Reply]]:
        """Read the rings of some blocks, with their counts."""
        replies = dict[int, Reply]()
        for wave in in_waves(blocks):
            answers = yield [self.read_call(block) for block in wave]
            replies.update(zip(wave, answers, strict=True))
        return replies

    def drop(self, drops: Iterable[Drop]) -> Operation[set[int]]:
        """Delete keys, in this order; return the blocks whose rings have changed since."""
        changed = set[int]()
        for wave in in_waves(drops, lambda drop: drop.memory):
            replies = yield [drop.call(self.keys) for drop in wave]
            found = zip(wave, replies, strict=True)
            changed |= {drop.block for drop, reply in found if reply.verdicts != "1"}
        return changed

    def read_header(self, until: int | str) -> Operation[Reply]:
        """Read the header, with the ring of block 0: see ``header_call``."""
        (reply,) = yield [self.header_call(until)]
        return reply

    def header_call(self, until: int | str, *windows: str) -> Call:
        """Return the call that reads the header, with the ring of block 0.

        Args:
            until: Unix time until which the header has to live at least, 0 for ever; "" changes
                nothing.
            windows: are noted in it.
        """
        keys, script = (self.keys.header(), self.keys.ring(0)), load("header")
        if windows or until != "":
            script = on_full_server(script)
        return Call(script, keys, (until, *windows))

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
            raise _disagree(self.keys, ring, header)
        return ring

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

    def unstable(self, rounds: int = MAX_ROUNDS) -> StorageError:
        """Return the error for a filter that keeps changing."""
        return StorageError(
            f"the filter {self.keys.prefix!r} was different each of {rounds} times it was "
            "read: does something else write or delete its keys?"
        )

    # -- steps --

    def _hold(self, block: int, reply: Reply, header: Header | None) -> bool:
        """Hold the ring in a reply; not one that is missing or belongs to another filter."""
        before = self.held.get(block)
        if before is not None and reply.state and reply.version == before.version:
            return True
        self.held.pop(block, None)
        ring = self.ring_in(block, reply, header)
        if ring is None:
            expired = before is not None and 0 < before.ring.expiry <= reply.now
            if before is not None and not expired:
                self._note_lost(before.ring)
            return False
        self.held[block] = CachedRing(reply.version, ring, self.keys)
        return True

    def _swap(self, swaps: Sequence[Swap]) -> Operation[set[int]]:
        """Compare and set; return the blocks where another client was faster.

        There its ring is held, if it is usable.
        """
        expiry = last_expiry(swap.ring for swap in swaps)
        # Also if less is needed than was once: another client may have restored the header since.
        if swaps and expiry != self._header_expiry:
            yield from self._touch_header(expiry)
        lost_races = set[int]()
        for wave in in_waves(swaps, lambda swap: swap.memory):
            versions = [secrets.token_hex(8) for _ in wave]
            sent = list(zip(wave, versions, strict=True))
            replies = yield [swap.call(self.keys, version) for swap, version in sent]
            drops = list[Drop]()
            for (swap, version), reply in zip(sent, replies, strict=True):
                if reply.status != "ok":
                    self._hold(swap.ring.block, reply, self.header)
                    lost_races.add(swap.ring.block)
                    continue
                self.held[swap.ring.block] = CachedRing(version, swap.ring, self.keys)
                drops += swap.drops(self.keys, version)
            yield from self.drop(drops)
        return lost_races

    def _touch_header(self, expiry: int) -> Operation[None]:
        """Make sure that the header lives longer than a ring that expires then (0 is never)."""
        yield from self.read_header(expiry and expiry + SLACK_SECONDS)
        self._header_expiry = expiry

    def _note_lost(self, ring: Ring) -> None:
        self.lost_blocks += 1
        self.notify(LOST, ring)


def snapshot_of(
    stored: StoredFilter, header: Header, replies: Mapping[int, Reply], rings: Mapping[int, Ring]
) -> Snapshot:
    """Return a filter with its rings as of now, of what was read of them."""
    now = max(reply.now for reply in replies.values())
    counts = {block: stored.counts_in(ring, replies[block]) for block, ring in rings.items()}
    current = {block: ring.advance(now) for block, ring in rings.items()}
    claims = {
        block: stored.parse(
            int, replies[block].fields.get("claims", "0"), stored.keys.claims(block)
        )
        for block in rings
    }
    return Snapshot(header, current, counts, claims, now)


def last_expiry(rings: Iterable[Ring]) -> int:
    """Return when the last of some rings expires; 0 for never."""
    expiries = [ring.expiry for ring in rings]
    return max(expiries, default=0) if all(expiries) else 0


def _disagree(keys: Keys, ring: Ring, header: Header) -> StorageError:
    key, other = keys.header(), keys.ring(ring.block)
    stored = header.to_fields()
    names = ", ".join(n for n, copy in ring.header.to_fields().items() if copy != stored[n])
    return StorageError(
        f"the Redis key {key!r} and the copy of it in {other!r} differ in {names}: something "
        f"else has changed one of them. Delete {key!r} if it is the wrong one (it is restored "
        "from the copies), or else delete the filter, or use another `key`"
    )


def count_round(stored: StoredFilter, wasted: int, *, is_wasted: bool) -> int:
    """Count the rounds in a row in which an operation got nowhere.

    Raises:
        StorageError: these were ``MAX_RACES``.
    """
    if is_wasted and wasted + 1 == MAX_RACES:
        raise stored.unstable(MAX_RACES)
    return wasted + 1 if is_wasted else 0


def _count(text: str) -> int:
    """Read a stored count, trusting nothing.

    Raises:
        ValueError: it is damaged.
    """
    good = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    check(good, "count", text)
    return int(text)
