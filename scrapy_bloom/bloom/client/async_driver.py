"""Sends the calls of an operation by an asyncio client's connections: see driver.py."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import redis
from redis.asyncio.cluster import ClusterNode
from redis.cluster import PRIMARY

from scrapy_bloom.bloom.client.driver import FAILURES, as_redis_error
from scrapy_bloom.bloom.client.exchanges import BaseDriver
from scrapy_bloom.bloom.client.routes import Address, Command, Wave, Waves
from scrapy_bloom.bloom.errors import StorageError, explain
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Call, Wait

T = TypeVar("T")

#: A time-out is made up of so many steps. A connection and a round trip take 25 rounds of the loop.
STEPS = 100
#: Seconds of a step at least: timers are exact to about one millisecond.
MIN_STEP_SECONDS = 0.002
#: Seconds that cleaning up behind an operation may take.
CLEAN_UP_SECONDS = 10.0
#: A wave without commands.
NOTHING = Wave({})
#: What is cleaning up: the loop itself does not hold it.
_cleaning: set[asyncio.Task[Any]] = set()


class AsyncDriver(BaseDriver):
    """Runs operations on an asyncio client, of several tasks at a time if need be.

    A time-out bounds an operation as a whole: resolving, connecting, handshakes, all replies. It
    does not count while the event loop is too busy to read them.

    Args:
        client: ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``.
        label: the server's address for error messages, without credentials.
        timeout: seconds one operation may take in all; None for no limit.
        words: what remedies name, as in ``errors.WORDS``.
    """

    is_async = True
    #: The node that had not answered when the last time-out ended a wave.
    _silent: Address | None = None

    async def run(self, steps: Operation[T], *, on_all_blocks: bool = False) -> T:
        """Run an operation to its end and return its result.

        Args:
            steps: the operation.
            on_all_blocks: whether it takes the longer the more blocks there are. The time-out then
                is that of each round trip.

        Raises:
            StorageError: the server did not do what it was asked, or not in time. Whether commands
                that were under way have been carried out is unknown then.
        """
        return await self._drive(self._carry_out(steps), is_long=on_all_blocks)

    async def server_id(self) -> str:
        """Return the id of the server's process, of a cluster all; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        return await self._drive(self._values("run_id", "server"))

    async def wait(self, calls: list[Call], wait: Wait) -> Acknowledged:
        """Make the calls, and wait until replicas have what was written before: see ``Driver``.

        Raises:
            StorageError: as ``run`` does.
        """
        return await self._drive(self._wait(calls, wait))

    async def close(self) -> None:
        """Close the client's connections."""
        with suppress(redis.RedisError, OSError):
            async with timeout(self._timeout):
                await self.client.aclose()
                if self._manager is None:
                    await self.client.connection_pool.disconnect()

    async def _drive(self, waves: Waves[T], *, is_long: bool = False) -> T:
        """Send waves, all in one time-out or each in its own, and return what comes of them."""
        # Not attributes: operations of several tasks may be under way.
        sent, replies = NOTHING, dict[Address, list[Any]]()
        each, whole = (self._timeout, None) if is_long else (None, self._timeout)
        with self._explaining():
            try:
                async with timeout(whole):
                    try:
                        if self._manager is not None:
                            # Before, it has no nodes to close; all who wait do it once.
                            await self.client.initialize()
                        wave = next(waves)
                        while True:
                            sent, replies = wave, {address: [] for address in wave.batches}
                            async with timeout(each):
                                await self._exchange(wave, replies)
                            # Not held here: replies may be large, and are parsed into others.
                            answered, sent, replies = [replies], NOTHING, {}
                            wave = waves.send(answered.pop())
                    except StopIteration as stop:  # to pass through the time-out would take 20 us
                        result: T = stop.value
                        return result
            except TimeoutError as error:
                try:
                    # What has come is the operation's; what has not is unknown to it.
                    if sent.batches:
                        waves.send(_completed(sent, replies))
                except StopIteration as stop:
                    partial: T = stop.value
                    return partial
                raise self.late() from error

    def late(self) -> StorageError:
        """Return the error for a time-out; of a cluster, it names a node that did not answer."""
        error, silent, self._silent = TimeoutError("timed out"), self._silent, None
        return self.explain(error, silent)

    async def _exchange(self, wave: Wave, replies: Mapping[Address, list[Any]]) -> None:
        """Write to all nodes at once, and read from all; fill in their replies as they come."""
        self.round_trips += 1
        self._silent = None
        if wave.pause:
            await asyncio.sleep(wave.pause)
        talks = [
            self._talk(address, commands, replies[address])
            for address, commands in wave.batches.items()
        ]
        if len(talks) == 1:
            await talks[0]  # a task takes three rounds of the event loop more
        else:
            await asyncio.gather(*talks)

    async def _talk(self, address: Address, commands: list[Command], replies: list[Any]) -> None:
        """Send commands to a node; fill in the replies, with errors in their places."""
        # By hand: a pipeline of redis-py's takes five rounds of the event loop, this takes two.
        connection = node = None
        is_whole = False
        try:
            if self._manager is None:
                connection = await self.client.connection_pool.get_connection()
            else:
                node = self._node(address)
                connection = node.acquire_connection()
                await _make_usable(connection)
            packed = connection.pack_commands([command.words for command in commands])
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
            self._silent = address
            raise
        finally:
            if connection is not None:
                if not is_whole:  # what is still to come would answer the next commands
                    await connection.disconnect(nowait=True)
                if node is None:
                    await self.client.connection_pool.release(connection)
                else:
                    node.release(connection)

    def _node(self, address: Address) -> ClusterNode:
        node: ClusterNode | None = self._manager.get_node(*address)
        if node is None:
            node = ClusterNode(*address, PRIMARY, **self._manager.connection_kwargs)
            self._manager.nodes_cache[node.name] = node
        return node


def _completed(wave: Wave, replies: Mapping[Address, list[Any]]) -> dict[Address, list[Any]]:
    """Return the replies to a wave that took too long, with errors in the places of the others."""
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


async def finish(cleaning: Awaitable[T]) -> T:
    """Await a clean-up to its end, also if the task is cancelled again.

    Raises:
        StorageError: the server did not do it in time.
    """

    async def in_time() -> T:
        try:
            async with timeout(CLEAN_UP_SECONDS):
                return await cleaning
        except TimeoutError as error:
            raise explain(TimeoutError("timed out"), "Redis") from error

    task = asyncio.create_task(in_time())
    _cleaning.add(task)
    task.add_done_callback(_cleaning.discard)
    return await asyncio.shield(task)


@asynccontextmanager
async def timeout(seconds: float | None) -> AsyncIterator[None]:
    """Cancel an ``async with`` block after some seconds: TimeoutError.

    Counts the time in which the event loop could have read a reply, and not while it is blocked:
    a step that is late counts as if it had been in time. So a silent server is given up after
    ``STEPS`` rounds of a busy loop at most.

    Args:
        seconds: the time, None for no limit.
    """
    if seconds is None:
        yield
        return
    loop, step = asyncio.get_running_loop(), max(seconds / STEPS, MIN_STEP_SECONDS)
    left, seen = seconds, loop.time()
    timer: asyncio.Handle | None = None

    def look() -> None:
        nonlocal left, seen, timer
        took = loop.time() - seen
        seen += took
        left -= min(took, step)
        if left > 0:
            # Half a step, because timers are always a little late.
            timer = loop.call_later(step / 2, look)
        else:
            # After what the loop has just read for the task.
            scope.reschedule(seen)

    async with asyncio.timeout(None) as scope:
        look()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
