"""Sends the calls of an operation to an asyncio client: see driver.py."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError

from scrapy_bloom.bloom.client.async_cluster_nodes import AsyncClusterNodes
from scrapy_bloom.bloom.client.cluster_routes import Failure, is_refusal
from scrapy_bloom.bloom.client.driver import check_client, explain_failure, values_of
from scrapy_bloom.bloom.client.exchanger import taking
from scrapy_bloom.bloom.client.unreadable import reading
from scrapy_bloom.bloom.errors import (
    WORDS,
    BloomError,
    ConfigurationError,
    StorageError,
    explain,
    reword,
    showable,
)
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply

T = TypeVar("T")

#: Seconds that cleaning up behind an operation may take.
CLEAN_UP_SECONDS = 10.0
#: A time-out is made up of so many steps. A connection and a round trip take 25 rounds of the loop.
STEPS = 100
#: Seconds of a step at least: timers are exact to about one millisecond.
MIN_STEP_SECONDS = 0.002

#: What is cleaning up: the loop itself does not hold it.
_cleaning: set[asyncio.Task[Any]] = set()


class timeout:  # noqa: N801 - used as asyncio.timeout is
    """Cancel an ``async with`` block after some seconds: asyncio.TimeoutError.

    Counts the time in which the event loop could have read a reply, and not while it is blocked:
    a step that is late counts as if it had been in time, and as nothing if a reply comes after it.
    So a silent server is given up after ``STEPS`` rounds of a busy loop at most.

    Args:
        seconds: the time, None for no limit.
        replies: returns a number that is another one after each reply.
    """

    def __init__(self, seconds: float | None, replies: Callable[[], int] = int) -> None:
        self._seconds = seconds
        self._replies = replies
        self._timer: asyncio.Handle | None = None
        self._has_expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._seconds is None or task is None:
            return
        self._loop, self._task = asyncio.get_running_loop(), task
        if sys.version_info >= (3, 11):
            self._cancelling = task.cancelling()
        self._step = max(self._seconds / STEPS, MIN_STEP_SECONDS)
        #: What is left, and what late steps have taken of it since the last reply.
        self._left, self._late = self._seconds, 0.0
        self._seen, self._last = self._loop.time(), self._replies()
        self._look()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._has_expired:
            # As asyncio.timeout does: others may have cancelled the task as well.
            is_ours = sys.version_info < (3, 11) or self._task.uncancel() <= self._cancelling
            if is_ours and kind is asyncio.CancelledError:
                raise asyncio.TimeoutError

    def _look(self) -> None:
        if self._last != (last := self._replies()):
            self._last, self._late = last, 0.0
        took = self._loop.time() - self._seen
        self._seen += took
        if took <= self._step:
            self._left -= took
        else:
            self._late += self._step
        if self._left > self._late:
            # Half a step, because timers are always a little late.
            self._timer = self._loop.call_later(self._step / 2, self._look)
        else:
            # After what the loop has just read for the task.
            self._timer = self._loop.call_soon(self._expire)

    def _expire(self) -> None:
        self._has_expired = True
        self._task.cancel()


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
        label: str,
        timeout: float | None,
        words: Mapping[str, str] = WORDS,
    ) -> None:
        check_client(client, is_async=True)
        self._client = client
        self._label = label
        self._words = words
        is_cluster = isinstance(client, RedisCluster)
        self._cluster = AsyncClusterNodes(client, self._count) if is_cluster else None
        self._pool: Any = None if is_cluster else client.connection_pool
        self._take: Any = None if is_cluster else taking(self._pool)
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
        try:
            async with timeout(None if on_all_blocks else self._timeout, self._replies):
                calls = next(steps)
                while True:
                    async with timeout(self._timeout if on_all_blocks else None, self._replies):
                        with reading():
                            replies = await self._send(calls)
                    calls = steps.send([Reply.parse(raw) for raw in replies])
        except StopIteration as stop:
            result: T = stop.value
            return result
        except asyncio.TimeoutError as error:
            # redis-py has closed the connection: what was sent is not answered to the next one.
            raise self.late() from error
        except UnicodeDecodeError:
            # Up to 5.0.3, redis-py with hiredis decodes replies that must stay bytes.
            raise ConfigurationError(
                f"redis-py {redis.__version__} with hiredis and decode_responses=True cannot read "
                "bitmaps: use a client without decode_responses, or a later redis-py"
            ) from None
        except (redis.RedisError, OSError) as error:
            raise self.explain(error) from showable(error)
        except BloomError as error:
            reword(error, self._words)
            raise

    def explain(self, error: Exception) -> StorageError:
        """Return an error that says what to do about an error of the client's."""
        return explain(error, self._label, self._words)

    def late(self) -> StorageError:
        """Return the error for a time-out; of a cluster, it names a node that did not answer."""
        error = TimeoutError("timed out")
        if self._cluster is None or not self._cluster.silent:
            return self.explain(error)
        return explain_failure(Failure(error, self._cluster.silent[0]), self._label, self._words)

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
        except asyncio.TimeoutError as error:
            raise self.late() from error
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
        return self._refuse_failures(replies)

    async def close(self) -> None:
        """Close the client's connections."""
        with suppress(redis.RedisError, OSError, asyncio.TimeoutError):
            async with timeout(self._timeout):
                # redis-py 5.0.0 calls it close.
                await getattr(self._client, "aclose", self._client.close)()
                if self._pool is not None:
                    await self._pool.disconnect()

    async def _send(self, calls: list[Call]) -> list[Any]:
        if self._cluster is not None:
            return self._refuse_failures(await self._cluster.send(calls))
        self._count()
        replies = await self._send_all(calls)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # What was refused has changed nothing: load the scripts, and send those calls again.
            for text in {calls[place].script.text for place in unknown}:
                self._count()
                await self._client.script_load(text)
            self._count()
            again = await self._send_all([calls[place] for place in unknown])
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def _send_all(self, calls: list[Call]) -> list[Any]:
        """Send calls together; return their replies, or errors in their places."""
        # By hand: a pipeline of redis-py's takes five rounds of the event loop, this takes two.
        connection = await self._take()
        try:
            return await _converse(connection, calls)
        finally:
            await self._pool.release(connection)

    def _refuse_failures(self, replies: list[Any]) -> list[Any]:
        """Return the replies of a cluster's nodes, if there are all of them.

        Raises:
            StorageError: with the first node that failed.
            UnicodeDecodeError: a client with decode_responses has read a bitmap.
        """
        for reply in replies:
            if isinstance(reply, Failure):
                if isinstance(reply.error, UnicodeDecodeError):
                    raise reply.error
                raise explain_failure(reply, self._label, self._words) from showable(reply.error)
        return replies


async def _converse(connection: Any, calls: list[Call]) -> list[Any]:
    """Send calls by a connection; return their replies, or errors in their places."""
    replies: list[Any] = []
    try:
        await connection.send_packed_command(connection.pack_commands(map(Call.command, calls)))
        for call in calls:
            try:
                replies.append(await connection.read_response(disable_decoding=call.binary))
            except redis.ResponseError as error:  # noqa: PERF203 - it is a reply
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
        except asyncio.TimeoutError as error:
            raise explain(TimeoutError("timed out"), "Redis") from error

    task = asyncio.create_task(in_time())
    _cleaning.add(task)
    task.add_done_callback(_cleaning.discard)
    return await asyncio.shield(task)
