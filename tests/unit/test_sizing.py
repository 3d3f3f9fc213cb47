"""Sizing: exact inversion, published values, and what users are told about a plan."""

import math
from decimal import Decimal, getcontext

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.sizing import (
    COMFORTABLE_BITMAP_BITS,
    MAX_BITMAP_BITS,
    MAX_GROWN_BITS,
    OVERFLOW_RISK,
    any_of,
    bitmap_capacity,
    bitmap_error_rate,
    block_capacity,
    default_blocks,
    plan,
    predicted_error_rate,
    required_bits,
)

capacities = st.integers(1, 10**9)
rates = st.floats(1e-12, 0.999999)
hash_counts = st.integers(1, 40)


@given(capacities, rates, hash_counts)
@example(1, 0.9, 1)
def test_required_bits_keep_the_rate_and_one_bit_less_does_not(n: int, p: float, k: int) -> None:
    bits = required_bits(n, p, k)
    assume(bits < 2**45)  # beyond, floats do not tell m from m - 1
    assert predicted_error_rate(n, bits, k) <= p
    if bits > 2:
        assert predicted_error_rate(n, bits - 2, k) > p * (1 - 1e-9)


@given(st.integers(1, 10**6), st.integers(2, 10**8), hash_counts)
def test_predicted_rate_is_exact(n: int, bits: int, k: int) -> None:
    """Against 60-digit arithmetic, where the naive formula would cancel."""
    getcontext().prec = 60
    exact = (1 - (1 - 1 / Decimal(bits)) ** (k * n)) ** k
    assert predicted_error_rate(n, bits, k) == pytest.approx(float(exact), rel=1e-11)


@given(st.integers(1, 10**7), st.floats(1e-9, 0.5), st.integers(1, 300), st.integers(1, 64))
def test_plan_keeps_the_error_rate(n: int, p: float, blocks: int, tested: int) -> None:
    """Of all generations that are tested; half of it is for bitmaps that may follow."""
    planned = plan(n, p, tested=tested, blocks=blocks)
    share = p / 2
    rate = predicted_error_rate(n / blocks, planned.num_bits, planned.num_hashes)
    assert any_of([rate] * tested) <= share * (1 + 1e-9)
    full = predicted_error_rate(planned.block_capacity, planned.num_bits, planned.num_hashes)
    assert full <= share / tested
    assert n / planned.blocks <= planned.block_capacity <= n


@pytest.mark.parametrize("blocks", [2, 4, 64, 16_384])
@pytest.mark.parametrize("urls", [100, 10_000, 10**6, 10**8])
def test_no_shard_is_full_before_the_filter_very_likely(urls: int, blocks: int) -> None:
    """By the exact probability: the number of URLs in a shard is binomial."""
    risk = stats.binom.sf(block_capacity(urls, blocks), urls, 1 / blocks)
    assert blocks * risk <= OVERFLOW_RISK


@given(st.integers(1, 10**9), st.floats(1e-9, 0.5))
def test_the_fewest_seeds_that_waste_little_are_taken(n: int, p: float) -> None:
    """Here within 2% of the best number of seeds, which is one of all."""
    taken = plan(n, p, blocks=1 if n < 10**6 else 1000).num_hashes
    best = min(range(1, 65), key=lambda k: required_bits(n, p / 2, k))
    most = 1.02 * required_bits(n, p / 2, best)
    assert required_bits(n, p / 2, taken) <= most
    assert taken == 1 or required_bits(n, p / 2, taken - 1) > most


def test_of_counters_more_blocks_are_taken_and_fewer_fit_in_one() -> None:
    bits, counters = (default_blocks(10**8, 1e-5, 17, width) for width in (1, 4))
    assert counters == 4 * bits
    assert 4 * plan(10**8, 1e-5, width=4).num_bits <= COMFORTABLE_BITMAP_BITS
    assert plan(10**8, 1e-5, blocks=1).num_bits <= MAX_BITMAP_BITS
    assert default_blocks(1_000_000, 1e-5, 17) == 4
    match = r"in 1 shards needs bitmaps of 1,\d\d\d MiB.*512 MiB. Set more `blocks`"
    with pytest.raises(ConfigurationError, match=match):
        plan(10**8, 1e-5, blocks=1, width=4)


# -- generations and bitmaps --


@given(st.floats(1e-12, 0.999), st.integers(1, 64), st.integers(1, 64))
def test_bitmaps_of_all_generations_share_one_error_rate(
    p: float, tested: int, bitmaps: int
) -> None:
    """However many bitmaps there are: the sum of their shares is what was asked for, at most."""
    rates = [bitmap_error_rate(p, tested, index) for index in range(bitmaps)]
    assert rates == sorted(rates, reverse=True)
    assert math.fsum(rates) * tested == pytest.approx(p * bitmaps / (bitmaps + 1))
    assert any_of(rates * tested) <= p


@given(st.integers(2, MAX_GROWN_BITS), st.floats(1e-9, 0.9), st.integers(1, 20))
def test_a_bitmap_of_a_given_size_keeps_its_rate(bits: int, p: float, k: int) -> None:
    n = bitmap_capacity(bits, p, k)
    assume(n > 1)  # it has to take one, whatever that costs
    assert predicted_error_rate(n, bits, k) <= p * (1 + 1e-9)


def test_chance_of_any() -> None:
    assert (any_of([]), any_of([0, 0]), any_of([1, 0.1])) == (0, 0, 1)
    assert any_of([0.5, 0.5]) == pytest.approx(0.75, rel=1e-12)
    assert any_of([1e-20]) == pytest.approx(1e-20, rel=1e-12)


def test_seeds_that_contradict_the_error_rate_of_a_bitmap_are_refused() -> None:
    """The more generations are tested, the less a bitmap may have, and the more seeds it needs."""
    assert plan(1_000_000, 1e-3, num_hashes=2)
    with pytest.raises(
        ConfigurationError, match=r"2 `seeds` .* 7.8125e-06 for each .* take about 17"
    ):
        plan(1_000_000, 1e-3, tested=64, num_hashes=2)
