"""What a filter will take and do, before there is one. Pure.

One block is filled as a crawl would fill it, through the same rings (``Ring.grow``, ``advance``):
what is predicted here is what happens, whatever the order of the ring, its growth and its limits.
"""

from collections import Counter
from dataclasses import dataclass
from math import fsum

from scrapy_bloom.core.generations import Config
from scrapy_bloom.core.header import WRITE_ALL, Header
from scrapy_bloom.core.ring import Ring
from scrapy_bloom.core.schedule import RUNS, Schedule, Span
from scrapy_bloom.core.sizing import any_of, predicted_error_rate

#: Loads that are forecast, in sizes of the capacity.
FACTORS = (1, 2, 10)
#: Any time; the simulated filter is created then.
_START = 1_800_000_000
#: Intervals of Simpson's rule for each layer that fills up. Rates rise like the 17th power or so.
_INTERVALS = 32


@dataclass(frozen=True, slots=True)
class Load:
    """A filter that is given so many times the URLs it is made for.

    Args:
        factor: how many times.
        urls: new URLs in a window, or ever if it has none.
        generation_memory: bytes of the largest generation's bitmaps.
        memory: bytes of all bitmaps at most.
        bits_per_url: bits per URL remembered, when the last generation of the first window is full.
        error_rate: highest false-positive rate.
        lost_by_discard: URLs that one discard of an absent URL makes unseen, as expected then; 0
            without counters.
        saturated: counters that are saturated then, as expected.
        missed_first: new URLs taken for seen in the first window, as an expected value.
        missed: the same in each later window; None if there is no other.
        rotates_early: whether generations are forgotten before their time for want of room.
        unrecorded: URLs of the first window that there is no room for.
    """

    factor: int
    urls: int
    generation_memory: int
    memory: int
    bits_per_url: float
    error_rate: float
    lost_by_discard: float
    saturated: float
    missed_first: float
    missed: float | None
    rotates_early: bool
    unrecorded: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a filter will take and do.

    Args:
        capacity: URLs a generation takes before it grows.
        error_rate: bound on the false-positive rate.
        window: how long URLs are remembered; None for ever.
        period: how often the filter rotates; None for never.
        recrawl: when a page is crawled again, in words.
        ring: order of the ring.
        counting: whether there are counters instead of bits, so that URLs can be discarded.
        growth: size of the next layer in sizes of the last one; 0 never grows.
        max_memory: bytes beyond which no layer is added; None for no limit.
        generations: generations that live at once.
        blocks: number of blocks.
        num_hashes: bits a URL sets in a layer.
        num_bits: bits of a block's first bitmap; counters, if it has those.
        opened_memory: bytes of one generation as it is opened.
        missed_at_most: new URLs taken for seen in a window at capacity, if the error rate were at
            its bound from the first URL to the last.
        loads: at capacity, and beyond.
    """

    capacity: int
    error_rate: float
    window: str | None
    period: str | None
    recrawl: str
    ring: str
    counting: bool
    growth: float
    max_memory: int | None
    generations: int
    blocks: int
    num_hashes: int
    num_bits: int
    opened_memory: int
    missed_at_most: float
    loads: tuple[Load, ...]


def forecast(header: Header, config: Config) -> Forecast:
    """Forecast a filter.

    Raises:
        ConfigurationError: it is impossible.
    """
    ring = Ring.fresh(header, config, _START, run="0")
    first, schedule = ring.active.layers[0], config.schedule
    loads = tuple(_load(ring, factor) for factor in FACTORS)
    return Forecast(
        capacity=config.capacity,
        error_rate=config.error_rate,
        window=config.window,
        period=config.period,
        recrawl=recrawl(schedule),
        ring=header.order,
        counting=header.counting,
        growth=config.growth,
        max_memory=config.max_memory,
        generations=config.slots,
        blocks=header.blocks,
        num_hashes=len(header.seeds),
        num_bits=first.num_bits,
        opened_memory=header.blocks * first.memory,
        missed_at_most=config.error_rate * loads[0].urls,
        loads=loads,
    )


@dataclass(frozen=True, slots=True)
class Fill:
    """A new filter that is given URLs at once.

    Args:
        memory: bytes of its bitmaps then.
        layers: layers of a block.
        unrecorded: URLs that there is no room for.
    """

    memory: int
    layers: int
    unrecorded: int


def fill(header: Header, config: Config, urls: int) -> Fill:
    """Forecast a filter that is given so many URLs in its first period.

    Raises:
        ConfigurationError: it is impossible.
    """
    block = _Block(Ring.fresh(header, config, _START, run="0"))
    block.fill(max(1, round(urls / header.blocks)))
    layers = sum(len(generation.layers) for generation in block.ring.generations)
    return Fill(header.blocks * block.ring.memory, layers, header.blocks * block.unrecorded)


def recrawl(schedule: Schedule | None) -> str:
    """Say when a page is crawled again after it was seen."""
    if schedule is None:
        return "never"
    window, period = schedule.window, schedule.period
    if period.unit == RUNS:
        earliest = window.count - period.count + 1
        return f"{window} later" if period.count == 1 else f"{earliest} to {window} later"
    if window == period:
        return (
            f"at most {window} later, and at once if the filter rotates in between: set "
            "BLOOM_ROTATE_EVERY to a part of the window to have it remembered longer"
        )
    return f"between {Span(window.count - period.count, window.unit)} and {window} later"


class _Block:
    """A block that is filled. URLs that are taken for seen are as rare as promised: all count."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.now = _START
        self.counts: Counter[str] = Counter()
        self.missed = self.rate = self.lost = self.saturated = 0.0
        self.unrecorded = self.memory = self.generation_memory = 0
        self.rotated_early = False

    def fill(self, urls: int) -> None:
        """Record new URLs, and make room for them as a crawl does."""
        while True:
            room = min(layer.capacity - self.counts[layer.name] for layer in self.ring.written)
            self._record(min(urls, room))
            urls -= min(urls, room)
            if not urls:
                return
            grown = self.ring.grow(self.now, self.counts)
            if grown is self.ring:
                self.unrecorded += urls
                self.missed += urls * self.rate
                return
            self.rotated_early |= grown.active.number > self.ring.active.number
            self.ring = grown

    def next_period(self, number: int) -> None:
        """Go to the next period: at its time, or with the next run."""
        self.now = self.ring.closes(self.ring.active) or self.now
        self.ring = self.ring.advance(self.now, self.counts, str(number))

    def _record(self, urls: int) -> None:
        self.missed += self._missed(urls)
        for layer in self.ring.written:
            self.counts[layer.name] += urls
        self.rate = max(self.rate, self.ring.error_rate(self.counts))
        self.lost = max(self.lost, self.ring.lost_by_discard(self.counts))
        self.saturated = max(self.saturated, self.ring.saturated(self.counts))
        self.memory = max(self.memory, self.ring.memory)
        generations = self.ring.generations
        sizes = [sum(layer.memory for layer in generation.layers) for generation in generations]
        self.generation_memory = max(self.generation_memory, *sizes)

    def _missed(self, urls: int) -> float:
        """Integrate the false-positive rate over URLs that are about to be recorded."""
        k = len(self.ring.header.seeds)
        written = [layer for layer in self.ring.written if layer in self.ring.tested]
        others = any_of(
            predicted_error_rate(self.counts[layer.name], layer.num_bits, k)
            for layer in self.ring.tested
            if layer not in written
        )

        def rate(recorded: float) -> float:
            rates = (
                predicted_error_rate(self.counts[layer.name] + recorded, layer.num_bits, k)
                for layer in written
            )
            return any_of([others, *rates])

        rates = [rate(urls * step / _INTERVALS) for step in range(_INTERVALS + 1)]
        simpson = rates[0] + 4 * fsum(rates[1::2]) + 2 * fsum(rates[2:-1:2]) + rates[-1]
        return simpson * urls / (3 * _INTERVALS)


