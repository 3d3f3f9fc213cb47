"""What a filter is and holds, in numbers that people and scripts can read. Pure."""

import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum, sqrt

from scrapy_bloom.bloom.model.forecast import Sizes, sizes
from scrapy_bloom.bloom.model.generations import (
    Counts,
    Generation,
    count_in,
    error_rate_of,
)
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.protocol.membership import contains
from scrapy_bloom.bloom.protocol.ring_store import Operation, Snapshot
from scrapy_bloom.bloom.protocol.session import FilterSession


@dataclass(frozen=True, slots=True)
class GenerationInfo:
    """The generations that the blocks opened for the same reason. Times are Unix seconds.

    Args:
        opened: when the first of them was opened.
        closes: when the period ends, in the last block; 0 for never, or with the next run.
        forgotten: when the last of them is forgotten; 0 for never, or with a run to come.
        run: number of the run in which they were opened, for windows in runs.
        layers: layers of the block that has most of them.
        capacity: items they take in all.
        count: items recorded in them.
        estimated_error_rate: share of absent items that test as present in them, at this count.
        memory: bytes of their bitmaps.
    """

    opened: int
    closes: int
    forgotten: int
    run: int
    layers: int
    capacity: int
    count: int
    estimated_error_rate: float
    memory: int

    @property
    def fill_ratio(self) -> float:
        """Items recorded as a share of those that fit in."""
        return self.count / self.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterInfo(Sizes):
    """What a filter is and holds, and what it is made with (``Sizes``).

    Args:
        key: its key prefix in Redis.
        has_configured_sizes: whether the active generations were made for that capacity and error
            rate. Else these hold from the next generation on, without a window the next layer.
        stagger: whether its blocks rotate one after the other.
        num_bits: bits of all its bitmaps; counters, if it has those.
        count: items remembered.
        estimated_error_rate: false-positive rate at this count.
        error_bound: false-positive rate when all layers are full. Above ``error_rate`` only while
            layers live that were made under other settings.
        claims: items that are claimed, and not recorded yet; those that failed included.
        memory: bytes of its bitmaps.
        lost_blocks: blocks this client found lost (evicted, deleted) and created again.
        generations: newest first.
        now: the server's clock, Unix time in seconds.
    """

    key: str
    has_configured_sizes: bool
    stagger: bool
    num_bits: int
    count: int
    estimated_error_rate: float
    error_bound: float
    claims: int
    memory: int
    lost_blocks: int
    generations: tuple[GenerationInfo, ...]
    now: int

    @property
    def bits_per_url(self) -> float:
        """Bits of bitmap per item, at this count or at capacity, whichever is more."""
        room = self.capacity if self.has_configured_sizes else self.generations[0].capacity
        return self.memory * 8 / max(self.count, room)


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """What a filter remembers of an item. Times are Unix seconds.

    Args:
        seen: whether it is remembered (or, at the error rate, wrongly seems so).
        recorded_after: when the generation that has it was opened, which is the earliest time at
            which it may have been recorded; 0 if none has it.
        until: when it is forgotten, and new again; 0 if that is not known.
        window: how long items are remembered; None for ever.
    """

    seen: bool
    recorded_after: int
    until: int
    window: str | None


def describe(
    key: str, snapshot: Snapshot, lost_blocks: int = 0, block: int | None = None
) -> FilterInfo:
    """Return what a filter is and holds, or one block of it."""
    chosen = [block] if block is not None else sorted(snapshot.rings)
    rings = [(snapshot.rings[number], snapshot.counts[number]) for number in chosen]
    header, config = snapshot.header, rings[0][0].config
    return FilterInfo(
        **sizes(header, config),
        key=key,
        has_configured_sizes=all(ring.has_configured_sizes for ring, _ in rings),
        stagger=header.stagger,
        num_bits=sum(layer.num_bits for ring, _ in rings for layer in ring.layers),
        count=sum(ring.count(counts) for ring, counts in rings),
        estimated_error_rate=_mean(ring.error_rate(counts) for ring, counts in rings),
        error_bound=max(ring.error_bound for ring, _ in rings),
        claims=sum(snapshot.claims[number] for number in chosen),
        memory=sum(ring.memory for ring, _ in rings),
        lost_blocks=lost_blocks,
        generations=_generations(rings),
        now=snapshot.now,
    )


