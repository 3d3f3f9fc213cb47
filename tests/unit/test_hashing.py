"""Hashing: golden vectors of the scheme. ``test_error_rate.py`` measures how good it is."""

import pytest

from scrapy_bloom.bloom.model.hashing import (
    MAX_FIELD_BYTES,
    MAX_SEED,
    Hasher,
    draw_seeds,
    field_of,
    to_bytes,
)


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
