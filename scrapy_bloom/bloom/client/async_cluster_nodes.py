"""Sends waves of commands to the nodes of a cluster by an asyncio client: see cluster_nodes.py."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.cluster import PRIMARY
from redis.exceptions import RedisClusterException

from scrapy_bloom.bloom.client.cluster_nodes import FAILURES, as_redis_error, topology_of
from scrapy_bloom.bloom.client.cluster_routes import (
    Address,
    Command,
    Replies,
    Wave,
    Waves,
    ask_primaries,
    dispatch,
)
from scrapy_bloom.bloom.protocol.scripts import Call

T = TypeVar("T")


class AsyncClusterNodes:
    """The nodes of a cluster, each with connections.

    Args:
        client: whose nodes they are.
        before_wave: is called before each wave.

    Attributes:
        silent: the nodes that had not answered when a wave was cancelled.
    """

    def __init__(self, client: RedisCluster, before_wave: Callable[[], None]) -> None:
        self._client = client
        self._manager: Any = client.nodes_manager
        self._before_wave = before_wave
        self._topology = topology_of(self._manager)
        self.silent: list[Address] = []

    async def send(self, calls: list[Call]) -> list[Any]:
        """Send calls as ``dispatch`` does.

        Raises:
            redis.RedisError: as ``dispatch`` does.
            OSError: as ``dispatch`` does.
        """
        return await self._run(dispatch(self._topology, calls))

    async def info(self, section: str) -> list[Any]:
        """Return the replies of all primaries to INFO as ``ask_primaries`` does.

        Raises:
            redis.RedisError: as ``ask_primaries`` does.
            OSError: as ``ask_primaries`` does.
        """
        return await self._run(ask_primaries(self._topology, Command(("INFO", section))))

    async def _run(self, waves: Waves[T]) -> T:
        await self._initialize()
        try:
            wave = next(waves)
            while True:
                wave = waves.send(await self._exchange(wave))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _initialize(self) -> None:
        """Let the client connect, once for all who wait: until then, it has no nodes to close.

        Raises:
            redis.ConnectionError: no node can be reached.
        """
        try:
            await self._client.initialize()
        except RedisClusterException as error:  # not one of redis.RedisError
            raise redis.ConnectionError(str(error)) from error

    async def _exchange(self, wave: Wave) -> Replies:
        """Write to all nodes at once, and read from all."""
        self._before_wave()
        if wave.pause:
            await asyncio.sleep(wave.pause)
        self.silent.clear()
        talks = [self._talk(address, commands) for address, commands in wave.batches.items()]
        return dict(zip(wave.batches, await asyncio.gather(*talks), strict=True))

    async def _talk(self, address: Address, commands: list[Command]) -> list[Any]:
        """Send commands to a node; return the replies, with errors in their places."""
        replies: list[Any] = []
        try:
            node = self._node(address)
            connection = node.acquire_connection()
        except FAILURES as error:
            return [as_redis_error(error)] * len(commands)
        try:
            await _make_usable(connection)
            packed = connection.pack_commands(command.words for command in commands)
            await connection.send_packed_command(packed)
            for command in commands:
                try:
                    reply = await connection.read_response(disable_decoding=command.binary)
                    replies.append(reply)
                except redis.ResponseError as error:  # noqa: PERF203 - it is a reply
                    replies.append(error)
        except FAILURES as error:
            missing = [as_redis_error(error)] * (len(commands) - len(replies))
            return replies + missing
        except asyncio.CancelledError:
            self.silent.append(address)
            self._topology.note(address, [redis.TimeoutError("timed out")])
            raise
        else:
            return replies
        finally:
            if len(replies) < len(commands):  # what is still to come would answer the next commands
                await connection.disconnect(nowait=True)
            _release(node, connection)

    def _node(self, address: Address) -> ClusterNode:
        node: ClusterNode | None = self._manager.get_node(*address)
        if node is None:
            node = ClusterNode(*address, PRIMARY, **self._manager.connection_kwargs)
            self._manager.nodes_cache[node.name] = node
        return node


async def _make_usable(connection: Any) -> None:
    """Connect, unless there is a connection with nothing left to read, as redis-py's pools do."""
    if connection.is_connected:
        # Before redis-py 8 it had another name.
        has_data = getattr(connection, "can_read", None) or connection.can_read_destructive
        try:
            # 5.0.0 does not notice that the server has closed the connection.
            if not (connection._reader.at_eof() or await has_data()):  # noqa: SLF001
                return
        except (redis.RedisError, OSError):
            pass
        await connection.disconnect(nowait=True)
    await connection.connect()


def _release(node: Any, connection: Any) -> None:
    """Give a connection back to its node; redis-py 5.0.0 has no method for it."""
    if hasattr(node, "release"):
        node.release(connection)
    else:
        node._free.append(connection)  # noqa: SLF001
