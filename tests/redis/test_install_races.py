"""Filters that are written under a key that others use at the same time: whole or not at all."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from redis import Redis
from support.examples import examples
from support.installing import (
    ITEMS,
    NEW,
    OTHERS,
    Racer,
    check_clean,
    check_free,
    file_of,
    make,
    outcome,
)
from support.servers import Server, contents

from scrapy_bloom import BloomFilter, FilterMismatchError


@pytest.fixture(scope="module")
def arena(any_binary: str) -> Iterator[tuple[Redis, list[bytes]]]:
    """A server, and the files of two filters of different sizes."""
    with Server(any_binary) as server, server.client() as client:
        one, two = make(client, "one"), make(client, "two", OTHERS, blocks=5)
        files = [file_of(one), file_of(two)]
        client.flushall()
        yield client, files


def race(
    racers: list[Racer], turns: list[bool], ends: tuple[int | None, int | None] = (None, None)
) -> None:
    """Let two go on by turns; the reply to one of their round trips may be lost."""
    turns, made = turns[:], [0, 0]
    while not all(racer.ended for racer in racers):
        index = turns.pop() if turns else not racers[1].ended
        if racers[index].ended:
            index = not index
        racers[index].go_on(lost=made[index] == ends[index])
        made[index] += 1


@given(
    turns=st.lists(st.booleans(), max_size=80),
    ends=st.tuples(*[st.one_of(st.none(), st.integers(0, 40))] * 2),
    chosen=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_at_once_that_end_nothing_is_mixed(
    arena: tuple[Redis, list[bytes]],
    turns: list[bool],
    ends: tuple[int | None, int | None],
    chosen: tuple[int, int],
) -> None:
    client, files = arena
    client.flushall()
    racers = [Racer(client, files[number]) for number in chosen]
    race(racers, turns, ends)
    found = outcome(client)
    assert found in ("nothing", "whole", "others")
    if found == "nothing":
        assert all(racer.error for racer in racers)
        assert contents(client) == {}
    else:
        BloomFilter(client, "new").open()
        assert {key.decode() for key in client.keys(NEW)} == set(BloomFilter(client, "new").keys())


@pytest.mark.parametrize(("known", "blocks"), [(True, 3), (False, 3), (True, 7)])
def test_a_crawl_that_opens_the_key_meanwhile_wins_or_finds_the_whole(
    client: Redis, data: bytes, known: bool, blocks: int
) -> None:
    """At any round trip; also a crawl that has a filter open which was deleted."""
    outcomes = []
    for when in range(100):
        client.flushall()
        crawl = BloomFilter(client, "new", blocks=blocks, capacity=200)
        if known:
            crawl.extend(OTHERS)
            BloomFilter(client, "new").delete()
        racer = Racer(client, data)
        for _ in range(when):
            racer.go_on()
        is_last = racer.ended
        try:
            new = crawl.add_many(ITEMS)
        except FilterMismatchError:
            new = []  # the file's filter has other blocks
        racer.to_the_end()
        if racer.error is None:
            assert not any(new)
            outcomes.append("whole")
            assert outcome(client) == "whole"
            assert len(BloomFilter(client, "new")) == len(ITEMS)
        else:
            outcomes.append("crawl's")
            assert all(new)
            assert crawl.contains(ITEMS) == [True] * len(ITEMS)
            assert not any(crawl.contains(OTHERS))
            check_clean(client)
        if is_last:
            break
    assert [*dict.fromkeys(outcomes)] == ["crawl's", "whole"]


def test_one_that_is_dropped_sends_nothing_more(client: Redis, data: bytes) -> None:
    racer = Racer(client, data)
    for _ in range(8):
        racer.go_on()
    del racer
    assert client.keys(NEW)
    check_free(client)
