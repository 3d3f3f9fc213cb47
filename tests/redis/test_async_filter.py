"""BloomFilter for asyncio: the same answers as the other one, and tasks that share one object."""

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from support.servers import Server

from scrapy_bloom import AsyncBloomFilter, BloomFilter, StorageError

PATIENCE = 120.0
URLS = [f"https://example.com/{number}" for number in range(1_000)]

#: Gets an asynchronous filter, and one for the same key that is not.
Scenario = Callable[[AsyncBloomFilter, BloomFilter], Awaitable[Any]]
Run = Callable[..., Any]


@pytest.fixture
def run(server: Server, client: Redis) -> Run:
    """Run a scenario with an asynchronous filter and another one on the same key."""

    def run(scenario: Scenario, **options: Any) -> Any:
        options = {"capacity": 10_000, "blocks": 4, **options}

        async def bounded() -> Any:
            own = redis.asyncio.Redis.from_url(server.url)
            try:
                bloom = AsyncBloomFilter(own, "shop", **options)
                other = BloomFilter(client, "shop", **{**options, "timeout": None})
                return await asyncio.wait_for(scenario(bloom, other), PATIENCE)
            finally:
                await getattr(own, "aclose", own.close)()

        return asyncio.run(bounded())

    return run


def test_it_has_every_method_that_bloomfilter_has() -> None:
    """Those that cannot be awaited have others in their place."""

    def methods(cls: type) -> dict[str, Any]:
        found = inspect.getmembers(cls, callable)
        return {name: method for name, method in found if not name.startswith("_")}

    theirs, ours = methods(BloomFilter), methods(AsyncBloomFilter)
    sync_only = {"eviction_policy", "keep_connection", "run_one", "server_id", "wait"}
    assert theirs.keys() - ours.keys() <= sync_only
    for name, method in ours.items():
        if name in theirs and name != "as_wanted":
            assert inspect.iscoroutinefunction(method), name
            named = list(inspect.signature(method).parameters)
            assert named == list(inspect.signature(theirs[name]).parameters), name
    assert list(inspect.signature(AsyncBloomFilter).parameters) == list(
        inspect.signature(BloomFilter).parameters
    )


def test_both_kinds_are_one_filter(run: Run) -> None:
    async def scenario(bloom: AsyncBloomFilter, other: BloomFilter) -> None:
        header = await bloom.open()
        assert header == other.open()
        assert await bloom.add("a") is True
        assert other.add("a") is False
        assert await bloom.add_many(["a", "b", "b"]) == [False, True, False]
        assert await bloom.contains("b") is True
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
        assert await bloom.extend(produce(20_000), told.append) == 20_000
        assert await bloom.extend(map(str, range(19_990, 20_010))) == 10
        assert await bloom.extend(produce(0)) == 0
        assert sum(told) == 20_000
        assert len(other) == 20_010

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


def test_a_server_that_hangs_is_given_up_and_asked_again(run: Run, client: Redis) -> None:
    async def scenario(bloom: AsyncBloomFilter, _: BloomFilter) -> None:
        await bloom.open()
        client.client_pause(10_000, all=False)
        try:
            for call in (functools.partial(bloom.add, "a"), bloom.open, bloom.clear):
                with pytest.raises(StorageError, match="did not answer in time"):
                    await call()
        finally:
            client.client_unpause()
        assert await bloom.add("b") is True
        assert await bloom.contains("b") is True

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


def test_a_server_that_hangs_is_given_up_by_a_loop_that_is_blocked(run: Run, client: Redis) -> None:
    async def scenario(bloom: AsyncBloomFilter, _: BloomFilter) -> None:
        await bloom.open()
        client.client_pause(10_000, all=False)
        try:
            with blocked_loop(0.02), pytest.raises(StorageError, match="did not answer in time"):
                await asyncio.wait_for(bloom.add("a"), 9)
        finally:
            client.client_unpause()

    run(scenario, timeout=0.1)


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


def test_waiting_for_other_tasks_counts_for_the_time_out(run: Run, client: Redis) -> None:
    """Else the last of many would wait as many time-outs for a server that hangs."""

    async def scenario(bloom: AsyncBloomFilter, _: BloomFilter) -> None:
        await bloom.open()
        client.client_pause(10_000, all=False)
        try:
            start = asyncio.get_running_loop().time()
            tasks = [bloom.add(f"{number}") for number in range(30)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, StorageError) for result in results)
            assert asyncio.get_running_loop().time() - start < 20 * 0.2
        finally:
            client.client_unpause()
        assert await bloom.contains("b") is False
        assert await bloom.add("b") is True

    run(scenario, timeout=0.2)
