"""Sends the calls of an operation by a Redis client's connections, and returns the replies to it.

redis-py's own clients, above all those for clusters, send again what got no reply. So only their
connections are used here.
"""

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from math import inf
from typing import Any, TypeVar

import redis
from redis.cluster import PRIMARY, ClusterNode
from redis.exceptions import NoScriptError

from scrapy_bloom.bloom.client.clients import connecting, this_thread
from scrapy_bloom.bloom.client.exchanges import BaseDriver, text_of
from scrapy_bloom.bloom.client.routes import Address, Command, Replies, Wave, Waves
from scrapy_bloom.bloom.errors import is_of_rights, showable
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Call, Reply, Wait

T = TypeVar("T")

#: Share of the time-out that a round trip counts for at most: more of it may be a delay of this
#: thread, which could not run when the reply came.
MAX_SHARE = 1 / 4
#: A server that replied within so many seconds the last time is polled for as long.
NEAR_SECONDS = 0.0002
#: What redis-py raises for replies that are not Redis's, without hiredis, and for such an INFO.
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
#: What a node that cannot be reached, or understood, makes it raise.
FAILURES = (redis.RedisError, OSError, *_UNREADABLE)


class Driver(BaseDriver):
    """Runs operations on a synchronous client: see ``BaseDriver``.

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

    is_async = False
    may_connect = True

    @cached_property
    def _exchanger(self) -> "Exchanger | None":
        return None if self._manager else Exchanger(self.client.connection_pool)

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
        waves = self._carry_out(steps)
        return self._drive(waves, None if on_all_blocks else self._timeout)

    def exchange(self, frame: bytes) -> Reply | None:
        """Send one call as it is, and return its reply.

        None if nothing was changed and the call has to be sent by ``run``: to a cluster, to a
        server that does not know the script, or to learn which key has a wrong type, or which
        rights are missing.

        Raises:
            StorageError: as ``run`` does.
        """
        if self._exchanger is None:
            return None
        # As ``connecting`` does, without its calls: each new URL passes here.
        outer = this_thread.may_connect
        this_thread.may_connect = outer and self.may_connect
        self.round_trips += 1
        try:
            return Reply.parse(self._exchanger.exchange(frame))
        except (redis.RedisError, OSError, UnicodeDecodeError) as error:
            is_unknown = isinstance(error, NoScriptError) or "WRONGTYPE" in str(error)
            if is_unknown or is_of_rights(error):
                return None
            raise self.explain(error) from showable(error)
        finally:
            this_thread.may_connect = outer

    def eviction_policy(self) -> str:
        """Return the server's ``maxmemory-policy``; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        # INFO, because managed services refuse CONFIG.
        return self._drive(self._values("maxmemory_policy", "memory"), None)

    def server_id(self) -> str:
        """Return the id of the server's process, of a cluster all; "" if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        return self._drive(self._values("run_id", "server"), None)

    def infos(self, section: str) -> list[dict[str, str]]:
        """Return a section of the server's INFO, of a cluster that of each primary; [] if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        return self._drive(self._infos(section), None)

    def options(self, name: str) -> list[str]:
        """Return an option of the server, of a cluster that of each primary; [] if unknown.

        Raises:
            StorageError: as ``run`` does.
        """
        found = self._drive(self._query("CONFIG", "GET", name), None)
        # A dict by RESP3.
        values = ([*one.values()] if isinstance(one, dict) else one[1:] for one in found)
        return [text_of(value) for value, *_ in filter(None, values)]

    def wait(self, calls: list[Call], wait: Wait) -> Acknowledged:
        """Make the calls, and wait until replicas have all that was written before.

        Args:
            calls: of ``session.touches``. One is enough for a server that is no cluster.
            wait: for how many replicas, and how long.

        Raises:
            StorageError: as ``run`` does.
        """
        return self._drive(self._wait(calls, wait), None)

    def keep_connection(self) -> None:
        """Keep the connection of ``exchange`` for the next one; ``run`` gives it back first."""
        if self._exchanger is not None:
            self._exchanger.keeps_connection = True

    def _drive(self, waves: Waves[T], timeout: float | None) -> T:
        """Send waves, all of them in so many seconds, and return what comes of them."""
        if self._exchanger is not None:
            self._exchanger.give_back()
        left, most = (inf, inf) if timeout is None else (timeout, MAX_SHARE * timeout)
        with self._explaining(), connecting(allowed=self.may_connect):
            try:
                wave = next(waves)
                while True:
                    if left <= 0:  # nothing more is sent
                        raise TimeoutError("timed out: the operation has used up its time")
                    begin = time.monotonic()
                    replies = [self._exchange(wave)]
                    left -= min(time.monotonic() - begin, most)
                    # Not held here: replies may be large, and are parsed into others.
                    wave = waves.send(replies.pop())
            except StopIteration as stop:
                result: T = stop.value
                return result

    def _exchange(self, wave: Wave) -> Replies:
        """Write to all nodes, then read from all; errors are in the places of replies."""
        self.round_trips += 1
        if wave.pause:
            time.sleep(wave.pause)
        replies: dict[Address, list[Any]] = {address: [] for address in wave.batches}
        talks = {a: self._talk(a, batch, replies[a]) for a, batch in wave.batches.items()}
        for talk in talks.values():
            next(talk, None)
        is_late = False
        for address, talk in talks.items():
            is_sent = not replies[address]
            with suppress(StopIteration):
                talk.send(is_late)
            # The nodes after one that is silent have had as much time as that.
            is_late |= is_sent and isinstance(replies[address][-1], redis.TimeoutError)
        return replies

    def _talk(
        self, address: Address, commands: list[Command], replies: list[Any]
    ) -> Generator[None, bool, None]:
        """Send commands to a node; then fill in the replies, with errors in their places.

        Is sent whether it is late: then it reads only what is there.
        """
        connection = None
        is_whole = False
        try:
            pool = self._pool(address)
            connection = pool.get_connection()
            packed = connection.pack_commands([command.words for command in commands])
            connection.send_packed_command(packed)
            is_late = yield
            for command in commands:
                if is_late and not connection.can_read(timeout=0):
                    raise redis.TimeoutError("timed out")
                try:
                    replies.append(connection.read_response(disable_decoding=command.binary))
                except redis.ResponseError as error:
                    replies.append(error)
            is_whole = True
        except FAILURES as error:
            replies += [as_redis_error(error)] * (len(commands) - len(replies))
        finally:
            if connection is not None:
                if not is_whole:  # what is still to come would answer the next commands
                    connection.disconnect()
                pool.release(connection)

    def _pool(self, address: Address) -> Any:
        """Return the pool of connections to a node."""
        if self._manager is None:
            return self.client.connection_pool
        node = self._manager.get_node(*address)
        if node is None:
            node = ClusterNode(*address, PRIMARY)  # type: ignore[no-untyped-call]
            self._manager.nodes_cache[node.name] = node
        if node.redis_connection is None:
            self._manager.create_redis_connections([node])
        return node.redis_connection.connection_pool


