"""Replicas of real servers: connected, missing, and put in the place of their primaries."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import redis

from support.polling import until
from support.servers import Server, is_whole, start_cluster

#: They begin to copy at once, and look for their primary often.
QUICKLY = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


@contextmanager
def with_replica(binary: str, *options: str) -> Iterator[tuple[Server, Server]]:
    """Run a server and a replica of it."""
    with (
        Server(binary, *QUICKLY, *options) as primary,
        Server(binary, "--replicaof", f"127.0.0.1 {primary.port}") as replica,
    ):
        wait_for_link(replica, primary)
        yield primary, replica


@contextmanager
def with_replicas(primaries: list[Server], *options: str) -> Iterator[list[Server]]:
    """Run a replica of each primary of a cluster, in their order."""
    with ExitStack() as stack:
        replicas = []
        for primary in primaries:
            own = Server(primary.binary, "--cluster-enabled", "yes", *options)
            replicas.append(stack.enter_context(own))
            _attach(own, primary)
        for replica, primary in zip(replicas, primaries, strict=True):
            wait_for_link(replica, primary)
        for server in (*primaries, *replicas):
            with server.client() as client:
                until(partial(_has_replicas, client, len(primaries)), "the nodes know the replicas")
        yield replicas


@contextmanager
def start_cluster_with_replica(binary: str) -> Iterator[tuple[list[Server], Server]]:
    """Run a cluster, and a replica of its first node, which soon takes the place of a dead one."""
    options = ("--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
    with start_cluster(binary, *options) as nodes, with_replicas(nodes[:1], *options) as (replica,):
        for node in nodes:
            with node.client() as client:
                until(partial(is_whole, client, len(nodes) + 1), "all know it")
        yield nodes, replica


def _attach(replica: Server, primary: Server) -> None:
    with replica.client() as client, primary.client() as other:
        other.config_set("repl-diskless-sync-delay", 0)
        client.execute_command("CLUSTER MEET", "127.0.0.1", primary.port)
        name = other.execute_command("CLUSTER MYID").decode()
        until(partial(_replicate, client, name), "the replica knows its primary")


def _replicate(client: redis.Redis, name: str) -> bool:
    try:
        return bool(client.execute_command("CLUSTER REPLICATE", name))
    except redis.ResponseError:  # it has not heard of it yet
        return False


def _has_replicas(client: redis.Redis, count: int) -> bool:
    slots = client.execute_command("CLUSTER", "SLOTS")
    return sum(len(servers) == 2 for _, _, *servers in slots) == count


def wait_for_link(replica: Server, primary: Server) -> None:
    """Wait until a replica has what its primary has, and the primary knows that."""
    with replica.client() as client, primary.client() as other:
        until(
            lambda: client.info("replication").get("master_link_status") == "up",
            "the replica is connected",
        )
        until(lambda: other.execute_command("WAIT", 1, 1_000) == 1, "the replica acknowledges")


def take_over(replica: Server, others: list[Server]) -> None:
    """Make a replica of a cluster the primary; wait until other nodes know."""
    with replica.client() as client:
        client.execute_command("CLUSTER FAILOVER", "TAKEOVER")
    for other in (replica, *others):
        with other.client() as client:
            until(partial(_knows_primary, client, replica), "the replica is the primary")


def _knows_primary(client: redis.Redis, server: Server) -> bool:
    slots = client.execute_command("CLUSTER", "SLOTS")
    is_ok = client.cluster("INFO")["cluster_state"] == "ok"
    return is_ok and server.port in [primary[1] for _, _, primary, *_ in slots]


def is_primary(server: Server) -> bool:
    """Whether a node is a primary, and the cluster is whole."""
    with server.client() as client:
        state, role = client.cluster("INFO")["cluster_state"], client.info("replication")["role"]
        return (state, role) == ("ok", "master")
