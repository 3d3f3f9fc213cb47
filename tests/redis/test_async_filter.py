"""BloomFilter for asyncio: the same answers as the other one, and tasks that share one object."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from support.outages import stalled
from support.servers import Server

from scrapy_bloom import AsyncBloomFilter, BloomFilter, StorageError

PATIENCE, LATE = 120.0, "did not answer in time"
URLS = [f"https://example.com/{number}" for number in range(1_000)]

#: Gets an asynchronous filter, and one for the same key that is not.
Scenario = Callable[[AsyncBloomFilter, BloomFilter], Awaitable[Any]]
Run = Callable[..., Any]


@pytest.fixture
def run(server: Server, client: Redis) -> Run:
    """Run a scenario with an asynchronous filter and another one on the same key."""

    async def bounded(scenario: Scenario, options: dict[str, Any]) -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            bloom = AsyncBloomFilter(own, "shop", **options)
            other = BloomFilter(client, "shop", **{**options, "timeout": None})
            await asyncio.wait_for(scenario(bloom, other), PATIENCE)

    return lambda scenario, **options: asyncio.run(
        bounded(scenario, {"capacity": 10_000, "blocks": 4, **options})
    )


def test_both_kinds_are_one_filter(run: Run) -> None:
    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        header = await bloom.open()
        assert header == other.open()
        assert [await bloom.add("a"), other.add("a")] == [True, False]
        assert await bloom.add_many(["a", "b", "b"]) == [False, True, False]
        assert [await bloom.contains("b"), await bloom.contains("c")] == [True, False]
        assert await bloom.contains(["b", "c"]) == [True, False]
        assert (await bloom.find("b")).seen
        assert [info.seen for info in await bloom.find_all(["b", "c"])] == [True, False]
        assert (await bloom.info()).count == len(other) == 2
        assert (await bloom.keys()) == other.keys()
        assert (await bloom.look()).header == header
        assert bloom.seeds == other.seeds
        await bloom.clear()
        assert "a" not in other
        assert await bloom.delete() is True
        assert await bloom.look() is None

    run(scenario)


def test_items_may_come_from_an_async_iterator(run: Run) -> None:
    async def produce(count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield str(number)

    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        told: list[int] = []
        assert await bloom.extend(produce(9_000), told.append) == 9_000
        assert await bloom.extend(map(str, range(8_990, 9_010))) == 10
        assert await bloom.extend(produce(0)) == 0
        assert (sum(told), len(other)) == (9_000, 9_010)

    run(scenario, capacity=50_000)


def test_tasks_that_share_an_object_take_each_item_once(run: Run) -> None:
    """Through growth and rotations by others, which they all have to follow."""

    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        async def take() -> list[str]:
            return [url for url in URLS if await bloom.add(url)]

        async def meddle() -> None:
            for _ in range(5):
                await asyncio.sleep(0.01)
                other.clear(claims_only=True)

        *taken, _ = await asyncio.gather(*(take() for _ in range(8)), meddle())
        assert sorted(url for one in taken for url in one) == sorted(URLS)

    run(scenario, capacity=100)


def test_a_server_that_hangs_is_given_up_and_asked_again(run: Run, server: Server) -> None:
    async def scenario(bloom: AsyncBloomFilter, _: BloomFilter) -> None:
        await bloom.open()
        with stalled(server):
            for call in (functools.partial(bloom.add, "a"), bloom.open, bloom.clear):
                with pytest.raises(StorageError, match=LATE):
                    await call()
            with blocked_loop(0.02), pytest.raises(StorageError, match=LATE):
                await asyncio.wait_for(bloom.add("a"), 90)
            # Waiting for other tasks counts: the last would wait as many time-outs else.
            start = asyncio.get_running_loop().time()
            tasks = [bloom.add(f"{number}") for number in range(300)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, StorageError) for result in results)
            assert asyncio.get_running_loop().time() - start < 150 * 0.2
        assert [await bloom.add("b"), await bloom.contains("b")] == [True, True]

    run(scenario, timeout=0.2)


@contextmanager
def blocked_loop(seconds: float) -> Iterator[None]:
    """Have a callback block the loop for so long, in each of its rounds."""
    loop = asyncio.get_running_loop()
    handle = None

    def block() -> None:
        nonlocal handle
        time.sleep(seconds)
        handle = loop.call_soon(block)

    handle = loop.call_soon(block)
    try:
        yield
    finally:
        handle.cancel()


def test_a_loop_that_is_blocked_does_not_take_that_for_the_servers_silence(run: Run) -> None:
    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        with blocked_loop(0.01):
            assert await bloom.add("connecting, a handshake, the header and all rings")
            other.rotate()
            assert all(await bloom.add_many(URLS[:100])), "all rings again"
        with blocked_loop(0.15):
            assert await bloom.add("one round trip")
            tasks = [bloom.add(f"one after the other {number}") for number in range(2)]
            assert all(await asyncio.gather(*tasks))

    run(scenario, timeout=0.1, blocks=16, window="2 months")


def test_a_task_that_is_cancelled_leaves_the_others_their_answers(run: Run) -> None:
    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        await bloom.open()
        for number in range(50):
            tasks = [asyncio.ensure_future(bloom.add_many(URLS[:10])) for _ in range(3)]
            for _ in range(1 + number % 6):  # before it is sent, before and after the reply
                await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.wait(tasks)
            assert all(len(task.result()) == 10 for task in tasks[1:])
        assert await bloom.contains(URLS[:10]) == [True] * 10

    run(scenario)
