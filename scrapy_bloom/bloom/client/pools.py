"""Writes commands to the connections of redis-py's pools, and reads their replies.

So redis-py's clients, which repeat commands, have no part in it. Everything that isn't in the docs
of redis-py is used here only. It's that of its versions 6.4 to 8.1.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from math import inf
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.exceptions import ClusterDownError

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.scripts import Call

#: Pools, or nodes of asyncio's clients, each with the places of its calls in a list of calls.
Routes = Sequence[tuple[Any, Sequence[int]]]

#: Bytes of commands that are sent together: a part takes the server about a millisecond.
PART_BYTES = 4_096
#: A blocking reply gets this time even if the process is late: the server may be busy, too.
GRACE_SECONDS = 0.05


class Sending(NamedTuple):
    """Calls that are sent together.

    Args:
        calls: the calls.
        by_text: whether scripts are sent with their texts.
        is_followed: whether redis-py's client sends them, which follows MOVED, ASK and TRYAGAIN.
    """

    calls: Sequence[Call]
    by_text: bool = False
    is_followed: bool = False

    def packed(self, line: Any, places: Iterable[int]) -> Iterator[list[bytes]]:
        """Yield commands in parts, which the server carries out while the next is prepared."""
        part, size = list[bytes](), 0
        for call in (self.calls[place] for place in places):
            packed = line.pack_command(*(call.by_text if self.by_text else call.command))
            part += packed
            size += sum(map(len, packed))
            if size >= PART_BYTES:
                yield [b"".join(part)]
                part, size = [], 0
        if part:
            yield [b"".join(part)]


class Pools:
    """The connections of ``redis.Redis`` or ``redis.RedisCluster``.

    Args:
        client: the client.

    Raises:
        ConfigurationError: it isn't one of redis-py's blocking ones.
    """

    def __init__(self, client: Any) -> None:
        self.client, self.is_cluster = client, _is_cluster(client, redis)
        self._is_lost = False

    def exchange(self, sending: Sending, deadline: float) -> list[Any]:
        """Write to the connections of all nodes, and then read; return replies and refusals."""
        if self._is_lost:
            self.reconnect()
        calls, raw = sending.calls, list[Any](sending.calls)
        if sending.is_followed:
            send = self.client.execute_command
            return _checked([_reply(send, *call.by_text) for call in calls])
        with ExitStack() as stack:
            lines = [(stack.enter_context(_line(pool)), own) for pool, own in self.routes(calls)]
            for line, own in lines:
                for part in sending.packed(line, own):
                    line.send_packed_command(part)
            for line, own in lines:
                for place in own:
                    left = max(deadline - time.monotonic(), GRACE_SECONDS)
                    if left < inf and not line.can_read(left):
                        raise redis.TimeoutError("timed out")
                    raw[place] = _reply(line.read_response, disable_decoding=True)
        return _checked(raw)

    def routes(self, calls: Sequence[Call]) -> Routes:
        """Return the places of the calls for each pool of connections."""
        if not self.is_cluster:
            return [(self.client.connection_pool, range(len(calls)))] if calls else []
        find = self.client.get_redis_connection
        return _grouped(calls, lambda key: find(self.client.get_node_from_key(key)).connection_pool)

    def infos(self, *sections: str) -> list[dict[str, Any]]:
        """Return sections of the INFO of each primary."""
        nodes = self.client.get_primaries() if self.is_cluster else [None]
        targets = [{"target_nodes": node} if node else {} for node in nodes]
        return [self.client.info(*sections, **target) for target in targets]

    def forget(self) -> None:
        """Find a cluster's nodes again at the next call: a replica may have taken over."""
        self._is_lost = self.is_cluster

    def reconnect(self) -> None:
        """Drop the connections, and find a cluster's nodes again."""
        if self.is_cluster:
            self.client.nodes_manager.initialize()
        else:
            self.client.connection_pool.disconnect()
        self._is_lost = False


