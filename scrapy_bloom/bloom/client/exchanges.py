"""What drivers have in common: what an operation sends, and what the replies mean. No I/O.

Its methods are generators, as in ``routes.py``: a driver sends their waves and returns the replies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

import redis
from redis.exceptions import AskError, RedisClusterException, TryAgainError

from scrapy_bloom.bloom.client.addresses import user_of_client
from scrapy_bloom.bloom.client.clients import check_client
from scrapy_bloom.bloom.client.routes import (
    ONE_SERVER,
    PATIENCE_SECONDS,
    Address,
    Command,
    Failure,
    Topology,
    Wave,
    Waves,
    ask_primaries,
    dispatch,
    dispatch_and_wait,
    is_refusal,
    slot_of,
)
from scrapy_bloom.bloom.errors import (
    WORDS,
    BloomError,
    NotReadyError,
    RightsError,
    StorageError,
    explain,
    reword,
    short,
    showable,
    shown,
)
from scrapy_bloom.bloom.protocol import rights
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Call, Reply, Wait

T = TypeVar("T")

#: Ends of the names of keys, and their types; all others are strings.
TYPES = dict.fromkeys((":ring", ":header", ":claims"), "hash") | {":heartbeats": "zset"}


class BaseDriver:
    """Turns operations into waves, which ``Driver`` and ``AsyncDriver`` send.

    Args:
        client: of a server or a cluster.
        label: the server's address for error messages, without credentials; its text may change.
        timeout: seconds of an operation; None for no limit.
        words: what remedies name, as in ``errors.WORDS``.

    Attributes:
        round_trips: times that commands were sent and their replies awaited.
        topology: which node has which slot.
    """

    is_async: ClassVar[bool]

    def __init__(
        self,
        client: Any,
        label: object = "Redis",
        timeout: float | None = None,
        words: Mapping[str, str] = WORDS,
    ) -> None:
        check_client(client, is_async=self.is_async)
        self.client, self.label, self._timeout = client, label, timeout
        self.words = {**words, "user": user_of_client(client), "server": str(label)}
        #: Of a cluster, redis-py's manager of its nodes.
        self._manager: Any = getattr(client, "nodes_manager", None)
        self.topology: Topology = ONE_SERVER
        if self._manager is not None:
            nodes = self._manager.startup_nodes.values()
            startup = [Address(node.host, int(node.port)) for node in nodes]
            self.topology = Topology(startup, self._manager.remap_host_port)
        # Less than the time-out, so that the reason of the pauses becomes the error.
        self._patience = PATIENCE_SECONDS if timeout is None else 0.75 * timeout
        self.round_trips = 0

    def _carry_out(self, steps: Operation[T]) -> Waves[T]:
        """Carry out an operation to its end; return its result.

        Args:
            steps: the operation. It gets the replies of the nodes that have answered although
                others failed, with the error.

        Raises:
            StorageError: what was asked was refused, or it is unknown whether it was carried out.
        """
        try:
            calls = next(steps)
            while True:
                try:
                    replies = yield from self._send(calls)
                except StorageError as error:
                    if not error.replies:
                        raise
                    calls = steps.throw(error)
                else:
                    calls = steps.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _query(self, *words: str) -> Waves[list[Any]]:
        """Return the replies of all primaries to a command; [] if one refuses it.

        Raises:
            StorageError: as ``_carry_out`` does.
        """
        replies = yield from ask_primaries(self.topology, Command(words))
        if any(map(is_refusal, replies)):
            return []
        self._refuse_failures(replies)
        return replies

    def _infos(self, section: str) -> Waves[list[dict[str, str]]]:
        """Return the values of INFO, of each primary; [] if one refuses it.

        Raises:
            StorageError: as ``_carry_out`` does, or what has answered is not Redis.
        """
        replies = yield from self._query("INFO", section)
        if not all(isinstance(reply, bytes | str) for reply in replies):
            raise self.explain(redis.InvalidResponse("INFO is answered by something else"))
        return [
            dict(line.partition(":")[::2] for line in text_of(reply).split("\r\n"))
            for reply in replies
        ]

    def _values(self, name: str, section: str) -> Waves[str]:
        """Return the different values of a name in INFO, separated by commas; "" if unknown.

        Raises:
            StorageError: as ``_infos`` does.
        """
        infos = yield from self._infos(section)
        return ",".join(sorted({info[name] for info in infos if name in info}))

    def _wait(self, calls: Sequence[Call], wait: Wait) -> Waves[Acknowledged]:
        """Make calls, and wait until replicas have what was written before.

        Args:
            calls: of ``session.touches``. One is enough for a server that is no cluster.
            wait: for how many replicas, and how long.

        Raises:
            StorageError: as ``_carry_out`` does.
        """
        calls = calls if self.topology.is_cluster else calls[:1]
        command = Command(("WAIT", wait.replicas, wait.milliseconds))
        replies, waited = yield from dispatch_and_wait(self.topology, calls, command)
        # A server that does not know WAIT has answered.
        waited = [reply.error if is_refusal(reply) else reply for reply in waited]
        self._refuse_failures([*replies, *waited])
        return _fewest(waited)

    def _send(self, calls: Sequence[Call]) -> Waves[list[Reply]]:
        """Send calls; return their replies.

        Raises:
            RightsError: names the rights that are missing, as far as that can be found out.
            StorageError: as ``_carry_out`` does.
        """
        try:
            return (yield from self._replies(calls))
        except RightsError as error:
            missing = None
            with suppress(redis.RedisError, OSError, BloomError):
                tests = rights.test_again(calls)
                missing = rights.missing((yield from self._replies(tests)))
            if missing is None:
                raise
            missing.slots, missing.replies = error.slots, error.replies
            raise missing from error.__cause__

    def _replies(self, calls: Sequence[Call]) -> Waves[list[Reply]]:
        results = yield from dispatch(self.topology, calls, self._patience)
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, Failure) and "WRONGTYPE" in str(result.error):
                yield from self._refuse_wrong_type(call, result)
        error = self.failure_of_calls(calls, results)
        if error is not None:
            raise error
        return [Reply.parse(result) for result in results]

    def _refuse_wrong_type(self, call: Call, failure: Failure) -> Waves[None]:
        """Raise an error that names the key of a call that has another type than the filter's.

        Raises:
            StorageError: with the key and the remedy.
        """
        asked = Wave({failure.address: [Command(("TYPE", key)) for key in call.keys]})
        kinds = (yield asked)[failure.address]
        for key, found in zip(call.keys, kinds, strict=True):
            kind = found.decode() if isinstance(found, bytes) else found
            wanted = next((TYPES[end] for end in TYPES if key.endswith(end)), "string")
            if isinstance(kind, str) and kind not in (wanted, "none"):
                raise StorageError(
                    f"the Redis key {key!r} holds a {kind}, and the filter keeps a {wanted} there: "
                    "delete it (DEL) or choose another `key`"
                ) from failure.error

    # -- failures --

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raise what callers handle for what a client raises in a ``with`` block."""
        try:
            yield
        except (redis.RedisError, RedisClusterException, OSError) as error:
            raise self.explain(error) from showable(error)
        except BloomError as error:
            reword(error, self.words)
            raise

    def explain(self, error: Exception, address: Address | None = None) -> StorageError:
        """Return an error that says what to do about one of the client's, or of a node's."""
        label = str(self.label)
        if address is not None and self.topology.is_cluster:
            label = f"the node {address} of {label}"
        return explained(error, label, self.words)

    def failure_of_calls(
        self, calls: Sequence[Call], results: Sequence[Any]
    ) -> StorageError | None:
        """Return the error for calls of which some failed; None if none did.

        It has what the other nodes of a cluster replied. Another server has failed as a whole.

        Args:
            calls: the calls.
            results: replies, or ``Failure`` in their places.

        Raises:
            StorageError: a reply is not a script's.
        """
        failures = [result for result in results if isinstance(result, Failure)]
        if not failures:
            return None
        error = self.explain(*failures[0])
        if not self.topology.is_cluster:
            return error
        is_lost = isinstance(failures[0].error, redis.ConnectionError | OSError)
        if is_lost and len(failures) < len(results):
            # The other nodes answer: a replica may take over, which opening a filter waits for.
            error = not_ready(error)
        error.slots = _unusable_slots(self.topology, calls, results)
        error.replies = [
            None if isinstance(result, Failure) else Reply.parse(result) for result in results
        ]
        return error

    def _refuse_failures(self, results: Iterable[Any]) -> None:
        """Refuse results of a command to all nodes that failed on some.

        Raises:
            StorageError: names the slots of these nodes.
        """
        failures = [result for result in results if isinstance(result, Failure)]
        if failures:
            error = self.explain(*failures[0])
            error.slots = self.topology.slots_of({failure.address for failure in failures})
            raise error


