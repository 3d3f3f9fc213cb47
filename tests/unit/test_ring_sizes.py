"""How large layers are, settings that no block can have, and what a larger capacity saves."""

from dataclasses import replace
from typing import Any

import pytest
from support.rings import DAY, HEADER, NOW, ORDERS, all_full, fresh, schedule

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.forecast import saved_by_capacity
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import MAX_GROWN_BITS, block_capacity


@pytest.mark.parametrize("growth", [1.1, 64])
@pytest.mark.parametrize("counting", [False, True])
def test_no_layer_is_added_above_32_mib(growth: float, counting: bool) -> None:
    config = Config(2_000_000 if counting else 8_000_000, 1e-6, growth=growth)
    ring = Ring.fresh(replace(HEADER, blocks=1, counting=counting), config, NOW)
    for _ in range(5):
        ring = ring.grow(NOW, all_full(ring))
    sizes = [8 * layer.memory for layer in ring.layers]
    assert max(sizes[1:]) == sizes[-1] == MAX_GROWN_BITS
    assert ring.error_bound <= 1e-6


@pytest.mark.parametrize("order", ORDERS)
def test_a_new_generation_is_as_large_as_the_one_it_replaces_had_to_be(order: str) -> None:
    """Else it would grow through the same layers again, each period."""
    ring = fresh(order, schedule=schedule(2 * DAY, DAY)).advance(NOW + DAY)
    rotated = ring.advance(NOW + 2 * DAY, {"0.0": 5_000})
    # With 4 leading bits, so that generations have sizes in common.
    assert rotated.active.layers[0].capacity == 5_120
    assert rotated.advance(NOW + 3 * DAY, {"1.0": 3}).active.layers == (
        replace(ring.active.layers[0], generation=3),
    )
    fixed = fresh(order, schedule=schedule(2 * DAY, DAY), growth=0).advance(NOW + DAY)
    assert fixed.advance(NOW + 2 * DAY, {"0.0": 5_000}).active.layers[0].num_bits == (
        fixed.layers[0].num_bits
    )


def test_a_capacity_that_memory_does_not_allow_is_refused() -> None:
    needed = 3 * 4 * fresh(schedule=schedule(3 * DAY, DAY)).memory
    message = f"`max_memory` = .* is less than the {needed:,} bytes .* in 3 generation"
    config: dict[str, Any] = {"schedule": schedule(3 * DAY, DAY), "max_memory": needed - 1}
    with pytest.raises(ConfigurationError, match=message):
        fresh(**config)
    assert fresh(**{**config, "max_memory": needed})


@pytest.mark.parametrize(
    ("config", "message"),
    [(Config(10**12, 1e-3), "512 MiB"), (Config(1_000, 1e-15), "contradict")],
)
def test_settings_that_are_impossible_are_refused_before_they_are_stored(
    config: Config, message: str
) -> None:
    """And not in the middle of a crawl, when a generation is to be made by them."""
    ring = Ring.fresh(replace(HEADER, seeds=(5, 7, 11)), Config(1_000, 1e-1), NOW)
    with pytest.raises(ConfigurationError, match=message):
        ring.reconfigure(config, NOW)


# -- what a larger capacity would save a filter that has grown --


def grown(times: int, capacity: int = 10_000) -> Ring:
    ring = Ring.fresh(HEADER, Config(capacity, 1e-5), NOW)
    for _ in range(times):
        ring = ring.grow(NOW, all_full(ring))
    return ring


@pytest.mark.parametrize("times", [1, 2, 5])
def test_the_capacity_has_room_for_all_and_takes_as_much_less_as_it_says(times: int) -> None:
    ring = grown(times)
    urls, saved = saved_by_capacity(ring)
    assert urls == 4 * sum(layer.capacity for layer in ring.layers)
    fitting = grown(0, capacity=urls)
    assert fitting.layers[0].capacity >= block_capacity(urls, 4)
    assert saved == 4 * (ring.memory - fitting.memory) > 0
    assert saved_by_capacity(fitting)[1] == 0
