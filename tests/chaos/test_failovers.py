"""Each fault of replicated servers does what its name says, and is mended."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from support.polling import until
from support.servers import Server

from chaos.failovers import INFLICT, KEY, MOVED
from chaos.schedule import CLUSTER, SENTINEL
from chaos.stands import STANDS, ClusterStand
from scrapy_bloom.bloom.model.keys import Keys

#: A key in slot 0, which the first shard has.
FIRST = "la2"


@contextmanager
def victims_on(stand: str, binary: str) -> Iterator[Any]:
    with STANDS[stand](binary, (), proxied=True, seed=1) as running:
        yield SimpleNamespace(stand=running)


@pytest.fixture(params=[CLUSTER, SENTINEL])
def own_victims(request: pytest.FixtureRequest, any_binary: str) -> Iterator[Any]:
    """For tests that end servers."""
    with victims_on(request.param, any_binary) as victims:
        yield aimed(victims)


@pytest.fixture(scope="module")
def cluster_victims(any_binary: str) -> Iterator[Any]:
    with victims_on(CLUSTER, any_binary) as victims:
        yield victims


def aimed(victims: Any) -> Any:
    """Aim at the first shard."""
    victims.stand.aim(0)
    victims.server, victims.proxy = victims.stand.server, victims.stand.proxy
    return victims


def test_a_primary_whose_replica_lags_takes_writes_along(own_victims: Any) -> None:
    before = own_victims.server
    with counting(before) as acknowledged, INFLICT["failover_lag"](own_victims, 0.5):
        (after,) = (node for node in own_victims.stand.shard.nodes if node.server is not before)
        assert 0 < count(after.server) < acknowledged[-1]


@contextmanager
def counting(server: Server) -> Iterator[list[int]]:
    """Count on a server until it fails; note what it acknowledges."""
    acknowledged, is_over = [], Event()

    def run() -> None:
        with server.client() as client:
            while not is_over.is_set():
                try:
                    acknowledged.append(int(client.incr(FIRST)))
                except redis.RedisError:
                    return

    thread = Thread(target=run)
    thread.start()
    until(lambda: acknowledged, "it counts")
    try:
        yield acknowledged
    finally:
        is_over.set()
        thread.join()


def count(server: Server) -> int:
    with server.client() as client:
        return int(client.get(FIRST) or 0)


def test_slots_move(cluster_victims: Any) -> None:
    stand: ClusterStand = aimed(cluster_victims).stand
    names = [[f"{{{KEY}:{block}}}:{number}" for number in range(10)] for block in range(16)]
    with redis.RedisCluster("127.0.0.1", stand.cluster.nodes[0].port) as client:
        for name in [name for names_of_block in names for name in names_of_block]:
            client.set(name, "x")
        before = held(stand)
        with INFLICT["slots_move"](cluster_victims, 0.5):
            half = held(stand)
        after = held(stand)
    moved = [block for block in range(16) if before[block] != after[block]]
    assert len(moved) == MOVED
    for block in range(16):
        assert sorted(half[block].values()) == ([5, 5] if block in moved else [10])
        assert list(after[block].values()) == [10]


def held(stand: ClusterStand) -> list[dict[int, int]]:
    """Return how many keys of each block are on which primary."""
    found: list[dict[int, int]] = [{} for _ in range(16)]
    for server in stand.primaries:
        with server.client() as client:
            for block, counts in enumerate(found):
                slot_of = Keys(KEY).ring(block).partition("}")[0]
                if number := sum(1 for _ in client.scan_iter(f"{slot_of}}}:*")):
                    counts[server.port] = number
    return found
