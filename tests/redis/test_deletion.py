"""What a filter takes on the server: which keys it has, and how it goes without a trace."""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis
from redis import Redis
from support.saving import at_round, watched

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.protocol import deletion

pytestmark = pytest.mark.each_server(others="slow")

URLS = [f"https://example.com/{number}" for number in range(300)]


def stored(client: Redis) -> set[str]:
    return {key.decode() for key in client.scan_iter(count=1_000)}


def some(client: Any, key: str = "shop", **options: Any) -> BloomFilter:
    return BloomFilter(client, key, **{"capacity": 1_000, "blocks": 3, **options})


# -- delete --


@pytest.mark.parametrize("options", [{"window": "5 months"}, {"capacity": 10, "growth": 2}])
def test_a_deleted_filter_leaves_nothing(client: Redis, options: dict[str, Any]) -> None:
    other = some(client, "other")
    other.extend(URLS)
    before = stored(client)
    bloom = some(client, **options)
    bloom.extend(URLS)
    client.hset("{shop:1}:claims", "field", "value")
    client.zadd("{shop:0}:heartbeats", {"member": 1})
    client.set("{shop:0}:workers-version", "nonce")
    assert bloom.delete() is True
    assert stored(client) == before
    assert bloom.delete() is False
    assert all(other.contains(URLS))


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        *(("{shop:0}:header", ()), ("{shop:0}:ring", ())),
        *(("{shop:1}:ring", ("state", "garbage")), ("{shop:0}:header", ("blocks", "many"))),
        *(("{shop:0}:header", ("blocks", "1")), ("{shop:0}:header", ("blocks", "50"))),
    ],
)
def test_what_is_left_of_a_damaged_filter_goes(
    client: Redis, key: str, damage: tuple[str, ...]
) -> None:
    some(client).extend(URLS)
    if damage:
        client.hset(key, damage[0], damage[1])
        with pytest.raises(StorageError):
            some(client).open()
    else:
        client.delete(key)
        # Of a bitmap without a ring, only the name says whose it is.
        assert set(some(client).keys()) >= stored(client) - {"{shop:0}:0.0"}
    assert some(client).delete() is True
    assert stored(client) == set()


@pytest.mark.parametrize("key", ["sh?p", "s\\hop", "shop:1"])
def test_bitmaps_of_rings_that_cannot_be_read_go_and_no_other_keys(client: Redis, key: str) -> None:
    """Many bitmaps, among many other keys."""
    others = ("shop:1:1", "shop", "shops", "sh*p", "sh?p", "*", "x", "[shop]", "s\\hop", "hop")
    for other in {*others} - {key}:
        some(client, other, capacity=10).add("a")
    client.mset(
        {f"{{{key}:1}}:{name}": "mine" for name in ("mine", "0.0.0", "x0.0", "0.", "load:x")}
    )
    client.mset({f"of somebody else {number}": "" for number in range(2_000)})
    before = stored(client)
    bloom = some(client, key, capacity=10, window="5 days", period="1 day")
    bloom.extend(URLS)
    bloom.rotate()
    bloom.extend(f"another {url}" for url in URLS)
    client.hset(f"{{{key}:1}}:ring", "state", "garbage")
    client.delete(f"{{{key}:2}}:ring")
    assert len(stored(client) - before) > 20
    assert some(client, key).delete() is True
    assert stored(client) == before


def test_bitmaps_without_a_ring_are_found_on_every_node(cluster: redis.RedisCluster) -> None:
    def names() -> set[bytes]:
        return set(cluster.scan_iter(count=1_000))

    some(cluster, "other").extend(URLS)
    before = names()
    bloom = some(cluster, blocks=16, capacity=50)
    bloom.extend(URLS)
    for block in range(0, 16, 2):
        cluster.hset(f"{{shop:{block}}}:ring", "state", "garbage")
    for block in range(1, 16, 4):
        cluster.delete(f"{{shop:{block}}}:ring")
    assert bloom.delete() is True
    assert names() == before


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_used", [False, True])
def test_a_deletion_can_be_repeated_that_was_interrupted_or_whose_filter_is_used(
    client: Redis, is_used: bool
) -> None:
    """At any of its round trips, of which there are less than 15; users create it anew."""
    for rounds in range(15):
        bloom, user = some(client), some(client)
        bloom.extend(URLS)
        user.open()
        happen = at_round(rounds, partial(user.extend, URLS) if is_used else interrupt)
        with suppress(KeyboardInterrupt):
            bloom._driver.run(watched(deletion.delete(bloom.session), happen))
        if is_used:
            user.extend(URLS)
        left = bool(stored(client))
        assert some(client).delete() is left
        assert stored(client) == set()
    assert left is is_used
