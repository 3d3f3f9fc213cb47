"""What one process was told or has taken lately, to be consulted while nobody can be asked."""

#: Items remembered at least; up to twice as many, at about 70 bytes each.
CAPACITY = 200_000


class Recent:
    """A set that forgets what was put in long ago.

    It holds 64-bit hashes, keyed anew in each process: of a million items, one is taken for another
    with a probability of 1e-7.

    Args:
        capacity: items it holds at least before it forgets any.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._young: set[int] = set()
        self._old: set[int] = set()

    def add(self, item: bytes) -> None:
        """Put an item in."""
        self._young.add(hash(item))
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, set()

    def __contains__(self, item: bytes) -> bool:
        return hash(item) in self._young or hash(item) in self._old