class AsyncPools:
    """The connections of ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``.

    Args:
        client: the client.

    Raises:
        ConfigurationError: it isn't one of redis-py's for asyncio.
    """

    def __init__(self, client: Any) -> None:
        self.client, self.is_cluster = client, _is_cluster(client, redis.asyncio)

    async def exchange(self, sending: Sending) -> list[Any]:
        """Write to and read from the connections of all nodes; return replies and refusals."""
        calls, raw = sending.calls, list[Any](sending.calls)
        if sending.is_followed:
            send = self.client.execute_command
            return _checked([await _reply_of(send(*call.by_text)) for call in calls])

        async def exchange(pool: Any, own: Sequence[int]) -> None:
            async with _async_line(pool) as line:
                for part in sending.packed(line, own):
                    await line.send_packed_command(part)
                for place in own:
                    raw[place] = await _reply_of(line.read_response(disable_decoding=True))

        parts = [exchange(*one) for one in await self.routes(calls)]
        await (parts[0] if len(parts) == 1 else asyncio.gather(*parts))
        return _checked(raw)

    async def routes(self, calls: Sequence[Call]) -> Routes:
        """Return the places of the calls for each pool of connections."""
        if not self.is_cluster:
            return [(self.client.connection_pool, range(len(calls)))] if calls else []
        await self.client.initialize()
        return _grouped(calls, self.client.get_node_from_key)

    async def forget(self) -> None:
        """Find a cluster's nodes again at the next call: a replica may have taken over."""
        if self.is_cluster:
            await self.client.aclose()

    async def close(self) -> None:
        """Close the client, and its clients for Sentinels."""
        await self.client.aclose()
        manager = getattr(getattr(self.client, "connection_pool", None), "sentinel_manager", None)
        for sentinel in getattr(manager, "sentinels", ()):
            await sentinel.aclose()


def set_connect_timeout(client: Any, seconds: float) -> None:
    """Set how long a client may take to connect: it drops that for a Unix socket."""
    client.connection_pool.connection_kwargs["socket_connect_timeout"] = seconds


def _is_cluster(client: Any, module: Any) -> bool:
    """Return whether a client is one for a cluster.

    Raises:
        ConfigurationError: it isn't a client of the module's.
    """
    if isinstance(client, module.RedisCluster):
        return True
    if not isinstance(client, module.Redis) or isinstance(client, module.client.Pipeline):
        raise ConfigurationError(
            f"The client is {client!r:.60}. Pass an object of {module.__name__}.Redis or "
            f"{module.__name__}.RedisCluster"
        )
    return False


def _grouped(calls: Sequence[Call], find: Callable[[str], Any]) -> Routes:
    nodes, places = dict[int, Any](), defaultdict[int, list[int]](list)
    for place, one in enumerate(calls):
        node = find(one.key)
        nodes[id(node)] = node  # those of asyncio's have no hash in redis-py 7.1
        places[id(node)].append(place)
    return [(nodes[name], own) for name, own in places.items()]


def _reply(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return read(*args, **kwargs)
    except redis.ResponseError as error:
        return error


async def _reply_of(reading: Awaitable[Any]) -> Any:
    try:
        return await reading
    except redis.ResponseError as error:
        return error


def _checked(raw: list[Any]) -> list[Any]:
    """Return replies, unless a part of the cluster has none."""
    for one in raw:
        if isinstance(one, ClusterDownError):
            raise one
    return raw


@contextmanager
def _line(pool: Any) -> Iterator[Any]:
    """Lend a connection; one on which something has failed is closed."""
    line = pool.get_connection()
    try:
        yield line
    except BaseException:
        line.disconnect()
        raise
    finally:
        pool.release(line)


@asynccontextmanager
async def _async_line(pool: Any) -> AsyncIterator[Any]:
    """Lend a connection of a pool, or of a cluster's node, which has its own."""
    is_node = isinstance(pool, redis.asyncio.cluster.ClusterNode)
    line = pool.acquire_connection() if is_node else await pool.get_connection()
    try:
        if is_node and line.is_connected and await _has_data(line):
            await line.disconnect(nowait=True)  # it was closed while it was idle
        yield line
    except BaseException:
        await line.disconnect(nowait=True)
        raise
    finally:
        if is_node:
            pool.release(line)
        else:
            await pool.release(line)


def _has_data(line: Any) -> Awaitable[bool]:
    """Return whether a connection is closed, or in the middle of a reply, as pools look at it."""
    look: Callable[[], Awaitable[bool]]
    look = line.can_read if hasattr(line, "can_read") else line.can_read_destructive  # before 8.0
    return look()
