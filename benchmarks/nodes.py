"""Servers that a filter is spread over: one alone, or a cluster; and what they have used so far."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from benchmarks.contestants import Server, servers, start_cluster
from benchmarks.delay import delayed
from benchmarks.workload import server_cpu

#: Seconds for which servers are watched that do nothing.
IDLE_SECONDS = 2.0


@dataclass(frozen=True)
class Usage:
    """What servers have used, each for itself.

    Args:
        cpu: seconds of CPU time.
        received: bytes that clients have sent.
        sent: bytes that clients have got.
        at: when this was, in seconds of the clock.
    """

    cpu: tuple[float, ...]
    received: int
    sent: int
    at: float

    def since(self, before: "Usage", idle: Sequence[float]) -> "Usage":
        """Return what was used since ``before``, without what servers use that do nothing.

        Args:
            before: the usage then.
            idle: seconds of CPU time a second that each of them uses for nothing.
        """
        seconds = self.at - before.at
        pairs = zip(self.cpu, before.cpu, idle, strict=True)
        return Usage(
            tuple(now - then - rate * seconds for now, then, rate in pairs),
            self.received - before.received,
            self.sent - before.sent,
            seconds,
        )

    @property
    def busiest(self) -> float:
        """The largest share of the CPU time that one server has used."""
        return max(self.cpu) / sum(self.cpu)


class Nodes:
    """Running servers, all of them primaries.

    Args:
        running: the servers.
    """

    def __init__(self, running: Sequence[Server]) -> None:
        self.servers = running
        self._clients = [server.client() for server in running]
        self.idle: tuple[float, ...] = ()

    @property
    def is_cluster(self) -> bool:
        """Whether they are a cluster; else there is one."""
        return len(self.servers) > 1

    def connect(self) -> Any:
        """Return a new client of all of them."""
        port = self.servers[0].port
        if self.is_cluster:
            return redis.RedisCluster(host="127.0.0.1", port=port)
        return redis.Redis(host="127.0.0.1", port=port)

    def usage(self) -> Usage:
        """Return what they have used since they were started."""
        stats = [client.info("stats") for client in self._clients]
        return Usage(
            tuple(server_cpu(client) for client in self._clients),
            sum(int(one["total_net_input_bytes"]) for one in stats),
            sum(int(one["total_net_output_bytes"]) for one in stats),
            time.perf_counter(),
        )

    def watch_idle(self) -> None:
        """Note what they use when they have nothing to do."""
        before = self.usage()
        time.sleep(IDLE_SECONDS)
        nothing = (0.0,) * len(self.servers)
        used = self.usage().since(before, nothing)
        self.idle = tuple(cpu / used.at for cpu in used.cpu)

    def clear(self) -> None:
        """Delete everything."""
        for client in self._clients:
            client.flushall()

    def memory(self) -> int:
        """Return the bytes that all of them take."""
        return sum(int(client.info("memory")["used_memory"]) for client in self._clients)

    @contextmanager
    def at(self, milliseconds: float) -> Iterator[str]:
        """Put them so many milliseconds away; give their address."""
        with ExitStack() as stack:
            ports = [
                stack.enter_context(delayed(server.port, milliseconds)) if milliseconds else 0
                for server in self.servers
            ]
            self._announce(ports)
            stack.callback(self._announce, [0] * len(ports))
            scheme = "redis+cluster" if self.is_cluster else "redis"
            yield f"{scheme}://127.0.0.1:{ports[0] or self.servers[0].port}"

    def _announce(self, ports: Sequence[int]) -> None:
        """Let the nodes of a cluster name these ports to clients; 0 is their own."""
        if self.is_cluster:
            for client, port in zip(self._clients, ports, strict=True):
                client.config_set("cluster-announce-port", port)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


@contextmanager
def primaries(count: int) -> Iterator[Nodes]:
    """Run one server, or a cluster of so many primaries."""
    (binary,) = servers(full=False)
    with ExitStack() as stack:
        if count > 1:
            running = stack.enter_context(start_cluster(binary, count=count))
        else:
            running = [stack.enter_context(Server(binary))]
        nodes = Nodes(running)
        stack.callback(nodes.close)
        nodes.watch_idle()
        yield nodes


def load() -> float:
    """Return the average load of the machine in the last five minutes."""
    return os.getloadavg()[1]
