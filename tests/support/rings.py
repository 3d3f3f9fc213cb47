"""Rings of four blocks, and what tests ask of them."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scrapy_bloom.bloom.model.generations import (
    Config,
    Counts,
)
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.ring import (
    Ring,
)
from scrapy_bloom.bloom.model.schedule import (
    SECONDS,
    Schedule,
    Span,
)

NOW = 1_700_000_000
HOUR, DAY, YEAR = 3600, 86_400, 366 * 86_400
SEEDS = tuple(range(1, 21))
HEADER = Header("0" * 32, 4, SEEDS)
ORDERS = [WRITE_NEWEST, WRITE_ALL]


def schedule(window: int, period: int, unit: str = SECONDS) -> Schedule:
    return Schedule(Span(window, unit), Span(period, unit))


def fresh(order: str = WRITE_NEWEST, now: int = NOW, **config: Any) -> Ring:
    config = {"capacity": 1_000, "error_rate": 1e-3, **config}
    return Ring.fresh(replace(HEADER, order=order), Config(**config), now)


def all_full(ring: Ring) -> Counts:
    return {layer.name: layer.capacity for layer in ring.layers}


def numbers(ring: Ring) -> list[int]:
    return [generation.number for generation in ring.generations]


headers = st.builds(
    Header,
    id=st.just("0" * 32),
    blocks=st.sampled_from([1, 4]),
    seeds=st.just(SEEDS),
    order=st.sampled_from(ORDERS),
    stagger=st.booleans(),
)
# A counting filter writes the newest generation only.
headers |= st.builds(replace, st.just(HEADER), stagger=st.booleans(), counting=st.just(True))
