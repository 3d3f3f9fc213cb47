"""What one process knows: the cache, what is recorded only here, verdicts not used yet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.still_clock import Clock

from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl.local_state import ANY_AGE, LocalState, Reserved
from scrapy_bloom.crawl.local_state import FRESH_SECONDS as FRESH
from scrapy_bloom.fingerprinter import versioned

#: Two windows, of which one block is used.
HERE, THERE = "here", "there"
NEVER = float("inf")
FORGET_AFTER = 60.0


def add(state: LocalState, window: str, item: bytes, *, is_certain: bool = True) -> None:
    """Put an item into the cache, as its block has answered."""
    block = state._blocks.get((window, 0))
    if block is not None:
        state._add((window, item), block.stamp if is_certain else 0)


# -- without a server --


def test_without_a_server_old_entries_count() -> None:
    clock = Clock()
    state = LocalState(1_000, FORGET_AFTER, clock)
    state._replied((HERE, 0), "v1", NEVER, clock.now)
    state._replied((THERE, 0), "v1", clock.now + 2, clock.now)
    for window in (HERE, THERE):
        add(state, window, b"a")
    clock.now += 10 * FORGET_AFTER
    for window in (HERE, THERE):
        assert not state.get((window, b"a"), 0, FRESH)
        assert state.get((window, b"a"), 0, ANY_AGE)
        assert not state.get((window, b"b"), 0, ANY_AGE)


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


# -- versions --

URL, PAGE = b"u" * 20, ("default", versioned(b"u" * 20, b"1"))
LINK = ("default", URL)


def test_a_link_is_seen_while_a_version_is_claimed_or_was_just_crawled() -> None:
    clock = Clock()
    local = LocalState(1_000, 60, clock)
    local.versions.claimed(PAGE)
    clock.now += 1_000_000
    assert local.get(LINK, 0)
    assert not local.get(PAGE, 0)
    assert not local.get(("other", URL), 0)
    local.discard(PAGE)
    assert not local.get(LINK, 0), "it has failed"
    local.versions.claimed(PAGE)
    local.versions.crawled(PAGE)
    clock.now += FRESH
    assert local.get(LINK, 0), "the job may not be written yet"
    clock.now += 0.001
    assert not local.get(LINK, 0), "the filter knows when it is forgotten"
    assert local.get(LINK, 0, ANY_AGE), "without a server"


# -- against a model --


class Model:
    """Does the same exactly, and with room for everything."""

    def __init__(self) -> None:
        self.blocks: dict[str, tuple[str, float, float]] = {}
        self.items: dict[str, set[bytes]] = {}

    def answered(self, place: str, v: str, ends: float, asked: float) -> None:
        old = self.blocks.get(place)
        if old is None or old[0] != v or asked - old[2] > FORGET_AFTER:
            self.blocks[place], self.items[place] = (v, ends, asked), set()
        else:
            self.blocks[place] = (v, old[1], max(old[2], asked))

    def add(self, place: str, item: bytes) -> None:
        if place in self.blocks:
            self.items[place].add(item)

    def is_seen(self, place: str, item: bytes, now: float) -> bool:
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
@given(capacity=st.sampled_from([0, 1, 3, 8, ROOM]), steps=st.lists(STEPS, max_size=60))
def test_what_is_seen_is_what_an_exact_memory_calls_seen(
    capacity: int, steps: list[tuple[Any, ...]]
) -> None:
    """Where there is little room, fewer are."""
    clock, model = Clock(), Model()
    state = LocalState(capacity, FORGET_AFTER, clock)
    for kind, *args in steps:
        if kind == "wait":
            clock.now += args[0]
        elif kind == "answered":
            place, v, left, ago = args
            state._replied((place, 0), v, clock.now + left, clock.now - ago)
            model.answered(place, v, clock.now + left, clock.now - ago)
        elif kind == "add":
            add(state, *args)
            model.add(*args)
        elif kind == "unsure":
            add(state, *args, is_certain=False)
        elif kind == "discard":
            place, item = args
            state.discard((place, item))
            model.items.get(place, set()).discard(item)
        else:
            state.clear()
            model.blocks.clear()
            model.items.clear()
        for place in (HERE, THERE):
            for item in ITEMS:
                is_seen = state.get((place, item), 0, FRESH)
                expected = model.is_seen(place, item, clock.now)
                assert is_seen is expected or (expected and capacity < ROOM)


def test_a_failed_request_that_is_not_stored_is_looked_up_again() -> None:
    """Only the filter knows which page has to yield it again."""
    state, key = LocalState(10, FORGET_AFTER, Clock()), ("default", b"link")
    for is_unkept in (False, True):
        state.take(key[1], is_late=True)
        state.discard(key, for_run=True, is_unkept=is_unkept)
        assert state.has_taken(key[1]) is not is_unkept
    # Its claim is written only now: also in the next outage, its page has to ask.
    state.recorded([key], (), is_up=True)
    assert not state.get(key, 0, ANY_AGE)