def explained(error: Exception, label: str, words: Mapping[str, str]) -> StorageError:
    """Return an error that says what to do about one of a client's."""
    cause, is_of_cluster = error.__cause__, isinstance(error, RedisClusterException)
    if isinstance(cause, redis.RedisError) or (is_of_cluster and isinstance(cause, OSError)):
        error = cause  # redis-py wraps what connecting raises
    result = explain(error, label, words)
    result.__cause__ = showable(error)
    return result


def not_ready(error: StorageError) -> NotReadyError:
    """Return an error of the same text after which opening a filter waits and tries again."""
    other = NotReadyError(str(error))
    other.__cause__ = error.__cause__
    return other


def _unusable_slots(
    topology: Topology, calls: Sequence[Call], results: Sequence[Any]
) -> frozenset[int]:
    """Return the slots of calls that failed, and all slots of nodes that failed; none for all.

    A node has not failed that only refuses calls on a slot which is not all there, or not its own.
    """
    slots, nodes = set[int](), set[Address]()
    for call, failure in zip(calls, results, strict=True):
        if isinstance(failure, Failure):
            slots.add(slot_of(call.keys[0]))
            if not isinstance(failure.error, AskError | TryAgainError):  # or MovedError
                nodes.add(failure.address)
    return topology.slots_of(nodes, slots)


def _fewest(waited: Sequence[Any]) -> Acknowledged:
    """Return the smallest of the replies to WAIT."""
    for reply in waited:
        if isinstance(reply, redis.ResponseError):
            return Acknowledged(0, short(reply))
        if not isinstance(reply, int):
            return Acknowledged(0, f"the answer {shown(reply)}")
    return Acknowledged(min(waited, default=0))


def text_of(value: object) -> str:
    """Return a reply as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
