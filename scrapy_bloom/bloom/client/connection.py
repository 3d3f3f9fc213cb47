"""Makes clients that never repeat a command, from a URL or scrapy-redis's settings.

A test-and-set whose reply was lost answers *seen* when it is repeated, and the page is hidden. So
every client here has short time-outs, no retries, and refuses arguments that say otherwise.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Protocol

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from scrapy_bloom.bloom.client import tls
from scrapy_bloom.bloom.client.addresses import HOST, MAX_PORT, URL_FORMS, parse, redact
from scrapy_bloom.bloom.client.addresses import label as label_of
from scrapy_bloom.bloom.client.connect_guard import this_thread
from scrapy_bloom.bloom.errors import WORDS, ConfigurationError, explain, rewording, showable

if TYPE_CHECKING:
    from scrapy_bloom.bloom.client.embedded import EmbeddedServer

logger = logging.getLogger(__name__)

#: Redis keeps the number of databases in an int.
MAX_DB = 2**31 - 1
#: Client arguments that the package sets itself, and what to do instead.
RESERVED = {
    **dict.fromkeys(
        ("socket_timeout", "socket_connect_timeout", "timeout"), "set `timeout` instead"
    ),
    **dict.fromkeys(
        ("retry", "retry_on_timeout", "retry_on_error", "cluster_error_retry_attempts"),
        "remove it: a repeated command would hide pages; `timeout` bounds the waiting",
    ),
    **dict.fromkeys(
        ("decode_responses", "encoding", "encoding_errors", "charset", "errors", "protocol"),
        "remove it: replies are read as RESP2 bytes",
    ),
    **dict.fromkeys(
        ("connection_pool", "single_connection_client"),
        "remove it: the pool belongs to scrapy-bloom",
    ),
}
#: Arguments taken from scrapy-redis's settings, in addition to ``ssl`` and everything ``ssl_*``.
SHARED = {"host", "port", "db", "unix_socket_path", "redis_cls"}
SHARED |= {"username", "password", "credential_provider"}


@dataclass
class Connection:
    """A client and what has to be closed with it.

    Attributes:
        client: the client; it connects at its first command.
        label: the address, safe to print: without user name, password and query.
        resolves: whether a host name has to be resolved to connect, which may take any time.
    """

    client: redis.Redis
    label: str
    resolves: bool = True
    _make_async: Callable[[], Any] | None = field(default=None, repr=False)
    _server: EmbeddedServer | None = field(default=None, repr=False)

    def open_async(self) -> Any | None:
        """Return an asyncio client of the same server; None if there is none with its arguments."""
        try:
            return None if self._make_async is None else self._make_async()
        except (TypeError, ValueError, redis.RedisError):
            return None  # some arguments are known to clients that block only, as those for OCSP

    def close(self) -> None:
        """Close the client and its pool and leave the embedded server; may be called again."""
        self.client.close()
        # redis-py closes the pool with the client in some versions only, a cluster has none.
        pool = getattr(self.client, "connection_pool", None)
        if pool is not None:
            pool.disconnect()
        if self._server is not None:
            self._server.detach()


class SettingsLike(Protocol):
    """The part of ``scrapy.settings.Settings`` that is used here."""

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a setting."""

    def getdict(self, name: Any, default: Any = None) -> dict[Any, Any]:
        """Return a setting as a dict."""


def connect(
    url: str,
    *,
    timeout: float = 2.0,
    params: Mapping[str, Any] | None = None,
    data_dir: str | Path = ".scrapy/bloom",
    setting: str = "`url`",
    words: Mapping[str, str] = WORDS,
) -> Connection:
    """Return a connection to the server at a URL; no socket is opened until the first command.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``embedded:``, which starts the server.
        timeout: seconds a connection attempt or a reply may take, > 0.
        params: further arguments of ``redis.Redis``; they override the URL's.
        data_dir: where ``embedded:`` keeps its data, unless the URL names a directory.
        setting: the name of the URL in error messages.
        words: what error messages call the parameters, as in ``errors.WORDS``.

    Raises:
        ConfigurationError: the URL or an argument is wrong.
        StorageError: the embedded server does not start.
    """
    with rewording(words):
        if url.startswith("embedded:") and not url.startswith("embedded://"):
            directory = url.removeprefix("embedded:") or data_dir
            return _connect_embedded(directory, timeout, params, words)
        arguments = parse(url, setting)
        _refuse_reserved(arguments, f"{setting} {redact(url)!r}")
        if "host" not in arguments and "unix_socket_path" not in arguments:
            raise ConfigurationError(f"{setting} {redact(url)!r} names no host; use {URL_FORMS}")
        return _open(arguments, timeout, params, setting, words)


