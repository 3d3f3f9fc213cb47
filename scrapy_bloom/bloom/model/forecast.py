"""What a filter will take and do, before there is one: the formulas of ``sizing``. Pure."""

import math
from dataclasses import dataclass, replace
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.generations import Config, Counts
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, RUNS, Schedule, Span
from scrapy_bloom.bloom.model.sizing import any_of

#: Loads that are forecast, in sizes of the capacity.
FACTORS = (1, 2, 3)
#: Of a month on average.
_MONTH_SECONDS = 1461 * 86_400 / 48
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
        has_room: whether there is room for them; if not, generations are forgotten before their
            time, or URLs are not recorded.
    """

    urls: int
    generation_memory: int
    memory: int
    layers: int
    bits_per_url: float
    error_rate: float
    has_room: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a filter is made with.

    Args:
        capacity: URLs a new generation takes before it grows.
        capacity_in_all: URLs that all generations of the window take together before one grows, if
            all of them are made so.
        error_rate: the bound on its false-positive rate that was asked for.
        window: how long URLs are remembered; None for ever.
        period: how often it rotates; None for never.
        ring: order of its ring.
        counting: whether it has counters instead of bits, so that URLs can be discarded.
        growth: size of the next layer in sizes of the last one; 0 never grows.
        max_memory: bytes beyond which no layer is added; None for no limit.
        blocks: number of blocks.
        num_hashes: bits a URL sets in a layer.
    """

    capacity: int
    capacity_in_all: int
    error_rate: float
    window: str | None
    period: str | None
    ring: str
    counting: bool
    growth: float
    max_memory: int | None
    blocks: int
    num_hashes: int


def sizes(header: Header, config: Config) -> dict[str, Any]:
    """Return the fields of ``Sizes``."""
    return {
        "capacity": config.capacity,
        "capacity_in_all": config.capacity_in_all(header.order),
        "error_rate": config.error_rate,
        "window": config.window,
        "period": config.period,
        "ring": header.order,
        "counting": header.counting,
        "growth": config.growth,
        "max_memory": config.max_memory,
        "blocks": header.blocks,
        "num_hashes": len(header.seeds),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Sizes):
    """What a filter will take and do.

    Args:
        recrawl: when a page is crawled again, in words.
        generations: generations that live at once.
        num_bits: bits of a block's first bitmap; counters, if it has those.
        opened_memory: bytes of one generation as it is opened.
        missed_at_most: new URLs taken for seen in a window at capacity, if the error rate were at
            its bound from the first URL to the last.
        loads: at capacity, and beyond.
    """

    recrawl: str
    generations: int
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
        **sizes(header, config),
        recrawl=config.schedule.age if config.schedule else "never",
        generations=config.slots,
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
    share = max(1, round(urls / header.blocks))
    ring, counts, left = _filled(header, config, share)
    slots, tested, limit = config.slots, config.tested(header.order), config.max_memory
    generation, held = header.blocks * ring.memory, header.blocks * (share - left)
    memory = slots * generation
    return Load(
        urls=urls,
        generation_memory=generation,
        memory=memory if limit is None else min(memory, limit),
        layers=len(ring.layers),
        bits_per_url=8 * slots * generation / (tested * held),
        error_rate=any_of([ring.error_rate(counts)] * tested),
        has_room=not left and (limit is None or memory <= limit),
    )


def _filled(header: Header, config: Config, share: int) -> tuple[Ring, Counts, int]:
    """Return a block whose generation is given some URLs, and how many it has no room for."""
    ring, counts = Ring.fresh(header, config, _START, run="0"), dict[str, int]()
    left = share
    while True:
        (layer,) = ring.written
        counts[layer.name] = min(left, layer.capacity)
        left -= counts[layer.name]
        grown = ring.grow(_START, counts) if left else ring
        if grown is ring or grown.active.number > ring.active.number:
            break
        ring = grown
    return ring, counts, left


def urls_in_all(urls: int, new_a_month: int, schedule: Schedule | None) -> int:
    """Return the URLs of a site that are remembered at once, at most.

    Where nothing is forgotten, these are the new ones of a year.
    """
    return _after(urls, new_a_month, schedule.window if schedule else None)


def capacity_for(urls: int, new_a_month: int, wanted: Config, order: str) -> int:
    """Return the URLs a generation for a site, rounded up to two digits.

    A URL is in one generation, and so they share the URLs; under ``write-all`` it is in all. A
    filter that may not grow takes a first crawl, which puts the whole site into one generation.
    """
    needed = -(-urls_in_all(urls, new_a_month, wanted.schedule) // wanted.tested(order))
    if not wanted.growth:
        period = wanted.schedule.period if wanted.schedule else None
        needed = max(needed, _after(urls, new_a_month, period))
    step: int = 10 ** max(0, len(str(needed)) - 2)
    return max(1, -(-needed // step) * step)


def _after(urls: int, new_a_month: int, span: Span | None) -> int:
    """Return the URLs of a site after a span."""
    return urls + math.ceil(new_a_month * _months(span))


def _months(span: Span | None) -> float:
    """Return the months of a span, 0 for runs; a year where nothing is forgotten."""
    if span is None:
        return 12
    if span.unit == RUNS:
        return 0
    return span.count / 2 if span.unit == HALF_MONTHS else span.count / _MONTH_SECONDS


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
