"""Filters as sets, with the methods of both classes: what comes of two, and where it goes."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from support.servers import Server

from scrapy_bloom import ArchiveError, AsyncBloomFilter, BloomFilter, ConfigurationError

MONDAY, TUESDAY = range(3_000), range(2_000, 5_000)


def items(numbers: range) -> list[str]:
    return [f"https://example.com/{number}" for number in numbers]


@pytest.fixture
def two(client: Redis) -> tuple[BloomFilter, BloomFilter]:
    """Filters that have 1,000 items in common."""
    monday = BloomFilter(client, "monday", capacity=20_000)
    tuesday = BloomFilter(client, "tuesday", like=monday)
    monday.extend(items(MONDAY))
    tuesday.extend(items(TUESDAY))
    return monday, tuesday


# -- like another one --


def test_a_filter_that_is_like_another_one_has_its_seeds_and_settings(client: Redis) -> None:
    one = BloomFilter(
        client,
        "one",
        capacity=5_000,
        error_rate=1e-4,
        blocks=3,
        window="6 weeks",
        period="2 weeks",
        stagger=True,
        growth=4,
        max_memory=10_000_000,
    )
    two = BloomFilter(client, "two", like=one)
    two.open()
    assert two.seeds == one.seeds
    assert two.config == one.config
    assert two.header is not None
    assert two.header.id != one.header.id
    assert (two.blocks, two.header.stagger) == (3, True)
    # What is given beside it counts.
    three = BloomFilter(client, "three", like=one, capacity=100, window="never")
    assert (three.info().capacity, three.info().window) == (100, None)
    assert three.seeds == one.seeds


# -- sync --


def test_operators_make_filters_under_keys_of_both(two: tuple[BloomFilter, BloomFilter]) -> None:
    monday, tuesday = two
    before = monday
    assert all((monday | tuesday).contains(items(range(5_000))))
    assert (monday | tuesday.copy("other")).key == "monday|other"
    assert sum((monday & tuesday).contains(items(range(2_000)))) < 5
    monday |= tuesday
    assert monday is before
    assert all(monday.contains(items(range(5_000))))


# -- files --


# -- asyncio --


def test_all_of_it_with_asyncio(server: Server, client: Redis) -> None:
    async def scenario() -> None:
        own = redis.asyncio.Redis.from_url(server.url)
        try:
            await _scenario(own)
        finally:
            await getattr(own, "aclose", own.close)()

    async def _scenario(own: Any) -> None:
        monday = AsyncBloomFilter(own, "monday", capacity=20_000)
        with pytest.raises(ConfigurationError, match="not open yet"):
            AsyncBloomFilter(own, "tuesday", like=monday)
        await monday.extend(items(MONDAY))
        tuesday = AsyncBloomFilter(own, "tuesday", like=monday)
        await tuesday.extend(items(TUESDAY))
        assert abs(await monday.approx_len() - 3_000) < 60
        assert abs(await monday.approx_union_len(tuesday) - 5_000) < 100
        assert abs(await monday.approx_intersection_len(tuesday) - 1_000) < 100
        both = await monday.union(tuesday, key="both")
        assert all(await both.contains(items(range(5_000))))
        common = await monday.intersection(tuesday, key="common")
        assert all(await common.contains(items(range(2_000, 3_000))))
        copy = await monday.copy("copy")
        await copy.update(tuesday)
        assert all(await copy.contains(items(range(5_000))))
        file = io.BytesIO()
        saved = await copy.save(file)
        assert saved.count == (await copy.info()).count
        file.seek(0)
        loaded = await AsyncBloomFilter.load(own, "loaded", file)
        assert all(await loaded.contains(items(range(5_000))))
        file.seek(0)
        file.truncate(2_000)
        with pytest.raises(ArchiveError):
            await AsyncBloomFilter.load(own, "broken", file)
        assert await AsyncBloomFilter(own, "broken").look() is None

    asyncio.run(scenario())
    assert not client.keys("{broken:*")


def test_tasks_may_combine_the_same_filters_at_once(server: Server, client: Redis) -> None:
    """Each is asked by one task at a time; nobody waits for another one for ever."""

    async def scenario() -> None:
        own = redis.asyncio.Redis.from_url(server.url)
        one = AsyncBloomFilter(own, "one", capacity=1_000)
        await one.extend(items(range(500)))
        two = AsyncBloomFilter(own, "two", like=one)
        await two.extend(items(range(400, 900)))
        make: list[Callable[[], Any]] = [
            lambda: one.approx_union_len(two),
            lambda: two.approx_union_len(one),
            lambda: one.union(two, key="made"),
            lambda: two.update(one),
        ]
        await asyncio.wait_for(asyncio.gather(*(call() for call in make)), 20)
        assert all(await two.contains(items(range(900))))
        await getattr(own, "aclose", own.close)()

    asyncio.run(scenario())


# -- bad arguments --


@pytest.mark.parametrize("other", ["tuesday", None, 1, object()])
def test_what_is_no_filter_is_refused(client: Redis, other: Any) -> None:
    bloom = BloomFilter(client, "one")
    for call in (
        lambda: bloom.union(other, key="made"),
        lambda: bloom.intersection(other, key="made"),
        lambda: bloom.approx_union_len(other),
        lambda: bloom.update(other),
    ):
        with pytest.raises(ConfigurationError, match="must be a BloomFilter"):
            call()
    for operate in (lambda: bloom | other, lambda: bloom & other):
        with pytest.raises(TypeError, match="unsupported operand"):
            operate()
    if other is not None:
        with pytest.raises(ConfigurationError, match="like is a BloomFilter"):
            BloomFilter(client, "two", like=other)
    assert client.dbsize() == 0


@pytest.mark.parametrize("timeout", ["soon", 0, -1, float("nan"), float("inf"), 1e9])
def test_a_time_out_is_a_number_of_seconds(client: Redis, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout is a time from"):
        BloomFilter(client, "one", timeout=timeout)


def test_other_odd_arguments(client: Redis) -> None:
    with pytest.raises(ConfigurationError, match="fingerprinter is a str"):
        BloomFilter(client, "one", fingerprinter=5)  # type: ignore[arg-type]
    blocks: tuple[Any, ...] = (True, [], "1", 1.0, 99, -1)
    for block in blocks:
        with pytest.raises(ConfigurationError, match="block is one of"):
            BloomFilter(client, "one").info(block)
