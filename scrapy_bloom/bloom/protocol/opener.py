"""Opens a filter: reads, restores or creates its header and rings, and applies the options. No I/O.

Block 0 decides: what a client's options change is changed in it first, and the other blocks follow.
"""

import random
from dataclasses import replace
from functools import partial

from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import NO_COUNTS, Config, Counts
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.bloom.protocol import rights
from scrapy_bloom.bloom.protocol.ring_store import (
    CHANGED,
    MAX_RACES,
    MAX_ROUNDS,
    Notify,
    Operation,
    RingStore,
    last_expiry,
)
from scrapy_bloom.bloom.protocol.scripts import Reply
from scrapy_bloom.bloom.protocol.swaps import Change, Swap


class FilterOpener(RingStore):
    """A filter that is read, or created, as its options say.

    Args:
        keys: the filter's keys.
        wanted: the options.
        default: configuration of a filter that is created without any.
        notify: called with what happens to rings.
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
            missing = yield from self._load_rings(header)
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

    # -- steps --

    def _load_header(self, *, test_rights: bool = False) -> Operation[Header]:
        for _ in range(MAX_ROUNDS):
            if test_rights:
                reply = yield from self._read_header_and_rights()
            else:
                reply = yield from self.read_header("")
            self.now = reply.now
            if reply.status == "header":
                header = self.header_in(reply)
                # It refuses a header and a ring that differ, before any block is read or created.
                self.ring_in(0, reply, header)
                self._adopt(header)
                return header
            # Restored if it is known or left in any ring: new seeds would forget everything.
            ring = self._any_ring() or (yield from self.surviving_ring(reply, self.wanted.blocks))
            yield from self._create_header(ring, reply)
        raise self.unstable()

    def _read_header_and_rights(self) -> Operation[Reply]:
        blocks = min(self.wanted.blocks or DEFAULT_BLOCKS, DEFAULT_BLOCKS)
        tests = rights.test_open(self.keys, blocks)
        reply, *tested = yield [self.header_call(""), *tests]
        error = rights.missing(tested)
        if error is not None:
            raise error
        return reply

    def _create_header(self, ring: Ring | None, reply: Reply) -> Operation[None]:
        if ring is None:
            header = self.header or self.wanted.new_header(self.default)
            ring = Ring.fresh(header, self.wanted.config(self.default), reply.now)
        # What this client holds may have expired long ago: with its end, so would the header.
        expiry = max(ring.expiry, ring.cleared(reply.now).expiry)
        (answer,) = yield [self.create_call(ring.header, reply.version, expiry)]
        self._header_expiry = expiry if answer.status == "ok" else None

    def _adopt(self, header: Header) -> None:
        """Take a stored header as the filter's, unless the user asked for another filter."""
        self.wanted.check(header, self.keys.prefix)
        if header != self.header:
            self.header = header
            self.hasher = Hasher(header.seeds, header.blocks)
            self.held.clear()

    def _load_rings(self, header: Header) -> Operation[dict[int, Reply]]:
        """Hold the rings that exist; return the other blocks with their replies."""
        blocks = [block for block in range(header.blocks) if block not in self.held]
        replies = yield from self.read_all(blocks)
        return {b: reply for b, reply in replies.items() if not self._hold(b, reply, header)}

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
        like = self._any_ring()
        if like is not None:
            ring = like.sibling(block, reply.now)
        else:
            config = self.wanted.config(self.default)
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
        follow = partial(self._follow, config) if first_time else Ring.advance
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
        stored = self.held[0].ring.config
        decide = self._keep if self._is_applied else self._apply
        if decide(self.held[0].ring, self.now, NO_COUNTS) is not self.held[0].ring:
            if (yield from self.change([Change(0, decide)])):
                return False
            if self.held[0].ring.config != stored:
                self.replaced_config = stored
                self.notify(CHANGED, self.held[0].ring)
        self._is_applied = True
        return True

    def _apply(self, ring: Ring, now: int, counts: Counts) -> Ring:
        """Return a ring under the user's settings, which may refuse those that it has."""
        return self._follow(self.wanted.change(ring.config, self.keys.prefix), ring, now, counts)

    def _keep(self, ring: Ring, now: int, counts: Counts) -> Ring:
        return self._follow(ring.config, ring, now, counts)

    def _follow(self, config: Config, ring: Ring, now: int, counts: Counts) -> Ring:
        """Return a ring under a configuration, and in this run."""
        return ring.reconfigure(config, now).advance(now, counts, self.wanted.run)
