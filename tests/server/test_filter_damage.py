"""What others do to a filter's keys, and servers that refuse: what is named, and what is hidden."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.filters import KEY, URLS, at_round, fields, rings
from support.filters import small as small_filter
from support.outages import replica
from support.servers import Server

from scrapy_bloom import BloomFilter, StorageError

pytestmark = pytest.mark.each_server
small = partial(small_filter, blocks=16)
RING = "{shop:bloom:%d}:ring"


# -- lost keys --


@pytest.mark.parametrize("damage", ["deleted", "truncated", "not counted"])
def test_a_lost_bitmap_is_made_again_and_said_once(client: Redis, damage: str) -> None:
    """Without its count it could be filled beyond its capacity."""
    notes, key = list[str](), "{shop:bloom:3}:default:0-0.0"
    bloom = small(client, notify=lambda what, *_: notes.append(what))
    bloom.add_many(URLS)
    if damage == "deleted":
        client.delete(key)
    elif damage == "truncated":
        client.set(key, b"\xff")
    else:
        client.hdel(RING % 3, "n:default:0-0.0")
    assert 20 < bloom.add_many(URLS).count(True) < 200
    assert bloom.add_many(URLS) == [False] * 1000
    assert (notes.count("lost"), len(bloom)) == (1, 1000)


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("block", [0, 1, 5])
def test_an_evicted_ring_loses_its_block_and_no_seeds(
    client: Redis, block: int, is_running: bool
) -> None:
    bloom = small(client)
    bloom.add_many(URLS)
    spec, version = bloom.open(), fields(client, block=2)["v:default"]
    client.delete(RING % block)
    bloom = bloom if is_running else BloomFilter(client, KEY)
    assert 20 < bloom.add_many(URLS).count(True) < 200
    assert bloom.add_many(URLS) == [False] * 1000
    assert bloom.open().seeds == spec.seeds
    assert bloom.open().id == spec.id
    assert fields(client, block=2)["v:default"] == version


def test_rings_and_bitmaps_of_another_filter_are_replaced(client: Redis) -> None:
    """A restored backup of some blocks must not make its URLs look seen."""
    small(client).add_many(URLS)
    keys = [key for block in (1, 3) for key in client.keys(f"{{shop:bloom:{block}}}:*")]
    saved = {key: client.dump(key) or b"" for key in keys}
    client.flushall()
    fresh = small(client)
    fresh.open()
    for key, value in saved.items():
        client.restore(key, 0, value, replace=True)
    assert fresh.add_many(URLS) == [True] * 1000
    assert small(client).add_many(URLS) == [False] * 1000
    assert fields(client, block=3)["id"] == fresh.open().id


def test_bitmaps_that_are_left_without_a_ring_hide_nothing(client: Redis) -> None:
    small(client).open()
    size = rings(client, 1)[0].bitmaps[0].memory
    client.flushall()
    for block in range(16):
        client.set(f"{{shop:bloom:{block}}}:default:0-0.0", b"\xff" * size)
    assert small(client).add_many(URLS) == [True] * 1000


# -- damaged keys --


@pytest.mark.parametrize("key", [RING % 0, RING % 5, "{shop:bloom:5}:default:0-0.0"])
def test_a_key_of_another_type_is_an_error_and_stays(client: Redis, key: str) -> None:
    small(client).add_many(URLS)
    client.delete(key)
    client.lpush(key, "x")
    with pytest.raises(StorageError, match=r"one of the keys \{shop:bloom:.\}:\*\. Delete"):
        small(client).add_many(URLS)
    assert client.lrange(key, 0, -1) == [b"x"]


#: All others: unit/test_ring.py and unit/test_spec.py.
DAMAGES: dict[str, tuple[str, str | bytes]] = {
    "spec": ("spec", "{}"),
    "text": ("spec", "\xff"),
    "version": ("v:default", b"\xff"),
    "size": ("default:0-0.0", "99999999999 1 0 1"),
    "count": ("n:default:0-0.0", "many"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "use",
    [
        lambda bloom: bloom.open() and bloom.add_many(URLS),
        lambda bloom: bloom.contains(URLS),
        lambda bloom: bloom.info(),
        lambda bloom: bloom.clear("default"),
        lambda bloom: bloom.delete(),
    ],
)
def test_damaged_fields_are_an_error_with_the_key_and_the_fix(
    client: Redis, damage: str, use: Callable[[BloomFilter], object]
) -> None:
    small(client).add_many(URLS)
    client.hset(RING % 0, *DAMAGES[damage])
    before = sorted(client.keys())
    with pytest.raises(
        StorageError, match=r"'{shop:bloom:0}:ring' can't be used, because .*Delete the filter's"
    ):
        use(small(client))
    assert sorted(client.keys()) == before


@pytest.mark.parametrize("garbage", [dict.fromkeys(range(30_000), ""), {"w:x": "x" * (5 << 20)}])
def test_a_huge_ring_is_an_error_and_is_not_read(client: Redis, garbage: dict[Any, Any]) -> None:
    bloom = small(client)
    bloom.add_many(URLS)
    client.hset(RING % 3, mapping=garbage)
    client.hset(RING % 3, "v:default", "another")
    with pytest.raises(StorageError, match=r"Delete the .*\{shop:bloom:3}:ring is too large"):
        bloom.add_many(URLS)


def test_a_ring_that_changes_all_the_time_is_an_error_and_not_a_hang(client: Redis) -> None:
    bloom = small(client, blocks=1)
    adding = bloom.session.add([("default", b"a")])
    for number in range(250):
        adding = at_round(
            adding, number, lambda: client.hset(RING % 0, "v:default", secrets.token_hex(8))
        )
    bloom.open()
    with pytest.raises(StorageError, match="different each time it was read. Find out what"):
        bloom.run(adding)


# -- servers that refuse --


@pytest.mark.parametrize("counting", [False, True])
def test_a_read_only_replica_answers_lookups_and_takes_no_items(
    server: Server, client: Redis, counting: bool
) -> None:
    bloom = small(client, counting=counting)
    bloom.add_many(URLS)
    with replica(server):
        assert bloom.contains(URLS) == [True] * 1000
        with pytest.raises(StorageError, match="is a read-only replica"):
            bloom.add("new")
