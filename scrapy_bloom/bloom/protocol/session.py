"""One client's session of a filter: opened by its options, and kept up to date. No I/O.

Each operation is a generator that yields a list of script calls, which may be sent together, and
receives the list of their replies; a driver sends them. So synchronous and asynchronous clients
share one implementation.

Block 0 decides: what a client's options change is changed in it first, and the other blocks follow.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import NO_COUNTS, Config, Counts
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.options import DEFAULTS, FilterOptions
from scrapy_bloom.bloom.protocol import rights
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.ring_store import (
    CHANGED,
    FULL,
    MAX_RACES,
    MAX_ROUNDS,
    Notify,
    Operation,
    Snapshot,
    StoredFilter,
    count_round,
    ignore,
    last_expiry,
    snapshot_of,
)
from scrapy_bloom.bloom.protocol.scripts import Call, Reply, load
from scrapy_bloom.bloom.protocol.swaps import Change, Decide, Drop, Swap


class FilterSession(StoredFilter):
    """One client's session of a filter, and the operations on it.

    Args:
        keys: the filter's keys.
        wanted: what the user asks for.
        notify: called with what happens to rings.
    """

    def __init__(self, keys: Keys, wanted: FilterOptions, notify: Notify = ignore) -> None:
        super().__init__(keys, notify)
        self.wanted = wanted
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

    # -- opening --

    def open(self, *, writable: bool = False) -> Operation[Header]:
        """Read the filter's header and the rings not held yet, and bring them up to date.

        What is missing is created, what is due is rotated, and, the first time, settings of the
        user's that differ from the stored ones are applied.

        Args:
            writable: make sure that the server accepts writes, and that the user has all rights.

        Raises:
            FilterMismatchError: the stored filter is another one than was asked for.
            StorageError: what is stored cannot be read.
            RightsError: the user lacks rights that a crawl may need.
            ConfigurationError: the filter that was asked for is impossible.
        """
        for _ in range(MAX_RACES):
            header = yield from self._load_header(test_rights=writable)
            blocks = [block for block in range(header.blocks) if block not in self.held]
            replies = yield from self.read_all(blocks)
            missing = {b: reply for b, reply in replies.items() if not self._hold(b, reply, header)}
            # Another filter's ring is a leftover, unless the filter was created again since.
            if any(reply.state for reply in missing.values()):
                again = yield from self._load_header()
                if again != header:
                    continue
            yield from self._create_rings(header, missing)
            if self.complete and (yield from self._settle()):
                expiry = last_expiry(held.ring for held in self.held.values())
                known = self._header_expiry
                # A header restored from one ring may end before another ring does.
                if writable or self.replaced_config or known not in (None, expiry):
                    yield from self._touch_header(expiry)
                self._header_expiry = None
                return header
        raise self.unstable(MAX_RACES)

    def ensure_open(self) -> Operation[None]:
        """Open the filter, unless the header and all rings are held."""
        if not self.complete:
            yield from self.open()

    def apply(self, wanted: FilterOptions) -> Operation[Header]:
        """Open the filter with other options. Raises as ``open`` does."""
        self.wanted, self._is_applied, self._is_configured = wanted, False, False
        return (yield from self.open(writable=True))

    def forget(self) -> None:
        """Forget what is known of the filter, because it was deleted."""
        self.header = None
        self.held.clear()
        self._is_applied = self._is_configured = False

    def _load_header(self, *, test_rights: bool = False) -> Operation[Header]:
        tests = []
        if test_rights:
            blocks = min(self.wanted.blocks or DEFAULT_BLOCKS, DEFAULT_BLOCKS)
            tests = rights.test_open(self.keys, blocks)
        for _ in range(MAX_ROUNDS):
            reply, *tested = yield [self.header_call(""), *tests]
            if error := rights.missing(tested):
                raise error
            self.now = reply.now
            if reply.status == "header":
                header = self.header_in(reply)
                # It refuses a header and a ring that differ, before any block is read or created.
                self.ring_in(0, reply, header)
                self.wanted.check(header, self.keys.prefix)
                if header != self.header:
                    self.header = header
                    self.hasher = Hasher(header.seeds, header.blocks)
                    self.held.clear()
                return header
            # Restored if it is known or left in any ring: new seeds would forget everything.
            ring = _any_ring(self.held)
            ring = ring or (yield from self.surviving_ring(reply, self.wanted.blocks))
            yield from self._create_header(ring, reply)
        raise self.unstable()

    def _create_header(self, ring: Ring | None, reply: Reply) -> Operation[None]:
        if ring is None:
            header = self.header or self.wanted.new_header()
            ring = Ring.fresh(header, self.wanted.config(DEFAULTS), reply.now)
        # What this client holds may have expired long ago: with its end, so would the header.
        expiry = max(ring.expiry, ring.cleared(reply.now).expiry)
        (answer,) = yield [self.create_call(ring.header, reply.version, expiry)]
        self._header_expiry = expiry if answer.status == "ok" else None

    def _create_rings(self, header: Header, missing: dict[int, Reply]) -> Operation[None]:
        """Create rings: that of block 0 first, then the others with its configuration."""
        if 0 in missing:
            yield from self._swap([self._creation(header, 0, missing.pop(0))])
        if 0 in self.held:
            # In random order, so that workers that start together share the work.
            order = random.sample(sorted(missing), len(missing))
            yield from self._swap([self._creation(header, b, missing[b]) for b in order])

    def _creation(self, header: Header, block: int, reply: Reply) -> Swap:
        """Return the swap that creates a ring."""
        like = _any_ring(self.held)
        if like is not None:
            ring = like.sibling(block, reply.now)
        else:
            config = self.wanted.config(DEFAULTS)
            ring = Ring.fresh(header, config, reply.now, block=block, run=self.wanted.run)
        other = None
        if reply.state:
            # The ring of another filter that was here: it counts as lost, and its bitmaps go.
            other = self.parse(ring_codec.parse, reply.state, self.keys.ring(block))
            ring = replace(ring, generations=other.generations).cleared(reply.now)
        return Swap(reply.version, ring, other)

    def _settle(self) -> Operation[bool]:
        """Rotate what is due and, the first time, apply the user's settings; whether all went well.

        Block 0 decides: the settings are applied to it first, and the other blocks follow it. So
        clients that open with different settings at once, or are killed, leave one configuration.
        """
        first_time = not self._is_configured
        if first_time and not (yield from self._configure()):
            return False
        config = self.held[0].ring.config
        follow = partial(_follow, config, self.wanted.run) if first_time else Ring.advance
        rings = [held.ring for held in self.held.values()]
        due = [ring.block for ring in rings if follow(ring, self.now, NO_COUNTS) is not ring]
        random.shuffle(due)  # workers that start together share the work
        settled = not (yield from self.change(Change(block, follow) for block in due))
        if settled and first_time and (due or self.replaced_config is not None):
            replies = yield from self.read_all(sorted(self.held))
            for block, reply in replies.items():
                held = self._hold(block, reply, self.header)
                settled = settled and held and self.held[block].ring.config == config
        self._is_configured |= settled
        return settled

    def _configure(self) -> Operation[bool]:
        """Apply the user's settings to block 0, once; another client may replace them."""

        def decide(ring: Ring, now: int, counts: Counts) -> Ring:
            """Return a ring under the user's settings, which may refuse those that it has."""
            config = ring.config
            if not self._is_applied:
                config = self.wanted.change(config, self.keys.prefix)
            return _follow(config, self.wanted.run, ring, now, counts)

        stored = self.held[0].ring.config
        if decide(self.held[0].ring, self.now, NO_COUNTS) is not self.held[0].ring:
            if (yield from self.change([Change(0, decide)])):
                return False
            if self.held[0].ring.config != stored:
                self.replaced_config = stored
                self.notify(CHANGED, self.held[0].ring)
        self._is_applied = True
        return True

    # -- all blocks --

    def clear(self) -> Operation[None]:
        """Forget everything; other clients notice at their next call."""
        yield from self._change_all(lambda ring, now, _: ring.cleared(now), quiet=True)
        yield from self.clear_claims(with_ledger=True)

    def clear_claims(self, *, with_ledger: bool = False) -> Operation[None]:
        """Delete all claims."""
        yield from self.open()
        drops = list[Drop]()
        for block, ring in self.held.items():
            more = self.keys.of_ledger(block) if with_ledger else ()
            drops.append(Drop(block, self.keys.claims(block), ring.version, more=more))
        yield from self.drop(drops)

    def rotate(self) -> Operation[None]:
        """Open a new generation in every block; where there are G, the oldest is forgotten."""
        yield from self._change_all(Ring.rotate)

    def _change_all(self, decide: Decide, *, quiet: bool = False) -> Operation[None]:
        left = set(range((yield from self.open()).blocks))
        for _ in range(MAX_RACES):
            order = random.sample(sorted(left), len(left))
            left = yield from self.change((Change(block, decide) for block in order), quiet=quiet)
            yield from self.ensure_open()
            left &= self.held.keys()  # the filter may have been created again, with fewer blocks
            if not left:
                return
        raise self.unstable(MAX_RACES)

    def read(self) -> Operation[Snapshot]:
        """Bring all rings up to date, and return them with their counts."""
        answers, rings = dict[int, Reply](), dict[int, Ring]()
        header, wasted = self.header, 0
        while True:
            yield from self.ensure_open()
            if header is None or header != self.header:
                # Another filter has taken its place: start again.
                header = self.header
                answers.clear()
                rings.clear()
            asked = {block: held for block, held in self.held.items() if block not in answers}
            if header is not None and not asked:
                return snapshot_of(self, header, answers, rings)
            replies = yield from self.read_all(asked)
            refused = []
            for block, held in asked.items():
                reply = replies[block]
                if reply.version == held.version and not _is_due(held.ring, reply):
                    answers[block], rings[block] = reply, held.ring
                else:
                    refused.append((held, reply))
            wasted = count_round(self, wasted, is_wasted=len(refused) == len(asked))
            yield from self.refresh(refused)

    # -- blocks that have changed, or are full --

    def refresh(self, refused: Iterable[tuple[CachedRing, Reply]]) -> Operation[None]:
        """Update blocks after scripts refused their rings."""
        changes, is_gone = dict[int, Change](), False
        for held, reply in refused:
            block = held.ring.block
            if block in changes or not held.is_in(self.held):
                continue  # another reply of the same round was handled first
            if reply.status == "lost":
                lost = reply.fields.get("layers", "").split()
                if not set(lost) <= held.ring.expired(reply.now):
                    self._note_lost(held.ring)
                without = partial(_without, lost)
                changes[block] = Change(block, without, held.version, lost)
            elif not self._hold(block, reply, self.header):
                is_gone = True
            elif _is_due(self.held[block].ring, reply):
                changes[block] = Change(block, Ring.advance)
        yield from self.change(changes.values())
        if is_gone:
            # A ring is gone, or the filter was deleted and created again: look at the header.
            yield from self.open()

    def grow(self, full: Iterable[CachedRing]) -> Operation[set[int]]:
        """Make room in blocks whose rings were full; return those in which to try again."""
        before = {held.ring.block: held for held in full}
        growing = [
            b for b, held in before.items() if held.is_in(self.held) and not self.is_stuck(b)
        ]
        yield from self.change(Change(block, Ring.grow) for block in growing)
        for block in growing:
            held = before[block]
            if held.is_in(self.held):
                self._stuck[block] = held.version
                self.notify(FULL, held.ring)
        return {block for block in before if not self.is_stuck(block)}

    def is_stuck(self, block: int) -> bool:
        """Whether a block, as it is held, is known to be full and cannot grow."""
        return block in self.held and self._stuck.get(block) == self.held[block].version


def touches(sessions: Iterable[FilterSession]) -> list[Call]:
    """Return a write to each block: with a WAIT behind them, no earlier write is left out."""
    script = load("touch")
    return [
        Call(script, (session.keys.scratch(block, "touch", ""),), ())
        for session in sessions
        if session.header is not None
        for block in range(session.header.blocks)
    ]


def _any_ring(held: dict[int, CachedRing]) -> Ring | None:
    found = held.get(0) or next(iter(held.values()), None)
    return None if found is None else found.ring


def _is_due(ring: Ring, reply: Reply) -> bool:
    return ring.advance(reply.now) is not ring


def _without(lost: list[str], ring: Ring, *_: object) -> Ring:
    return ring.without(lost)


def _follow(config: Config, run: str | None, ring: Ring, now: int, counts: Counts) -> Ring:
    """Return a ring under a configuration, and in a run."""
    return ring.reconfigure(config, now).advance(now, counts, run)
