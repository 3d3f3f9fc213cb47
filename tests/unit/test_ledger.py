"""The ledger's model: chunks are read back or refused, pages are due once they are forgotten."""

import bz2
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.rings import DAY, HOUR, NOW, ORDERS, fresh, schedule

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import LedgerEntry
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, RUNS

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


# -- what is due --


plans = st.sampled_from(
    [
        None,
        schedule(2, 2, HALF_MONTHS),
        schedule(12, 2, HALF_MONTHS),
        schedule(DAY, DAY),
        schedule(6 * HOUR, HOUR),
        schedule(5, 1, RUNS),
        schedule(6, 2, RUNS),
    ]
)
orders = st.sampled_from(ORDERS)


@dataclass
class History:
    """A ring on its way, and which generations took the pages that were recorded.

    Args:
        ring: the ring.
        now: the server's clock.
        took: by time of the record, the generations that took it.
        lossless: whether no generation was lost but the oldest ones.
    """

    ring: Ring
    now: int
    took: dict[int, set[int]] = field(default_factory=dict)
    lossless: bool = True

    def record(self) -> None:
        """Record a page at the time it is, as clients do: in a ring that is up to date."""
        self.ring = self.ring.advance(self.now)
        written = {layer.name for layer in self.ring.written}
        numbers = {
            generation.number
            for generation in self.ring.generations
            if written & {layer.name for layer in generation.layers}
        }
        # Of those in one second, the last is forgotten last.
        self.took[self.now] = self.took.get(self.now, set()) | numbers

    def lose(self, number: int) -> None:
        """Lose a generation."""
        *younger, oldest = self.ring.generations
        lost = {layer.name for layer in self.ring.layers if layer.generation == number}
        self.ring = self.ring.without(lost)
        took = ((time, numbers - {number}) for time, numbers in self.took.items())
        self.took = dict(took)
        # The last one stays, empty.
        self.lossless &= number == oldest.number and bool(younger)

    def step(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        """Do one of the things that happen to a ring."""
        kinds = ["wait", "wait", "record", "record", "rotate", "run", "reconfigure"]
        kind = draw(st.sampled_from([*kinds, "grow", "lose", "clear", "new"]))
        if kind == "wait":
            longer = st.integers(0, 70 * DAY) | st.sampled_from([1, HOUR, DAY, 31 * DAY])
            self.now += draw(st.integers(0, 2 * HOUR) | longer)
        elif kind == "record":
            self.record()
        elif kind == "rotate":
            self.ring = self.ring.advance(self.now).rotate(self.now)
        elif kind == "run":
            self.ring = self.ring.advance(self.now, run=draw(st.integers(0, 1000).map(str)))
        elif kind == "reconfigure":
            self.ring = self.ring.advance(self.now)
            config = replace(self.ring.config, schedule=draw(plans))
            self.ring = self.ring.reconfigure(config, self.now)
        elif kind == "grow":
            full = {layer.name: layer.capacity for layer in self.ring.layers}
            self.ring = self.ring.advance(self.now).grow(self.now, full)
        elif kind == "lose":
            self.lose(draw(st.sampled_from([g.number for g in self.ring.generations])))
        elif kind == "clear":
            self.ring = self.ring.cleared(self.now)
        else:  # the block's ring itself is lost
            self.took = {time: set() for time in self.took}
            self.ring = self.ring.sibling(self.ring.block, self.now)


@st.composite
def histories(draw: st.DrawFn) -> History:
    now = draw(st.integers(NOW, NOW + 60 * DAY))
    history = History(fresh(draw(orders), now, schedule=draw(plans)), now)
    for _ in range(draw(st.integers(1, 14))):
        try:
            history.step(draw)
        except ConfigurationError:
            continue
    history.now += draw(st.sampled_from([0, 0, DAY, 31 * DAY]))  # unused for a while
    return history


@examples(500)
@given(histories())
def test_a_page_is_due_once_all_generations_that_took_it_are_forgotten(history: History) -> None:
    """Never early. Late if a generation was opened in the same second, or was lost out of turn."""
    before = ledger.due_before(history.ring, history.now)
    ring = history.ring.advance(history.now)
    left = {generation.number for generation in ring.generations}
    for time, took in history.took.items():
        is_forgotten = not took & left
        if time < before:
            assert is_forgotten
        elif is_forgotten and history.lossless:
            assert time == before


# -- what is packed --


@examples(300)
@given(histories(), st.lists(st.tuples(st.integers(0, 50), tags), max_size=40), st.data())
def test_pages_of_a_chunk_are_forgotten_together(
    history: History, found: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Whatever becomes of the ring later; and no request is lost, or in a chunk of another tag."""
    opened = [generation.opened for generation in history.ring.generations]
    around = {time + by for time in (*opened, *history.took) for by in (-1, 0, 1)}
    times = sorted(time for time in {*around, history.now} if time <= history.now)
    entries = [
        LedgerEntry(times[place % len(times)], tag, f"{number}")
        for number, (place, tag) in enumerate(found)
    ]
    chunks = ledger.chunks_of(history.ring, entries)
    by_request = {entry.request: entry for entry in entries}
    parts = [[by_request[text] for text in ledger.unpack(chunk.data)] for chunk in chunks]
    assert sorted(one.request for part in parts for one in part) == sorted(by_request)
    for _ in range(data.draw(st.integers(0, 6))):
        history.step(data.draw)
    before = ledger.due_before(history.ring, history.now)
    for chunk, part in zip(chunks, parts, strict=True):
        assert {entry.tag for entry in part} == {chunk.tag}
        assert max(entry.time for entry in part) == chunk.time
        if chunk.time != before:  # else a generation was opened in that second, after them
            assert {entry.time < before for entry in part} == {chunk.time < before}


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


@pytest.mark.parametrize(
    ("count", "oldest", "expected"),
    [
        (0, 0, False),
        (1, NOW, False),
        (ledger.CHUNK_ENTRIES - 1, NOW + 5, False),
        (ledger.CHUNK_ENTRIES, NOW + 5, True),
        (1, NOW - 1, True),  # of an earlier generation: no more of them will come
    ],
)
def test_entries_are_packed_when_they_fill_a_chunk_or_are_old(
    count: int, oldest: int, *, expected: bool
) -> None:
    assert ledger.is_to_pack(fresh(), count, oldest) is expected
