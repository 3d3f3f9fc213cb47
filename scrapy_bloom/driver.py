"""Sends what an operation yields to a Redis client, and gives it the replies."""

from typing import Any, TypeVar

import redis
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from scrapy_bloom.connection import explain
from scrapy_bloom.errors import StorageError
from scrapy_bloom.scripts import Call, Reply
from scrapy_bloom.view import Steps

T = TypeVar("T")


class Driver:
    """Runs operations on a synchronous client.

    Args:
        client: ``redis.Redis`` or ``redis.RedisCluster``, with or without ``decode_responses``.
        label: the server's address for error messages, without credentials.
    """

    def __init__(self, client: Any, label: str = "Redis") -> None:
        self.client = client
        self.label = label
        # A cluster client sends no EVALSHA in a pipeline: the blocks are on different nodes.
        self._pipelines = not isinstance(client, RedisCluster)
        #: Times that commands were sent and their replies awaited.
        self.round_trips = 0

    def run(self, steps: Steps[T]) -> T:
        """Run an operation to its end and return its result.

        Raises:
            StorageError: the server did not do what it was asked. Whether commands that were
                under way have been carried out is unknown then.
        """
        try:
            calls = next(steps)
            while True:
                calls = steps.send([Reply.parse(raw) for raw in self._send(calls)])
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (redis.RedisError, OSError) as error:
            raise explain(error, self.label) from error

    def call(self, call: Call) -> Reply:
        """Make one call, outside of any operation.

        Raises:
            StorageError: as ``run`` does.
        """
        try:
            return Reply.parse(self._send_one(call))
        except (redis.RedisError, OSError) as error:
            raise explain(error, self.label) from error

    def eviction_policy(self) -> str:
        """Return the server's ``maxmemory-policy``; "" where it does not say."""
        self.round_trips += 1
        try:
            # INFO, because managed services refuse CONFIG.
            memory = self.client.info("memory")
        except redis.ResponseError:
            return ""
        return str(memory.get("maxmemory_policy", ""))

    def _send(self, calls: list[Call]) -> list[Any]:
        if len(calls) == 1 or not self._pipelines:
            return [self._send_one(call) for call in calls]
        self.round_trips += 1
        with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
            replies = pipeline.execute(raise_on_error=False)
        return [
            self._settle(call, reply) if isinstance(reply, Exception) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _send_one(self, call: Call) -> Any:
        self.round_trips += 1
        try:
            return self.client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        except redis.ResponseError as error:
            return self._settle(call, error)

    def _settle(self, call: Call, error: Exception) -> Any:
        """Send a call again if the server just did not know its script; else say what is wrong."""
        if isinstance(error, NoScriptError):
            self.round_trips += 1
            try:
                return self.client.eval(call.script.text, len(call.keys), *call.keys, *call.args)
            except redis.ResponseError as second:
                error = second
        if "WRONGTYPE" in str(error):
            raise self._wrong_type(call) from error
        raise error

    def _wrong_type(self, call: Call) -> StorageError:
        for key in call.keys:
            kind = self.client.type(key)
            kind = kind.decode() if isinstance(kind, bytes) else kind
            wanted = "hash" if key.endswith((":ring", ":header")) else "string"
            if kind not in (wanted, "none"):
                return StorageError(
                    f"the Redis key {key!r} holds a {kind}, and the filter keeps a {wanted} there: "
                    f"delete it (DEL) or choose another BLOOM_KEY"
                )
        return StorageError(
            f"one of the Redis keys {call.keys} is of another type than the filter's"
        )
