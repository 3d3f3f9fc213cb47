"""The ledger's model: chunks are read back or refused, pages are due once they are forgotten."""

import bz2
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rings import DAY, NOW, fresh, schedule

from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import LedgerEntry

requests = st.text(st.characters(exclude_characters="\n"), min_size=1)
#: Of a server's client that decodes what is no UTF-8.
odd_requests = st.text(
    st.characters(exclude_characters="\n", categories=None), min_size=1, max_size=20
)
tags = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


# -- chunks --


@given(st.lists(requests | odd_requests, min_size=1))
def test_packed_requests_are_read_back(texts: list[str]) -> None:
    assert ledger.unpack(ledger.pack(texts)) == sorted(texts)


@given(st.lists(requests, min_size=1), st.data())
def test_a_chunk_that_is_cut_off_or_has_a_damaged_byte_is_refused_or_the_same(
    texts: list[str], data: st.DataObject
) -> None:
    chunk = bytearray(ledger.pack(texts))
    place = data.draw(st.integers(0, len(chunk) - 1))
    with pytest.raises(ValueError, match="chunk"):
        ledger.unpack(bytes(chunk[:place]))
    chunk[place] ^= data.draw(st.integers(1, 255))
    try:
        found = ledger.unpack(bytes(chunk))
    except ValueError:
        return
    assert found == sorted(texts)  # a flag of the first bytes, which nothing depends on


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    bomb = bz2.compress(bytes(16 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"takes more than 655,360 bytes"):
            ledger.unpack(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# -- entries --


@given(st.integers(0, 10**12 - 1), tags, requests)
def test_an_entry_is_read_as_it_is_written(time: int, tag: str, request: str) -> None:
    text = f"{time} {tag} {request}"
    assert LedgerEntry.parse(text) == LedgerEntry(time, tag, request)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 shop", "1 shop ", " shop {}", "-1 shop {}", "1.5 shop {}"),
        *("1  {}", "1 sh\u00f6p {}", "\u0661 shop {}", "1 shop {}\n", "1 shop {\n}", "\n1 shop {}"),
        *(f"{10**12} shop {{}}", f"1 {'x' * 61} {{}}"),
    ],
)
def test_a_damaged_entry_is_none(text: str) -> None:
    assert LedgerEntry.parse(text) is None


# -- what is packed --


def test_entries_of_before_the_ring_make_one_chunk() -> None:
    ring = fresh(schedule=schedule(2 * DAY, DAY)).rotate(NOW + 10)
    entries = [LedgerEntry(NOW + by, "shop", f"{by}") for by in (-9, -1, 0, 9, 10, 99)]
    chunks = ledger.chunks_of(ring, entries)
    assert [(chunk.time - NOW, ledger.unpack(chunk.data)) for chunk in chunks] == [
        (-1, ["-1", "-9"]),
        (9, ["0", "9"]),
        (99, ["10", "99"]),
    ]
    assert ledger.chunks_of(ring, []) == []


def test_entries_are_packed_when_they_fill_a_chunk_or_are_old() -> None:
    assert not ledger.is_to_pack(fresh(), 0, 0)
    assert not ledger.is_to_pack(fresh(), ledger.CHUNK_ENTRIES - 1, NOW)
    assert ledger.is_to_pack(fresh(), ledger.CHUNK_ENTRIES, NOW + 5)
    assert ledger.is_to_pack(fresh(), 1, NOW - 1), "of an earlier generation: no more will come"