class Exchanger:
    """Sends commands that are written out already, without the layers of redis-py's client.

    ``execute_command`` costs 20 us: as much as all that Scrapy and this package do for a new URL.

    Attributes:
        keeps_connection: whether the connection stays here until ``give_back``: to take one and to
            give it back costs 10 us. For pools that nothing else uses at the same time.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        #: At most one for each thread. Only ``pop`` and ``append``, which no other thread divides.
        self._kept: list[Any] = []
        self.keeps_connection = False
        self._is_near = False

    def exchange(self, frame: bytes) -> Any:
        """Send a command and return its reply; raise what redis-py does."""
        connection = self._take()
        try:
            begin = time.perf_counter()
            connection.send_packed_command([frame])
            if self._is_near:
                # To sleep until the reply comes, and to be woken, takes longer than the server.
                until = begin + NEAR_SECONDS
                while not connection.can_read() and time.perf_counter() < until:
                    pass
            reply = connection.read_response()
        except redis.ResponseError:
            raise  # it is the whole reply
        except BaseException as error:
            # A reply that comes late would be taken for that of the next command.
            connection.disconnect()
            if (found := as_redis_error(error)) is error:
                raise
            raise found from error
        else:
            self._is_near = time.perf_counter() - begin < NEAR_SECONDS
            return reply
        finally:
            if self.keeps_connection:
                self._kept.append(connection)
            else:
                self._pool.release(connection)

    def give_back(self) -> None:
        """Give what is kept back to the pool."""
        while self._kept:
            self._pool.release(self._kept.pop())

    def _take(self) -> Any:
        try:
            connection = self._kept.pop()
        except IndexError:
            return self._pool.get_connection()
        try:
            # As the pool does: the server may have closed it. After a fork, it is the parent's.
            if connection.pid == os.getpid() and not connection.can_read():
                return connection
        except (redis.RedisError, OSError):
            pass
        connection.disconnect()
        self._pool.release(connection)
        return self._pool.get_connection()


@contextmanager
def reading() -> Iterator[None]:
    """Raise an error of redis-py's for a reply that it cannot read. For its calls alone.

    Raises:
        redis.InvalidResponse: the reply is not Redis's.
    """
    try:
        yield
    except UnicodeError:  # of a text, not of the protocol
        raise
    except _UNREADABLE as error:
        raise as_redis_error(error) from error


def as_redis_error(error: Any) -> Any:
    """Return an error for what redis-py raised, also if it could not read a reply."""
    if not isinstance(error, _UNREADABLE) or isinstance(error, UnicodeError | OSError):
        return error
    return redis.InvalidResponse(f"{type(error).__name__}: {error}")
