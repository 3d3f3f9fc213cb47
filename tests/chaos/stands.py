"""Where the filter of a trial is: on one server, on a cluster, or under Sentinel."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from support.polling import until
from support.proxy import Proxy
from support.replicas import Group, Node, Shard, start_replicated_cluster
from support.sentinels import SERVICE, Sentinel, Watched, start_sentinels
from support.servers import Server

from chaos.schedule import CLUSTER, SENTINEL, SINGLE

#: Milliseconds of silence that no server reaches.
NEVER = 300_000


class Stand:
    """One server.

    Args:
        binary: of the server.
        options: of each server.
        proxied: whether the crawlers go through proxies.

    Attributes:
        server: what the next fault harms.
        proxy: before that server, if there is one.
    """

    def __init__(self, binary: str, options: Sequence[str], *, proxied: bool) -> None:
        self._stack = ExitStack()
        try:
            self._start(binary, options, proxied=proxied)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, binary: str, options: Sequence[str], *, proxied: bool) -> None:
        self.server = self._stack.enter_context(Server(binary, *options))
        self.proxy: Proxy | None = None
        if proxied:
            self.proxy = self._stack.enter_context(Proxy(self.server.port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def settings(self) -> dict[str, object]:
        """The crawlers' settings that name the stand."""
        return {"BLOOM_REDIS_URL": self.proxy.url if self.proxy else self.server.url}

    @property
    def servers(self) -> list[Server]:
        """All servers, with those that only watch."""
        return [self.server]

    @property
    def primaries(self) -> list[Server]:
        """The servers that take writes."""
        return [self.server]

    def aim(self, level: float) -> None:
        """Choose what the next fault harms, by its level."""

    def settle(self) -> None:
        """Wait until all is well again."""

    def calm(self) -> None:
        """Wait until all is well, and let no server be replaced from now on, on a busy machine."""
        self.settle()

    def promotions(self) -> int:
        """Return how often a replica has become a primary."""
        return 0

    def save_logs(self, directory: Path) -> None:
        """Copy the servers' logs."""
        for number, server in enumerate(self.servers):
            shutil.copy(server.directory / "log", directory / f"server-{number}.log")


class ReplicatedStand(Stand):
    """Servers with replicas; a fault harms one primary.

    Attributes:
        shard: that primary and its replica.
    """

    shard: Shard
    _group: Group
    #: The server that is harmed.
    _primary: Node

    @property
    def servers(self) -> list[Server]:
        return [node.server for node in self._group.nodes]

    @property
    def primaries(self) -> list[Server]:
        return self._group.primaries()

    def aim(self, level: float) -> None:
        shards = self._group.shards
        self.aim_at(shards[int(level * 1_000) % len(shards)])

    def settle(self) -> None:
        self._group.await_whole()

    def promotions(self) -> int:
        return sum(node.promotions() for node in self._group.nodes)

    def aim_at(self, shard: Shard) -> None:
        """Aim at the primary of a shard."""
        self.shard, self._primary = shard, shard.primary()
        self.server, self.proxy = self._primary.server, self._primary.proxy

    def await_replacement(self) -> None:
        """Wait until the other server of the shard has become the primary."""
        (other,) = (node for node in self.shard.nodes if node is not self._primary)
        until(lambda: other.role == "master", "a server is replaced")

    def follow(self) -> None:
        """Make the server, which was started again, the replica of what has replaced it."""

    def command_failover(self, *words: str) -> None:
        """Command the replica to replace the server.

        Args:
            words: of the command.
        """
        raise NotImplementedError


class ClusterStand(ReplicatedStand):
    """A cluster of three primaries with a replica each; a fault harms one of the primaries."""

    def _start(self, binary: str, options: Sequence[str], *, proxied: bool) -> None:
        start = start_replicated_cluster(binary, *options, proxied=proxied)
        self._group = self._stack.enter_context(start)
        self.aim(0)

    @property
    def settings(self) -> dict[str, object]:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self._group.nodes[:3])
        return {"BLOOM_REDIS_URL": f"redis+cluster://{hosts}"}

    def command_failover(self, *words: str) -> None:
        with self.shard.replica().server.client() as client:
            client.execute_command("CLUSTER", "FAILOVER", *words)

    def calm(self) -> None:
        super().calm()
        for node in self._group.nodes:
            node.configure("cluster-node-timeout", NEVER)
        self.settle()


class SentinelStand(ReplicatedStand):
    """A primary and its replica, and three sentinels."""

    _group: Watched

    def _start(self, binary: str, options: Sequence[str], *, proxied: bool) -> None:
        start = start_sentinels(binary, *options, proxied=proxied)
        self._group = self._stack.enter_context(start)
        self.aim(0)

    @property
    def settings(self) -> dict[str, object]:
        return {"BLOOM_REDIS_URL": self._group.url()}

    @property
    def sentinels(self) -> list[Sentinel]:
        return self._group.sentinels

    @property
    def servers(self) -> list[Server]:
        return [*super().servers, *self.sentinels]

    def follow(self) -> None:
        (other,) = (node for node in self.shard.nodes if node is not self._primary)
        with self.server.client() as client:
            client.replicaof("127.0.0.1", str(other.port))

    def command_failover(self, *words: str) -> None:
        with self.sentinels[0].client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def calm(self) -> None:
        super().calm()
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.sentinel_set(SERVICE, "down-after-milliseconds", NEVER)
        self.settle()


STANDS: dict[str, type[Stand]] = {
    SINGLE: Stand,
    CLUSTER: ClusterStand,
    SENTINEL: SentinelStand,
}
