"""Sends waves of commands to the nodes of a cluster by an asyncio client: see cluster_nodes.py."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    dispatch_and_wait,
)
from scrapy_bloom.bloom.protocol.replication import Wait
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
        self.topology = topology_of(self._manager)
        self.silent: list[Address] = []

    async def send(self, calls: list[Call], results: list[Any], patience: float) -> list[Any]:
        """Send calls as ``dispatch`` does.

        Args:
            calls: are sent.
            results: is filled with what is returned, also if the task is cancelled.
            patience: as of ``dispatch``.

        Raises:
            redis.RedisError: as ``dispatch`` does.
            OSError: as ``dispatch`` does.
        """
        return await self._run(dispatch(self.topology, calls, results, patience=patience))

    async def send_and_wait(self, calls: list[Call], wait: Wait) -> list[Any]:
        """Send calls and WAIT as ``dispatch_and_wait`` does.

        Raises:
            redis.RedisError: as ``dispatch_and_wait`` does.
            OSError: as ``dispatch_and_wait`` does.
        """
        return await self._run(dispatch_and_wait(self.topology, calls, Command(wait.command())))

    async def info(self, section: str) -> list[Any]:
        """Return the replies of all primaries to INFO as ``ask_primaries`` does.

        Raises:
            redis.RedisError: as ``ask_primaries`` does.
            OSError: as ``ask_primaries`` does.
        """
        return await self._run(ask_primaries(self.topology, Command(("INFO", section))))

    async def _run(self, waves: Waves[T]) -> T:
        await self._initialize()
        try:
            wave = next(waves)
            while True:
                replies: dict[Address, list[Any]] = {address: [] for address in wave.batches}
                try:
                    await self._exchange(wave, replies)
                except asyncio.CancelledError:
                    with suppress(StopIteration):
                        waves.send(_completed(wave, replies))
                    raise
                wave = waves.send(replies)
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

    async def _exchange(self, wave: Wave, replies: Mapping[Address, list[Any]]) -> None:
        """Write to all nodes at once, and read from all; fill in their replies as they come."""
        self._before_wave()
        if wave.pause:
            await asyncio.sleep(wave.pause)
        self.silent.clear()
        talks = [
            self._talk(address, commands, replies[address])
            for address, commands in wave.batches.items()
        ]
        await asyncio.gather(*talks)

    async def _talk(self, address: Address, commands: list[Command], replies: list[Any]) -> None:
        """Send commands to a node; fill in the replies, with errors in their places."""
        try:
            node = self._node(address)
            connection = node.acquire_connection()
        except FAILURES as error:
            replies += [as_redis_error(error)] * len(commands)
            return
        is_whole = False
        try:
            await _make_usable(connection)
            packed = connection.pack_commands(command.words for command in commands)
            await connection.send_packed_command(packed)
            for command in commands:
                try:
                    reply = await connection.read_response(disable_decoding=command.binary)
                    replies.append(reply)
                except redis.ResponseError as error:
                    replies.append(error)
            is_whole = True
        except FAILURES as error:
            replies += [as_redis_error(error)] * (len(commands) - len(replies))
        except asyncio.CancelledError:
            self.silent.append(address)
            raise
        finally:
            if not is_whole:  # what is still to come would answer the next commands
                await connection.disconnect(nowait=True)
            _release(node, connection)

    def _node(self, address: Address) -> ClusterNode:
        node: ClusterNode | None = self._manager.get_node(*address)
        if node is None:
            node = ClusterNode(*address, PRIMARY, **self._manager.connection_kwargs)
            self._manager.nodes_cache[node.name] = node
        return node


def _completed(wave: Wave, replies: Mapping[Address, list[Any]]) -> Replies:
    """Return the replies to a wave that was cancelled, with errors in the places of the others."""
    late = redis.TimeoutError("timed out")
    return {
        address: replies[address] + [late] * (len(commands) - len(replies[address]))
        for address, commands in wave.batches.items()
    }


async def _make_usable(connection: Any) -> None:
    """Connect, unless there is a connection with nothing left to read, as redis-py's pools do."""
    if connection.is_connected:
        # Before redis-py 8 it had another name.
        has_data = getattr(connection, "can_read", None) or connection.can_read_destructive
        try:
            if not await has_data():
                return
        except (redis.RedisError, OSError):
            pass
        await connection.disconnect(nowait=True)
    await connection.connect()


def _release(node: Any, connection: Any) -> None:
    """Give a connection back to its node; redis-py 6.0 has no method for it."""
    if hasattr(node, "release"):
        node.release(connection)
    else:
        node._free.append(connection)  # noqa: SLF001
