"""BloomFilter on real servers: the set it is, what is stored, and what it refuses."""

import copy
import pickle
import random
import tracemalloc
from typing import Any, cast

import numpy as np
import pytest
from redis import Redis
from support.cli import unchanged
from support.filters import URLS, small
from support.servers import Server

from scrapy_bloom import BloomFilter, ConfigurationError
from scrapy_bloom.bloom.protocol.ring_store import FILLING, FULL, GROWN, LOST

pytestmark = pytest.mark.each_server


def test_stored_keys_are_those_of_the_design(client: Redis) -> None:
    small(client, blocks=2).open()
    assert sorted(client.keys()) == [
        b"{shop:bloom:0}:0.0",
        b"{shop:bloom:0}:header",
        b"{shop:bloom:0}:ring",
        b"{shop:bloom:1}:0.0",
        b"{shop:bloom:1}:ring",
    ]
    assert all(client.ttl(key) == -1 for key in client.keys())


def test_contains_takes_one_or_many_and_records_nothing(client: Redis) -> None:
    bloom = small(client)
    assert "a" not in bloom
    assert bloom.contains(["a", "b"]) == [False, False]
    assert len(bloom) == 0
    bloom.add("é")
    assert bloom.contains("é") is bloom.contains("é".encode()) is True
    assert bloom.contains(iter("éb")) == [True, False]
    assert bloom.contains([]) == []
    assert "\ud800" not in bloom
    assert [bloom.add(""), bloom.add(b"")] == [True, False]


@pytest.mark.parametrize("item", [1, None, ["x"], bytearray(b"x")])
def test_items_are_str_or_bytes(client: Redis, item: Any) -> None:
    bloom = small(client)
    for call in (bloom.add, bloom.__contains__):
        with pytest.raises(TypeError, match="str or bytes"):
            call(item)
    for batch_call in (bloom.add_many, bloom.extend, bloom.contains):
        with pytest.raises(TypeError, match="str or bytes"):
            batch_call(["fine", item])
    # Else the characters of one would be taken for items.
    for several in (bloom.add_many, bloom.extend, bloom.find_all):
        with pytest.raises(TypeError, match="several items"):
            several("https://example.com/")
    assert len(bloom) == 0


