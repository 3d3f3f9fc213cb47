"""BloomFilter for asyncio: the same answers as the other one, and tasks that share one object."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis import Redis
from support.filters import URLS
from support.servers import Server

from scrapy_bloom import AsyncBloomFilter, BloomFilter, ConfigurationError

PATIENCE = 120.0
#: Gets an asynchronous filter, and one for the same key that isn't.
Scenario = Callable[[AsyncBloomFilter, BloomFilter], Awaitable[Any]]
Run = Callable[..., Any]


@pytest.fixture
def run(server: Server, client: Redis) -> Run:
    """Run a scenario with an asynchronous filter and another one on the same key."""

    async def bounded(scenario: Scenario, timeout: float, options: dict[str, Any]) -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            bloom = AsyncBloomFilter(own, "shop", timeout, **options)
            await asyncio.wait_for(
                scenario(bloom, BloomFilter(client, "shop", **options)), PATIENCE
            )

    return lambda scenario, timeout=60.0, **options: asyncio.run(
        bounded(scenario, timeout, {"capacity": 10_000, "blocks": 4, **options})
    )


def test_both_kinds_are_one_filter(run: Run, tmp_path: Path) -> None:
    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        async with bloom as opened:
            assert opened is bloom
        assert await bloom.open() == other.open()
        assert [await bloom.add("a"), other.add("a")] == [True, False]
        assert await bloom.add_many(["a", "b", "b"]) == [False, True, False]
        assert [await bloom.contains("b"), await bloom.contains(["b", "c"])] == [
            True,
            [True, False],
        ]
        assert (await bloom.put("b"), await bloom.extend(map(str, range(9_000)))) == (False, 9_000)
        assert await bloom.info() == other.info()
        assert await bloom.keys() == other.keys()
        assert bloom.hashes == other.hashes
        assert await bloom.approx_len() == other.approx_len()
        copy = await bloom.copy("copy")
        assert await bloom.approx_union_len(copy) == await bloom.approx_len()
        assert await bloom.approx_intersection_len(copy) == pytest.approx(await copy.approx_len())
        for made in (await bloom.union(copy, "u"), await bloom.intersection(copy, "i")):
            assert await made.contains(["a", "c"]) == [True, False]
        with pytest.raises(ConfigurationError, match="isn't a filter of the same kind"):
            await bloom.union(other, "made")
        with pytest.raises(ConfigurationError, match="Only a filter with `counting`"):
            await bloom.discard("a")
        await bloom.save(tmp_path / "file")
        await bloom.clear()
        assert "a" not in other
        await bloom.delete()
        await bloom.load(tmp_path / "file")
        assert "a" in other

    run(scenario)


def test_an_address_opens_it(server: Server, client: Redis) -> None:
    """And it closes its own client."""

    def names() -> list[str]:
        return [one["name"] for one in client.client_list()]

    async def scenario() -> None:
        async with AsyncBloomFilter(f"{server.url}?client_name=ours", "shop") as bloom:
            assert [await bloom.add("a"), await bloom.add("a")] == [True, False]
            assert "ours" in names()
        while "ours" in names():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert "a" in BloomFilter(client, "shop")


def test_tasks_that_share_an_object_take_each_item_once(run: Run) -> None:
    """Through growth and changes by others, which they all have to follow."""

    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        async def take() -> list[str]:
            return [url for url in URLS if await bloom.add(url)]

        async def meddle() -> None:
            for number in range(5):
                await asyncio.sleep(0.01)
                other.extend(f"{number}/{n}" for n in range(500))

        *taken, _ = await asyncio.gather(*(take() for _ in range(8)), meddle())
        assert sorted(url for one in taken for url in one) == sorted(URLS)

    run(scenario, capacity=100, error_rate=1e-9)


def test_a_task_that_is_cancelled_leaves_the_others_their_answers(run: Run) -> None:
    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        assert other.open() == await bloom.open()
        for number in range(50):
            tasks = [asyncio.ensure_future(bloom.add_many(URLS[:10])) for _ in range(3)]
            for _ in range(1 + number % 6):  # before it's sent, before and after the reply
                await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.wait(tasks)
            assert all(len(task.result()) == 10 for task in tasks[1:])
        assert await bloom.contains(URLS[:10]) == [True] * 10

    run(scenario)