def connect_scrapy_redis(
    settings: SettingsLike,
    *,
    timeout: float = 2.0,
    params: Mapping[str, Any] | None = None,
    words: Mapping[str, str] = WORDS,
) -> Connection:
    """Return a connection to the server that scrapy-redis's settings name.

    Address, credentials, TLS and ``redis_cls`` are taken from ``REDIS_URL``, ``REDIS_HOST``,
    ``REDIS_PORT``, ``REDIS_DB`` and ``REDIS_PARAMS``, with scrapy-redis's precedence; its
    time-outs, retries and encodings are not. With nothing set it is ``redis://localhost:6379``.

    Args:
        settings: Scrapy's settings.
        timeout: seconds a connection attempt or a reply may take, > 0.
        params: further arguments of the client; they override those of scrapy-redis.
        words: what error messages call the parameters, as in ``errors.WORDS``.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    try:
        given = dict(settings.getdict("REDIS_PARAMS") or {})
    except (TypeError, ValueError):
        raise ConfigurationError("REDIS_PARAMS must be a dict of client arguments") from None
    for name in ("url", "host", "port", "db"):
        given[name] = settings.get(f"REDIS_{name.upper()}") or given.get(name)
    given = {name: value for name, value in given.items() if value is not None}
    if "path" in given:
        given["unix_socket_path"] = given.pop("path")
    source = "REDIS_PARAMS"
    if "url" in given:
        of_url = "REDIS_URL" if settings.get("REDIS_URL") else "REDIS_PARAMS['url']"
        given.update(parse(str(given["url"]), of_url))
        source = f"{of_url} or REDIS_PARAMS"
    _check_address(given, "REDIS_")
    taken = {k: v for k, v in given.items() if k in SHARED or str(k).startswith("ssl")}
    with rewording(words):
        return _open(taken, timeout, params, source, words)


def _check_address(given: dict[str, Any], prefix: str) -> None:
    """Check host, port and database of settings; make the numbers ints."""
    # Their values are not quoted: a whole URL, password and all, may have ended up there.
    if not re.fullmatch(rf"{HOST}|[0-9A-Fa-f:.]+", str(given.get("host", "localhost"))):
        raise ConfigurationError(f"{prefix}HOST must be a host name or an IP address, without port")
    for name, first, last in (("port", 1, MAX_PORT), ("db", 0, MAX_DB)):
        if name not in given:
            continue
        text = str(given[name]).strip()
        if not re.fullmatch(r"[0-9]{1,10}", text) or not first <= int(text) <= last:
            raise ConfigurationError(
                f"{prefix}{name.upper()} must be a whole number from {first} to {last}"
            )
        given[name] = int(text)


def _connect_embedded(
    directory: str | Path,
    timeout: float,
    params: Mapping[str, Any] | None,
    words: Mapping[str, str],
) -> Connection:
    try:
        from scrapy_bloom.bloom.client.embedded import EmbeddedServer  # noqa: PLC0415 - needs POSIX
    except ImportError:
        raise ConfigurationError(
            '`url` = "embedded:" works on Linux and macOS only; use redis://host:port'
        ) from None
    server = EmbeddedServer.attach(directory)
    try:
        address = {"unix_socket_path": str(server.socket_path)}
        connection = _open(address, timeout, params, "`url`", words)
    except BaseException:
        server.detach()
        raise
    label, make_async = f"embedded:{server.data_dir}", connection._make_async  # noqa: SLF001
    return Connection(connection.client, label, False, make_async, server)


def _open(
    arguments: dict[str, Any],
    timeout: float,
    params: Mapping[str, Any] | None,
    source: str,
    words: Mapping[str, str],
) -> Connection:
    """Create the client; ``source`` is the setting that most of the arguments come from."""
    if not 0 < timeout < float("inf"):
        raise ConfigurationError(f"`timeout` is {timeout!r}: use a number of seconds above 0")
    _refuse_reserved(params or {}, "`params`")
    arguments = {**arguments, **(params or {})}
    _check_address(arguments, "`params` ")
    label = label_of(arguments)
    context = tls.prepare(arguments, lambda name: "`params`" if name in (params or {}) else source)
    factory = _load_class(arguments.pop("redis_cls", redis.Redis))
    # Later versions of redis-py default to RESP3, which brings longer time-outs along.
    arguments |= {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2}
    try:
        client = factory(**arguments, retry=Retry(NoBackoff(), 0))
        _complete(client)
    except (redis.ConnectionError, redis.TimeoutError, RedisClusterException, OSError) as error:
        # Clients for clusters connect at once.
        raise explain(error, label, words) from showable(error)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise ConfigurationError(
            f"{source} or `params` holds an argument that the client refuses: {error}"
        ) from error
    resolves = _is_name(arguments.get("host"))
    return Connection(client, label, resolves, _async_maker(factory, arguments, context))


def _async_maker(
    factory: object, arguments: Mapping[str, Any], context: SSLContext | None
) -> Callable[[], Any] | None:
    """Return a factory of asyncio clients; None for clients that are not redis-py's own.

    A function that makes clients may connect to another server than these arguments name.
    """
    provider = arguments.get("credential_provider")
    if provider is not None and not hasattr(provider, "get_credentials_async"):
        return None  # redis-py 8 asks for it
    # The driver bounds an operation as a whole. redis-py's own time-outs are a task for each step,
    # and take a loop that is busy for a server that is silent.
    arguments = {**arguments, "socket_timeout": None, "socket_connect_timeout": None}
    retry = AsyncRetry(NoBackoff(), 0)
    if factory is redis.Redis:
        return partial(_make_async, {**arguments, "retry": retry}, context)
    if factory is redis.RedisCluster:
        return lambda: redis.asyncio.RedisCluster(
            **arguments, retry=retry, cluster_error_retry_attempts=0
        )
    logger.info(
        "redis_cls is %r, for which there is no asyncio client: lookups block the crawl", factory
    )
    return None


def _make_async(arguments: Mapping[str, Any], context: SSLContext | None) -> Any:
    if context is None:
        return redis.asyncio.Redis(**arguments)
    plain = {k: v for k, v in arguments.items() if k != "ssl" and k not in tls.IN_URL}
    client = redis.asyncio.Redis(**plain)
    client.connection_pool.connection_class = tls.AsyncTLSConnection
    client.connection_pool.connection_kwargs["tls_context"] = context
    return client


def _is_name(host: object) -> bool:
    """Whether a host has to be resolved; None, for a socket's path, has not."""
    if host in (None, "localhost"):
        return False
    try:
        return not ip_address(str(host).strip("[]"))
    except ValueError:
        return True


