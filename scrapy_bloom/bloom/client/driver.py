"""Sends the calls of an operation to a Redis client, and returns the replies to it."""

import codecs
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import redis
import redis.asyncio.client
import redis.asyncio.cluster
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from scrapy_bloom.bloom.client.deadline import here, remaining, waiting, within
from scrapy_bloom.bloom.errors import (
    WORDS,
    BloomError,
    ConfigurationError,
    StorageError,
    explain,
    reword,
    showable,
    shown,
)
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply

T = TypeVar("T")

#: Ends of the keys that hold hashes; the others hold strings.
HASHES = (":ring", ":header", ":claims", ":workers")


class Driver:
    """Runs operations on a synchronous client.

    With a client of ``connection.connect``, a time-out bounds an operation as a whole: connecting,
    handshakes, all replies (but not resolving a host name). It counts the time that the server
    takes, not the time in which this thread does other work or cannot run. With other clients, and
    with clients for clusters, it is checked between round trips only, and each of them takes as
    long as the client's own time-outs allow; these clients ignore ``may_connect``.

    Args:
        client: ``redis.Redis`` or ``redis.RedisCluster``, with or without ``decode_responses``.
        label: the server's address for error messages, without credentials.
        timeout: seconds one operation may take in all; None for no limit.
        words: what remedies name, as in ``errors.WORDS``.

    Attributes:
        may_connect: whether operations may make a connection. Those that may not fail at once
            when there is no live one, and have sent nothing then.
        round_trips: times that commands were sent and their replies awaited.
    """

    def __init__(
        self,
        client: Any,
        label: str = "Redis",
        timeout: float | None = None,
        words: Mapping[str, str] = WORDS,
    ) -> None:
        check_client(client, "redis.Redis or redis.RedisCluster")
        if not hasattr(client, "evalsha"):
            raise ConfigurationError(
                f"client is a redis.Redis or redis.RedisCluster; got {shown(client)}"
            )
        if inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
            raise ConfigurationError(
                f"client is a {_class_of(client)}, which is for "
                "asyncio: use AsyncBloomFilter, or redis.Redis or redis.RedisCluster"
            )
        self.client = client
        self.label = label
        self._words = words
        # A cluster client sends no EVALSHA in a pipeline: the blocks are on different nodes.
        self._pipelines = not isinstance(client, RedisCluster)
        self._timeout = timeout
        connection_class = getattr(
            getattr(client, "connection_pool", None), "connection_class", None
        )
        #: Counts the time of a round trip where the client's sockets do not.
        self._counting: Callable[[], AbstractContextManager[None]] = (
            nullcontext if getattr(connection_class, "counts_waiting", False) else waiting
        )
        self.may_connect = True
        self.round_trips = 0

    def run(self, steps: Operation[T], *, on_all_blocks: bool = False) -> T:
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
            with within(None if on_all_blocks else self._timeout, connect=self.may_connect):
                calls = next(steps)
                while True:
                    with within(self._timeout if on_all_blocks else None):
                        replies = self._send(calls)
                    calls = steps.send([Reply.parse(raw) for raw in replies])
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (redis.RedisError, OSError, UnicodeDecodeError) as error:
            raise self._explain(error) from showable(error)
        except BloomError as error:
            reword(error, self._words)
            raise

    def call(self, call: Call) -> Reply:
        """Make one call, outside of any operation.

        Raises:
            StorageError: as ``run`` does.
        """
        # As ``within`` does, without its calls: each new URL passes here.
        outer = end, connect = here.limits
        if self._timeout is not None:
            own = here.waited + self._timeout
            end = own if end is None or own < end else end
        here.limits = end, connect and self.may_connect
        try:
            return Reply.parse(self._send_one(call))
        except (redis.RedisError, OSError, UnicodeDecodeError) as error:
            raise self._explain(error) from showable(error)
        except BloomError as error:
            reword(error, self._words)
            raise
        finally:
            here.limits = outer

    def eviction_policy(self) -> str:
        """Return the server's ``maxmemory-policy``; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        # INFO, because managed services refuse CONFIG.
        return ",".join(self._info("memory", "maxmemory_policy"))

    def server_id(self) -> str:
        """Return the id of the server's process, of a cluster all; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        return ",".join(self._info("server", "run_id"))

    def _info(self, section: str, name: str) -> list[str]:
        """Return the different values in INFO, of all nodes."""
        try:
            with within(self._timeout, connect=self.may_connect):
                self._start_round_trip()
                if isinstance(self.client, RedisCluster):
                    nodes = self.client.info(section, target_nodes=RedisCluster.PRIMARIES)
                    # Of a single node, without its name.
                    infos = [nodes] if name in nodes else list(nodes.values())
                else:
                    infos = [self.client.info(section)]
        except redis.ResponseError:
            return []
        except (redis.RedisError, OSError) as error:
            raise self._explain(error) from showable(error)
        return sorted({str(info[name]) for info in infos if name in info})

    def _explain(self, error: Exception) -> StorageError:
        return explain(error, self.label, self._words)

    def _start_round_trip(self) -> None:
        """Count a round trip, or raise TimeoutError: the connection can be used again then."""
        remaining()
        self.round_trips += 1

    def _send(self, calls: list[Call]) -> list[Any]:
        if len(calls) <= 1 or not self._pipelines:
            return [self._send_in_time(call) for call in calls]
        replies = self._pipeline(calls)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # What was refused has changed nothing: load the scripts, and send those calls again.
            for text in {calls[place].script.text for place in unknown}:
                self._start_round_trip()
                with self._counting():
                    self.client.script_load(text)
            second = self._pipeline([calls[place] for place in unknown])
            for place, reply in zip(unknown, second, strict=True):
                replies[place] = reply
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                self._refuse_wrong_type(call, reply)
                raise reply
        return replies

    def _pipeline(self, calls: list[Call]) -> list[Any]:
        self._start_round_trip()
        with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                call.send(pipeline)
            with self._counting():
                replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def _send_in_time(self, call: Call) -> Any:
        remaining()
        return self._send_one(call)

    def _send_one(self, call: Call) -> Any:
        self.round_trips += 1  # without a look at the clock, which a new URL does not need
        try:
            try:
                with self._counting():
                    return call.send(self.client)
            except NoScriptError:
                self._start_round_trip()
                with self._counting():
                    return call.send(self.client, by_text=True)
        except redis.ResponseError as error:
            self._refuse_wrong_type(call, error)
            raise

    def _refuse_wrong_type(self, call: Call, error: Exception) -> None:
        """Raise an error that names the key, if a key of a call is of another type than ours."""
        if "WRONGTYPE" not in str(error):
            return
        for key in call.keys:
            kind = self.client.type(key)
            kind = kind.decode() if isinstance(kind, bytes) else kind
            wanted = "hash" if key.endswith(HASHES) else "string"
            if kind not in (wanted, "none"):
                raise StorageError(
                    f"the Redis key {key!r} holds a {kind}, and the filter keeps a {wanted} there: "
                    f"delete it (DEL) or choose another `key`"
                ) from error


