"""Makes clients of redis-py's that repeat nothing, and whose connections never wait for ever.

Resolving a host name has no time-out. So no call of a crawl that blocks connects then: see
``Connection.restart``.
"""

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from ssl import SSLContext
from typing import Any

import redis
import redis.asyncio.client
import redis.asyncio.cluster
import redis.cluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from scrapy_bloom.bloom.client import tls
from scrapy_bloom.bloom.client.routes import Address
from scrapy_bloom.bloom.client.sentinels import Service
from scrapy_bloom.bloom.errors import ConfigurationError

# -- connections --


class _ThisThread(threading.local):
    may_connect = True


this_thread = _ThisThread()


@contextmanager
def connecting(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid connections in a ``with`` block; an outer block that forbids them counts."""
    outer = this_thread.may_connect
    this_thread.may_connect = outer and allowed
    try:
        yield
    finally:
        this_thread.may_connect = outer


class NotConnectedError(redis.ConnectionError):
    """There is no connection, and none may be made here."""


class NotTLSError(redis.ConnectionError):
    """The server does not use TLS on this port."""


class _Guarded(AbstractConnection):
    """A connection that is made only where that is allowed, and that never waits for ever."""

    def __init__(self, *, socket_timeout: float, **kwargs: Any) -> None:
        super().__init__(socket_timeout=socket_timeout, **kwargs)
        # redis-py does not pass the second on for unix sockets.
        self.socket_timeout = self.socket_connect_timeout = socket_timeout

    def _connect(self) -> Any:
        if not this_thread.may_connect:
            raise NotConnectedError("there is no connection, and none may be made here")
        self._locate()
        return super()._connect()  # type: ignore[safe-super, no-untyped-call]

    def _locate(self) -> None:
        """Find out where to connect to, if that changes."""


class _TCP(_Guarded, redis.Connection):
    pass


class _Unix(_Guarded, redis.UnixDomainSocketConnection):
    pass


class _TLS(_Guarded, redis.SSLConnection):
    def _connect(self) -> Any:
        try:
            return super()._connect()
        except TimeoutError as error:
            # Without TLS, a server takes the handshake for a part of a command, and waits for more.
            if "handshake" in str(error) and self._answers_without_tls():
                raise NotTLSError("the server answers without TLS") from error
            raise

    def _answers_without_tls(self) -> bool:
        try:
            address, seconds = (self.host, self.port), self.socket_connect_timeout
            with socket.create_connection(address, seconds) as plain:
                plain.sendall(b"PING\r\n")
                return plain.recv(1) in (b"+", b"-")
        except OSError:
            return False


class _OfService(_Guarded):
    """A connection to the primary of a service; others pay nothing for what it does per call."""

    def __init__(self, *, service: Service, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._service = service
        self._address: Address | None = None

    def _locate(self) -> None:
        self.host, self.port = self._address = self._service.find()

    def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        if self._sock and self._service.has_moved(self._address):
            self.disconnect()  # sending connects again
        return super().send_packed_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        with self._service.noting(self._address):
            return super().read_response(*args, **kwargs)


class _TCPOfService(_OfService, _TCP):
    pass


class _TLSOfService(_OfService, _TLS):
    pass


class _Async(redis.asyncio.Connection):
    """To a host, or to the primary of a service.

    redis-py 6's own connections for TLS ignore some of the options.
    """

    def __init__(
        self, *, context: SSLContext | None = None, service: Service | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._context, self._service = context, service
        self._address: Address | None = None

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._context}

    async def _connect(self) -> None:
        if self._service is not None:
            # One way to find the primary, for both kinds of client.
            found = await asyncio.get_running_loop().run_in_executor(None, self._service.find)
            self.host, self.port = self._address = found
        await super()._connect()  # type: ignore[no-untyped-call]

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        service = self._service
        if service is not None and self.is_connected and service.has_moved(self._address):
            await self.disconnect(nowait=True)  # sending connects again
        return await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self._service is None:
            return await super().read_response(*args, **kwargs)
        with self._service.noting(self._address):
            return await super().read_response(*args, **kwargs)


#: redis-py's connections -> ours to servers, and to the primary of a service.
_OURS: dict[type, tuple[Any, Any]] = {
    redis.Connection: (_TCP, _TCPOfService),
    redis.SSLConnection: (_TLS, _TLSOfService),
    redis.UnixDomainSocketConnection: (_Unix, _Unix),
    redis.asyncio.Connection: (_Async, _Async),
}

# -- clients --

#: Arguments of clients for clusters that those of one server do not have.
_OF_CLUSTERS = inspect.signature(redis.RedisCluster).parameters.keys() - {"host", "port", "retry"}


def make(
    factory: Callable[..., redis.Redis], arguments: Mapping[str, Any], service: Service | None
) -> redis.Redis:
    """Return a client of one server, or of the primary of a service.

    Raises:
        TypeError: there is an argument that the client does not know.
    """
    client = factory(**arguments, retry=Retry(NoBackoff(), 0))
    pool = getattr(client, "connection_pool", None)
    if type(pool) is redis.ConnectionPool:
        _use_ours(pool, service)
        # Bad arguments show up only when a connection object is made; this one never connects.
        pool.connection_class(**pool.connection_kwargs)
    elif service is not None:
        raise TypeError("a client of a service of Sentinel needs a pool of redis-py's")
    return client


def make_async(
    arguments: Mapping[str, Any], context: SSLContext | None, service: Service | None
) -> Any:
    """Return an asyncio client of one server, or of the primary of a service.

    Args:
        arguments: of the client.
        context: with the options of TLS in the arguments.
        service: of Sentinel.
    """
    client = redis.asyncio.Redis(**_for_async(arguments), retry=AsyncRetry(NoBackoff(), 0))
    pool = client.connection_pool
    if arguments.get("max_connections") is not None:
        # Operations of several tasks wait for a connection, as long as their time-outs let them.
        most, kind = pool.max_connections, pool.connection_class
        pool = client.connection_pool = redis.asyncio.BlockingConnectionPool(
            most, None, kind, **pool.connection_kwargs
        )
    if _use_ours(pool, service):
        pool.connection_kwargs["context"] = context
    return client


def _use_ours(pool: Any, service: Service | None) -> bool:
    """Let a pool make connections of ours; return whether they are to a host."""
    ours = _OURS.get(pool.connection_class)
    if ours is not None:
        pool.connection_class = ours[service is not None]
    if service is not None:
        pool.connection_kwargs["service"] = service
    return ours is not None


def make_cluster(nodes: Sequence[Address], arguments: Mapping[str, Any]) -> Any:
    """Return a client of a cluster; it connects to one of the nodes.

    Raises:
        redis.RedisError: no node can be reached, or used.
        TypeError: there is an argument that the client does not know.
    """
    own = {name: value for name, value in arguments.items() if name in _OF_CLUSTERS}
    template = make(redis.Redis, {k: v for k, v in arguments.items() if k not in own}, None)
    first, *others = nodes
    client: Any = redis.RedisCluster(
        # With a URL, redis-py makes its pools by a given function: with connections of ours.
        url=f"redis://{first}",
        startup_nodes=[redis.cluster.ClusterNode(*node) for node in others],  # type: ignore[no-untyped-call]
        connection_pool_class=partial(_make_pool, template.connection_pool),
        retry=Retry(NoBackoff(), 0),
        **own,
    )
    client.cluster_error_retry_attempts = 0
    return client


def _make_pool(template: redis.ConnectionPool, **given: Any) -> redis.ConnectionPool:
    """Return a pool for a node of a cluster, with the arguments of a template."""
    names = ("host", "port", "redis_connect_func")
    arguments = {**template.connection_kwargs, **{name: given[name] for name in names}}
    return redis.ConnectionPool(template.connection_class, template.max_connections, **arguments)


def make_async_cluster(
    nodes: Sequence[Address], arguments: Mapping[str, Any], context: SSLContext | None
) -> Any:
    """Return an asyncio client of a cluster: as ``make_async``, of some of its nodes."""
    client: Any = redis.asyncio.RedisCluster(
        startup_nodes=[redis.asyncio.cluster.ClusterNode(*node) for node in nodes],
        retry=AsyncRetry(NoBackoff(), 0),
        **_for_async(arguments),
    )
    client.cluster_error_retry_attempts = 0
    ours = {"connection_class": _Async, "context": context}
    client.nodes_manager.connection_kwargs |= ours
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = _Async
        node.connection_kwargs["context"] = context
    return client


def _for_async(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without options of TLS, which are in a context, and without time-outs."""
    # The driver bounds an operation as a whole. redis-py's own time-outs are a task for each step,
    # and take a loop that is busy for a server that is silent.
    times = {"socket_timeout": None, "socket_connect_timeout": None}
    of_tls = {"ssl", *tls.IN_URL}
    return {name: value for name, value in arguments.items() if name not in of_tls} | times


# -- clients of others --

#: Objects that send nothing before ``execute()``.
_PIPELINES = (
    redis.client.Pipeline,
    redis.cluster.ClusterPipeline,
    redis.asyncio.client.Pipeline,
    redis.asyncio.cluster.ClusterPipeline,
)


def check_client(client: Any, *, is_async: bool) -> None:
    """Refuse objects that are no clients, or clients of the other kind.

    Raises:
        ConfigurationError: says what it is, and what to use.
    """
    module = "redis.asyncio" if is_async else "redis"
    packages = {base.__module__.partition(".")[0] for base in type(client).__mro__}
    awaits = inspect.iscoroutinefunction(getattr(client, "execute_command", None))
    if isinstance(client, type):
        problem = "a class: pass an object of it"
    elif isinstance(client, _PIPELINES):
        problem = "a pipeline, which sends nothing before it is executed: use its client"
    elif "valkey" in packages:
        problem = "of the package valkey; clients of redis work with Valkey servers too"
    elif not hasattr(client, "evalsha"):
        problem = "no client"
    elif awaits and not is_async:
        problem = "for asyncio: use AsyncBloomFilter, or another client"
    elif is_async and not awaits:
        problem = "not for asyncio: use BloomFilter, or another client"
    elif not _encodes_as_utf8(client):
        problem = "of another encoding than UTF-8: make it without the argument encoding"
    else:
        return
    kind = client if isinstance(client, type) else type(client)
    raise ConfigurationError(
        f"client is a {module}.Redis or {module}.RedisCluster; got {kind.__module__}."
        f"{kind.__name__}, which is {problem}"
    )


def _encodes_as_utf8(client: Any) -> bool:
    if not hasattr(client, "get_encoder"):
        return True  # a cluster client for asyncio
    encoding = str(client.get_encoder().encoding)
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"
