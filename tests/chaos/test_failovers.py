"""Each fault of replicated servers does what its name says, and is mended."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.polling import until, until_it_works
from support.proxy import PASS, Fault, Kind
from support.replicated import Node
from support.servers import Server

from chaos.failovers import INFLICT, KEY, MOVED
from chaos.schedule import CLUSTER, SENTINEL
from chaos.stands import STANDS, ClusterStand, ReplicatedStand, SentinelStand
from scrapy_bloom.bloom.model.keys import Keys

REPLACING = ["failover", "failover_lag", "failover_stall", "failover_command"]
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


@pytest.fixture(scope="module", params=[CLUSTER, SENTINEL])
def victims(request: pytest.FixtureRequest, any_binary: str) -> Iterator[Any]:
    with victims_on(request.param, any_binary) as victims:
        yield victims


@pytest.fixture(scope="module")
def cluster_victims(any_binary: str) -> Iterator[Any]:
    with victims_on(CLUSTER, any_binary) as victims:
        yield victims


def aimed(victims: Any) -> Any:
    """Aim at the first shard."""
    victims.stand.aim(0)
    victims.server, victims.proxy = victims.stand.server, victims.stand.proxy
    return victims


@pytest.mark.parametrize("fault", REPLACING)
def test_a_replica_replaces_its_primary(own_victims: Any, fault: str) -> None:
    stand: ReplicatedStand = own_victims.stand
    with INFLICT[fault](own_victims, 0.5):
        assert stand.promotions() > 0
    assert own_victims.server.process.poll() is None
    aimed(own_victims)


@pytest.mark.parametrize("level", [0.2, 0.8])
def test_a_replica_is_forced_to_replace_its_primary(cluster_victims: Any, level: float) -> None:
    stand: ClusterStand = aimed(cluster_victims).stand
    count = stand.promotions()
    with INFLICT["failover_force"](cluster_victims, level):
        assert stand.promotions() > count
    stand.settle()


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


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.HALF, Kind.RESET_REPLY, Kind.HANG])
def test_a_fault_of_the_network_does_not_garble_what_a_replica_gets(
    victims: Any, kind: Kind
) -> None:
    shard = aimed(victims).stand.shard
    replica: Node = shard.replica()
    with victims.server.client() as client:
        client.set(FIRST, 1)
        victims.proxy.fault = Fault(kind)
        for _ in range(100):
            client.incr(FIRST)
        victims.proxy.fault = PASS
        client.wait(1, 0)
    assert replica.is_linked
    with replica.server.client() as client:
        if isinstance(victims.stand, ClusterStand):
            client.readonly()  # else it would name the primary
        assert client.get(FIRST) == b"101"


def test_a_primary_is_cut_off(victims: Any) -> None:
    aimed(victims)
    once = Retry(NoBackoff(), 0)
    with redis.Redis(port=victims.proxy.port, socket_timeout=0.2, retry=once) as client:
        with INFLICT["cut_off"](victims, 0.5), pytest.raises(redis.TimeoutError):
            client.ping()
        assert until_it_works(client.ping, redis.RedisError)


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


def test_a_sentinel_is_killed(any_binary: str) -> None:
    with victims_on(SENTINEL, any_binary) as victims:
        stand: SentinelStand = victims.stand
        killed = stand.sentinels[500 % 3]
        with INFLICT["sentinel_kill"](victims, 0.5):
            assert killed.process.poll() is not None
        assert killed.process.poll() is None
        stand.settle()
