"""Filters as sets, on real servers: estimates, and filters that are made of others."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.filters import rings

from scrapy_bloom import BloomFilter, FilterMismatchError, StorageError

pytestmark = pytest.mark.each_server(others="slow")

#: Two filters go together if they have the same seeds.
SEEDS = tuple(range(1, 18))
OPTIONS: dict[str, Any] = {"capacity": 2_000, "error_rate": 1e-5, "blocks": 4, "seeds": SEEDS}


def items(*numbers: int) -> list[str]:
    return [f"https://example.com/{number}" for number in range(*numbers)]


def make(client: Any, key: str, **options: Any) -> BloomFilter:
    return BloomFilter(client, key, **{**OPTIONS, **options})


@pytest.fixture
def pair(client: Redis) -> tuple[BloomFilter, BloomFilter]:
    """Two filters with room, and 300 items in common."""
    one, two = make(client, "one"), make(client, "two")
    one.extend(items(1_000))
    two.extend(items(700, 1_500))
    return one, two


def test_items_are_estimated_from_bits(pair: tuple[BloomFilter, BloomFilter]) -> None:
    one, two = pair
    assert one.approx_len() == pytest.approx(1_000, rel=0.02)
    assert one.approx_union_len(two) == pytest.approx(1_500, rel=0.02)
    assert one.approx_intersection_len(two) == pytest.approx(300, rel=0.1)
    assert one.approx_union_len(one) == pytest.approx(one.approx_len())


def test_items_are_estimated_from_counters(client: Redis) -> None:
    bloom = make(client, "k", counting=True)
    bloom.extend(items(1_500))
    assert bloom.approx_len() == pytest.approx(1_500, rel=0.02)


def test_a_saturated_filter_says_so(client: Redis) -> None:
    one, two = make(client, "one"), make(client, "two")
    one.open()
    two.open()
    (bitmap,) = rings(client, 1, "one")[0].bitmaps
    bits = (1 << bitmap.bits) - 1 << 8 * bitmap.memory - bitmap.bits
    client.set("{one:0}:default:0-0.0", bits.to_bytes(bitmap.memory, "big"))
    for count in (one.approx_len, lambda: two.approx_union_len(one)):
        with pytest.raises(StorageError, match="All bits of a bitmap are set"):
            count()


def test_a_union_has_what_either_has(pair: tuple[BloomFilter, BloomFilter]) -> None:
    one, two = pair
    made = one.union(two, "made")
    assert made.contains(items(3_000)) == [True] * 1_500 + [False] * 1_500
    assert len(made) == pytest.approx(1_500, rel=0.02)
    # It continues as any other, and the others stay as they were.
    assert made.add_many(items(1_499, 1_501)) == [False, True]
    assert (sum(one.contains(items(3_000))), len(two)) == (1_000, 800)


def test_an_intersection_has_what_both_have(pair: tuple[BloomFilter, BloomFilter]) -> None:
    one, two = pair
    found = one.intersection(two, "made").contains(items(3_000))
    assert all(found[700:1_000])
    assert sum(found) < 310


def test_a_block_that_only_one_has_used_is_in_the_union(client: Redis) -> None:
    one, two = make(client, "one"), make(client, "two")
    one.add("a")
    two.extend(items(100))
    for first, second, key in (one, two, "made"), (two, one, "again"):
        made = first.union(second, key)
        assert made.contains(["a", *items(101)]) == [True] * 101 + [False]
        assert not any(first.intersection(second, f"none {key}").contains(["a", *items(101)]))


WRITE_ALL: dict[str, Any] = {"ring": "write-all", "window": "2 days"}
DIFFERENT = "'one' and 'two' have different"


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"blocks": 2}, f"{DIFFERENT} blocks. Create one of them with the seeds and options"),
        ({}, {"seeds": tuple(seed + 1 for seed in SEEDS)}, f"{DIFFERENT} seeds"),
        ({}, WRITE_ALL, f"{DIFFERENT} ring"),
        ({}, {"counting": True}, f"{DIFFERENT} counting"),
        ({}, {"capacity": 500}, "have bitmaps of different sizes, because one has grown or"),
        ({"counting": True}, {"counting": True}, "can be copied, but not combined"),
        (WRITE_ALL, WRITE_ALL, "can be copied, but not combined"),
    ],
)
def test_filters_that_cannot_be_combined_say_why(
    client: Redis, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    one, two = make(client, "one", **first), make(client, "two", **second)
    one.extend(items(100))
    two.extend(items(100))
    for call in (lambda: one.union(two, "made"), lambda: one.approx_union_len(two)):
        with pytest.raises(FilterMismatchError, match=text):
            call()
    assert not client.keys("*made*")


# -- windows --


@pytest.fixture
def moved_client(moved: MovedServer) -> Iterator[Redis]:
    with moved.client() as client:
        yield client


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_only_what_is_remembered_is_estimated_and_all_of_it_united(
    moved: MovedServer, moved_client: Redis, ring: str
) -> None:
    """Bitmaps stay a day longer than what they remember, and "write-all" writes items often."""
    options = {"window": "3 days", "period": "1 day", "ring": ring}
    one, two = (make(moved_client, key, **options) for key in ("one", "two"))
    for day in range(4):
        one.extend(items(100 * day, 100 * day + 100))
        two.extend(items(350, 450) if day > 2 else [])
        moved.move(86_400)
    assert one.approx_len() == pytest.approx(len(one), abs=10)
    assert len(one) == 200
    if ring == "write-all":
        return
    assert one.approx_union_len(two) == pytest.approx(250, abs=10)
    made = one.union(two, "made")
    assert sum(made.contains(items(1_000))) == 250
    moved.move(86_400)
    assert sum(made.contains(items(1_000))) == 150
    assert all(moved_client.ttl(key) > 0 for key in moved_client.keys("{made*"))
