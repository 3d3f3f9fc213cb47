"""Windows: the rings and keys on a server, and what must hold for them at any time."""

import random
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring

KEY = "shop"
KEYS = Keys(KEY)
#: Fixed and no neighbours, with an error rate at which no test meets a false positive.
SEEDS = tuple(random.Random(7).sample(range(2**32), 40))
ERROR_RATE = 1e-12
#: Seconds that a bitmap which no ring names any more may stay.
GOING = 60


def at(year: int, month: int, day: int, *rest: int) -> datetime:
    return datetime(year, month, day, *rest, tzinfo=UTC)  # type: ignore[misc, arg-type]


def stored_rings(client: redis.Redis, key: str = KEY) -> dict[int, Ring]:
    """Return the rings as they are in Redis, by block."""
    texts = [client.hget(name, "state") for name in client.scan_iter(f"{{{key}:*}}:ring")]
    rings = [ring_codec.parse(text.decode()) for text in texts]
    return {ring.block: ring for ring in rings}


def assert_keys(
    client: redis.Redis, key: str = KEY, *, going: bool = False, left: Collection[str] = ()
) -> None:
    """The keys and the counts are those that the rings name: nothing is missing, nothing left.

    A ring outlives its bitmaps.

    Where clients were killed or raced, bitmaps may be ``going``: they expire within a minute. Some
    may be ``left`` of a ring that was deleted.
    """
    keys, rings = Keys(key), stored_rings(client, key)
    expected, now = {keys.header()}, client.time()[0]
    for block, ring in rings.items():
        there = [layer for layer in ring.layers if layer.name not in ring.expired(now)]
        expected |= {keys.ring(block), *(keys.layer(block, layer.name) for layer in there)}
        counts = {f"n:{layer.name}".encode() for layer in ring.layers}
        assert set(client.hkeys(keys.ring(block))) == {b"v", b"state"} | counts
        for layer in there:
            assert client.strlen(keys.layer(block, layer.name)) == layer.memory
    others = {name.decode() for name in client.scan_iter()} - expected - set(left)
    assert not others or going
    assert all(0 <= client.ttl(name) <= GOING for name in others)
    assert client.exists(*expected) == (len(expected) if rings else 0)


def assert_ttls(client: redis.Redis, key: str = KEY, *, left: Collection[str] = ()) -> None:
    """With a window each key has a TTL, the header's being the longest; without one none has."""
    keys, rings = Keys(key), stored_rings(client, key)
    names = {name.decode() for name in client.scan_iter()}
    named = {
        keys.layer(block, layer.name) for block, ring in rings.items() for layer in ring.layers
    }
    ends = {name: client.expiretime(name) for name in names - (set(left) - named)}
    for block, ring in rings.items():
        expected = {
            keys.layer(block, layer.name): ring.expires(generation) or -1
            for generation in ring.generations
            for layer in generation.layers
            if keys.layer(block, layer.name) in ends
        }
        assert {name: ends[name] for name in expected} == expected
        assert ends[keys.ring(block)] == (ring.expiry or -1)
        assert all(end < ring.expiry or end == -1 for end in expected.values())
    if any(ring.config.schedule is None for ring in rings.values()):
        assert ends[keys.header()] == -1
    elif rings:
        assert ends.pop(keys.header()) > max(ends.values())


def connect(client: redis.Redis, window: object = None, **options: Any) -> BloomFilter:
    options = {"capacity": 500, "error_rate": ERROR_RATE, "seeds": SEEDS, "blocks": 2, **options}
    if "run" in str(window):
        options = {"run": "first", **options}
    return BloomFilter(client, KEY, window=window, **options)


ORDERS = ["write-newest", "write-all"]
#: Enough that each of 16 blocks has some.
URLS = [f"https://example.com/{i}" for i in range(200)]
