"""Sends the calls of an operation to an asyncio client: see driver.py."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import redis
from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError

from scrapy_bloom.bloom.client.addresses import user_of_client
from scrapy_bloom.bloom.client.async_cluster_nodes import AsyncClusterNodes
from scrapy_bloom.bloom.client.check_client import check_client
from scrapy_bloom.bloom.client.cluster_errors import (
    explain_failure,
    failure_of_calls,
    failure_of_nodes,
    refuse_nodes,
)
from scrapy_bloom.bloom.client.cluster_routes import Failure, is_refusal, patience_of
from scrapy_bloom.bloom.client.driver import values_of
from scrapy_bloom.bloom.client.time_out import timeout
from scrapy_bloom.bloom.client.unreadable import reading
from scrapy_bloom.bloom.client.waiting import fewest, refuse_errors
from scrapy_bloom.bloom.errors import (
    WORDS,
    BloomError,
    RightsError,
    StorageError,
    explain,
    is_of_rights,
    reword,
    showable,
)
from scrapy_bloom.bloom.protocol import rights
from scrapy_bloom.bloom.protocol.replication import Acknowledged, Wait
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, CallByText, Reply, first_by_text

T = TypeVar("T")

#: Seconds that cleaning up behind an operation may take.
CLEAN_UP_SECONDS = 10.0
#: What is cleaning up: the loop itself does not hold it.
_cleaning: set[asyncio.Task[Any]] = set()


@dataclass
class _UnderWay:
    """Calls under way, and of a cluster, what has come of them."""

    calls: list[Call] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


class AsyncDriver:
    """Runs operations on an asyncio client, one at a time.

    A time-out bounds an operation as a whole: resolving, connecting, handshakes, all replies. It
    does not count while the event loop is too busy to read them.

    Args:
        client: ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``.
        label: the server's address for error messages, without credentials.
        timeout: seconds one operation may take in all; None for no limit.
        words: what remedies name, as in ``errors.WORDS``.

    Attributes:
        round_trips: times that commands were sent and their replies awaited.
    """

    def __init__(
        self,
        client: Any,
        label: object,
        timeout: float | None,
        words: Mapping[str, str] = WORDS,
    ) -> None:
        check_client(client, is_async=True)
        self._client = client
        self._label = label
        self._words = {**words, "user": user_of_client(client), "server": str(label)}
        is_cluster = isinstance(client, RedisCluster)
        self._cluster = AsyncClusterNodes(client, self._count) if is_cluster else None
        self._pool: Any = None if is_cluster else client.connection_pool
        self._timeout = timeout
        self.round_trips = 0

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
        under_way = _UnderWay()
        try:
            async with timeout(None if on_all_blocks else self._timeout, self._replies):
                each = self._timeout if on_all_blocks else None
                return await self._run(steps, each, under_way)
        except TimeoutError as error:
            # redis-py has closed the connection: what was sent is not answered to the next one.
            raise self._give_up(steps, under_way) from error
        except (redis.RedisError, OSError) as error:
            raise self.explain(error) from showable(error)
        except BloomError as error:
            reword(error, self._words)
            raise

    async def _run(self, steps: Operation[T], seconds: float | None, under_way: "_UnderWay") -> T:
        """Run an operation; bound each round trip if seconds are given."""
        try:
            under_way.calls = next(steps)
            while True:
                try:
                    async with timeout(seconds, self._replies):
                        with reading():
                            raw = await self._send_or_name(under_way)
                    replies = [Reply.parse(one) for one in raw]
                except StorageError as error:
                    if not error.replies:
                        raise
                    under_way.calls = steps.throw(error)
                else:
                    under_way.calls = steps.send(replies)
                under_way.results = []
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _give_up(self, steps: Operation[T], under_way: "_UnderWay") -> StorageError:
        """Return the error for a time-out, with what has come of the last replies."""
        late = self.late()
        results = under_way.results
        if self._cluster is None or not any(result is not None for result in results):
            return late
        failure = self._failure_of(under_way)
        if failure is None:
            return late
        late.slots, late.replies = failure.slots, failure.replies
        try:
            steps.throw(late)
        except StorageError as error:
            return error
        return late

    def _failure_of(self, under_way: "_UnderWay") -> StorageError | None:
        assert self._cluster is not None  # noqa: S101 - it is
        calls, results = under_way.calls, under_way.results
        return failure_of_calls(
            calls, results, self._cluster.topology, str(self._label), self._words
        )

    def explain(self, error: Exception) -> StorageError:
        """Return an error that says what to do about an error of the client's."""
        if isinstance(error.__cause__, redis.RedisError):
            error = error.__cause__  # redis-py wraps what connecting raises
        return explain(error, str(self._label), self._words)

    def late(self) -> StorageError:
        """Return the error for a time-out; of a cluster, it names a node that did not answer."""
        error = TimeoutError("timed out")
        if self._cluster is None or not self._cluster.silent:
            return self.explain(error)
        return explain_failure(
            Failure(error, self._cluster.silent[0]), str(self._label), self._words
        )

    def _late_nodes(self) -> StorageError:
        """Return the error for a time-out of a command to all nodes: it names their slots."""
        if self._cluster is None:
            return self.late()
        late = [Failure(TimeoutError("timed out"), address) for address in self._cluster.silent]
        topology, label = self._cluster.topology, str(self._label)
        return failure_of_nodes(late, topology, label, self._words) or self.late()

    def _count(self) -> None:
        self.round_trips += 1

    def _replies(self) -> int:
        return self.round_trips  # what comes before each of them was answered

    async def server_id(self) -> str:
        """Return the id of the server's process, of a cluster all; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        try:
            async with timeout(self._timeout, self._replies):
                with reading():
                    return values_of("run_id", await self._server_infos())
        except redis.ResponseError:
            return ""
        except TimeoutError as error:
            raise self._late_nodes() from error
        except (redis.RedisError, OSError) as error:
            raise self.explain(error) from showable(error)

    async def _server_infos(self) -> list[Any]:
        """Return the replies to INFO server.

        Raises:
            redis.ResponseError: it was refused.
            StorageError: a node of a cluster did not answer.
        """
        if self._cluster is None:
            self._count()
            return [await self._client.info("server")]
        replies = await self._cluster.info("server")
        refused = next(filter(is_refusal, replies), None)
        if refused is not None:
            raise refused.error
        refuse_nodes(replies, self._cluster.topology, str(self._label), self._words)
        return replies

    async def wait(self, calls: list[Call], wait: Wait) -> Acknowledged:
        """Make the calls, and wait until replicas have what was written before: see ``Driver``.

        Raises:
            StorageError: as ``run`` does.
        """
        try:
            async with timeout(self._timeout, self._replies):
                with reading():
                    if self._cluster is None:
                        calls = calls[:1]
                        replies = await self._send_and_wait(calls, wait)
                    else:
                        replies = await self._cluster.send_and_wait(calls, wait)
                    replies = refuse_errors(replies, len(calls))
        except TimeoutError as error:
            raise self._late_nodes() from error
        except (redis.RedisError, OSError) as error:
            raise self.explain(error) from showable(error)
        if self._cluster is not None:
            refuse_nodes(replies, self._cluster.topology, str(self._label), self._words)
        return fewest(replies[len(calls) :])

    async def _send_and_wait(self, calls: list[Call], wait: Wait) -> list[Any]:
        self._count()
        replies = await self._send_all([*calls, wait])
        if isinstance(replies[0], NoScriptError):
            await self._send(_UnderWay(calls))  # both again, because the write comes first
            self._count()
            replies = await self._send_all([*calls, wait])
        return replies

    async def close(self) -> None:
        """Close the client's connections."""
        with suppress(redis.RedisError, OSError, asyncio.TimeoutError):
            async with timeout(self._timeout):
                await self._client.aclose()
                if self._pool is not None:
                    await self._pool.disconnect()

    async def _send_or_name(self, under_way: "_UnderWay") -> list[Any]:
        """Send calls and return their replies.

        Raises:
            RightsError: names the rights that are missing, as far as that can be found out.
        """
        try:
            return await self._send(under_way)
        except (redis.ResponseError, RightsError) as error:
            if not is_of_rights(error):
                raise
            missing = None
            with suppress(redis.RedisError, OSError, BloomError):
                tests = await self._send(_UnderWay(rights.test_again(under_way.calls)))
                missing = rights.missing(map(Reply.parse, tests))
            if missing is None:
                raise
            if isinstance(error, StorageError):
                missing.slots, missing.replies = error.slots, error.replies
            raise missing from showable(error)

    async def _send(self, under_way: "_UnderWay") -> list[Any]:
        calls = under_way.calls
        if self._cluster is not None:
            patience = patience_of(self._timeout)
            results = await self._cluster.send(calls, under_way.results, patience)
            failure = self._failure_of(under_way)
            if failure is not None:
                raise failure
            return results
        self._count()
        replies = await self._send_all(calls)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # What was refused has changed nothing: send those calls again, with the scripts.
            self._count()
            again = await self._send_all(first_by_text(calls[place] for place in unknown))
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def _send_all(self, calls: Sequence[Call | CallByText | Wait]) -> list[Any]:
        """Send calls together; return their replies, or errors in their places."""
        # By hand: a pipeline of redis-py's takes five rounds of the event loop, this takes two.
        connection = await self._pool.get_connection()
        try:
            return await _converse(connection, calls)
        finally:
            await self._pool.release(connection)


async def _converse(connection: Any, calls: Sequence[Call | CallByText | Wait]) -> list[Any]:
    """Send calls by a connection; return their replies, or errors in their places."""
    replies: list[Any] = []
    try:
        packed = connection.pack_commands([call.command() for call in calls])
        await connection.send_packed_command(packed)
        for call in calls:
            try:
                replies.append(await connection.read_response(disable_decoding=call.binary))
            except redis.ResponseError as error:
                replies.append(error)
        return replies
    finally:
        if len(replies) < len(calls):  # what is still to come would answer the next calls
            await connection.disconnect(nowait=True)


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
