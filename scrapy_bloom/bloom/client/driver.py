"""Sends the calls of an operation to a Redis client, and returns the replies to it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, TypeVar

import redis
import redis.asyncio.client
import redis.asyncio.cluster
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from scrapy_bloom.bloom.client.addresses import user_of_client
from scrapy_bloom.bloom.client.check_client import check_client
from scrapy_bloom.bloom.client.cluster_errors import failure_of_calls, refuse_nodes
from scrapy_bloom.bloom.client.cluster_nodes import ClusterNodes
from scrapy_bloom.bloom.client.cluster_routes import Failure, is_refusal, patience_of
from scrapy_bloom.bloom.client.connect_guard import connecting, this_thread
from scrapy_bloom.bloom.client.exchanger import Exchanger
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

#: Ends of the names of keys, and their types; all others are strings.
TYPES = dict.fromkeys((":ring", ":header", ":claims", ":looks"), "hash") | {":heartbeats": "zset"}
#: Share of the time-out that a round trip counts for at most: more of it may be a delay of this
#: thread, which could not run when the reply came.
MAX_SHARE = 1 / 4


class Driver:
    """Runs operations on a synchronous client.

    The client's own time-outs bound each connection attempt and each reply. The time-out given here
    bounds an operation of several round trips. It is checked between them.

    Args:
        client: ``redis.Redis`` or ``redis.RedisCluster``, with or without ``decode_responses``.
        label: the server's address for error messages, without credentials.
        timeout: seconds one operation may take; None for no limit.
        words: what remedies name, as in ``errors.WORDS``.

    Attributes:
        may_connect: whether operations may make a connection. If not, and if there is none, they
            fail at once and send nothing. Clients that are not of ``connection.connect``, and
            clients for clusters, connect all the same.
        round_trips: times that commands were sent and their replies awaited.
    """

    def __init__(
        self,
        client: Any,
        label: object = "Redis",
        timeout: float | None = None,
        words: Mapping[str, str] = WORDS,
    ) -> None:
        check_client(client, is_async=False)
        self.client = client
        self.label = label
        self._words = {**words, "user": user_of_client(client), "server": str(label)}
        is_cluster = isinstance(client, RedisCluster)
        self._cluster = ClusterNodes(client, self._count) if is_cluster else None
        self._exchanger = Exchanger(client) if Exchanger.is_plain(client) else None
        self._timeout = timeout
        #: Seconds that the operation may go on waiting.
        self._left = inf
        self.may_connect = True
        self.round_trips = 0

    def run(self, steps: Operation[T], *, on_all_blocks: bool = False) -> T:
        """Run an operation to its end and return its result.

        Args:
            steps: the operation.
            on_all_blocks: whether the number of round trips grows with the number of blocks. Then
                only the time-outs of the single replies count.

        Raises:
            StorageError: the server refused a command, or did not reply in time. Then it is unknown
                whether the last commands were carried out.
        """
        self._give_back()
        self._left = inf if on_all_blocks or self._timeout is None else self._timeout
        try:
            with connecting(allowed=self.may_connect):
                calls = next(steps)
                while True:
                    calls = self._advance(steps, calls)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (redis.RedisError, OSError, UnicodeDecodeError) as error:
            raise self._explain(error) from showable(error)
        except BloomError as error:
            reword(error, self._words)
            raise

    def _advance(self, steps: Operation[Any], calls: list[Call]) -> list[Call]:
        """Make calls, and return the next ones of the operation."""
        try:
            replies = self._replies(calls)
        except StorageError as error:
            if not error.replies:
                raise
            return steps.throw(error)
        return steps.send(replies)

    def exchange(self, frame: bytes) -> Reply | None:
        """Send one call as it is, and return its reply.

        None if nothing was changed and the call has to be sent by ``run``: by an unusual client, to
        a server that does not know the script, or to learn which key has a wrong type, or which
        rights are missing.

        Raises:
            StorageError: as ``run`` does.
        """
        if self._exchanger is None:
            return None
        # As ``connecting`` does, without its calls: each new URL passes here.
        outer = this_thread.may_connect
        this_thread.may_connect = outer and self.may_connect
        self._count()
        try:
            return Reply.parse(self._exchanger.exchange(frame))
        except (redis.RedisError, OSError, UnicodeDecodeError) as error:
            if isinstance(error, NoScriptError) or "WRONGTYPE" in str(error):
                return None
            if is_of_rights(error):
                return None
            raise self._explain(error) from showable(error)
        except BloomError as error:
            reword(error, self._words)
            raise
        finally:
            this_thread.may_connect = outer

    def eviction_policy(self) -> str:
        """Return the server's ``maxmemory-policy``; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        # INFO, because managed services refuse CONFIG.
        return values_of("maxmemory_policy", self.infos("memory"))

    def server_id(self) -> str:
        """Return the id of the server's process, of a cluster all; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        return values_of("run_id", self.infos("server"))

    def infos(self, section: str) -> list[dict[str, str]]:
        """Return a section of the server's INFO, of a cluster that of each primary; [] if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        return [
            {str(name): str(value) for name, value in _parse_info(info).items()}
            for info in self._query(("INFO", section), lambda: self.client.info(section))
        ]

    def options(self, name: str) -> list[str]:
        """Return an option of the server, of a cluster that of each primary; [] if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        command = ("CONFIG", "GET", name)
        found = self._query(command, lambda: self.client.execute_command(*command))
        return [_text(pair[1]) for pair in found if isinstance(pair, list) and len(pair) == 2]

    def _query(self, command: Sequence[str], of_one: Callable[[], Any]) -> list[Any]:
        """Return the server's reply to a command, or those of all primaries; [] if it refuses.

        Args:
            command: for the nodes of a cluster.
            of_one: sends it to a server that is none.
        """
        self._give_back()
        try:
            with connecting(allowed=self.may_connect), reading():
                if self._cluster is not None:
                    replies = self._cluster.query(command)
                    if any(map(is_refusal, replies)):
                        return []
                    refuse_nodes(replies, self._cluster.topology, str(self.label), self._words)
                    return replies
                self._count()
                return [of_one()]
        except redis.ResponseError:
            return []
        except (redis.RedisError, OSError) as error:
            raise self._explain(error) from showable(error)

    def wait(self, calls: list[Call], wait: Wait) -> Acknowledged:
        """Make the calls, and wait until replicas have all that was written before.

        Args:
            calls: of ``replication.touches``. One is enough for a server that is no cluster.
            wait: for how many replicas, and how long.

        Raises:
            StorageError: as ``run`` does.
        """
        self._give_back()
        self._left = inf
        try:
            with connecting(allowed=self.may_connect), reading():
                if self._cluster is not None:
                    replies = self._cluster.send_and_wait(calls, wait)
                else:
                    calls = calls[:1]
                    replies = self._pipeline([*calls, wait])
                    if isinstance(replies[0], NoScriptError):
                        self._send(calls)  # both again, because the write comes first
                        replies = self._pipeline([*calls, wait])
                replies = refuse_errors(replies, len(calls))
        except (redis.RedisError, OSError) as error:
            raise self._explain(error) from showable(error)
        if self._cluster is not None:
            refuse_nodes(replies, self._cluster.topology, str(self.label), self._words)
        return fewest(replies[len(calls) :])

    def keep_connection(self) -> None:
        """Keep the connection of ``exchange`` for the next one; ``run`` gives it back first."""
        if self._exchanger is not None:
            self._exchanger.keeps_connection = True

    def _give_back(self) -> None:
        if self._exchanger is not None:
            self._exchanger.give_back()

    def _count(self) -> None:
        self.round_trips += 1

    def _explain(self, error: Exception) -> StorageError:
        return explain(error, str(self.label), self._words)

    def _replies(self, calls: list[Call]) -> list[Reply]:
        """Send calls and return their replies.

        Raises:
            RightsError: names the rights that are missing, as far as that can be found out.
        """
        try:
            return [Reply.parse(raw) for raw in self._send(calls)]
        except (redis.ResponseError, RightsError) as error:
            if not is_of_rights(error):
                raise
            missing = None
            with suppress(redis.RedisError, OSError, BloomError):
                tests = self._send(rights.test_again(calls))
                missing = rights.missing(map(Reply.parse, tests))
            if missing is None:
                raise
            if isinstance(error, StorageError):
                missing.slots, missing.replies = error.slots, error.replies
            raise missing from showable(error)

    def _send(self, calls: list[Call]) -> list[Any]:
        if self._cluster is not None:
            results = self._in_time(self._cluster.send, calls, patience_of(self._timeout))
            for call, result in zip(calls, results, strict=True):
                if isinstance(result, Failure):
                    self._refuse_wrong_type(call, result.error)
            topology = self._cluster.topology
            failure = failure_of_calls(calls, results, topology, str(self.label), self._words)
            if failure is not None:
                raise failure
            return results
        if len(calls) <= 1:
            return [self._in_time(self._send_one, call) for call in calls]
        replies = self._in_time(self._pipeline, calls)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # The refused calls have changed nothing: send them again, with the scripts.
            second = self._in_time(self._pipeline, first_by_text(calls[n] for n in unknown))
            for place, reply in zip(unknown, second, strict=True):
                replies[place] = reply
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                self._refuse_wrong_type(call, reply)
                raise reply
        return replies

    def _in_time(self, send: Callable[..., T], *args: Any) -> T:
        """Send something and count the time until the replies are there.

        Raises:
            TimeoutError: the operation has used up its time. Nothing was sent.
        """
        if self._left <= 0:
            raise TimeoutError("timed out: the operation has used up its time")
        begin = time.monotonic()
        with reading():
            replies = send(*args)
        if self._timeout is not None:
            self._left -= min(time.monotonic() - begin, MAX_SHARE * self._timeout)
        return replies

    def _pipeline(self, calls: Sequence[Call | CallByText | Wait]) -> list[Any]:
        self.round_trips += 1
        with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                call.send(pipeline)
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def _send_one(self, call: Call) -> Any:
        self.round_trips += 1
        try:
            try:
                return call.send(self.client)
            except NoScriptError:
                self.round_trips += 1
                return call.send(self.client, by_text=True)
        except redis.ResponseError as error:
            self._refuse_wrong_type(call, error)
            raise

    def _refuse_wrong_type(self, call: Call, error: Exception) -> None:
        """Raise an error that names the key, if a key of a call has another type than the filter's.

        Raises:
            StorageError: with the key and the remedy.
        """
        if "WRONGTYPE" not in str(error):
            return
        for key in call.keys:
            kind = self.client.type(key)
            kind = kind.decode() if isinstance(kind, bytes) else kind
            wanted = next((TYPES[end] for end in TYPES if key.endswith(end)), "string")
            if kind not in (wanted, "none"):
                raise StorageError(
                    f"the Redis key {key!r} holds a {kind}, and the filter keeps a {wanted} there: "
                    "delete it (DEL) or choose another `key`"
                ) from error


def values_of(name: str, infos: Iterable[Any]) -> str:
    """Return the different values in replies to INFO, of a cluster those of all nodes.

    Args:
        name: of the value.
        infos: as redis-py reads them, or as they are.
    """
    return ",".join(sorted({str(one[name]) for one in map(_parse_info, infos) if name in one}))


def _parse_info(info: Any) -> Mapping[str, Any]:
    if isinstance(info, Mapping):
        return info
    pairs = (line.partition(":") for line in _text(info).splitlines())
    return {name: value for name, _, value in pairs}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
