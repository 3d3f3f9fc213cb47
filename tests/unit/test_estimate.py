"""Estimates from set bits: against simulated bitmaps, at the edges, and their error."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.extras.estimate import (
    cardinality,
    overlap,
    places_in_use,
)


def standard_error(count: float, num_bits: int, num_hashes: int) -> float:
    """Return the standard deviation of the estimate: ``sqrt(m * (exp(c) - c - 1)) / k``.

    Source: K.-Y. Whang, B. T. Vander-Zanden, H. M. Taylor, A Linear-Time Probabilistic Counting
    Algorithm for Database Applications, ACM TODS 15(2), 1990, doi:10.1145/78922.78925, where values
    are counted by the bits that they set, one each: ``n`` items are ``k * n`` values.
    """
    load = num_hashes * count / num_bits
    return math.sqrt(num_bits * (math.expm1(load) - load)) / num_hashes


def fill(num_bits: int, num_hashes: int, items: range, seed: int = 0) -> set[int]:
    """Return the places that are set in a bitmap of so many items."""
    places = set[int]()
    for item in items:
        draw = random.Random(f"{seed} {item}")
        places.update(draw.randrange(num_bits) for _ in range(num_hashes))
    return places


def test_nothing_is_set_by_no_items() -> None:
    assert cardinality(0, 100, 7) == 0


@pytest.mark.parametrize("num_bits", [1, 2, 100])
def test_of_a_saturated_bitmap_nothing_can_be_told(num_bits: int) -> None:
    assert cardinality(num_bits, num_bits, 7) == math.inf
    assert cardinality(num_bits - 1, num_bits, 7) < math.inf


def test_the_estimate_is_that_of_swamidass_and_baldi() -> None:
    num_bits, num_hashes, ones = 1 << 20, 13, 1 << 19
    assert cardinality(ones, num_bits, num_hashes) == pytest.approx(
        -num_bits / num_hashes * math.log(1 - ones / num_bits), rel=1e-6
    )


def test_in_small_bitmaps_the_estimate_is_exact_where_the_usual_form_is_not() -> None:
    """The mean number of bits that are set, turned round, is the number of items."""
    num_bits, num_hashes, items = 25, 6, 3
    ones = num_bits * (1 - (1 - 1 / num_bits) ** (num_hashes * items))
    # Between the integers, as the formula is; the function takes them as they are.
    assert cardinality(ones, num_bits, num_hashes) == pytest.approx(items)  # type: ignore[arg-type]
    usual = -num_bits / num_hashes * math.log(1 - ones / num_bits)
    assert usual == pytest.approx(1.02 * items, rel=0.005)


@given(
    num_bits=st.integers(200, 5_000),
    num_hashes=st.integers(1, 20),
    share=st.floats(0.01, 0.95),
    seed=st.integers(),
)
def test_the_estimate_is_within_its_error_of_the_truth(
    num_bits: int, num_hashes: int, share: float, seed: int
) -> None:
    items = max(1, round(-num_bits / num_hashes * math.log1p(-share)))
    ones = len(fill(num_bits, num_hashes, range(items), seed))
    error = standard_error(items, num_bits, num_hashes)
    # Six standard errors; and a bit more or less is no error.
    assert cardinality(ones, num_bits, num_hashes) == pytest.approx(items, abs=6 * error + 1)


def test_the_standard_error_is_that_of_many_bitmaps() -> None:
    num_bits, num_hashes, items = 2_000, 5, 277  # half of the bits
    found = [
        cardinality(len(fill(num_bits, num_hashes, range(items), seed)), num_bits, num_hashes)
        for seed in range(300)
    ]
    assert statistics.mean(found) == pytest.approx(items, rel=0.01)
    expected = standard_error(items, num_bits, num_hashes)
    assert statistics.stdev(found) == pytest.approx(expected, rel=0.15)


def test_the_standard_error_of_a_million_bits_is_small() -> None:
    half = 1e6 / 18 * math.log(2)
    assert standard_error(half, 10**6, 18) / half == pytest.approx(0.0008, rel=0.01)
    assert standard_error(5 * half, 10**6, 18) / (5 * half) == pytest.approx(0.0015, rel=0.02)


@given(common=st.integers(0, 300), first=st.integers(0, 300), second=st.integers(0, 300))
def test_the_overlap_is_what_is_in_both(common: int, first: int, second: int) -> None:
    num_bits, num_hashes = 8_000, 6
    one = fill(num_bits, num_hashes, range(common + first))
    two = fill(num_bits, num_hashes, range(common)) | fill(
        num_bits, num_hashes, range(1_000, 1_000 + second)
    )
    found = overlap((len(one), len(two)), len(one | two), num_bits, num_hashes)
    error = standard_error(common + first + second, num_bits, num_hashes)
    assert found == pytest.approx(common, abs=8 * error + 1)


def test_an_overlap_may_be_below_nothing_by_chance() -> None:
    """Cut off in each block, the sum over blocks would be too large."""
    found = []
    for seed in range(200):
        one, two = (fill(500, 4, items, seed) for items in (range(80), range(100, 180)))
        found.append(overlap((len(one), len(two)), len(one | two), 500, 4))
    assert min(found) < 0 < max(found)
    assert statistics.mean(found) == pytest.approx(0, abs=2)


@given(st.binary(min_size=1, max_size=40))
def test_counters_in_use_are_those_that_are_not_0(data: bytes) -> None:
    expected = sum((byte >> 4 > 0) + (byte & 15 > 0) for byte in data)
    found = places_in_use(int.from_bytes(data, "big"), len(data))
    assert found.bit_count() == expected
    assert all(byte & ~0x11 == 0 for byte in found.to_bytes(len(data), "big"))
