"""Hashing: published vectors, golden vectors of the scheme, uniformity and independence."""

import pytest
from scipy import stats

from scrapy_bloom.bloom.model.hashing import (
    MAX_FIELD_BYTES,
    MAX_SEED,
    Hasher,
    draw_seeds,
    field_of,
    to_bytes,
)

#: Tests of randomness use fixed seeds; they fail below this p-value.
ALPHA = 1e-3
URLS = [f"https://example.com/item/{i}".encode() for i in range(50_000)]


def test_golden_vectors() -> None:
    """What stored filters have; a change here needs a new ``spec.FORMAT``."""
    hasher = Hasher(seeds=(5, 7, 11), blocks=16)
    golden = {
        b"": (7, [510812, 856779, 687698]),
        b"https://example.com/": (11, [652168, 266381, 118427]),
        bytes(20): (15, [600428, 497849, 127474]),
    }
    for item, expected in golden.items():
        assert (hasher.block(item), hasher.offsets(item, 1_000_003)) == expected


def test_blocks_and_offsets_are_uniform_and_independent() -> None:
    """Chi-square over 16 blocks, and per seed over 100 ranges of a layer.

    Then on the contingency table of block and offset residue. A block drawn from the hash of an
    offset fails this at once: with 16 blocks and a layer of 2**20 bits, residue and block would be
    the same number.
    """
    hasher = Hasher((0, 1, 5, 7, 11, 13, 61, MAX_SEED), 16)
    blocks = [hasher.block(url) for url in URLS]
    assert chi_square(blocks, 16) > ALPHA
    num_bits = 1_437_759
    by_url = [hasher.offsets(url, num_bits) for url in URLS]
    for of_seed in zip(*by_url, strict=True):
        assert chi_square([offset * 100 // num_bits for offset in of_seed], 100) > ALPHA
    tables = [[[0] * 16 for _ in range(16)] for _ in range(8)]
    for block, url in zip(blocks, URLS, strict=True):
        for table, offset in zip(tables, hasher.offsets(url, 1 << 20), strict=True):
            table[block][offset % 16] += 1
    for table in tables:
        assert stats.chi2_contingency(table).pvalue > ALPHA


def test_drawn_seeds_are_distinct_and_differ_each_time() -> None:
    first, second = draw_seeds(64), draw_seeds(64)
    assert len(set(first)) == 64
    assert all(0 <= seed <= MAX_SEED for seed in first)
    assert first != second


@pytest.mark.parametrize("item", [None, 1, bytearray(b"a"), memoryview(b"a")])
def test_other_items_are_type_errors(item: object) -> None:
    with pytest.raises(TypeError, match=f"not {type(item).__name__}"):
        to_bytes(item)  # type: ignore[arg-type]


def test_fields_of_claims_are_short_and_differ_as_fingerprints_do() -> None:
    items = [b"x" * size + end for size in (0, 20, 31, 32, 33, 500) for end in (b"y", b"z")]
    assert len({field_of(item) for item in items}) == len(items)
    assert max(len(field_of(item)) for item in items) <= 2 * MAX_FIELD_BYTES
    longest = bytes(range(MAX_FIELD_BYTES))
    assert field_of(longest) == longest.hex()


def chi_square(values: list[int], cells: int) -> float:
    counts = [0] * cells
    for value in values:
        counts[value] += 1
    return float(stats.chisquare(counts).pvalue)
