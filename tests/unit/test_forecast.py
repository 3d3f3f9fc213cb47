"""What a larger capacity would save a filter that has grown."""

import pytest

from scrapy_bloom.bloom.model.forecast import saved_by_capacity
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import block_capacity

NOW = 1_800_000_000


def grown(times: int, capacity: int = 10_000) -> Ring:
    ring = Ring.fresh(Header("id", 4, tuple(range(1, 18))), Config(capacity, 1e-5), NOW)
    for _ in range(times):
        ring = ring.grow(NOW, {layer.name: layer.capacity for layer in ring.layers})
    return ring


@pytest.mark.parametrize("times", [1, 2, 5])
def test_the_capacity_has_room_for_all_and_takes_as_much_less_as_it_says(times: int) -> None:
    ring = grown(times)
    urls, saved = saved_by_capacity(ring)
    assert urls == 4 * sum(layer.capacity for layer in ring.layers)
    fitting = grown(0, capacity=urls)
    assert fitting.layers[0].capacity >= block_capacity(urls, 4)
    assert saved == 4 * (ring.memory - fitting.memory) > 0


def test_a_filter_that_has_not_grown_saves_nothing() -> None:
    assert saved_by_capacity(grown(0))[1] == 0