def _load(ring: Ring, factor: int) -> Load:
    """Fill two windows; in the second one the older generations are full from the start."""
    config, header = ring.config, ring.header
    slots = config.slots
    # Under "write-all" a generation collects the URLs of a whole window.
    urls = factor * config.capacity * (1 if header.order == WRITE_ALL else slots)
    share = max(1, round(urls / slots / header.blocks))
    block = _Block(ring)
    _fill_window(block, share, 0)
    first, held, unrecorded = block.missed, block.ring.count(block.counts), block.unrecorded
    memory = block.ring.memory
    if config.schedule:
        _fill_window(block, share, slots)
    scale = urls / slots / share
    return Load(
        factor=factor,
        urls=urls,
        generation_memory=header.blocks * block.generation_memory,
        memory=header.blocks * block.memory,
        bits_per_url=8 * header.blocks * memory / (scale * held),
        error_rate=block.rate,
        lost_by_discard=block.lost,
        saturated=header.blocks * block.saturated,
        missed_first=first * scale,
        missed=(block.missed - first) * scale if config.schedule else None,
        rotates_early=block.rotated_early,
        unrecorded=round(unrecorded * scale),
    )


def _fill_window(block: _Block, share: int, number: int) -> None:
    for period in range(number, number + block.ring.config.slots):
        if period:
            block.next_period(period)
        block.fill(share)
