"""When a block forgets where clocks or settings change; see also redis/test_rotation_model.py."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.rings import DAY, HOUR, NOW, ORDERS, all_full, fresh, numbers, schedule

from scrapy_bloom.bloom.model.header import WRITE_ALL
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS


def test_a_clock_that_goes_back_a_little_changes_nothing() -> None:
    """After a failover, say: to the period before, but not beyond."""
    ring = fresh(schedule=schedule(3 * DAY, DAY)).advance(NOW + DAY)
    start = NOW + DAY - (NOW + DAY) % DAY
    assert ring.active.number == 1
    for now in (start, start - 1, start - DAY):
        assert ring.advance(now) is ring
    assert ring.advance(start - DAY - 1) is not ring


@pytest.mark.parametrize("order", ORDERS)
def test_after_a_clock_that_went_far_back_nothing_is_remembered_for_longer(order: str) -> None:
    """What was opened in the future counts as opened now."""
    ring = fresh(order, schedule=schedule(3 * DAY, DAY)).advance(NOW + DAY).advance(NOW + 2 * DAY)
    earlier = NOW - 30 * DAY
    back = ring.advance(earlier)
    assert back.layers == ring.layers
    assert {generation.opened for generation in back.generations} == {earlier}
    assert back.ends == earlier - earlier % DAY + DAY
    assert back.advance(earlier + 3 * DAY).layers == (back.advance(earlier + 3 * DAY).active.layers)


@pytest.mark.parametrize("change", [Ring.rotate, Ring.grow])
def test_a_rotation_that_comes_a_moment_too_late_forgets_what_is_due(
    change: Callable[..., Ring],
) -> None:
    """A ring was up to date when it was asked for a rotation, and a period ended just then."""
    ring = fresh(growth=0, schedule=schedule(2 * DAY, DAY)).advance(NOW + DAY)
    rotated = change(ring, NOW + 2 * DAY, all_full(ring))
    assert numbers(rotated) == [2, 1]
    later = change(ring, NOW + 4 * DAY, all_full(ring))
    assert numbers(later) == [2]
    assert later.advance(NOW + 4 * DAY) is later


def test_a_filter_that_gets_a_window_forgets_nothing_before_its_time() -> None:
    """It has taken in URLs until now, whenever it was opened."""
    ring = fresh()
    later = NOW + 400 * DAY
    ring = ring.reconfigure(replace(ring.config, schedule=schedule(10, 2, HALF_MONTHS)), later)
    (generation,) = ring.generations
    assert generation.opened == NOW
    assert ring.closes(generation) > later
    assert ring.forgotten(generation) >= later + 4 * 28 * DAY
    assert numbers(ring.advance(ring.forgotten(generation) - 1)) == [1, 0]
    assert numbers(ring.advance(ring.forgotten(generation))) == [1]


def test_a_longer_period_forgets_nothing_of_the_window() -> None:
    """The generations made before it do not count against the number of the new ones."""
    ring = fresh(schedule=schedule(6 * DAY, DAY))
    start = ring.closes(ring.active) // (2 * DAY) * 2 * DAY
    for day in range(1, 6):
        ring = ring.advance(start + day * DAY)
    now = start + 5 * DAY + HOUR
    changed = ring.reconfigure(replace(ring.config, schedule=schedule(6 * DAY, 2 * DAY)), now)
    assert numbers(changed) == numbers(ring)
    for before, after in zip(ring.generations[1:], changed.generations[1:], strict=True):
        last_write = ring.closes(before) - 1
        assert last_write + 4 * DAY <= changed.forgotten(after) <= last_write + 6 * DAY + 1


def test_what_a_lost_layer_of_an_older_generation_takes_with_it() -> None:
    """Where all are written, its generation: it would not know what the younger ones know."""
    ring = fresh(schedule=schedule(2 * DAY, DAY))
    ring = ring.grow(NOW, all_full(ring)).advance(NOW + DAY)
    assert [layer.name for layer in ring.without({"0.0"}).layers] == ["1.0", "0.1"]
    assert [layer.name for layer in ring.without({"0.0", "0.1"}).layers] == ["1.0"]
    ring = fresh(WRITE_ALL, schedule=schedule(3 * DAY, DAY))
    ring = ring.grow(NOW, all_full(ring)).rotate(NOW).rotate(NOW)
    assert numbers(ring.without({"0.0"})) == [2, 1]
    assert numbers(ring.without({"0.1", "1.0"})) == [2]
