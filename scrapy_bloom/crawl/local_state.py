"""What one process was told lately, so that it need not ask again: the local cache of answers."""

import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

#: Seconds after its block's last answer that an entry counts: how late a rotation, or a ``clear``
#: by somebody else, may be noticed.
FRESH = 5.0
#: Slots that an item may be in.
WAYS = 2

#: A window, and a block of its filter.
Place = tuple[str, int]


@dataclass(slots=True)
class _KnownBlock:
    """What is known of a block.

    Args:
        version: nonce of the ring that it answered under.
        ends: when that ring ends, on the local clock.
        answered: when it was last asked and answered.
        salt: is hashed with its items. Drawn anew, it makes all entries of the block void.
    """

    version: str
    ends: float
    answered: float
    salt: int = field(default_factory=lambda: random.getrandbits(62))


class Known:
    """A cache of items that are seen, of fixed size: 8 bytes an entry.

    An entry is a 64-bit hash, salted anew for each ring and keyed anew in each process, in one of
    two slots, where later ones push out earlier ones: of a million lookups, one is wrong with a
    probability of 1e-13. Entries are good until their ring ends, and for ``FRESH`` seconds after
    their block last answered under the same ring.

    Args:
        capacity: entries, 0 for none.
        forget_after: seconds without an answer after which all entries of a block are void.
        clock: returns seconds.
    """

    def __init__(
        self, capacity: int, forget_after: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sets = -(-capacity // WAYS)
        self._slots = array("Q", bytes(8 * WAYS * self._sets))
        self._forget_after = forget_after
        self._clock = clock
        self._blocks: dict[Place, _KnownBlock] = {}

    def answered(self, place: Place, version: str, ends: float, asked: float) -> None:
        """Take note that a block has answered.

        Args:
            place: the block.
            version: nonce of the ring it answered under.
            ends: when that ring ends, on the local clock.
            asked: when it was asked.
        """
        block = self._blocks.get(place)
        if block is None or block.version != version or asked - block.answered > self._forget_after:
            self._blocks[place] = _KnownBlock(version, ends, asked)
        elif asked > block.answered:
            block.answered = asked

    def add(self, place: Place, item: bytes) -> None:
        """Put in an item of a block that has answered."""
        block = self._blocks.get(place)
        if block is None or not self._sets:
            return
        start, entry = self._find(block, item)
        slots = self._slots
        if slots[start] != entry:
            slots[start + 1] = slots[start]
            slots[start] = entry

    def is_seen(self, place: Place, item: bytes) -> bool:
        """Whether an item is known to be seen."""
        block = self._blocks.get(place)
        if block is None or not self._sets:
            return False
        start, entry = self._find(block, item)
        if entry not in self._slots[start : start + WAYS]:
            return False
        now = self._clock()
        return now < block.ends and now - block.answered <= FRESH

    def discard(self, place: Place, item: bytes) -> None:
        """Forget an item."""
        block = self._blocks.get(place)
        if block is None or not self._sets:
            return
        start, entry = self._find(block, item)
        for slot in range(start, start + WAYS):
            if self._slots[slot] == entry:
                self._slots[slot] = 0

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def _find(self, block: _KnownBlock, item: bytes) -> tuple[int, int]:
        """Return the first of an item's slots, and its entry."""
        entry = hash((block.salt, item)) & 0xFFFF_FFFF_FFFF_FFFF
        return entry % self._sets * WAYS, entry
