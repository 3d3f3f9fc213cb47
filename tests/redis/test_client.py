"""What a caller passes as the client: what is refused, and how errors speak of it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel
from support.answering import SECRET, refused
from support.servers import Server, free_port

from scrapy_bloom import AsyncBloomFilter, BloomFilter, ConfigurationError, StorageError

# -- what is refused --


def valkey(module: str) -> Any:
    return pytest.importorskip(module).Valkey()


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        (BloomFilter, lambda: "redis://localhost", r"redis\.Redis or|redis\.asyncio\.Redis or"),
        (AsyncBloomFilter, lambda: None, r"redis\.Redis or|redis\.asyncio\.Redis or"),
        (BloomFilter, lambda: Redis, "which is a class: pass an object of it"),
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


def test_only_utf8_is_used_by_any_of_its_names(client: Redis, server: Server) -> None:
    for encoding in ("utf-16", "latin-1", "utf-8-sig", "no-such", None):
        options: dict[str, Any] = {"encoding": encoding, "decode_responses": encoding != "utf-16"}
        for kind, own in (BloomFilter, Redis), (AsyncBloomFilter, redis.asyncio.Redis):
            with pytest.raises(ConfigurationError, match="which is of another encoding than UTF-8"):
                kind(own(**options), "k")
    for encoding in ("utf-8", "UTF8", "utf_8"):
        with server.client(encoding=encoding, decode_responses=True) as other:
            assert BloomFilter(other, encoding).add("gr\u00fcn")
        assert "gr\u00fcn" in BloomFilter(client, encoding)


def test_what_is_stored_and_is_no_text_is_a_storage_error(client: Redis, server: Server) -> None:
    BloomFilter(client, "k").open()
    client.hset("{k:3}:ring", "state", b"\xff\xfe")
    with server.client(decode_responses=True) as other:
        for use in (BloomFilter.open, BloomFilter.look, BloomFilter.info):
            with pytest.raises(StorageError, match="no text under a key of the filter"):
                use(BloomFilter(other, "k"))


# -- how errors speak of it --


def test_errors_name_the_address_of_the_client() -> None:
    port, once = free_port(), Retry(NoBackoff(), 0)
    options: dict[str, Any] = {"host": "127.0.0.1", "port": port, "password": SECRET}
    bloom = BloomFilter(Redis(**options, db=3, username="me", retry=once), "k")
    with refused(f"redis://127.0.0.1:{port}/3 is not there", "pass a client of another one"):
        bloom.open()
    assert SECRET not in repr(bloom)


def test_all_clients_have_addresses(cluster: redis.RedisCluster) -> None:
    port = next(iter(cluster.nodes_manager.startup_nodes.values())).port
    nodes = redis.asyncio.RedisCluster(host="some.host", port=7001, password=SECRET)
    secure = redis.asyncio.Redis.from_url(f"rediss://me:{SECRET}@[::1]:7000/1")
    unix = Redis(unix_socket_path="/no/such/socket", db=2, password=SECRET)
    master = Sentinel([("127.0.0.1", 1)]).master_for("mine", password=SECRET)
    for bloom, address in (
        (BloomFilter(unix, "k"), "unix:///no/such/socket?db=2"),
        (AsyncBloomFilter(secure, "k"), "rediss://[::1]:7000/1"),
        (BloomFilter(cluster, "k"), f"the cluster of redis://127.0.0.1:{port}/0"),
        (AsyncBloomFilter(nodes, "k"), "the cluster of redis://some.host:7001/0"),
        (BloomFilter(master, "k"), "the service 'mine' of Redis Sentinel"),
    ):
        assert repr(bloom).endswith(f" on {address}>")


def test_an_exhausted_pool_is_not_the_server_s_fault(server: Server, client: Redis) -> None:
    message = "connections of the pool are in use; raise its max_connections"
    for make in (redis.ConnectionPool, partial(redis.BlockingConnectionPool, timeout=0.01)):
        pool = make(host="127.0.0.1", port=server.port, max_connections=1)
        connection = pool.get_connection()
        with pytest.raises(StorageError, match=message):
            BloomFilter(Redis(connection_pool=pool), "k").open()
        pool.release(connection)
        pool.disconnect()

    async def use() -> None:
        pool = redis.asyncio.ConnectionPool.from_url(server.url, max_connections=1)
        connection = await pool.get_connection()
        with pytest.raises(StorageError, match="connections of the pool are in use"):
            await AsyncBloomFilter(redis.asyncio.Redis(connection_pool=pool), "k").open()
        await pool.release(connection)
        await pool.disconnect()

    asyncio.run(use())
