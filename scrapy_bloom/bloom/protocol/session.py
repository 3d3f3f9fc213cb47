"""One client's session of a filter: opened by its options, and kept up to date. No I/O.

Each operation is a generator that yields a list of script calls, which may be sent together, and
receives the list of their replies; ``driver.py`` sends them. So synchronous and asynchronous
clients share one implementation.
"""

import random

from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.bloom.protocol.opener import FilterOpener
from scrapy_bloom.bloom.protocol.ring_store import (
    FULL,
    MAX_RACES,
    Decide,
    Notify,
    Operation,
    RaceCounter,
    Snapshot,
)
from scrapy_bloom.bloom.protocol.scripts import Call, Reply, load


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
        """Forget everything, one block at a time; other clients notice at their next call."""
        yield from self._change_all(lambda ring, now, _: ring.cleared(now), quiet=True)
        yield from self.clear_claims()

    def clear_claims(self) -> Operation[None]:
        """Delete all claims."""
        yield from self.open()
        for block, held in self.held.copy().items():
            yield [
                Call(
                    load("drop"), (self.keys.ring(block), self.keys.claims(block)), (held.version,)
                )
            ]

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
            replies = yield [self.read_call(block) for block in asked]
            for (block, held), reply in zip(asked.items(), replies, strict=True):
                is_current = reply.version == held.version and not _is_due(held.ring, reply)
                races.note(block, won=is_current)
                if is_current:
                    answers[block], rings[block] = reply, held.ring
                else:
                    yield from self.refresh(block, held.version, reply)

    def refresh(self, block: int, version: str, reply: Reply) -> Operation[None]:
        """Update a block after a script refused ring ``version``."""
        held = self.held.get(block)
        if held is None or held.version != version:
            return  # another reply of the same round was handled first
        if reply.status == "lost":
            lost = reply.fields.get("layers", "").split()
            if not set(lost) <= held.ring.expired(reply.now):
                self._note_lost(held.ring)
            yield from self.change(
                block, lambda ring, *_: ring.without(lost), version=version, lost=lost
            )
        elif not self._hold(block, reply, self.header):
            # The ring is gone, or the filter was deleted and created again: look at the header.
            yield from self.open()
        elif _is_due(self.held[block].ring, reply):
            yield from self.change(block, Ring.advance)

    def grow(self, block: int, version: str) -> Operation[bool]:
        """Make room in a block that was full under ``version``; return whether to try again."""
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

    def _change_all(self, decide: Decide, *, quiet: bool = False) -> Operation[None]:
        header = yield from self.open()
        for block in random.sample(range(header.blocks), header.blocks):
            for _ in range(MAX_RACES):
                if (yield from self.change(block, decide, quiet=quiet)):
                    break
                if block not in self.held and block >= (yield from self.open()).blocks:
                    break  # the filter was created again, with fewer blocks
            else:
                raise self.unstable(MAX_RACES)


def _is_due(ring: Ring, reply: Reply) -> bool:
    return ring.advance(reply.now) is not ring