def describe_item(ring: Ring, generation: Generation | None) -> ItemInfo:
    """Return what a ring remembers of an item that was found in a generation, or in none."""
    window = ring.config.window
    if generation is None:
        return ItemInfo(seen=False, recorded_after=0, until=0, window=window)
    return ItemInfo(True, generation.opened, ring.forgotten(generation), window)


def _generations(rings: Iterable[tuple[Ring, Counts]]) -> tuple[GenerationInfo, ...]:
    # By period, and within a period by what was opened later, early or by hand.
    rows: dict[tuple[int, int], list[tuple[Ring, Counts, Generation]]] = {}
    for ring, counts in rings:
        opened = Counter[int]()
        for generation in reversed(ring.generations):
            period = ring.period(generation)
            rows.setdefault((period, opened[period]), []).append((ring, counts, generation))
            opened[period] += 1
    return tuple(_generation(rows[row]) for row in sorted(rows, reverse=True))


def _generation(members: list[tuple[Ring, Counts, Generation]]) -> GenerationInfo:
    layers = [layer for _, _, generation in members for layer in generation.layers]
    return GenerationInfo(
        opened=min(generation.opened for _, _, generation in members),
        closes=max(ring.closes(generation) for ring, _, generation in members),
        forgotten=max(ring.forgotten(generation) for ring, _, generation in members),
        run=max(generation.run for _, _, generation in members),
        layers=max(len(generation.layers) for _, _, generation in members),
        capacity=sum(layer.capacity for layer in layers),
        count=sum(count_in(generation.layers, counts) for _, counts, generation in members),
        estimated_error_rate=_mean(
            error_rate_of(generation.layers, counts, len(ring.header.seeds))
            for ring, counts, generation in members
        ),
        memory=sum(layer.memory for layer in layers),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fsum(found) / len(found)


#: Bytes of a random item: as many as Scrapy's fingerprints have, too many to meet a recorded one.
ITEM_BYTES = 20
MAX_PROBES = 10**9
#: Standard deviations from the mean that 95% of a normal distribution are within.
Z = 1.959964


@dataclass(frozen=True, slots=True)
class Measurement:
    """How many random items a filter wrongly takes for seen.

    These items were never recorded, so the share that is "seen" is the chance that a new URL is
    hidden now.

    Args:
        probes: random items that were tested.
        seen: those of them that the filter said it had seen.
    """

    probes: int
    seen: int

    @property
    def rate(self) -> float:
        """The share that is seen: the false-positive rate, as measured."""
        return self.seen / self.probes

    @property
    def low(self) -> float:
        """Lower end of the rate's 95% confidence interval."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the rate's 95% confidence interval."""
        return self._interval[1]

    @property
    def _interval(self) -> tuple[float, float]:
        # Wilson's score interval, which also holds for none seen of many: E. B. Wilson, Probable
        # Inference, the Law of Succession, and Statistical Inference, 1927, JASA 22(158), 209-212,
        # doi:10.1080/01621459.1927.10502953.
        n, rate = self.probes, self.rate
        middle = rate + Z * Z / (2 * n)
        spread = Z * sqrt(rate * (1 - rate) / n + (Z / (2 * n)) ** 2)
        scale = 1 + Z * Z / n
        # At the ends rounding may miss 0, 1 and the rate itself.
        low, high = (middle - spread) / scale, (middle + spread) / scale
        return max(0.0, min(low, rate)), min(1.0, max(high, rate))


def probe(session: FilterSession, count: int) -> Operation[int]:
    """Test so many random items, and record nothing; return how many are seen."""
    items = [secrets.token_bytes(ITEM_BYTES) for _ in range(count)]
    return sum((yield from contains(session, items)))
