"""``wait``: replicas that have what a client has written, on real servers."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis
from support.both import PATIENCE
from support.outages import admin, stalled
from support.replicas import Cluster, start_replicated_cluster, with_replica
from support.servers import Server

from scrapy_bloom.bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.errors import StorageError

#: Milliseconds: long enough for a replica that is there, and for one that is not.
LONG, SHORT = 4_000, 200


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wait_on(url: str, kind: str, replicas: int, milliseconds: int, **params: Any) -> int:
    """Wait on a connection that has written nothing before."""
    with closing(connect(url, timeout=PATIENCE, **params)) as connection:
        if kind == "blocking":
            return BloomFilter(connection.client, "k").wait(replicas, milliseconds)

        async def wait() -> int:
            bloom = AsyncBloomFilter(connection.open_async(), "k", PATIENCE)
            try:
                return await bloom.wait(replicas, milliseconds)
            finally:
                await bloom.transport.close()

        return asyncio.run(wait())


@pytest.fixture(scope="module")
def pair(any_binary: str) -> Iterator[tuple[Server, Server]]:
    with with_replica(any_binary) as pair:
        yield pair


def test_what_was_written_before_is_waited_for(pair: tuple[Server, Server], kind: str) -> None:
    """A WAIT alone, on a connection without writes, would answer immediately."""
    primary, replica = pair
    assert wait_on(primary.url, kind, 1, LONG) == 1
    with stalled(replica):
        assert wait_on(primary.url, kind, 1, SHORT) == 0
    assert wait_on(primary.url, kind, 1, LONG) == 1
    assert wait_on(primary.url, kind, 2, SHORT) == 1
    assert wait_on(primary.url, kind, 2, 0) < 2, "no time is not for ever"
    with primary.client() as client:
        lasting = [key for key in client.keys("*:wait") if client.pttl(key) < 0]
    assert not lasting, "what is written for it goes by itself"


def test_a_server_without_replicas(server: Server, client: Redis, kind: str) -> None:
    assert wait_on(server.url, kind, 1, 1) == 0
    with admin(server, "CONFIG", "SET", "min-replicas-to-write", "0"):
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(StorageError, match="has too few replicas to accept writes"):
            wait_on(server.url, kind, 1, SHORT)


@pytest.fixture(scope="module")
def replicated(any_binary: str) -> Iterator[Cluster]:
    # No node of a busy machine takes another one for failed.
    with start_replicated_cluster(any_binary, failed_after_ms=60_000) as cluster:
        yield cluster


def test_the_primary_with_the_fewest_counts(replicated: Cluster, kind: str) -> None:
    url = f"redis+cluster://127.0.0.1:{replicated.nodes[0].port}"
    assert wait_on(url, kind, 1, LONG) == 1
    for shard in replicated.shards:
        with stalled(shard.replica().server):
            assert wait_on(url, kind, 1, SHORT) == 0
    assert wait_on(url, kind, 1, LONG) == 1
