"""Where the filter is: on a server, a cluster or under Sentinel; and how each of them fails."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random

import redis
from support.outages import killed, stalled, struck
from support.polling import until, until_it_works
from support.proxy import Fault, Kind, Proxy
from support.replicas import Group, Node, Shard, start_replicated_cluster
from support.sentinels import SERVICE, Watched, start_sentinels
from support.servers import LASTING, Server
from support.workers import claimed

SERVER, CLUSTER, SENTINEL = "server", "cluster", "sentinel"
#: What a network does to requests and replies for a while.
NETWORK = [Kind.DROP_REQUEST, Kind.DROP_REPLY, Kind.DELAY, Kind.HALF]
NETWORK += [Kind.RESET_REQUEST, Kind.RESET_REPLY, Kind.HANG]
#: Seconds that a late reply takes.
DELAY = 0.7


class Stand:
    """One server, which keeps what it has acknowledged when it is killed, and a proxy before it.

    Args:
        binary: of the server.

    Attributes:
        url: of the filter.
        queue: the server of scrapy-redis's queue, which never fails.
        OUTAGES: names of what can happen to it.
        SECONDS: how long outages go on after a crawl's beginning.
        SETTINGS: settings of the crawlers.
    """

    OUTAGES: tuple[str, ...] = ("kill", "stall", "network")
    SECONDS = 3.0
    SETTINGS: Mapping[str, object] = {"BLOOM_TIMEOUT": 0.5}

    def __init__(self, binary: str) -> None:
        with ExitStack() as stack:
            self.queue = stack.enter_context(Server(binary))
            self._start(binary, stack)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End all servers."""
        self._stack.close()

    def _start(self, binary: str, stack: ExitStack) -> None:
        self._server = stack.enter_context(Server(binary, *LASTING))
        self._proxy = stack.enter_context(Proxy(self._server.port))
        self.url = self._proxy.url

    @property
    def primaries(self) -> list[Server]:
        """The servers that have the filter."""
        return [self._server]

    def clear(self) -> None:
        """Empty the servers."""
        for server in (*self.primaries, self.queue):
            with server.client() as client:
                client.flushall()

    def count_claims(self) -> int:
        """Return how many requests are pending, also those that failed."""
        return sum(map(claimed, self.primaries))

    @contextmanager
    def outage(self, name: str, rng: Random) -> Iterator[None]:
        """Fail in one of the ways until the block ends, and then be well again."""
        if name == "network":
            with struck(self._proxy, _network(rng)):
                yield
        else:
            with {"kill": killed, "stall": stalled}[name](self._server):
                yield


def _network(rng: Random) -> Fault:
    return Fault(rng.choice(NETWORK), seconds=DELAY, probability=rng.choice([0.3, 1.0]))


class Replicated(Stand):
    """Servers with a replica each. An outage harms one of the primaries, and it is replaced."""

    OUTAGES = (*Stand.OUTAGES, "failover")
    SECONDS = 4.5
    _group: Group

    @property
    def primaries(self) -> list[Server]:
        return self._group.primaries()

    @contextmanager
    def outage(self, name: str, rng: Random) -> Iterator[None]:
        shard = rng.choice(self._group.shards)
        replica = shard.replica()
        primary = shard.primary()
        with ExitStack() as stack:
            if name == "kill":
                primary.server.kill()
                stack.callback(self._return, primary, replica)
            elif name == "stall":
                stack.enter_context(stalled(primary.server))
                stack.callback(until, lambda: replica.role == "master", "a server is replaced")
            elif name == "failover":
                # Sentinel refuses one that comes soon after another one.
                until_it_works(lambda: self._change_places(shard), redis.ResponseError)
            elif primary.proxy:
                stack.enter_context(struck(primary.proxy, _network(rng)))
            yield
        self._group.await_whole()

    def _return(self, old: Node, new: Node) -> None:
        """Start a server again as a replica of the one that has replaced it."""
        until(lambda: new.role == "master", "a server is replaced")
        old.server.start()

    def _change_places(self, shard: Shard) -> None:
        raise NotImplementedError


class ClusterStand(Replicated):
    """A cluster of three primaries with a replica each."""

    # Else a page is remembered though the claims of its links, on another node, are lost.
    SETTINGS: Mapping[str, object] = {"BLOOM_TIMEOUT": 1.0, "BLOOM_WAIT_REPLICAS": 1}

    def _start(self, binary: str, stack: ExitStack) -> None:
        start = start_replicated_cluster(binary, proxied=True)
        self._group = stack.enter_context(start)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self._group.nodes[:3])
        self.url = f"redis+cluster://{hosts}"

    def _change_places(self, shard: Shard) -> None:
        with shard.replica().server.client() as client:
            client.execute_command("CLUSTER", "FAILOVER")


class SentinelStand(Replicated):
    """A primary and its replica, and three sentinels."""

    SETTINGS: Mapping[str, object] = {"BLOOM_TIMEOUT": 1.0}
    _group: Watched

    def _start(self, binary: str, stack: ExitStack) -> None:
        self._group = stack.enter_context(start_sentinels(binary, proxied=True))
        self.url = self._group.url()

    def _return(self, old: Node, new: Node) -> None:
        super()._return(old, new)
        with old.server.client() as client:
            client.replicaof("127.0.0.1", str(new.port))

    def _change_places(self, shard: Shard) -> None:
        with self._group.sentinels[0].client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)


STANDS: dict[str, type[Stand]] = {
    SERVER: Stand,
    CLUSTER: ClusterStand,
    SENTINEL: SentinelStand,
}
