"""What is sent together, so that one round trip serves many blocks. Pure.

A server carries out what it has read of a client before it turns to the next one. So a wave is
small: it holds the server for a few milliseconds at most.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Calls of one wave at most: to read or swap a ring takes the server some 10 to 50 us.
MAX_CALLS = 256
#: Bytes of bitmaps that one wave allocates or deletes at most: 8 MiB are allocated in about 3 ms.
MAX_BYTES = 8 << 20


def in_waves(items: Iterable[T], memory: Callable[[T], int] = lambda _: 0) -> Iterator[list[T]]:
    """Divide items, of which each is one call, into waves.

    Args:
        items: the items.
        memory: returns the bytes of bitmaps that an item allocates or deletes. One of more than
            ``MAX_BYTES`` is a wave of its own.
    """
    wave, total = list[T](), 0
    for item in items:
        size = memory(item)
        if wave and (len(wave) == MAX_CALLS or total + size > MAX_BYTES):
            yield wave
            wave, total = [], 0
        wave.append(item)
        total += size
    if wave:
        yield wave
