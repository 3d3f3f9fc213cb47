"""Counting filters on real servers: what is added can be discarded, and nothing else goes too."""

from collections import Counter
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.filters import rings

from scrapy_bloom import BloomFilter

pytestmark = pytest.mark.each_server(others="slow")

MANY = [f"item {number}" for number in range(500)]
#: What a counter stays at once it was reached: how many it stands for isn't known any more.
SATURATED = 15
SEEDS = (3, 1_415, 92_653, 589_793)
BITMAP = "{k:0}:default:0-0.0"


def connect(client: Redis, **options: Any) -> BloomFilter:
    return BloomFilter(client, "k", **{"counting": True, "blocks": 1} | options)


def places(bloom: BloomFilter, item: str) -> list[int]:
    """Return where the counters of an item are in the first bitmap."""
    bitmap = bloom.session.views["default", 0].ring.bitmaps[0]
    return bloom.open().hasher.offsets(item.encode(), bitmap.bits)


def counters(client: Redis) -> list[int]:
    """Return all counters of the first bitmap."""
    data = client.get(BITMAP)
    assert isinstance(data, bytes)
    return [half for byte in data for half in (byte >> 4, byte & 15)]


def discard(bloom: BloomFilter, item: str, times: int) -> int:
    return sum(bloom.discard(item) for _ in range(times))


def test_a_false_positive_that_is_added_is_counted(client: Redis) -> None:
    """Else what is discarded for it would be others'."""
    bloom = connect(client, capacity=60, error_rate=0.9, seeds=SEEDS[:2])
    bloom.add_many(MANY[:50])
    wrong = next(item for item in MANY[50:] if item in bloom)
    assert not bloom.add(wrong)
    assert len(bloom) == 51
    assert bloom.discard(wrong)
    assert bloom.contains(MANY[:50]) == [True] * 50


def test_a_saturated_counter_is_never_decremented(client: Redis) -> None:
    bloom = connect(client, seeds=SEEDS, capacity=1_000, error_rate=0.01)
    bloom.add_many([*["a"] * (SATURATED + 5), *["b"] * (SATURATED - 1)])
    assert sorted(set(counters(client))) == [0, SATURATED - 1, SATURATED]
    assert discard(bloom, "a", 30) == 30
    assert discard(bloom, "b", 30) == SATURATED - 1
    assert Counter(counters(client))[SATURATED] == len(SEEDS)
    assert bloom.contains(["a", "b"]) == [True, False]
    # What isn't discarded has its place, or the filter would be filled beyond its capacity.
    assert len(bloom) == SATURATED + 5


def test_an_item_with_one_offset_twice_counts_it_twice_and_back(client: Redis) -> None:
    bloom = connect(client, seeds=SEEDS, capacity=20, error_rate=0.1)
    bloom.contains("a")
    item = next(item for item in MANY if len(set(places(bloom, item))) < len(SEEDS))
    expected = Counter(places(bloom, item))
    assert bloom.add_many([item, item]) == [True, False]
    assert +Counter(dict(enumerate(counters(client)))) == expected + expected
    assert discard(bloom, item, 3) == 2
    assert not any(counters(client))
    # None falls below zero: of an item that was never added, where others have counted once.
    for place in places(bloom, item):
        client.execute_command("BITFIELD", BITMAP, "SET", "u4", f"#{place}", 1)
    assert bloom.discard(item)
    assert not any(counters(client))


def test_a_full_bitmap_grows_and_room_comes_back_with_what_is_discarded(client: Redis) -> None:
    bloom = connect(client, capacity=5)
    assert bloom.add_many([*["a"] * 5, "b"]) == [True, *[False] * 4, True]
    assert sum(bloom.add_many(["a"] * 12)) == 0
    assert [bitmap.number for bitmap in rings(client, 1, "k")[0].bitmaps] == [0, 1, 2]
    assert discard(bloom, "a", 20) == 17
    assert (len(bloom), bloom.contains(["a", "b"])) == (1, [False, True])
    assert all(bloom.add_many(MANY))
    assert all(bloom.discard(item) for item in MANY)
    assert (len(bloom), bloom.contains(["b", *MANY]).count(True)) == (1, 1)


def test_generations_are_counted_and_discarded_from_apart(moved: MovedServer) -> None:
    with moved.client() as client:
        one, two = (connect(client, window="3 days", period="1 day") for _ in range(2))
        assert one.add_many(["a", "a", "b"]) == [True, False, True]
        moved.move(86_400)
        assert two.add_many(["a", *MANY]) == [False, *[True] * 500]
        assert (discard(one, "a", 4), len(two)) == (3, 501)
        moved.move(2 * 86_400)
        assert (two.discard("b"), "b" in one, len(one)) == (False, False, 500)
