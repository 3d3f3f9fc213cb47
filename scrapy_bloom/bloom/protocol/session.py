"""One client's session of a filter: opened by its options, and kept up to date. No I/O.

Each operation is a generator that yields a list of script calls, which may be sent together, and
receives the list of their replies; ``driver.py`` sends them. So synchronous and asynchronous
clients share one implementation.
"""

import random
from collections.abc import Iterable

from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.opener import FilterOpener
from scrapy_bloom.bloom.protocol.ring_store import (
    FULL,
    MAX_RACES,
    Notify,
    Operation,
    RaceCounter,
    Snapshot,
)
from scrapy_bloom.bloom.protocol.scripts import Reply
from scrapy_bloom.bloom.protocol.swaps import Change, Decide, Drop


class FilterSession(FilterOpener):
    """One client's session of a filter, and the operations on it.

    Args:
        keys: the filter's keys.
        wanted: what the user asks for.
        default: configuration of a filter that is created without any.
        notify: called with what happens to rings.
    """

    def __init__(self, keys: Keys, wanted: FilterOptions, default: Config, notify: Notify) -> None:
        super().__init__(keys, wanted, default, notify)
        #: Per block, the nonce of a ring that is full and cannot grow.
        self._stuck: dict[int, str] = {}

    def twin(self) -> "FilterSession":
        """Return another session of the filter that holds the same rings."""
        twin = FilterSession(self.keys, self.wanted, self.default, self.notify)
        if self.header is not None and self._is_configured:
            twin.header, twin.hasher, twin.now = self.header, self.hasher, self.now
            twin.held = dict(self.held)
            twin._is_applied = twin._is_configured = True
        return twin

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

    def read(self) -> Operation[Snapshot]:
        """Bring all rings up to date, and return them with their counts."""
        answers, rings = dict[int, Reply](), dict[int, Ring]()
        header, races = self.header, RaceCounter(self)
        while True:
            yield from self.ensure_open()
            if header is None or header != self.header:
                # Another filter has taken its place: start again.
                header = self.header
                answers.clear()
                rings.clear()
            asked = {block: held for block, held in self.held.items() if block not in answers}
            if header is not None and not asked:
                return self._snapshot(header, answers, rings)
            replies = yield from self.read_all(asked)
            refused = []
            for block, held in asked.items():
                reply = replies[block]
                is_current = reply.version == held.version and not _is_due(held.ring, reply)
                races.note(block, won=is_current)
                if is_current:
                    answers[block], rings[block] = reply, held.ring
                else:
                    refused.append((held, reply))
            yield from self.refresh(refused)

    def refresh(self, refused: Iterable[tuple[CachedRing, Reply]]) -> Operation[None]:
        """Update blocks after scripts refused their rings."""
        changes, is_gone = dict[int, Change](), False
        for held, reply in refused:
            block = held.ring.block
            if block in changes or not self._is_held(held):
                continue  # another reply of the same round was handled first
            if reply.status == "lost":
                changes[block] = self._repair(held, reply)
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
        growing = [b for b, held in before.items() if self._is_held(held) and not self.is_stuck(b)]
        yield from self.change(Change(block, Ring.grow) for block in growing)
        for block in growing:
            held = before[block]
            if self._is_held(held):
                self._stuck[block] = held.version
                self.notify(FULL, held.ring)
        return {block for block in before if not self.is_stuck(block)}

    def is_stuck(self, block: int) -> bool:
        """Whether a block, as it is held, is known to be full and cannot grow."""
        return block in self.held and self._stuck.get(block) == self.held[block].version

    def _is_held(self, held: CachedRing) -> bool:
        """Whether a ring is the one that is held now."""
        now = self.held.get(held.ring.block)
        return now is not None and now.version == held.version

    def _repair(self, held: CachedRing, reply: Reply) -> Change:
        """Return what becomes of a ring that has lost layers."""
        lost = reply.fields.get("layers", "").split()
        if not set(lost) <= held.ring.expired(reply.now):
            self._note_lost(held.ring)
        return Change(held.ring.block, lambda ring, *_: ring.without(lost), held.version, lost)

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


def _is_due(ring: Ring, reply: Reply) -> bool:
    return ring.advance(reply.now) is not ring
