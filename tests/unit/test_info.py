"""What is told about a filter: sums over blocks, grouped by period, with all times in view."""

from dataclasses import replace

import pytest

from scrapy_bloom.bloom.model.generations import Config, Counts
from scrapy_bloom.bloom.model.header import WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import SECONDS, Schedule, Span
from scrapy_bloom.bloom.model.sizing import predicted_error_rate
from scrapy_bloom.bloom.protocol.info import describe, describe_item
from scrapy_bloom.bloom.protocol.ring_store import Snapshot

DAY = 86_400
NOW = 20_000 * DAY
HEADER = Header("0" * 32, 2, tuple(range(1, 11)))
THREE_DAYS = Schedule(Span(3 * DAY, SECONDS), Span(DAY, SECONDS))


def filter_of(
    order: str = WRITE_NEWEST, schedule: Schedule | None = THREE_DAYS, *, stagger: bool = False
) -> list[Ring]:
    """Return the rings of two blocks, a day old."""
    header = replace(HEADER, order=order, stagger=stagger)
    config = Config(1_000, 1e-3, schedule)
    return [Ring.fresh(header, config, NOW, block=block) for block in range(2)]


def snapshot(rings: list[Ring], counts: list[Counts], now: int = NOW) -> Snapshot:
    return Snapshot(
        header=rings[0].header,
        rings=dict(enumerate(rings)),
        counts=dict(zip(range(len(rings)), counts, strict=False)),
        claims={block: block + 1 for block in range(len(rings))},
        now=now,
    )


def test_a_filter_is_the_sum_of_its_blocks() -> None:
    rings = filter_of()
    info = describe("k", snapshot(rings, [{"0.0": 10}, {"0.0": 20}]), lost_blocks=4)
    assert (info.key, info.count, info.blocks, info.lost_blocks) == ("k", 30, 2, 4)
    assert (info.window, info.period, info.ring) == ("3 days", "1 day", WRITE_NEWEST)
    assert (info.growth, info.max_memory, info.stagger) == (2, None, False)
    assert info.memory == sum(ring.memory for ring in rings)
    assert info.num_bits == sum(layer.num_bits for ring in rings for layer in ring.layers)
    assert info.bits_per_url == info.memory * 8 / 1_000
    assert info.claims == 1 + 2
    assert info.now == NOW
    rates = [predicted_error_rate(n, rings[0].layers[0].num_bits, 10) for n in (10, 20)]
    assert info.estimated_error_rate == pytest.approx(sum(rates) / 2)
    assert info.error_bound == rings[0].error_bound
    assert not info.counting


def test_generations_are_told_newest_first_with_their_times() -> None:
    rings = [ring.advance(NOW + DAY) for ring in filter_of()]
    info = describe("k", snapshot(rings, [{"0.0": 10, "1.0": 1}, {"0.0": 20, "1.0": 2}]))
    newest, oldest = info.generations
    times = [(g.opened - NOW, g.closes - NOW, g.forgotten - NOW) for g in (newest, oldest)]
    assert times == [(DAY, 2 * DAY, 4 * DAY), (0, DAY, 3 * DAY)]
    assert (newest.count, oldest.count, info.count) == (3, 30, 33)
    assert oldest.capacity == sum(ring.layers[-1].capacity for ring in rings)
    assert oldest.fill_ratio == 30 / oldest.capacity
    assert oldest.memory + newest.memory == info.memory


def test_generations_of_one_period_are_told_apart_by_the_order_they_were_opened_in() -> None:
    """A block that has rotated early has two; the first of all blocks stand together."""
    first, second = filter_of()
    counts = {"0.0": 300, "1.0": 200}
    info = describe("k", snapshot([first.rotate(NOW), second], [counts, {"0.0": 100}]))
    later, earlier = info.generations
    assert (later.layers, later.count) == (1, 200)
    assert (earlier.layers, earlier.count) == (1, 400)
    bits = first.layers[0].num_bits
    rates = [predicted_error_rate(count, bits, 10) for count in (300, 100, 200)]
    assert earlier.estimated_error_rate == pytest.approx(sum(rates[:2]) / 2)
    assert later.estimated_error_rate == pytest.approx(rates[2])


def test_an_item_is_told_by_the_generation_that_has_it() -> None:
    ring = filter_of()[0].advance(NOW + DAY)
    found = describe_item(ring, ring.generations[1])
    assert (found.seen, found.recorded_after, found.until) == (True, NOW, NOW + 3 * DAY)
    missing = describe_item(ring, None)
    assert (missing.seen, missing.recorded_after, missing.until) == (False, 0, 0)
    assert found.window == missing.window == "3 days"
