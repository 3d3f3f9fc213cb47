"""What a caller passes as the client: what is refused, and how errors speak of it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel
from support.servers import Server, free_port

from scrapy_bloom import AsyncBloomFilter, BloomFilter, ConfigurationError, StorageError

SECRET = "S3CRET"


# -- what is refused --


def valkey(module: str) -> Any:
    return pytest.importorskip(module).Valkey()


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        *(
            (kind, lambda value=value: value, r"redis\.Redis or|redis\.asyncio\.Redis or")
            for kind in (BloomFilter, AsyncBloomFilter)
            for value in (None, "redis://localhost", 5)
        ),
        (BloomFilter, lambda: Redis, "which is a class: pass an object of it"),
        (AsyncBloomFilter, lambda: Redis, "which is a class: pass an object of it"),
        (BloomFilter, Redis().pipeline, "Pipeline, which is a pipeline.*use its client"),
        (AsyncBloomFilter, redis.asyncio.Redis().pipeline, "Pipeline, which is a pipeline"),
        (BloomFilter, redis.asyncio.Redis, "which is for asyncio: use AsyncBloomFilter"),
        (AsyncBloomFilter, Redis, r"redis\.asyncio\.Redis or .* which is not for asyncio"),
        (BloomFilter, partial(valkey, "valkey"), "of the package valkey; clients of redis work"),
        (AsyncBloomFilter, partial(valkey, "valkey.asyncio"), "of the package valkey"),
    ],
)
def test_what_is_no_client_is_refused_by_name(
    kind: type, make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(make(), "k")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "ascii", "utf-8-sig", "no-such", None])
@pytest.mark.parametrize("decode", [False, True])
def test_a_client_of_another_encoding_is_refused(encoding: Any, decode: bool) -> None:
    options = {"encoding": encoding, "decode_responses": decode}
    with pytest.raises(ConfigurationError, match="which is of another encoding than UTF-8"):
        BloomFilter(Redis(**options), "k")
    with pytest.raises(ConfigurationError, match="which is of another encoding than UTF-8"):
        AsyncBloomFilter(redis.asyncio.Redis(**options), "k")


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf_8"])
def test_utf8_has_many_names(client: Redis, server: Server, encoding: str) -> None:
    with server.client(encoding=encoding, decode_responses=True) as other:
        assert BloomFilter(other, "gr\u00fcn").add("gr\u00fcn")
    assert "gr\u00fcn" in BloomFilter(client, "gr\u00fcn")


def test_what_is_stored_and_is_no_text_is_a_storage_error(client: Redis, server: Server) -> None:
    BloomFilter(client, "k").open()
    client.hset("{k:3}:ring", "state", b"\xff\xfe")
    with server.client(decode_responses=True) as other:
        for use in (BloomFilter.open, BloomFilter.look, BloomFilter.info):
            with pytest.raises(StorageError, match="no text under a key of the filter"):
                use(BloomFilter(other, "k"))


# -- how errors speak of it --


def unreachable(**options: Any) -> tuple[Redis, str]:
    port = free_port()
    options = {"host": "127.0.0.1", "port": port, "retry": Retry(NoBackoff(), 0), **options}
    return Redis(**options), f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "redis://{}/0"),
        ({"db": 3, "username": "me", "password": SECRET}, "redis://{}/3"),
        ({"ssl": True}, "rediss://{}/0"),
    ],
)
def test_errors_name_the_address_of_the_client_and_no_setting(
    options: dict[str, Any], label: str
) -> None:
    client, address = unreachable(**options)
    bloom = BloomFilter(client, "k")
    assert label.format(address) in repr(bloom)
    with pytest.raises(StorageError) as caught:
        bloom.open()
    assert str(caught.value).startswith(f"{label.format(address)} is not there")
    assert "pass a client of another one" in str(caught.value)
    assert "BLOOM" not in str(caught.value)
    assert SECRET not in str(caught.value) + repr(bloom)


def test_other_clients_have_addresses_too(cluster: redis.RedisCluster) -> None:
    unix = Redis(unix_socket_path="/no/such/socket", db=2, password=SECRET)
    assert "on unix:///no/such/socket?db=2>" in repr(BloomFilter(unix, "k"))
    secure = redis.asyncio.Redis.from_url(f"rediss://me:{SECRET}@[::1]:7000/1")
    assert "on rediss://[::1]:7000/1>" in repr(AsyncBloomFilter(secure, "k"))
    of_cluster = repr(BloomFilter(cluster, "k"))
    port = next(iter(cluster.nodes_manager.startup_nodes.values())).port
    assert f"on the cluster of redis://127.0.0.1:{port}/0>" in of_cluster
    nodes = redis.asyncio.RedisCluster(host="some.host", port=7001, password=SECRET)
    assert "on the cluster of redis://some.host:7001/0>" in repr(AsyncBloomFilter(nodes, "k"))
    master = Sentinel([("127.0.0.1", 1)]).master_for("mine", password=SECRET)
    assert "on the service 'mine' of Redis Sentinel>" in repr(BloomFilter(master, "k"))


def test_filters_made_of_others_name_the_address_too(client: Redis) -> None:
    bloom = BloomFilter(client, "k")
    bloom.open()
    assert repr(bloom.copy("other")).endswith(repr(bloom).partition(" on ")[2])


# -- a pool without a free connection --


@contextmanager
def exhausted(pool: redis.ConnectionPool) -> Iterator[Redis]:
    """Return a client whose pool's only connection is taken."""
    with ExitStack() as stack:
        connection = pool.get_connection()
        stack.callback(pool.disconnect)
        stack.callback(pool.release, connection)
        yield Redis(connection_pool=pool)


@pytest.mark.parametrize(
    "make",
    [
        lambda url: redis.ConnectionPool.from_url(url, max_connections=1),
        lambda url: redis.BlockingConnectionPool.from_url(url, max_connections=1, timeout=0.01),
    ],
)
def test_an_exhausted_pool_is_not_the_server_s_fault(
    server: Server, client: Redis, make: Callable[[str], redis.ConnectionPool]
) -> None:
    message = "connections of the pool are in use; raise its max_connections"
    with exhausted(make(server.url)) as busy, pytest.raises(StorageError, match=message):
        BloomFilter(busy, "k").open()


def test_an_exhausted_pool_of_asyncio_is_not_the_server_s_fault(
    server: Server, client: Redis
) -> None:
    async def use() -> None:
        pool = redis.asyncio.ConnectionPool.from_url(server.url, max_connections=1)
        connection = await pool.get_connection()
        try:
            bloom = AsyncBloomFilter(redis.asyncio.Redis(connection_pool=pool), "k")
            with pytest.raises(StorageError, match="connections of the pool are in use"):
                await bloom.open()
        finally:
            await pool.release(connection)
            await pool.disconnect()

    asyncio.run(use())
