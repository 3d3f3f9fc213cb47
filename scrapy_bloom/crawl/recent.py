"""What one process was told or has taken lately, to be consulted while nobody can be asked."""

from array import array

#: Items remembered at least; up to twice as many.
CAPACITY = 200_000


class Recent:
    """A set that forgets what was put in long ago, in 8 MB.

    It holds 64-bit hashes, keyed anew in each process: of a million items, one is taken for another
    with a probability of 1e-7.

    Args:
        capacity: items it holds at least before it forgets any.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._young, self._old = _Table(capacity), _Table(0)

    def add(self, item: bytes) -> None:
        """Put an item in."""
        self._young.add(hash(item))
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, _Table(self._capacity)

    def __contains__(self, item: bytes) -> bool:
        return hash(item) in self._young or hash(item) in self._old


class _Table:
    """A hash table of 64-bit numbers with linear probing, at most half full.

    Python's set takes 70 bytes a number, this 16 to 32.

    Args:
        capacity: numbers it takes.
    """

    def __init__(self, capacity: int) -> None:
        size = max(2, 1 << (2 * capacity).bit_length())
        self._mask = size - 1
        self._slots = array("Q", bytes(8 * size))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, number: int) -> None:
        slot, entry = self._find(number)
        self._length += not self._slots[slot]
        self._slots[slot] = entry

    def __contains__(self, number: int) -> bool:
        slot, entry = self._find(number)
        return self._slots[slot] == entry

    def _find(self, number: int) -> tuple[int, int]:
        """Return the slot that a number is in, or would be in, and what stands for it there."""
        entry = number & 0xFFFF_FFFF_FFFF_FFFF or 1  # 0 is an empty slot
        slots, mask = self._slots, self._mask
        slot = entry & mask
        while slots[slot] not in (0, entry):
            slot = slot + 1 & mask
        return slot, entry