#: What sends nothing before ``execute()``.
_PIPELINES = (
    redis.client.Pipeline,
    redis.cluster.ClusterPipeline,
    redis.asyncio.client.Pipeline,
    redis.asyncio.cluster.ClusterPipeline,
)


def check_client(client: Any, expected: str) -> None:
    """Refuse objects that look like clients, such as pipelines.

    Args:
        client: the client, for asyncio or not.
        expected: names of the classes to use.

    Raises:
        ConfigurationError: says which class it has, and what to use.
    """
    if isinstance(client, type):
        raise ConfigurationError(f"client is the class {client.__name__}: pass an object of it")
    if isinstance(client, _PIPELINES):
        raise ConfigurationError(
            f"client is a {_class_of(client)}, a pipeline, which answers nothing before it is "
            f"executed: use the {expected} that made it"
        )
    packages = {base.__module__.partition(".")[0] for base in type(client).__mro__}
    if "valkey" in packages:
        raise ConfigurationError(
            f"client is a {_class_of(client)}, of the package valkey: use {expected} of the "
            "package redis, which works with Valkey servers too"
        )
    get_encoder = getattr(client, "get_encoder", None)
    encoding = getattr(get_encoder() if get_encoder else None, "encoding", "utf-8")
    try:
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
    except (LookupError, TypeError):
        is_utf8 = False
    if not is_utf8:
        raise ConfigurationError(
            f"client has the encoding {encoding!r:.40}, and a filter's keys are UTF-8: make it "
            "without the argument encoding"
        )


def _class_of(client: Any) -> str:
    return f"{type(client).__module__}.{type(client).__name__}"
