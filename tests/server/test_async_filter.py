"""BloomFilter for asyncio: the same answers as the other one, and tasks that share one object."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis import Redis
from support.filters import URLS
from support.loops import eventually, in_loop
from support.polling import PATIENCE
from support.servers import Server

from scrapy_bloom import AsyncBloomFilter, BloomFilter, ConfigurationError

OPTIONS: dict[str, Any] = {"capacity": 10_000, "blocks": 4}


@in_loop
async def test_both_kinds_are_one_filter(server: Server, client: Redis, tmp_path: Path) -> None:
    other = BloomFilter(client, "shop", **OPTIONS)
    async with redis.asyncio.Redis.from_url(server.url) as own:
        bloom = AsyncBloomFilter(own, "shop", PATIENCE, **OPTIONS)
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


@in_loop
async def test_an_address_opens_it(server: Server, client: Redis) -> None:
    """And it closes its own client."""

    def names() -> list[str]:
        return [one["name"] for one in client.client_list()]

    async with AsyncBloomFilter(f"{server.url}?client_name=ours", "shop") as bloom:
        assert [await bloom.add("a"), await bloom.add("a")] == [True, False]
        assert "ours" in names()
    await eventually(lambda: "ours" not in names())
    assert "a" in BloomFilter(client, "shop")


@in_loop
async def test_tasks_that_share_an_object_take_each_item_once(
    server: Server, client: Redis
) -> None:
    """Through growth and changes by others, which they all have to follow."""
    options: dict[str, Any] = {"capacity": 100, "error_rate": 1e-9}
    other = BloomFilter(client, "shop", **options)

    async def take() -> list[str]:
        return [url for url in URLS if await bloom.add(url)]

    async def meddle() -> None:
        for number in range(5):
            await asyncio.sleep(0.01)
            other.extend(f"{number}/{n}" for n in range(500))

    async with AsyncBloomFilter(
        server.url, "shop", PATIENCE, capacity=100, error_rate=1e-9
    ) as bloom:
        *taken, _ = await asyncio.gather(*(take() for _ in range(8)), meddle())
    assert sorted(url for one in taken for url in one) == sorted(URLS)
