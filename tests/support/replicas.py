"""Servers with replicas, which replace them when they fail: alone, and as a cluster."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.polling import until, until_it_works
from support.proxy import Proxy
from support.servers import NODES, Server, is_whole, join_cluster

#: They begin to copy at once, and look for their primary often.
QUICKLY = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
#: Milliseconds of silence after which a node counts as failed; it is replaced 1 to 3 s later.
FAILED_AFTER_MS = 1_000
#: Seconds in which a server answers, unless it is stalled.
ANSWERS_WITHIN = 0.5


@contextmanager
def with_replica(binary: str, *options: str) -> Iterator[tuple[Server, Server]]:
    """Run a server and a replica of it."""
    with (
        Server(binary, *QUICKLY, *options) as primary,
        Server(binary, "--replicaof", f"127.0.0.1 {primary.port}") as replica,
    ):
        wait_for_link(replica, primary)
        yield primary, replica


def _follow(replica: Server, primary: Server) -> None:
    """Make a node of a cluster the replica of another one."""
    with replica.client() as client, primary.client() as other:
        replicate = partial(client.execute_command, "CLUSTER REPLICATE")
        name = other.execute_command("CLUSTER MYID").decode()
        until_it_works(lambda: replicate(name), redis.ResponseError)  # it has to hear of it first


def wait_for_link(replica: Server, primary: Server) -> None:
    """Wait until a replica has what its primary has, and the primary knows that."""
    with replica.client() as client, primary.client() as other:
        until(
            lambda: client.info("replication").get("master_link_status") == "up",
            "the replica is connected",
        )
        # WAIT waits for what its own connection has written, so this one has to write, too.
        other.publish("wait_for_link", "")
        until(lambda: other.execute_command("WAIT", 1, 1_000) == 1, "the replica acknowledges")


# -- pairs that change places --


@dataclass
class Node:
    """A server, and the proxy through which clients and other nodes reach it, if there is one."""

    server: Server
    proxy: Proxy | None = None
    password: str | None = None

    @property
    def port(self) -> int:
        """The port that clients know."""
        return self.proxy.port if self.proxy else self.server.port

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Return a client that soon gives up."""
        once = Retry(NoBackoff(), 0)
        options: dict[str, Any] = {"password": self.password, "retry": once}
        with self.server.client(socket_timeout=ANSWERS_WITHIN, **options) as client:
            try:
                yield client
            finally:
                client.connection_pool.disconnect()

    @property
    def role(self) -> str:
        """What it takes itself for: "master" or "slave"; "" if it does not answer."""
        return self._replication("role")

    @property
    def is_linked(self) -> bool:
        """Whether it is a replica that has its primary's data."""
        return self._replication("master_link_status") == "up"

    @property
    def offset(self) -> str:
        """How much of its data's history it has."""
        return self._replication("master_repl_offset")

    def configure(self, option: str, value: int) -> None:
        """Set an option, also for later starts."""
        self.server.options += (f"--{option}", str(value))
        with self.server.client() as client:
            client.config_set(option, value)

    def _replication(self, name: str) -> str:
        try:
            with self.client() as client:
                return str(client.info("replication").get(name, ""))
        except redis.RedisError:
            return ""


class Shard:
    """A primary and a replica, which may change places.

    Args:
        nodes: the two of them.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)

    def find_primary(self) -> Node | None:
        """Return the one that takes writes; None if there is none, or two."""
        primaries = [node for node in self.nodes if node.role == "master"]
        return primaries[0] if len(primaries) == 1 else None

    def primary(self) -> Node:
        """Wait until one of them takes writes; return it."""
        return until(self.find_primary, "one of two nodes is the primary")

    def replica(self) -> Node:
        """Wait until the other one has all data; return it."""

        def in_step() -> Node | None:
            primary = self.find_primary()
            others = [node for node in self.nodes if primary and node is not primary]
            has_all = [node for node in others if primary and node.offset == primary.offset]
            return next((node for node in has_all if node.is_linked), None)

        return until(in_step, "the replica is in step")


class Group:
    """Shards that belong together.

    Args:
        shards: all of them.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards

    @property
    def nodes(self) -> list[Node]:
        return [node for shard in self.shards for node in shard.nodes]

    def primaries(self) -> list[Server]:
        return [shard.primary().server for shard in self.shards]

    def is_whole(self) -> bool:
        """Whether all agree on the primaries, and each of these has a replica in step."""
        raise NotImplementedError

    def await_whole(self) -> None:
        """Wait until that is so."""
        until(self.is_whole, "all agree on the primaries, whose replicas are in step")


class Cluster(Group):
    """Primaries that share the slots, each with a replica."""

    def is_whole(self) -> bool:
        linked = [node for node in self.nodes if node.is_linked]
        known = all(_knows_all(node, len(self.nodes)) for node in self.nodes)
        return known and len(linked) == len(self.shards)


def _knows_all(node: Node, count: int) -> bool:
    """Whether a node answers, and takes the cluster for whole."""
    try:
        with node.client() as client:
            return is_whole(client, count)
    except redis.RedisError:
        return False


@contextmanager
def start_replicated_cluster(
    binary: str, *options: str, proxied: bool = False, failed_after_ms: int = FAILED_AFTER_MS
) -> Iterator[Cluster]:
    """Run a cluster of three primaries with a replica each.

    Args:
        binary: of the server.
        options: of each node.
        proxied: whether clients and replicas go through proxies.
        failed_after_ms: until a node counts as failed.
    """
    options = (
        *("--cluster-enabled", "yes", "--cluster-replica-validity-factor", "0"),
        *("--repl-diskless-sync-delay", "0"),
        *("--cluster-migration-barrier", "10", "--repl-backlog-size", "10mb"),
        *options,
    )
    with ExitStack() as stack:
        nodes = []
        for _ in range(2 * NODES):
            node = Node(stack.enter_context(Server(binary, *options)))
            if proxied:
                node.proxy = stack.enter_context(Proxy(node.server.port))
                node.configure("cluster-announce-port", node.port)
            nodes.append(node)
        primaries, replicas = nodes[:NODES], nodes[NODES:]
        join_cluster([node.server for node in nodes], NODES)
        for primary, replica in zip(primaries, replicas, strict=True):
            _follow(replica.server, primary.server)
        cluster = Cluster([Shard(pair) for pair in zip(primaries, replicas, strict=True)])
        cluster.await_whole()
        for node in nodes:  # not before: nodes that meet have as long as that to know each other
            node.configure("cluster-node-timeout", failed_after_ms)
        yield cluster
