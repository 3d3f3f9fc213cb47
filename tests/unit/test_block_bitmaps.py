"""What is told of blocks in memory: how many items they have, and whether they go together."""

import math
from dataclasses import replace

import pytest
from support.bits import Block

from scrapy_bloom.bloom.errors import FilterMismatchError
from scrapy_bloom.bloom.extras.block_bitmaps import (
    Contents,
    differences,
    estimated,
    repeats,
    shared,
    unlike,
)
from scrapy_bloom.bloom.model.generations import Config, Layer
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import SECONDS, Schedule, Span

DAY = 86_400
NOW = 20_000 * DAY
HEADER = Header("0" * 32, 1, (11, 222, 3_333, 44_444, 5, 60, 7_000, 80, 9, 1_000))
TWO_DAYS = Schedule(Span(2 * DAY, SECONDS), Span(DAY, SECONDS))


def block(
    header: Header = HEADER, capacity: int = 1_000, schedule: Schedule | None = None
) -> Block:
    return Block(Ring.fresh(header, Config(capacity, 1e-3, schedule), NOW))


def names(*numbers: range) -> list[str]:
    return [str(number) for each in numbers for number in each]


def test_what_is_in_all_generations_is_counted() -> None:
    one = block(schedule=TWO_DAYS)
    one.add(names(range(500)), NOW)
    one.go_on(NOW + DAY)
    one.add(names(range(500, 800)), NOW + DAY)
    assert estimated(one.contents) == pytest.approx(800, rel=0.02)


def test_where_all_generations_are_written_the_oldest_is_counted() -> None:
    one = block(replace(HEADER, order=WRITE_ALL), schedule=TWO_DAYS)
    one.add(names(range(500)), NOW)
    one.go_on(NOW + DAY)
    one.add(names(range(500, 800)), NOW + DAY)
    assert estimated(one.contents) == pytest.approx(800, rel=0.02)


def test_layers_of_one_size_in_a_generation_are_counted_as_one() -> None:
    """A union keeps them apart, and they may have the same items."""
    one, two = block(), block()
    one.add(names(range(900)), NOW)
    two.add(names(range(600, 1_500)), NOW)
    (layer,) = one.ring.layers
    further = replace(layer, index=1)
    (generation,) = one.ring.generations
    ring = replace(one.ring, generations=(replace(generation, layers=(layer, further)),))
    both = Contents(
        ring, {"0.0": 900, "0.1": 900}, {"0.0": one.bits["0.0"], "0.1": two.bits["0.0"]}
    )
    assert repeats(ring)
    assert not repeats(one.ring)
    assert estimated(both) == pytest.approx(1_500, rel=0.02)
    assert shared(both, one.contents) == pytest.approx(900, rel=0.03)


def test_a_saturated_block_has_infinitely_many() -> None:
    one = block()
    one.bits["0.0"] = (1 << one.ring.layers[0].num_bits) - 1
    assert estimated(one.contents) == math.inf


def test_what_two_blocks_share_is_found_in_whichever_generation_it_is() -> None:
    one, two = (block(schedule=TWO_DAYS) for _ in range(2))
    one.add(names(range(600)), NOW)
    for each in (one, two):
        each.go_on(NOW + DAY)
    one.add(names(range(600, 900)), NOW + DAY)
    two.add(names(range(400, 800)), NOW + DAY)
    assert shared(one.contents, two.contents) == pytest.approx(400, rel=0.05)
    assert shared(one.contents, block().contents) == 0


def test_of_layers_of_other_sizes_nothing_can_be_told() -> None:
    one, two = block(), block(capacity=2_000)
    one.add(["a"], NOW)
    assert shared(one.contents, two.contents) == 0  # nothing is in the second
    two.add(["b"], NOW)
    with pytest.raises(FilterMismatchError, match="none has grown"):
        shared(one.contents, two.contents)


def test_counters_are_counted_by_those_that_are_not_0() -> None:
    one, (layer,) = block(), block().ring.layers
    one.add(names(range(700)), NOW)
    nibbles = "".join(
        "3" if bit == "1" else "0" for bit in f"{one.bits['0.0']:0{8 * layer.memory}b}"
    )
    counting = Layer(0, 0, layer.num_bits, layer.capacity, counting=True)
    (generation,) = one.ring.generations
    ring = replace(
        one.ring,
        header=replace(HEADER, counting=True),
        generations=(replace(generation, layers=(counting,)),),
    )
    # A layer of counters may end within a byte of counters.
    bits = int(nibbles, 16) >> 4 * 8 * layer.memory - 8 * counting.memory
    contents = Contents(ring, {"0.0": 700}, {"0.0": bits})
    assert estimated(contents) == estimated(one.contents)
    assert shared(contents, contents) == pytest.approx(estimated(one.contents))


def test_filters_that_are_alike_go_together() -> None:
    one = block().ring
    other = replace(block(capacity=5).ring, header=replace(HEADER, id="1" * 32, fingerprinter="f"))
    assert unlike(one.header, other.header) == []
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"blocks": 2}, "the number of blocks (1 and 2)"),
        ({"seeds": HEADER.seeds[1:]}, "the number of seeds (10 and 9)"),
        ({"seeds": HEADER.seeds[::-1]}, "the seeds"),
        ({"fingerprinter": "b"}, "the fingerprinter (a and b)"),
        ({"counting": True}, "counting (False and True)"),
    ],
)
def test_what_places_items_differently_is_named(change: dict[str, object], text: str) -> None:
    one = replace(HEADER, fingerprinter="a")
    assert unlike(one, replace(one, **change)) == [text]  # type: ignore[arg-type]


def test_what_forgets_differently_is_named() -> None:
    one = block(schedule=TWO_DAYS).ring
    header = replace(HEADER, order=WRITE_ALL, stagger=True)
    assert differences(one, block(header).ring) == [
        "the ring order (write-newest and write-all)",
        "stagger (False and True)",
        "the window (2 days and never)",
        "the period (1 day and never)",
    ]