class NotConnectedError(redis.ConnectionError):
    """There is no connection, and none may be made here."""


class _GuardedConnection(AbstractConnection):
    """A connection that is made only where that is allowed, and that never waits for ever."""

    def __init__(self, *, socket_timeout: float, **kwargs: Any) -> None:
        super().__init__(socket_timeout=socket_timeout, **kwargs)
        # redis-py 5.0.0 forgets both for unix sockets.
        self.socket_timeout = self.socket_connect_timeout = socket_timeout

    def _connect(self) -> Any:
        if not this_thread.may_connect:
            raise NotConnectedError("there is no connection, and none may be made here")
        return super()._connect()  # type: ignore[safe-super, no-untyped-call]


class _TCPConnection(_GuardedConnection, redis.Connection):
    pass


class _TLSConnection(_GuardedConnection, redis.SSLConnection):
    pass


class _UnixConnection(_GuardedConnection, redis.UnixDomainSocketConnection):
    pass


#: redis-py's connections -> ours.
_GUARDED: dict[type, Any] = {
    redis.Connection: _TCPConnection,
    redis.SSLConnection: _TLSConnection,
    redis.UnixDomainSocketConnection: _UnixConnection,
}


def _complete(client: redis.Redis) -> None:
    """Set what the constructors of redis-py's clients leave out."""
    if isinstance(client, redis.RedisCluster):
        # Before 6.0 a cluster client repeats commands on its own account, whatever ``retry`` says.
        client.cluster_error_retry_attempts = 0
    pool = getattr(client, "connection_pool", None)
    if type(pool) is not redis.ConnectionPool:
        return
    pool.connection_class = _GUARDED.get(pool.connection_class, pool.connection_class)
    # Bad arguments show up only when a connection object is made; this one never connects.
    pool.connection_class(**pool.connection_kwargs)


def _refuse_reserved(names: Iterable[str], source: str) -> None:
    for name in names:
        if name in RESERVED:
            raise ConfigurationError(f"{source} sets {name}: {RESERVED[name]}")


def _load_class(given: Any) -> Callable[..., redis.Redis]:
    """Return ``redis_cls``, given as a class or as its import path."""
    try:
        if isinstance(given, str):
            module, _, name = given.rpartition(".")
            given = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"redis_cls {given!r} cannot be loaded: {error}") from error
    if not callable(given):
        raise ConfigurationError(f"redis_cls must be a class or its import path, not {given!r}")
    factory: Callable[..., redis.Redis] = given
    return factory
