"""What a filter will take and do, before there is one: the formulas of ``sizing``. Pure."""

from dataclasses import dataclass, replace

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.generations import Config, lost_by_discard_from, saturated_in
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.sizing import any_of

#: Loads that are forecast, in sizes of the capacity.
FACTORS = (1, 2, 3)
#: When the filter is created: any time.
_START = 1_800_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """A filter each of whose generations is given the same number of URLs, evenly spread.

    Args:
        urls: new URLs a generation.
        generation_memory: bytes of one generation's bitmaps.
        memory: bytes of all bitmaps at most.
        layers: layers of a block's generation.
        bits_per_url: bits per URL remembered, when all generations are full.
        error_rate: false-positive rate then.
        lost_by_discard: URLs that one discard of an absent URL makes unseen, as expected then; 0
            without counters.
        saturated: counters that are saturated then, as expected.
        forgets_early: whether generations are forgotten before their time for want of room.
        unrecorded: URLs of one period that there is no room for.
    """

    urls: int
    generation_memory: int
    memory: int
    layers: int
    bits_per_url: float
    error_rate: float
    lost_by_discard: float
    saturated: float
    forgets_early: bool
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
    first = Ring.fresh(header, config, _START, run="0").active.layers[0]
    return Forecast(
        capacity=config.capacity,
        error_rate=config.error_rate,
        window=config.window,
        period=config.period,
        recrawl=recrawl(config.schedule),
        ring=header.order,
        counting=header.counting,
        growth=config.growth,
        max_memory=config.max_memory,
        generations=config.slots,
        blocks=header.blocks,
        num_hashes=len(header.seeds),
        num_bits=first.num_bits,
        opened_memory=header.blocks * first.memory,
        missed_at_most=config.error_rate * config.capacity * config.tested(header.order),
        loads=tuple(load(header, config, factor * config.capacity) for factor in FACTORS),
    )


def load(header: Header, config: Config, urls: int) -> Load:
    """Forecast a filter each of whose generations is given so many URLs.

    Raises:
        ConfigurationError: it is impossible.
    """
    ring, counts = Ring.fresh(header, config, _START, run="0"), dict[str, int]()
    share = left = max(1, round(urls / header.blocks))
    while True:
        (layer,) = ring.written
        counts[layer.name] = min(left, layer.capacity)
        left -= counts[layer.name]
        grown = ring.grow(_START, counts) if left else ring
        if grown is ring or grown.active.number > ring.active.number:
            break
        ring = grown
    slots, tested, limit = config.slots, config.tested(header.order), config.max_memory
    generation, held = header.blocks * ring.memory, header.blocks * (share - left)
    memory, k = slots * generation, len(header.seeds)
    return Load(
        urls=urls,
        generation_memory=generation,
        memory=memory if limit is None else min(memory, limit),
        layers=len(ring.layers),
        bits_per_url=8 * slots * generation / (tested * held),
        error_rate=any_of([ring.error_rate(counts)] * tested),
        lost_by_discard=slots * lost_by_discard_from(ring.layers, counts, k),
        saturated=slots * header.blocks * saturated_in(ring.layers, counts, k),
        forgets_early=slots > 1 and (left > 0 or (limit is not None and memory > limit)),
        unrecorded=header.blocks * max(0, share - slots * (share - left)),
    )


def saved_by_capacity(ring: Ring) -> tuple[int, int]:
    """Return a capacity with room for all that a generation takes now, and what it would save.

    Returns:
        The URLs that the layers of the active generation take in all blocks, and the bytes of a
        generation that one layer of that capacity takes less than they do; 0 if it is impossible.
    """
    blocks, layers = ring.header.blocks, ring.active.layers
    urls = blocks * sum(layer.capacity for layer in layers)
    try:
        first = Ring.fresh(ring.header, replace(ring.config, capacity=urls), _START, run="0")
    except ConfigurationError:
        return urls, 0
    return urls, max(0, blocks * (sum(layer.memory for layer in layers) - first.memory))


def recrawl(schedule: Schedule | None) -> str:
    """Say when a page is crawled again after it was seen."""
    if schedule is None:
        return "never"
    if schedule.counts_runs or schedule.window != schedule.period:
        return schedule.age
    return (
        f"{schedule.age}, and at once if the filter rotates in between: set `period` to a part of "
        "the window to have it remembered longer"
    )
