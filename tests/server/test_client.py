"""What a caller passes as the client: what is refused, and what works."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from support.servers import Server

from scrapy_bloom.bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.errors import ConfigurationError


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        (AsyncBloomFilter, lambda: None, r"is None. Pass an object of redis\.asyncio\.Redis or"),
        (BloomFilter, lambda: Redis, r"Pass an object of redis\.Redis or redis\.RedisCluster"),
        (BloomFilter, Redis().pipeline, r"Pass an object of redis\.Redis"),
        (AsyncBloomFilter, redis.asyncio.Redis().pipeline, r"object of redis\.asyncio\.Redis"),
        (BloomFilter, redis.asyncio.Redis, r"Pass an object of redis\.Redis"),
        (AsyncBloomFilter, Redis, r"Pass an object of redis\.asyncio\.Redis"),
    ],
)
def test_what_is_no_client_is_refused(kind: type, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(make(), "k")


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {}])
def test_clients_that_decode_and_either_protocol_work(
    server: Server, client: Redis, options: dict[str, Any]
) -> None:
    with Redis.from_url(server.url, **options) as other:
        bloom = BloomFilter(other, "k", capacity=1_000, window="2 days")
        assert bloom.add_many(["grün", b"\xff"]) == [True, True]
        assert bloom.info().windows["default"].count == 2

    async def use() -> None:
        async with redis.asyncio.Redis.from_url(server.url, **options) as own:
            other = AsyncBloomFilter(own, "k", capacity=1_000)
            assert await other.contains(["grün", b"\xff", "c"]) == [True, True, False]

    asyncio.run(use())
    assert "grün" in BloomFilter(client, "k")


def test_a_pool_without_connections_says_so(server: Server, client: Redis) -> None:
    pool = redis.ConnectionPool(host="127.0.0.1", port=server.port, max_connections=1)
    connection = pool.get_connection()
    with pytest.raises(Exception, match="Too many connections"):
        BloomFilter(Redis(connection_pool=pool), "k").open()
    pool.release(connection)
    assert BloomFilter(Redis(connection_pool=pool), "k").add("a")
    pool.disconnect()
