"""Blocks in memory: how many items they have, and what comes of several, against exact sets."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bits import Block

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.extras.bitmaps import (
    Contents,
    cardinality,
    estimated,
    intersect,
    merge,
    shared,
    unite,
)
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import SECONDS, Schedule, Span

DAY = 86_400
NOW = 20_000 * DAY
SEEDS = (11, 222, 3_333, 44_444, 5, 60, 7_000, 80, 9, 1_000, 123, 987, 31, 77)
HEADER = Header("0" * 32, 1, SEEDS)
TWO_DAYS = Schedule(Span(2 * DAY, SECONDS), Span(DAY, SECONDS))
THREE_DAYS = Schedule(Span(3 * DAY, SECONDS), Span(DAY, SECONDS))
items = st.integers(0, 40).map(str)
#: What a filter takes in on each day, the last of which is today.
histories = st.lists(st.lists(items, max_size=8), min_size=1, max_size=4)


def block(
    capacity: int = 100,
    schedule: Schedule | None = None,
    *,
    rate: float = 1e-9,
    order: str = WRITE_NEWEST,
    day: int = 0,
) -> Block:
    """Return an empty block; with its rate, no test meets a false positive."""
    header = replace(HEADER, order=order)
    return Block(Ring.fresh(header, Config(capacity, rate, schedule), NOW + day * DAY))


def filled(numbers: range, capacity: int = 100) -> Block:
    made = block(capacity)
    made.add(map(str, numbers), NOW)
    return made


def live(history: list[list[str]], until: int) -> Block:
    """Return a filter that was used on the days before a day, and has come to that day."""
    made = block(schedule=THREE_DAYS, day=until - len(history))
    for day, new in enumerate(history, until - len(history)):
        made.go_on(NOW + day * DAY)
        made.add(new, NOW + day * DAY)
    made.go_on(NOW + until * DAY)
    return made


def seen(block: Block, day: int) -> set[str]:
    """Return the items that are remembered on a later day."""
    later = Block.of(block.contents)
    later.go_on(NOW + day * DAY)
    return {str(item) for item in range(41) if str(item) in later}


# -- estimates --


def test_the_estimate_is_that_of_swamidass_and_baldi_and_exact_in_small_bitmaps() -> None:
    num_bits, num_hashes, ones = 1 << 20, 13, 1 << 19
    assert cardinality(0, num_bits, num_hashes) == 0
    usual = -num_bits / num_hashes * math.log(1 - ones / num_bits)
    assert cardinality(ones, num_bits, num_hashes) == pytest.approx(usual, rel=1e-6)
    # The mean number of bits that are set, turned round, is the number of items.
    mean: int = 25 * (1 - (1 - 1 / 25) ** (6 * 3))  # type: ignore[assignment]
    assert cardinality(mean, 25, 6) == pytest.approx(3)
    assert cardinality(num_bits, num_bits, 7) == math.inf
    assert cardinality(num_bits - 1, num_bits, 7) < math.inf


@pytest.mark.parametrize("order", [WRITE_NEWEST, WRITE_ALL])
def test_what_is_in_all_generations_is_counted_once(order: str) -> None:
    one = block(1_000, TWO_DAYS, rate=1e-3, order=order)
    one.add(map(str, range(500)), NOW)
    one.go_on(NOW + DAY)
    one.add(map(str, range(500, 800)), NOW + DAY)
    assert estimated(one.contents) == pytest.approx(800, rel=0.02)


def test_what_two_blocks_share_is_found_in_whichever_generation_it_is() -> None:
    one, two = (block(1_000, TWO_DAYS, rate=1e-3) for _ in range(2))
    one.add(map(str, range(600)), NOW)
    for each in (one, two):
        each.go_on(NOW + DAY)
    one.add(map(str, range(600, 900)), NOW + DAY)
    two.add(map(str, range(400, 800)), NOW + DAY)
    assert shared(one.contents, two.contents) == pytest.approx(400, rel=0.05)


def test_of_layers_of_other_sizes_nothing_can_be_told() -> None:
    one, two = block(), block(capacity=200)
    one.add(["a"], NOW)
    assert shared(one.contents, two.contents) == 0  # nothing is in the second
    two.add(["b"], NOW)
    with pytest.raises(FilterMismatchError, match="none has grown"):
        shared(one.contents, two.contents)


def test_counters_are_counted_by_those_that_are_not_0() -> None:
    one = filled(range(70))
    (layer,) = one.ring.layers
    nibbles = "".join(
        "3" if bit == "1" else "0" for bit in f"{one.bits['0.0']:0{8 * layer.memory}b}"
    )
    ring = Ring.fresh(replace(HEADER, counting=True), one.ring.config, NOW)
    (counting,) = ring.layers
    # A layer of counters may end within a byte of counters.
    bits = int(nibbles, 16) >> 4 * 8 * layer.memory - 8 * counting.memory
    contents = Contents(ring, {"0.0": 70}, {"0.0": bits})
    assert estimated(contents) == estimated(one.contents)
    assert shared(contents, contents) == pytest.approx(estimated(one.contents))


# -- unions --


@given(first=histories, second=histories)
def test_a_union_remembers_what_either_does_as_long_as_that_does(
    first: list[list[str]], second: list[list[str]]
) -> None:
    """What is merged into one in use is remembered for at least as long."""
    one, two = (live(history, 10) for history in (first, second))
    made, merged = Block.of(unite([one.contents, two.contents])), Block.of(one.contents)
    for layer, count, bits, _ in merge(merged.contents, two.contents):
        merged.bits[layer.name], merged.counts[layer.name] = bits, count
    again = {layer.name: bits for layer, _, bits, _ in merge(merged.contents, two.contents)}
    assert merged.bits == merged.bits | again, "once is enough"
    for day in (10, 11, 12, 14):
        both = seen(one, day) | seen(two, day)
        assert seen(made, day) == both
        assert both <= seen(merged, day) <= seen(one, 10) | seen(two, 10)
    assert seen(merged, 13) == set()
    assert ring_codec.parse(ring_codec.dump(made.ring)) == made.ring


def test_generations_that_were_opened_by_hand_stay_apart() -> None:
    """Each but the last of a period counts for one before."""
    one, other = block(schedule=THREE_DAYS), block(schedule=THREE_DAYS)
    one.add(["a"], NOW)
    one._take(one.ring.rotate(NOW))
    one.add(["b"], NOW)
    other.add(["c"], NOW)
    made = Block.of(unite([other.contents, one.contents]))
    assert [len(generation.layers) for generation in made.ring.generations] == [1, 1]
    for day, expected in ((0, "abc"), (1, "abc"), (2, "bc"), (3, "")):
        made.go_on(NOW + day * DAY)
        assert "".join(item for item in "abc" if item in made) == expected


def test_what_has_no_room_for_all_items_and_bitmaps_of_other_sizes_are_refused() -> None:
    """Two full bitmaps in one have many times their error rate."""
    one, two = filled(range(20), capacity=20), filled(range(20, 35), capacity=20)
    other, grown = filled(range(5), capacity=50), filled(range(40), capacity=20)
    sizes = r"bitmaps of [\d,]+ and of [\d,+ ]+ bits"
    for make in (lambda *blocks: unite([*blocks]), merge):
        match = r"about 3\d items in a bitmap that takes 2\d: .*`capacity`"
        with pytest.raises(ConfigurationError, match=match):
            make(one.contents, two.contents)
        for unlike in (other, grown):
            with pytest.raises(FilterMismatchError, match=sizes):
                make(filled(range(5), capacity=20).contents, unlike.contents)


# -- intersections --


@given(first=st.sets(items), second=st.sets(items), third=st.sets(items))
def test_an_intersection_has_what_all_have(
    first: set[str], second: set[str], third: set[str]
) -> None:
    blocks = [block() for _ in range(3)]
    for each, new in zip(blocks, (first, second, third), strict=True):
        each.add(new, NOW)
    made = intersect([each.contents for each in blocks])
    assert seen(Block.of(made), 0) == first & second & third
    one, two, three = (each.bits["0.0"] for each in blocks)
    assert made.bits == {"0.0": one & two & three}
    assert len(first & second & third) - 2 <= made.counts["0.0"]
    assert made.counts["0.0"] <= min(len(first), len(second), len(third))


def test_only_filters_of_one_bitmap_a_block_are_intersected() -> None:
    one, rotated = live([["a"]], 10), live([["a"], ["b"]], 10)
    fresh = block(schedule=THREE_DAYS, day=10)
    for other in (one, rotated):
        with pytest.raises(FilterMismatchError, match="has [23] bitmaps, of generations of its"):
            intersect([fresh.contents, other.contents])
    with pytest.raises(FilterMismatchError, match="or because it has grown"):
        intersect([filled(range(5), 20).contents, filled(range(40), 20).contents])
    with pytest.raises(FilterMismatchError, match=r"bitmaps of [\d,]+ and of [\d,]+ bits"):
        intersect([filled(range(5), 20).contents, filled(range(5), 50).contents])
