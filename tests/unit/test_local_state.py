"""What one process knows: the cache, what is recorded only here, verdicts not used yet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.still_clock import Clock

from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl.local_state import ANY_AGE, BlockId, LocalState, Reserved
from scrapy_bloom.crawl.local_state import FRESH_SECONDS as FRESH
from scrapy_bloom.fingerprinter import versioned

HERE, THERE = ("default", 0), ("default", 1)
NEVER = float("inf")
FORGET_AFTER = 60.0


class Known:
    """The cache of a local state, in steps: a block replies, then an item is put in."""

    def __init__(self, capacity: int, forget_after: float, clock: Clock) -> None:
        self.state = LocalState(capacity, forget_after, clock)

    def answered(self, place: BlockId, version: str, ends: float, sent: float) -> None:
        self.state._replied((f"{place}", 0), version, ends, sent)

    def add(self, place: BlockId, item: bytes, *, is_certain: bool = True) -> None:
        block = self.state._blocks.get((f"{place}", 0))
        if block is not None:
            self.state._add((f"{place}", item), block.stamp if is_certain else 0)

    def is_seen(self, place: BlockId, item: bytes, max_age: float = FRESH) -> bool:
        return self.state.get((f"{place}", item), 0, max_age)

    def discard(self, place: BlockId, item: bytes) -> None:
        self.state.discard((f"{place}", item))

    def clear(self) -> None:
        self.state.clear()


# -- without a server --


def test_without_a_server_old_entries_count() -> None:
    clock = Clock()
    known = Known(1_000, FORGET_AFTER, clock)
    known.answered(HERE, "v1", NEVER, clock.now)
    known.answered(THERE, "v1", clock.now + 2, clock.now)
    for place in (HERE, THERE):
        known.add(place, b"a")
    clock.now += 10 * FORGET_AFTER
    for place in (HERE, THERE):
        assert not known.is_seen(place, b"a")
        assert known.is_seen(place, b"a", ANY_AGE)
        assert not known.is_seen(place, b"b", ANY_AGE)


# -- recorded here only --


@pytest.fixture
def state() -> LocalState:
    return LocalState(100, FORGET_AFTER)


def test_what_a_filter_has_recorded_is_kept_until_lookups_use_it(state: LocalState) -> None:
    assert state.take(b"a")
    assert not state.take(b"a")
    assert state.pop(("default", b"a")) == Reserved(Verdict.SEEN, 0)
    state.recorded([("default", b"a")], (), is_up=False)
    assert state.has_taken(b"a")
    state.server_is_used()
    assert not state.has_taken(b"a")
    assert state.get(("default", b"a"), 0, ANY_AGE), "for the next outage"
    state.recorded([("default", b"b")], [b"b"], is_up=False)
    state.server_is_used()
    assert state.has_taken(b"b"), "it has no room for it"


def test_what_stays_for_the_run_is_new_again_when_its_page_was_not_crawled(
    state: LocalState,
) -> None:
    version = versioned(b"u" * 20, b"2")
    for item in (b"listing", version):
        state.take(item, for_run=True)
    state.take(b"outage")
    for item in (b"listing", version):
        state.discard(("lasting", item))
        assert state.has_taken(item)
    for item in (b"listing", version, b"outage", b"other"):
        state.discard(("lasting", item), for_run=True)
    assert not any(map(state.has_taken, (b"listing", version, b"u" * 20)))
    assert state.has_taken(b"outage")
    assert state.take(b"listing", for_run=True)


# -- verdicts not used yet --


def test_the_oldest_reserved_verdicts_are_given_up(state: LocalState) -> None:
    keys = [("default", b"%d" % number) for number in range(5)]
    for key in keys:
        state.reserve(key, Verdict.NEW, 0)
    assert [key for key, _ in state.pop_oldest_reserved(2)] == keys[:3]
    assert [state.is_reserved(key) for key in keys] == [False] * 3 + [True] * 2


# -- against a model --


class Model:
    """Does the same exactly, and with room for everything."""

    def __init__(self) -> None:
        self.blocks: dict[BlockId, tuple[str, float, float]] = {}
        self.items: dict[BlockId, set[bytes]] = {}

    def answered(self, place: BlockId, v: str, ends: float, asked: float) -> None:
        old = self.blocks.get(place)
        if old is None or old[0] != v or asked - old[2] > FORGET_AFTER:
            self.blocks[place], self.items[place] = (v, ends, asked), set()
        else:
            self.blocks[place] = (v, old[1], max(old[2], asked))

    def add(self, place: BlockId, item: bytes) -> None:
        if place in self.blocks:
            self.items[place].add(item)

    def is_seen(self, place: BlockId, item: bytes, now: float) -> bool:
        if item not in self.items.get(place, ()):
            return False
        _, ends, answered = self.blocks[place]
        return now < ends and now - answered <= FRESH


#: Room for all items, wherever they come to lie.
ROOM = 200_000
ITEMS = [b"%d" % number for number in range(3)]
PLACES = st.sampled_from([HERE, THERE])
ITEM = st.sampled_from(ITEMS)
STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, FRESH, FORGET_AFTER, FORGET_AFTER + 1])),
    st.tuples(
        st.just("answered"),
        PLACES,
        st.sampled_from(["v1", "v2"]),
        st.sampled_from([3.0, 30.0, NEVER]),  # until it ends
        st.sampled_from([0.0, 1.0, FRESH + 1]),  # since it was asked
    ),
    st.tuples(st.just("add"), PLACES, ITEM),
    st.tuples(st.just("unsure"), PLACES, ITEM),
    st.tuples(st.just("discard"), PLACES, ITEM),
    st.just(("clear",)),
)


@examples(1_000)
@given(
    capacity=st.sampled_from([0, 1, 3, 8, ROOM]),
    steps=st.lists(STEPS, max_size=60),
)
def test_what_is_seen_is_what_an_exact_memory_calls_seen(
    capacity: int, steps: list[tuple[Any, ...]]
) -> None:
    """Where there is little room, fewer are."""
    clock, model = Clock(), Model()
    known = Known(capacity, FORGET_AFTER, clock)
    for kind, *args in steps:
        if kind == "wait":
            clock.now += args[0]
        elif kind == "answered":
            place, v, left, ago = args
            known.answered(place, v, clock.now + left, clock.now - ago)
            model.answered(place, v, clock.now + left, clock.now - ago)
        elif kind == "add":
            known.add(*args)
            model.add(*args)
        elif kind == "unsure":
            known.add(*args, is_certain=False)
        elif kind == "discard":
            known.discard(*args)
            model.items.get(args[0], set()).discard(args[1])
        else:
            known.clear()
            model.blocks.clear()
            model.items.clear()
        for place in (HERE, THERE):
            for item in ITEMS:
                is_seen = known.is_seen(place, item)
                expected = model.is_seen(place, item, clock.now)
                assert is_seen is expected or (expected and capacity < ROOM)


def test_a_failed_request_that_is_not_stored_is_looked_up_again() -> None:
    """Only the filter knows which page has to yield it again."""
    state, key = LocalState(10, FORGET_AFTER, Clock()), ("default", b"link")
    for is_unkept in (False, True):
        state.take(key[1], is_late=True)
        state.discard(key, for_run=True, is_unkept=is_unkept)
        assert state.has_taken(key[1]) is not is_unkept
