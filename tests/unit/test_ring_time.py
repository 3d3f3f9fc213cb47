"""When a block forgets: against sets for each period, and where clocks or settings change."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.rings import (
    DAY,
    HOUR,
    NOW,
    ORDERS,
    YEAR,
    all_full,
    fresh,
    headers,
    numbers,
    schedule,
)

from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS

timed = st.builds(
    lambda header, config, times: (header, config, times),
    headers,
    st.builds(
        Config,
        capacity=st.just(100),
        error_rate=st.just(1e-3),
        schedule=st.sampled_from(
            [
                schedule(12, 2, HALF_MONTHS),
                schedule(48, 24, HALF_MONTHS),
                schedule(7, 1),
                schedule(DAY, DAY),
            ]
        ),
        growth=st.sampled_from([0, 2]),
    ),
    st.lists(st.integers(0, 3) | st.integers(0, 3 * YEAR), min_size=1, max_size=20),
)


@examples(300)
@given(timed, st.integers(0, 3))
def test_a_url_is_forgotten_exactly_g_periods_after_the_one_it_was_seen_in(
    drawn: tuple[Header, Config, list[int]], block: int
) -> None:
    """Against sets, one for each period: URLs of period p are new again in period p + G.

    The time of every step also is the name of a URL, which is claimed, and claimed again later.
    """
    header, config, gaps = drawn
    block %= header.blocks
    part = (block, header.blocks) if header.stagger else (0, 1)
    assert config.schedule is not None
    now = 20 * YEAR
    ring = Ring.fresh(header, config, now, block=block)
    held: dict[str, set[int]] = {}
    seen_in: dict[int, int] = {}
    for gap in gaps:
        now += gap
        period = config.schedule.index(now, *part)
        ring = ring.advance(now)
        held = {layer.name: held.get(layer.name, set()) for layer in ring.layers}
        remembered = set().union(*(held[layer.name] for layer in ring.tested))
        assert remembered == {u for u, p in seen_in.items() if period < p + config.slots}
        assert ring.ends == config.schedule.start(period + 1, *part) > now
        for url in (now, 20 * YEAR):
            if url not in remembered:
                seen_in[url] = period
                for layer in ring.written:
                    held[layer.name].add(url)
    for generation in ring.generations:
        period = config.schedule.index(generation.dated, *part)
        assert ring.forgotten(generation) == config.schedule.start(period + config.slots, *part)


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