@pytest.mark.each_server(others="slow")
def test_a_large_claim_keeps_its_order_and_what_streams_is_not_kept(client: Redis) -> None:
    bloom = small(client, capacity=30_000, error_rate=1e-6, seeds=20)
    known = random.Random(1).sample(range(12_000), 3_000)
    tracemalloc.start()
    bloom.extend(map(str, known))
    verdicts = bloom.add_many(map(str, range(12_000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [i for i, new in enumerate(verdicts) if not new] == sorted(known)
    assert peak < 5e6  # most of it the answers' list and what one round takes


def test_one_round_trip_per_call(client: Redis) -> None:
    bloom = small(client)
    bloom.open()
    for call in (
        lambda: bloom.add("new"),
        lambda: bloom.add_many(URLS),
        lambda: bloom.contains(URLS),
        lambda: "x" in bloom,
    ):
        call()  # the server may not know the script yet
        before = bloom.round_trips
        call()
        assert bloom.round_trips == before + 1


def test_integers_of_other_types_are_integers(client: Redis) -> None:
    values = {"capacity": 1_000, "blocks": 3, "growth": 3, "max_memory": 1 << 30}
    options: Any = {name: np.int64(value) for name, value in values.items()}
    options |= {"window": np.int64(7_200), "run": np.int64(5), "timeout": np.int64(60)}
    seeds: Any = [np.uint32(1), np.uint32(2**32 - 1)]
    bloom = BloomFilter(client, "k", error_rate=0.3, seeds=seeds, **options)
    info = bloom.info(cast("Any", np.uint32(2)))
    assert {name: getattr(info, name) for name in values} == values
    assert (info.window, bloom.seeds) == ("2 hours", (1, 2**32 - 1))


def test_a_filter_as_an_object(client: Redis) -> None:
    bloom = small(client)
    assert bloom
    for copy_it in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled.*the same key"):
            copy_it(bloom)
    assert bloom.round_trips == 0
    with bloom as opened:
        assert opened is bloom
        assert bloom.header is not None
    assert bloom.add("a"), "nothing was closed"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"notify": "print"}, "notify is a function; got 'print'"),
        ({"key": "\ud800"}, "valid Unicode"),
        ({"timeout": 0}, "timeout is a time from"),
        ({"timeout": float("nan")}, "timeout is a time from"),
        ({"capacity": np.True_}, "capacity"),
        ({"like": "tuesday"}, "like is a BloomFilter"),
    ],
)
def test_odd_arguments_are_refused_by_name(
    client: Redis, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        BloomFilter(client, **{"key": "k", **wrong})
    for block in (True, "1", 99, -1):
        with pytest.raises(ConfigurationError, match="block is one of"):
            BloomFilter(client, "k").info(block)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_redis_protocols_work(client: Redis, server: Server, protocol: int) -> None:
    with server.client(protocol=protocol) as other:
        bloom = small(other)
        assert bloom.add_many(["a", "a"]) == [True, False]
        assert len(bloom) == 1


# -- what is told --


def watched(client: Redis, told: list[tuple[str, int]], **options: Any) -> BloomFilter:
    return BloomFilter(
        client, "k", notify=lambda what, ring: told.append((what, ring.block)), **options
    )


@pytest.mark.parametrize("singly", [False, True])
def test_filling_growth_and_fullness_are_told_once_and_a_full_filter_hides_nothing(
    client: Redis, singly: bool
) -> None:
    def claim(items: range) -> list[bool]:
        texts = list(map(str, items))
        return [bloom.add(text) for text in texts] if singly else bloom.add_many(texts)

    told: list[tuple[str, int]] = []
    options = {"capacity": 100, "error_rate": 1e-9, "blocks": 1}
    bloom = watched(client, told, **options)
    assert claim(range(79)) == [True] * 79
    assert not told
    assert claim(range(79, 100)) == [True] * 21
    assert told == [(FILLING, 0)]
    assert claim(range(100, 200)) == [True] * 100
    assert told == [(FILLING, 0), (GROWN, 0)]
    told.clear()
    client.flushall()
    bloom = watched(client, told, **options, growth=0)
    assert claim(range(200)) == [True] * 200
    assert (len(bloom), bloom.unrecorded) == (100, 100)
    # What is recorded stays seen; what is not stays new.
    assert claim(range(200)) == [False] * 100 + [True] * 100
    assert bloom.contains(map(str, range(200))) == [True] * 100 + [False] * 100
    assert told == [(FILLING, 0), (FULL, 0)]
    assert bloom.unrecorded == 200
    assert bloom.info().estimated_error_rate <= 1e-9


def test_losses_are_told_once_by_who_finds_them(client: Redis) -> None:
    told: list[tuple[str, int]] = []
    bloom = watched(client, told)
    bloom.add_many(URLS)
    client.delete("{k:3}:0.0", "{k:5}:ring")
    bloom.add_many(URLS)
    bloom.add_many(URLS)
    assert sorted(told) == [(LOST, 3), (LOST, 5)]
    assert bloom.lost_blocks == 2


# -- windows --


def test_explicit_settings_are_applied_once_by_the_last_to_open(client: Redis) -> None:
    first = small(client, window="2 runs", run="0")
    first.add_many(URLS)
    stored = first.config
    second = small(
        client, capacity=20_000, error_rate=1e-5, window="6 days", period="1 day", growth=1
    )
    second.open()
    assert second.replaced_config == stored != second.config
    assert first.add_many(URLS) == [False] * 1000
    for bloom in (first, second, BloomFilter(client, "shop:bloom")):
        info = bloom.info()
        assert (info.capacity, info.error_rate, info.growth) == (20_000, 1e-5, 1)
        assert (info.window, info.period) == ("6 days", "1 day")
    assert first.replaced_config is None
    third = small(client, capacity=20_000, error_rate=1e-5, window="6 days")
    with unchanged(client, "*:ring"):
        third.open()
    assert third.replaced_config is None


def test_looking_changes_and_repairs_nothing(client: Redis) -> None:
    looking = small(client, capacity=1, window="9 runs", run="z")
    assert looking.look() is None
    assert not client.keys()
    small(client, window="2 runs", run="a").add_many(URLS)
    with unchanged(client):
        snapshot = looking.look()
    assert snapshot is not None
    assert sum(ring.count(snapshot.counts[b]) for b, ring in snapshot.rings.items()) == 1000
    assert snapshot.rings[0].config.capacity == 10_000
    client.delete("{shop:bloom:3}:ring", "{shop:bloom:5}:0.0")
    with unchanged(client):
        snapshot = looking.look()
    assert snapshot is not None
    assert sorted(snapshot.rings) == [b for b in range(16) if b != 3]
    assert looking.lost_blocks == 0
