"""Sends waves of commands to the nodes of a cluster: see cluster_routes.py.

redis-py's cluster client sends again what got no reply, so only its connections are used here.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis
from redis.cluster import PRIMARY, ClusterNode, RedisCluster

from scrapy_bloom.bloom.client.cluster_routes import (
    Address,
    Command,
    Replies,
    Topology,
    Wave,
    Waves,
    ask_primaries,
    dispatch,
    dispatch_and_wait,
)
from scrapy_bloom.bloom.client.unreadable import UNREADABLE, invalid
from scrapy_bloom.bloom.protocol.replication import Wait
from scrapy_bloom.bloom.protocol.scripts import Call

T = TypeVar("T")

#: What a node that cannot be reached, or understood, makes redis-py raise.
FAILURES = (redis.RedisError, OSError, *UNREADABLE)


class ClusterNodes:
    """The nodes of a cluster, each with a pool of connections.

    Args:
        client: whose nodes they are.
        before_wave: is called before each wave.
    """

    def __init__(self, client: RedisCluster, before_wave: Callable[[], None]) -> None:
        self._manager: Any = client.nodes_manager
        self._before_wave = before_wave
        self.topology = topology_of(self._manager)

    def send(self, calls: list[Call], patience: float) -> list[Any]:
        """Send calls as ``dispatch`` does.

        Raises:
            redis.RedisError: as ``dispatch`` does.
            OSError: as ``dispatch`` does.
        """
        return self._run(dispatch(self.topology, calls, patience=patience))

    def send_and_wait(self, calls: list[Call], wait: Wait) -> list[Any]:
        """Send calls and WAIT as ``dispatch_and_wait`` does.

        Raises:
            redis.RedisError: as ``dispatch_and_wait`` does.
            OSError: as ``dispatch_and_wait`` does.
        """
        return self._run(dispatch_and_wait(self.topology, calls, Command(wait.command())))

    def query(self, command: Sequence[str]) -> list[Any]:
        """Return the replies of all primaries to a command as ``ask_primaries`` does.

        Raises:
            redis.RedisError: as ``ask_primaries`` does.
            OSError: as ``ask_primaries`` does.
        """
        return self._run(ask_primaries(self.topology, Command(tuple(command))))

    def _run(self, waves: Waves[T]) -> T:
        try:
            wave = next(waves)
            while True:
                wave = waves.send(self._exchange(wave))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _exchange(self, wave: Wave) -> Replies:
        """Write to all nodes, then read from all."""
        self._before_wave()
        if wave.pause:
            time.sleep(wave.pause)
        talks: dict[Address, _Talk] = {}
        try:
            for address, commands in wave.batches.items():
                talks[address] = talk = _Talk(commands)
                talk.write(partial(self._take, address))
            is_late = False
            for talk in talks.values():
                is_sent = talk.error is None
                talk.read(is_late=is_late)
                # The nodes after one that is silent have had as much time as that.
                is_late = is_late or (is_sent and isinstance(talk.error, redis.TimeoutError))
        finally:
            for talk in talks.values():
                talk.end()
        return {address: talk.replies for address, talk in talks.items()}

    def _take(self, address: Address) -> tuple[Any, Any]:
        """Take a connection to a node from its pool; return the pool and the connection."""
        node = self._manager.get_node(*address)
        if node is None:
            node = ClusterNode(*address, PRIMARY)  # type: ignore[no-untyped-call]
            self._manager.nodes_cache[node.name] = node
        if node.redis_connection is None:
            self._manager.create_redis_connections([node])
        pool = node.redis_connection.connection_pool
        return pool, pool.get_connection()


def topology_of(manager: Any) -> Topology:
    """Return what a client of redis-py's knows before it has read anything."""
    startup = [Address(node.host, int(node.port)) for node in manager.startup_nodes.values()]
    return Topology(startup, manager.remap_host_port)


class _Talk:
    """A node's part of a wave, on a connection of its own.

    Attributes:
        replies: in the order of the commands; errors are in their places.
        error: why there are no more replies.
    """

    def __init__(self, commands: list[Command]) -> None:
        self._commands = commands
        self._pool: Any = None
        self._connection: Any = None
        self.replies: list[Any] = []
        self.error: Exception | None = None

    def write(self, take: Callable[[], tuple[Any, Any]]) -> None:
        """Send the commands."""
        try:
            self._pool, self._connection = take()
            packed = self._connection.pack_commands([command.words for command in self._commands])
            self._connection.send_packed_command(packed)
        except FAILURES as error:
            self.error = as_redis_error(error)

    def read(self, *, is_late: bool) -> None:
        """Read what is to come; if it is late, what is there."""
        for command in self._commands if self.error is None else ():
            try:
                if is_late and not self._connection.can_read(timeout=0):
                    self.error = redis.TimeoutError("timed out")
                    break
                self.replies.append(self._connection.read_response(disable_decoding=command.binary))
            except redis.ResponseError as error:
                self.replies.append(error)
            except FAILURES as error:
                self.error = as_redis_error(error)
                break
        self.replies += [self.error] * (len(self._commands) - len(self.replies))

    def end(self) -> None:
        """Give the connection back, closed if replies may still come."""
        if self._connection is None:
            return
        if self.error is not None or len(self.replies) < len(self._commands):
            self._connection.disconnect()
        self._pool.release(self._connection)


def as_redis_error(error: Exception) -> Exception:
    """Return an error for what redis-py raised, also if it could not read a reply."""
    is_unreadable = isinstance(error, UNREADABLE) and not isinstance(error, UnicodeError | OSError)
    return invalid(error) if is_unreadable else error
