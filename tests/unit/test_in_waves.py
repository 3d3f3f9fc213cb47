"""How what is sent together is divided."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.protocol.swaps import MAX_BYTES, MAX_CALLS, in_waves

#: Bytes of bitmaps: nothing, a few, and around the bound.
SIZES = st.sampled_from([0, 1, MAX_BYTES // 256, MAX_BYTES // 2, MAX_BYTES - 1, MAX_BYTES]) | (
    st.integers(0, 4 * MAX_BYTES)
)


def test_without_memory_the_calls_are_counted() -> None:
    assert list(in_waves([])) == []
    waves = list(in_waves(range(2 * MAX_CALLS + 1)))
    assert [len(wave) for wave in waves] == [MAX_CALLS, MAX_CALLS, 1]


@given(st.lists(SIZES, max_size=3 * MAX_CALLS))
def test_waves_are_as_large_as_they_may_be_and_no_larger(sizes: list[int]) -> None:
    waves = list(in_waves(sizes, lambda size: size))
    assert [size for wave in waves for size in wave] == sizes
    for wave in waves:
        assert 1 <= len(wave) <= MAX_CALLS
        assert len(wave) == 1 or sum(wave) <= MAX_BYTES
    for wave, following in pairwise(waves):
        assert len(wave) == MAX_CALLS or sum(wave) + following[0] > MAX_BYTES
