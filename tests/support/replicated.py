"""Servers with replicas that replace them when they fail: a cluster, or under Sentinel."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.polling import until
from support.proxy import Proxy
from support.sentinels import SENTINELS, SERVICE, Sentinel, state_of
from support.servers import NODES, SLOTS, Server

#: Milliseconds of silence after which a node counts as failed; it is replaced 1 to 3 s later.
FAILED_AFTER = 1_000
#: Seconds in which a server answers, unless it is stalled.
ANSWERS_WITHIN = 0.5
#: What a server logs when it becomes a primary.
_PROMOTED = re.compile("(?:PRIMARY|MASTER) MODE enabled|Failover election won|Taking over the ")


@dataclass
class Node:
    """A server, and the proxy through which clients and other nodes reach it, if there is one."""

    server: Server
    proxy: Proxy | None = None

    @property
    def port(self) -> int:
        """The port that clients know."""
        return self.proxy.port if self.proxy else self.server.port

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Return a client that soon gives up."""
        once = Retry(NoBackoff(), 0)
        with self.server.client(socket_timeout=ANSWERS_WITHIN, retry=once) as client:
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

    def configure(self, option: str, value: int) -> None:
        """Set an option, also for later starts."""
        self.server.options += (f"--{option}", str(value))
        with self.server.client() as client:
            client.config_set(option, value)

    def promotions(self) -> int:
        """Return how often it has become a primary."""
        return len(_PROMOTED.findall((self.server.directory / "log").read_text()))

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

        def linked() -> Node | None:
            primary = self.find_primary()
            others = [node for node in self.nodes if primary and node is not primary]
            return next((node for node in others if node.is_linked), None)

        return until(linked, "the replica is in step")


# -- a cluster --


@dataclass
class Cluster:
    """Primaries that share the slots, each with a replica."""

    shards: list[Shard] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return [node for shard in self.shards for node in shard.nodes]

    def primaries(self) -> list[Server]:
        return [shard.primary().server for shard in self.shards]

    def await_whole(self) -> None:
        """Wait until all slots are served and each primary has a replica in step."""
        until(self._is_whole, "the cluster is whole")

    def _is_whole(self) -> bool:
        linked = [node for node in self.nodes if node.is_linked]
        known = all(_knows_all(node, len(self.nodes)) for node in self.nodes)
        return known and len(linked) == len(self.shards)


def _knows_all(node: Node, count: int) -> bool:
    """Whether a node takes the cluster for whole, and all of its nodes for well."""
    try:
        with node.client() as client:
            nodes = client.cluster("NODES")
            state = client.cluster("INFO")["cluster_state"]
    except redis.RedisError:
        return False
    flags = [set(node["flags"].split(",")) for node in nodes.values()]
    ill = any(one & {"fail", "fail?", "handshake", "noaddr"} for one in flags)
    return state == "ok" and len(nodes) == count and not ill


@contextmanager
def start_replicated_cluster(
    binary: str, *options: str, proxied: bool = False
) -> Iterator[Cluster]:
    """Run a cluster of three primaries with a replica each.

    Args:
        binary: of the server.
        options: of each node.
        proxied: whether clients and replicas go through proxies.
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
        _join(nodes)
        _share_slots([node.server for node in primaries])
        for primary, replica in zip(primaries, replicas, strict=True):
            _replicate(primary.server, replica.server)
        cluster = Cluster([Shard(pair) for pair in zip(primaries, replicas, strict=True)])
        cluster.await_whole()
        for node in nodes:  # not before: nodes that meet have as long as that to know each other
            node.configure("cluster-node-timeout", FAILED_AFTER)
        yield cluster


def _join(nodes: list[Node]) -> None:
    first = nodes[0].server.port
    for number, node in enumerate(nodes):
        with node.server.client() as client:
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", first, first + 10_000)
    for node in nodes:
        with node.server.client() as client:
            until(partial(_knows, client, len(nodes)), "the nodes know each other")


def _knows(client: redis.Redis, count: int) -> bool:
    nodes = client.cluster("NODES")
    return len(nodes) == count and not any("handshake" in n["flags"] for n in nodes.values())


def _share_slots(primaries: list[Server]) -> None:
    for number, server in enumerate(primaries):
        first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)


def _replicate(primary: Server, replica: Server) -> None:
    with primary.client() as client, replica.client() as follower:
        name = client.execute_command("CLUSTER", "MYID").decode()
        follower.execute_command("CLUSTER", "REPLICATE", name)


# -- Sentinel --


@dataclass
class SentinelGroup:
    """A primary and a replica, and the sentinels that watch them."""

    shard: Shard
    sentinels: list[Sentinel]

    def await_whole(self) -> None:
        """Wait until the sentinels agree on the primary, and its replica is in step."""
        until(self._is_whole, "the sentinels agree on the primary")

    def _is_whole(self) -> bool:
        primary = self.shard.find_primary()
        linked = any(node.is_linked for node in self.shard.nodes)
        agree = primary and all(_agrees(sentinel, primary.port) for sentinel in self.sentinels)
        return bool(linked and agree)


def _agrees(sentinel: Sentinel, port: int) -> bool:
    """Whether a sentinel knows all others, and takes the server at a port for the primary."""
    try:
        with sentinel.client() as client:
            known = state_of(client)
    except redis.RedisError:
        return False
    complete = int(known["num-slaves"]) >= 1 and int(known["num-other-sentinels"]) == SENTINELS - 1
    return bool(int(known["port"]) == port and known["flags"] == "master" and complete)


@contextmanager
def start_sentinels(binary: str, *options: str, proxied: bool = False) -> Iterator[SentinelGroup]:
    """Run a primary with a replica, and three sentinels.

    Args:
        binary: of the server.
        options: of the primary and the replica.
        proxied: whether clients, sentinels and the replica go through proxies.
    """
    options = ("--repl-diskless-sync-delay", "0", "--repl-backlog-size", "10mb", *options)
    with ExitStack() as stack:
        nodes = []
        for _ in range(2):
            node = Node(stack.enter_context(Server(binary, *options)))
            if proxied:
                node.proxy = stack.enter_context(Proxy(node.server.port))
            node.configure("replica-announce-port", node.port)
            nodes.append(node)
        with nodes[1].server.client() as client:
            client.replicaof("127.0.0.1", str(nodes[0].port))
        slowly = f"sentinel down-after-milliseconds {SERVICE} {FAILED_AFTER}\n"
        sentinels = [Sentinel(binary, nodes[0], lines=slowly) for _ in range(SENTINELS)]
        for sentinel in sentinels:
            stack.enter_context(sentinel)
        group = SentinelGroup(Shard(nodes), sentinels)
        group.await_whole()
        yield group
