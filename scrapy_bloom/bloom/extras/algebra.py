"""Uses filters as sets: counts the items in one or in two, and makes filters of others.

Generations are named by the calendar, so those of two filters that belong together have one name.
"""

from collections.abc import Callable
from functools import partial, reduce
from math import inf, log1p
from operator import and_, or_

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.extras.bitmaps import (
    check_equal,
    install,
    read_from,
    rings_of,
    spans,
)
from scrapy_bloom.bloom.model.bitmap import Bitmap
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.session import Session


def estimate(ones: int, num_bits: int, num_hashes: int) -> float:
    """Return how many items set so many bits, most likely; infinity if no bit is left at 0.

    A bit stays 0 with probability ``(1 - 1/m) ** (k * n)``, so ``n`` is ``ln(1 - X/m) /
    (k * ln(1 - 1/m))``.

    Source: S. J. Swamidass, P. Baldi, J. Chem. Inf. Model. 47(3), 2007, in its exact form.
    """
    if ones >= num_bits:
        return inf
    return log1p(-ones / num_bits) / (num_hashes * log1p(-1 / num_bits))


def cardinality(*sessions: Session) -> Operation[float]:
    """Estimate how many items filters remember together, by their bits.

    Raises:
        FilterMismatchError: they have different geometries.
        StorageError: all bits of a bitmap are set, so nothing can be said.
    """
    rings = yield from _read(sessions, tested=True)
    read, total = read_from(sessions, partial(_merged, or_)), 0.0
    k = len(sessions[0].known.seeds)
    for ring in rings:
        for bitmap in ring.bitmaps:
            ones = 0
            for start, size in spans(bitmap):
                chunk = yield from read(ring, bitmap, start, size)
                ones += _ones(chunk, bitmap)
            total += estimate(ones, bitmap.bits, k)
    if total == inf:
        raise StorageError("All bits of a bitmap are set, so its items can't be estimated")
    return total


def combine(sessions: tuple[Session, ...], target: Session, *, shared: bool) -> Operation[None]:
    """Create a filter with the items of others.

    Args:
        sessions: of the others.
        target: of the new one, whose key must be free.
        shared: whether it gets only what all of them have, and perhaps bits of others.

    Raises:
        FilterMismatchError: they have different geometries.
        ConfigurationError: the key is in use, or a filter doesn't exist.
    """
    rings = yield from _read(sessions)
    spec = sessions[0].known
    taken = {(ring.window, ring.block): ring.counts for ring in rings}

    def count(ring: Ring, bitmap: Bitmap, ones: int) -> int:
        if len(sessions) == 1:
            return taken[ring.window, ring.block].get(bitmap.name, 0)
        guess = estimate(ones, bitmap.bits, len(spec.seeds))
        return bitmap.capacity if guess == inf else round(guess)

    merge = partial(_merged, and_ if shared else or_)
    yield from install(target, spec, rings, read_from(sessions, merge), count)


def _read(sessions: tuple[Session, ...], *, tested: bool = False) -> Operation[list[Ring]]:
    """Return the rings that filters have together: each bitmap that is in any of them."""
    found: list[list[Ring]] = []
    for session in sessions:
        found.append((yield from rings_of(session, tested=tested)))
        if len(found) > 1:
            check_equal(sessions[0], session, [found[0], found[-1]])
    joined: dict[tuple[str, int], Ring] = {}
    for ring in (ring for own in found for ring in own):
        place = ring.window, ring.block
        if place in joined:
            bitmaps = {bitmap.name: bitmap for bitmap in (*ring.bitmaps, *joined[place].bitmaps)}
            joined[place] = ring.with_bitmaps(bitmaps.values())
        else:
            joined[place] = ring
    return sorted(joined.values(), key=lambda ring: -ring.block)


def _ones(chunk: bytes, bitmap: Bitmap) -> int:
    """Return how many bits, or counters, of a chunk aren't 0."""
    if bitmap.width == 1:
        return int.from_bytes(chunk, "little").bit_count()
    return sum((byte > 15) + (byte & 15 > 0) for byte in chunk)


def _merged(merge: Callable[[int, int], int], chunks: list[bytes]) -> bytes:
    bits = reduce(merge, [int.from_bytes(chunk, "little") for chunk in chunks])
    return bits.to_bytes(len(chunks[0]), "little")
