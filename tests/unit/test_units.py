"""Numbers as people write them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.validators import BYTES, COUNTS, SHARES, TIMES, read_number


@given(st.integers(0, 10**12), st.sampled_from(sorted(COUNTS)), st.sampled_from(["", " "]))
def test_a_whole_number_of_a_unit_is_exact(number: int, word: str, space: str) -> None:
    assert read_number(f"{number}{space}{word.upper()}", COUNTS) == number * COUNTS[word]


@given(st.integers(0, 10**9))
def test_thousands_may_be_apart(number: int) -> None:
    assert read_number(f"{number:,}", {}) == read_number(f"{number:_}", {}) == number


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_a_fraction_is_exact_too(whole: int, thousandths: int) -> None:
    expected = 1_000 * whole + thousandths
    assert read_number(f"{whole}.{thousandths:03}k", COUNTS) == expected
    assert read_number(f"{whole}.{thousandths:03}%", SHARES) == float(Fraction(expected, 100_000))


def test_memory_is_in_thousands_or_in_powers_of_two_and_times_in_seconds() -> None:
    sizes = {"1kB": 1000, "1KiB": 1024, "2G": 2 * 10**9, "2GiB": 2**31, "7B": 7}
    assert {text: read_number(text, BYTES) for text in sizes} == sizes
    times = {"500ms": 0.5, "2 s": 2, "1.5 minutes": 90, "1 hour": 3600}
    assert {text: read_number(text, TIMES) for text in times} == times


@pytest.mark.parametrize(
    "text", ["", "k", "1kk", "-1", "1e6k", "1.k", ".5", "1,5", "1,00,000", "1 2", "9" * 41, "٣"]
)
def test_anything_else_is_no_number(text: str) -> None:
    assert read_number(text, COUNTS) is None
