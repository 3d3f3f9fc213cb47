"""``Driver.wait``: replicas that have what all clients have written before, on real servers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis
from redis import Redis
from redis.crc import key_slot
from support.both import Both, use
from support.outages import admin, stalled
from support.replicas import with_replica, with_replicas
from support.rights import PASSWORD, USER, user_of
from support.servers import Server
from support.slots import SlotMove

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Call, Wait
from scrapy_bloom.bloom.protocol.session import touches

#: Milliseconds: long enough for a replica that is there, and for one that is not.
LONG, SHORT = 4_000, 200


def wait_on(
    url: str, kind: str, calls: list[Call], replicas: int = 1, milliseconds: int = LONG
) -> Acknowledged:
    """Wait on a connection that has written nothing before."""
    found, wait = list[Acknowledged](), Wait(replicas, milliseconds)

    async def steps(both: Both) -> None:
        if kind == "asyncio":
            found.append(await both.other._driver.wait(calls, wait))
        else:
            found.append(both.bloom._driver.wait(calls, wait))

    use(url, steps, timeout=20)
    return found[0]


def opened(client: Any) -> list[Call]:
    """Open a filter; return calls that write to all of its blocks."""
    bloom = BloomFilter(client, "k", capacity=1_000)
    bloom.open()
    return touches([bloom.session])


@pytest.fixture(scope="module")
def pair(any_binary: str) -> Iterator[tuple[Server, Server]]:
    with with_replica(any_binary) as pair:
        yield pair


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_writes_of_other_connections_are_waited_for(pair: tuple[Server, Server], kind: str) -> None:
    """A WAIT alone counts those of its own connection only."""
    primary, replica = pair
    with primary.client() as other:
        wait = partial(wait_on, primary.url, kind, opened(other))
        other.script_flush()  # the first write is refused then, and must come before the WAIT too
        assert wait() == Acknowledged(1)
        with stalled(replica):
            other.set("written", "by another connection")
            assert wait(1, SHORT) == Acknowledged(0)
            other.script_flush()
            assert wait(1, SHORT) == Acknowledged(0)
        assert wait() == Acknowledged(1)
        assert wait(2, SHORT) == Acknowledged(1)
        assert not [key for key in other.keys() if b"touch" in key]


def test_servers_without_replicas_and_users_who_may_not_wait(
    server: Server, client: Redis, kind: str
) -> None:
    calls = opened(client)
    assert wait_on(server.url, kind, calls, 1, 1) == Acknowledged(0)
    with admin(server, "CONFIG", "SET", "min-replicas-to-write", "0"):
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(StorageError, match="too few of its replicas are connected"):
            wait_on(server.url, kind, calls, 1, SHORT)
    with user_of(server, "~*", "+@all", "-wait"):
        url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"
        replicas, refusal = wait_on(url, kind, calls)
    assert replicas == 0
    assert "wait" in refusal.lower()
    assert "permission" in refusal


@pytest.fixture(scope="module")
def replicas(nodes: list[Server]) -> Iterator[list[Server]]:
    with with_replicas(nodes) as replicas:
        yield replicas


def test_the_primary_with_the_fewest_counts(
    cluster: redis.RedisCluster, nodes: list[Server], replicas: list[Server], kind: str
) -> None:
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    wait = partial(wait_on, url, kind, opened(cluster))
    for node in nodes:
        with node.client() as client:
            client.script_flush()
    assert wait() == Acknowledged(1)
    for replica in replicas:
        with stalled(replica):
            assert wait(1, SHORT) == Acknowledged(0)
    assert wait() == Acknowledged(1)


def test_a_block_that_moves_is_waited_for_on_its_new_node(
    cluster: redis.RedisCluster, nodes: list[Server], replicas: list[Server]
) -> None:
    """The client learns of it by the write before the WAIT."""
    bloom = BloomFilter(cluster, "k", capacity=1_000)
    bloom.open()
    calls = touches([bloom.session])
    driver = bloom._driver
    assert driver.wait(calls, Wait(1, LONG)) == Acknowledged(1)
    move = SlotMove(nodes, calls[3].keys[0])
    move.finish()
    target = replicas[nodes.index(move.target)]
    only = [call for call in calls if key_slot(call.keys[0].encode()) == move.slot]
    with stalled(target):
        assert driver.wait(only, Wait(1, SHORT)) == Acknowledged(0)
    assert driver.wait(only, Wait(1, LONG)) == Acknowledged(1)
