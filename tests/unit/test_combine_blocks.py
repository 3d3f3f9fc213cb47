"""Blocks united, intersected and merged in memory, against exact sets that forget on time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bits import Block
from support.examples import examples

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.extras.combine_blocks import intersect, merge, unite, with_layers
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Config, Generation, Layer
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import RUNS, SECONDS, Schedule, Span

DAY = 86_400
NOW = 20_000 * DAY
HEADER = Header("0" * 32, 1, (11, 222, 3_333, 44_444, 5, 60, 7_000, 80, 9, 1_000, 123, 987, 31, 77))
RESULT = replace(HEADER, id="f" * 32)
THREE_DAYS = Schedule(Span(3 * DAY, SECONDS), Span(DAY, SECONDS))
#: So low that no test meets a false positive.
RATE = 1e-9
items = st.integers(0, 40).map(str)
#: What a filter takes in on each day; it is opened on the first.
histories = st.lists(st.lists(items, max_size=8), min_size=1, max_size=4)
orders = st.sampled_from([WRITE_NEWEST, WRITE_ALL])


def block(
    order: str = WRITE_NEWEST,
    schedule: Schedule | None = THREE_DAYS,
    *,
    capacity: int = 100,
    day: int = 0,
    growth: float = 2,
) -> Block:
    config = Config(capacity, RATE, schedule, growth)
    return Block(Ring.fresh(replace(HEADER, order=order), config, NOW + day * DAY))


def live(history: list[list[str]], until: int, *, order: str, capacity: int = 100) -> Block:
    """Return a filter that was used on the days before a day, and has come to that day."""
    made = block(order, capacity=capacity, day=until - len(history))
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


@given(first=histories, second=histories, order=orders)
def test_a_union_remembers_what_either_does_as_long_as_that_does(
    first: list[list[str]], second: list[list[str]], order: str
) -> None:
    one, two = (live(history, 10, order=order) for history in (first, second))
    made = Block.of(unite([one.contents, two.contents], replace(RESULT, order=order)))
    for day in range(10, 15):
        assert seen(made, day) == seen(one, day) | seen(two, day)


@given(first=histories, second=histories, third=histories, order=orders)
def test_an_intersection_remembers_what_all_do_as_long_as_they_do(
    first: list[list[str]], second: list[list[str]], third: list[list[str]], order: str
) -> None:
    blocks = [live(history, 10, order=order) for history in (first, second, third)]
    contents = [block.contents for block in blocks]
    made = Block.of(intersect(contents, replace(RESULT, order=order)))
    for day in range(10, 15):
        expected = set.intersection(*(seen(block, day) for block in blocks))
        assert seen(made, day) == expected


@given(first=histories, second=histories, order=orders, capacity=st.sampled_from([4, 100]))
def test_what_is_merged_is_remembered_at_least_as_long(
    first: list[list[str]], second: list[list[str]], order: str, capacity: int
) -> None:
    one, two = (live(history, 10, order=order, capacity=capacity) for history in (first, second))
    made = merged(one, two)
    for day in range(10, 15):
        both = seen(one, day) | seen(two, day)
        assert both <= seen(made, day) <= seen(one, 10) | seen(two, 10)
    assert seen(made, 13) == set()
    # Once is enough.
    todo = merge(made.contents, two.contents)
    assert not todo.further
    assert not todo.missing


def merged(one: Block, two: Block) -> Block:
    """Do what ``merge`` says."""
    todo = merge(one.contents, two.contents)
    own = todo.further
    made = Block.of(one.contents)
    made._take(with_layers(made.ring, todo.further))
    todo = merge(made.contents, two.contents, own)
    assert not todo.further
    for layer, (missing, more) in todo.missing.items():
        made.bits[layer.name] |= missing
        made.counts[layer.name] += more
    return made


@given(first=st.lists(items), second=st.lists(items))
def test_bits_of_a_union_are_those_of_a_filter_with_all_items(
    first: list[str], second: list[str]
) -> None:
    one, two, both = block(), block(), block()
    one.add(first, NOW)
    two.add(second, NOW)
    both.add([*first, *second], NOW)
    made = unite([one.contents, two.contents], RESULT)
    assert made.bits == both.bits
    assert [layer.num_bits for layer in made.ring.layers] == [both.ring.layers[0].num_bits]
    # Within what is known of both; the estimate of so few is nearly exact.
    least, most = max(one.counts["0.0"], two.counts["0.0"]), both.counts["0.0"]
    assert least <= made.counts["0.0"] <= one.counts["0.0"] + two.counts["0.0"]
    assert made.counts["0.0"] == pytest.approx(most, abs=3)


@given(first=st.sets(items), second=st.sets(items))
def test_bits_of_an_intersection_are_those_of_both(first: set[str], second: set[str]) -> None:
    one, two = block(), block()
    one.add(first, NOW)
    two.add(second, NOW)
    made = intersect([one.contents, two.contents], RESULT)
    assert made.bits == {"0.0": one.bits["0.0"] & two.bits["0.0"]}
    assert len(first & second) - 2 <= made.counts["0.0"] <= min(len(first), len(second))


def test_what_one_has_of_all_that_another_has_is_counted_exactly() -> None:
    one, two = block(), block()
    one.add(map(str, range(50)), NOW)
    two.add(map(str, range(30)), NOW)
    assert intersect([one.contents, two.contents], RESULT).counts == {"0.0": 30}


def test_bitmaps_without_room_for_each_other_stay_apart() -> None:
    one, two = block(capacity=20), block(capacity=20)
    one.add(map(str, range(20)), NOW)
    two.add(map(str, range(20, 32)), NOW)
    made = unite([one.contents, two.contents], RESULT)
    assert sorted(made.counts.values()) == [12, 20]
    # Last is the one that will be written: the one with room.
    assert made.counts[made.ring.active.layers[-1].name] == 12
    bound = made.ring.error_rate(made.counts)
    assert bound <= one.ring.error_rate(one.counts) + two.ring.error_rate(two.counts)


def test_what_is_in_full_bitmaps_alike_is_joined() -> None:
    one = block(capacity=20)
    one.add(map(str, range(20)), NOW)
    made = unite([one.contents, one.with_id(1).contents], RESULT)
    assert made.counts == {"0.0": 20}


def test_saturated_bitmaps_count_as_what_was_counted() -> None:
    one, two = block(capacity=20), block(capacity=20)
    bits = one.ring.layers[0].num_bits
    one.bits["0.0"], one.counts["0.0"] = (1 << bits) - 1, 20
    two.add(["a"], NOW)
    made = unite([one.contents, two.contents], RESULT)
    assert made.counts == {"0.0": 20}  # all of the second is in the first


def test_layers_of_other_sizes_are_taken_over() -> None:
    one, two = block(capacity=20), block(capacity=50)
    one.add(map(str, range(10)), NOW)
    two.add(map(str, range(5, 30)), NOW)
    made = Block.of(unite([one.contents, two.contents], RESULT))
    assert {str(item) for item in range(41) if str(item) in made} == set(map(str, range(30)))
    assert len(made.ring.layers) == 2


def test_layers_of_other_sizes_cannot_be_intersected() -> None:
    one, two = block(capacity=20), block(capacity=50)
    one.add(["a"], NOW)
    two.add(["a"], NOW)
    with pytest.raises(FilterMismatchError, match=r"layers of [\d,]+ and of [\d,]+ bits"):
        intersect([one.contents, two.contents], RESULT)


def test_empty_layers_of_other_sizes_have_nothing_in_common() -> None:
    one, two = block(capacity=20), block(capacity=50)
    one.add(["a"], NOW)
    made = Block.of(intersect([one.contents, two.contents], RESULT))
    assert "a" not in made
    assert made.ring.layers[0].num_bits == one.ring.layers[0].num_bits


def test_a_result_has_the_configuration_of_the_first_and_its_own_header() -> None:
    one, two = block(capacity=20), block(capacity=50)
    made = unite([one.contents, two.contents], RESULT)
    assert made.ring.header == RESULT
    assert made.ring.config == one.ring.config
    assert ring_codec.parse(ring_codec.dump(made.ring)) == made.ring


def test_generations_opened_by_hand_in_one_period_become_one() -> None:
    one = block()
    one.add(["a"], NOW)
    one._take(one.ring.rotate(NOW))
    one.add(["b"], NOW)
    made = unite([one.contents, block().contents], RESULT)
    assert len(made.ring.generations) == 1
    assert "a" in Block.of(made)
    assert "b" in Block.of(made)


@pytest.mark.parametrize("order", [WRITE_NEWEST, WRITE_ALL])
def test_runs_are_counted_from_the_current_one(order: str) -> None:
    """Each filter numbers the runs that it was shown; they are united by how long ago they were."""
    schedule = Schedule(Span(2, RUNS), Span(1, RUNS))
    one, two = (block(order, schedule) for _ in range(2))
    for run in ("r1", "r2", "r3"):
        one.go_on(NOW, run)
        one.add([f"one {run}"], NOW)
    two.go_on(NOW, "r2")
    two.add(["two r2"], NOW)
    two.go_on(NOW, "r3")
    for blocks in ([one, two], [two, one]):
        made = Block.of(unite([b.contents for b in blocks], replace(RESULT, order=order)))
        assert made.ring.run == 3
        assert made.ring.runs[:2] == ("r3", "r2")
        assert all(item in made for item in ("one r2", "one r3", "two r2"))
        made.go_on(NOW, "r4")
        assert "one r3" in made
        assert "two r2" not in made
        assert "one r2" not in made
        assert ring_codec.parse(ring_codec.dump(made.ring)) == made.ring


def test_too_many_layers_are_refused() -> None:
    one = block(capacity=5)
    one.add(map(str, range(5)), NOW)
    others = []
    for number in range(65):
        other = block(capacity=5)
        other.add([f"{number} {item}" for item in range(5)], NOW)
        others.append(other.contents)
    with pytest.raises(ConfigurationError, match="a block would have 6[56] layers"):
        unite([one.contents, *others], RESULT)


def test_what_comes_from_the_future_goes_to_the_active_generation() -> None:
    """A server's clock is ahead of the other's."""
    one, two = block(), block(day=2)
    two.add(["a"], NOW + 2 * DAY)
    assert "a" in merged(one, two)


def test_further_layers_come_last_in_their_generations() -> None:
    one = block()
    one.go_on(NOW + DAY)
    further = (Layer(0, 1, 100, 5), Layer(1, 1, 200, 6))
    ring = with_layers(one.ring, further)
    assert [generation.layers[-1] for generation in ring.generations] == [further[1], further[0]]
    assert with_layers(one.ring, ()) == one.ring


def test_a_layer_that_was_added_for_it_has_room_for_a_merge() -> None:
    """Others may have written to it meanwhile: a full bitmap goes there all the same."""
    one, two = block(capacity=20), block(capacity=20)
    one.add(map(str, range(20)), NOW)
    two.add(map(str, range(20, 40)), NOW)
    todo = merge(one.contents, two.contents)
    (further,) = todo.further
    one._take(with_layers(one.ring, todo.further))
    one.add(["another"], NOW)
    assert merge(one.contents, two.contents).further
    again = merge(one.contents, two.contents, {further})
    assert not again.further
    assert list(again.missing) == [further]


@examples(25)
@given(histories, st.integers(0, 3))
def test_a_union_of_unions_is_valid(history: list[list[str]], times: int) -> None:
    one = live(history, 10, order=WRITE_NEWEST, capacity=4)
    made = one.contents
    for _ in range(times):
        made = unite([made, one.contents], RESULT)
    assert seen(Block.of(made), 10) == seen(one, 10)
    assert isinstance(made.ring.active, Generation)
    assert ring_codec.parse(ring_codec.dump(made.ring)) == made.ring
