"""Makes clients that never repeat a command, from a URL or scrapy-redis's settings.

A test-and-set whose reply was lost answers *seen* when it is repeated, and the page is hidden. So
every client here has short time-outs, no retries, and refuses arguments that say otherwise.
"""

from __future__ import annotations

import difflib
import logging
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import RedisClusterException

from scrapy_bloom.bloom.client import clients, tls
from scrapy_bloom.bloom.client.addresses import (
    HOST,
    MAX_PORT,
    NOT_IN_QUERY,
    OF_SENTINELS,
    URL_FORMS,
    ParsedUrl,
    is_embedded,
    parse,
    redact,
)
from scrapy_bloom.bloom.client.addresses import label as label_of
from scrapy_bloom.bloom.client.exchanges import explained, not_ready
from scrapy_bloom.bloom.client.sentinels import Service
from scrapy_bloom.bloom.errors import WORDS, ConfigurationError, rewording

if TYPE_CHECKING:
    from scrapy_bloom.bloom.client.embedded import EmbeddedServer

logger = logging.getLogger(__name__)

#: Redis keeps the number of databases in an int.
MAX_DB = 2**31 - 1
#: What to do in the place of client arguments that the package sets itself -> these.
_REMEDIES = {
    "set `timeout` instead": ("socket_timeout", "socket_connect_timeout", "timeout"),
    "remove it: a repeated command would hide pages; `timeout` bounds the waiting": (
        *("retry", "retry_on_timeout", "retry_on_error", "cluster_error_retry_attempts"),
    ),
    "remove it: replies are read as RESP2 bytes": (
        *("decode_responses", "encoding", "encoding_errors", "charset", "errors", "protocol"),
    ),
    "remove it: the pool belongs to scrapy-bloom": ("connection_pool", "single_connection_client"),
}
RESERVED = {name: remedy for remedy, names in _REMEDIES.items() for name in names}
#: Arguments taken from scrapy-redis's settings, in addition to ``ssl`` and everything ``ssl_*``.
SHARED = {"host", "port", "db", "unix_socket_path", "redis_cls"}
SHARED |= {"username", "password", "credential_provider"}
#: Arguments of clients of sentinels.
_KNOWN_OF_SENTINELS = [OF_SENTINELS + name for name in ("username", "password", "ssl", *tls.IN_URL)]


@dataclass
class Connection:
    """A client and what has to be closed with it.

    Attributes:
        client: the client; it connects at its first command.
        address: its text is safe to print: without user name, password and query. Of a service, it
            names the primary, as soon as that is known.
        resolves: whether a host name has to be resolved to connect, which may take any time.
    """

    client: redis.Redis
    address: object
    resolves: bool = True
    _make_async: Callable[[], Any] | None = field(default=None, repr=False)
    _server: EmbeddedServer | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """The address as it is now."""
        return str(self.address)

    def open_async(self) -> Any | None:
        """Return an asyncio client of the same server; None if there is none with its arguments."""
        try:
            return None if self._make_async is None else self._make_async()
        except (TypeError, ValueError, redis.RedisError):
            return None  # some arguments are known to clients that block only, as those for OCSP

    def restart(self) -> None:
        """Start an embedded server again if its process has gone; let go of old connections."""
        if self._server is not None:
            self._server.restart()
        pool = getattr(self.client, "connection_pool", None)
        if pool is not None:
            pool.disconnect()

    def close(self) -> None:
        """Close the client and leave the embedded server; may be called again."""
        self.client.close()
        # A client that was made of a pool does not close it; one for a cluster has none.
        pool = getattr(self.client, "connection_pool", None)
        if pool is not None:
            pool.disconnect()
        if self._server is not None:
            self._server.detach()


def connect(
    url: str,
    *,
    timeout: float = 2.0,
    params: Mapping[str, Any] | None = None,
    data_dir: str | Path = ".scrapy/bloom",
    setting: str = "`url`",
    words: Mapping[str, str] = WORDS,
) -> Connection:
    """Return a connection to the server at a URL.

    No socket is opened until the first command, but that of a cluster is read at once.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://``, ``redis+sentinel://``
            and these with ``rediss``, or ``embedded:``, which starts the server.
        timeout: seconds a connection attempt or a reply may take, > 0.
        params: further arguments of ``redis.Redis``; they override the URL's.
        data_dir: where ``embedded:`` keeps its data, unless the URL names a directory.
        setting: the name of the URL in error messages.
        words: what error messages call the parameters, as in ``errors.WORDS``.

    Raises:
        ConfigurationError: the URL or an argument is wrong.
        StorageError: the embedded server does not start, or the cluster cannot be reached.
    """
    with rewording(words):
        if is_embedded(url):
            directory = url.removeprefix("embedded:") or data_dir
            return _connect_embedded(directory, timeout, params, words)
        target = parse(url, setting)
        _refuse_reserved(target.arguments, f"{setting} {redact(url)!r}")
        if not (target.nodes or target.arguments.keys() & {"host", "unix_socket_path"}):
            raise ConfigurationError(f"{setting} {redact(url)!r} names no host; use {URL_FORMS}")
        return _open(target, timeout, params, setting, words)


def connect_scrapy_redis(
    settings: Any,
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
        target = parse(str(given["url"]), of_url)
        if target.nodes:
            raise ConfigurationError(
                f"{of_url} is for scrapy-redis, which knows no addresses of clusters and sentinels:"
                " set `url` for the filter"
            )
        given.update(target.arguments)
        source = f"{of_url} or REDIS_PARAMS"
    _check_address(given, "REDIS_")
    taken = {k: v for k, v in given.items() if k in SHARED or str(k).startswith("ssl")}
    with rewording(words):
        return _open(ParsedUrl(taken), timeout, params, source, words)


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
        target = ParsedUrl({"unix_socket_path": str(server.socket_path)})
        connection = _open(target, timeout, params, "`url`", words)
    except BaseException:
        server.detach()
        raise
    return replace(connection, address=f"embedded:{server.data_dir}", _server=server)


def _open(
    target: ParsedUrl,
    timeout: float,
    params: Mapping[str, Any] | None,
    source: str,
    words: Mapping[str, str],
) -> Connection:
    """Create the client; ``source`` is the setting that most of the arguments come from."""
    if not 0 < timeout < float("inf"):
        raise ConfigurationError(f"`timeout` is {timeout!r}: use a number of seconds above 0")
    params = params or {}
    source_of = lambda name: "`params`" if name in params else source  # noqa: E731
    _refuse_reserved(params, "`params`")
    if target.nodes and (misplaced := NOT_IN_QUERY & params.keys()):
        raise ConfigurationError(f"`params` sets {sorted(misplaced)}: `url` says that, remove it")
    arguments = {**target.arguments, **params}
    _check_address(arguments, "`params` ")
    if target.is_cluster and arguments.pop("db", 0):
        raise ConfigurationError("`url` or `params` names a database: a cluster has 0 only")
    of_sentinels = _take_sentinels(arguments, source_of) if target.service else {}
    label = label_of(arguments, target.nodes)
    context = tls.prepare(arguments, source_of)
    factory = _load_class(arguments.pop("redis_cls", redis.Redis))
    # Later versions of redis-py default to RESP3, which brings longer time-outs along.
    arguments |= {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2}
    service = None
    if target.service:
        parts = target.service, target.nodes, of_sentinels, arguments, timeout
        service = Service(*parts).shared()
    try:
        client: Any = (
            clients.make_cluster(target.nodes, arguments)
            if target.is_cluster
            else clients.make(factory, arguments, service)
        )
    except (redis.ConnectionError, redis.TimeoutError, RedisClusterException, OSError) as error:
        problem = explained(error, label, words)
        if target.is_cluster and not isinstance(error, RedisClusterException):
            # A node has answered, but not the first primary: a replica may take its place.
            problem = not_ready(problem)
        raise problem from problem.__cause__
    except (TypeError, ValueError, redis.RedisError) as error:
        raise _refused(error, source, source_of) from error
    hosts: list[Any] = [node.host for node in target.nodes] or [arguments.get("host")]
    resolves = service is not None or any(map(_is_name, hosts))
    make_async = _async_maker(factory, target, arguments, context, service)
    return Connection(client, service or label, resolves, make_async)


def _refused(error: Exception, source: str, source_of: Callable[[str], str]) -> ConfigurationError:
    """Return the error for arguments that a client refuses."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown is None:
        return ConfigurationError(
            f"{source} or `params` holds an argument that the client refuses: {error}"
        )
    name, own = unknown[1], signature(redis.Redis.__init__).parameters.keys()
    close = difflib.get_close_matches(name, own - RESERVED.keys(), n=1)
    hint = f"did you mean {close[0]}?" if close else "remove it, or correct its name"
    return ConfigurationError(
        f"{source_of(name)} sets {name!r:.60}, which the client does not know; {hint}"
    )


def _take_sentinels(arguments: dict[str, Any], source_of: Callable[[str], str]) -> dict[str, Any]:
    """Take the arguments of clients of sentinels out of those of clients of servers."""
    names = [name for name in arguments if str(name).startswith(OF_SENTINELS)]
    for name in names:
        tls.check_name(name, _KNOWN_OF_SENTINELS, source_of(name))
    given = {name.removeprefix(OF_SENTINELS): arguments.pop(name) for name in names}
    flag = given["ssl"] = tls.flag_of(given.get("ssl", False))
    if flag is None:
        raise ConfigurationError(
            f"{source_of('sentinel_ssl')} sets sentinel_ssl, which is unknown: use true or false"
        )
    try:
        tls.prepare(given, lambda name: source_of(OF_SENTINELS + name))
    except ConfigurationError as error:
        text = re.sub(r"\bssl_", "sentinel_ssl_", str(error))
        raise ConfigurationError(text.replace("rediss://", "sentinel_ssl=true")) from None
    return {**given, "protocol": 2}


def _async_maker(
    factory: object,
    target: ParsedUrl,
    arguments: Mapping[str, Any],
    context: SSLContext | None,
    service: Service | None,
) -> Callable[[], Any] | None:
    """Return a factory of asyncio clients; None for clients that are not redis-py's own.

    A function that makes clients may connect to another server than these arguments name.
    """
    provider = arguments.get("credential_provider")
    if provider is not None and not hasattr(provider, "get_credentials_async"):
        return None  # redis-py 8 asks for it
    if target.is_cluster or factory is redis.RedisCluster:
        return partial(clients.make_async_cluster, target.nodes, arguments, context)
    if factory is redis.Redis:
        return partial(clients.make_async, arguments, context, service)
    logger.info(
        "redis_cls is %r, for which there is no asyncio client: lookups block the crawl", factory
    )
    return None


def _is_name(host: object) -> bool:
    """Whether a host has to be resolved; None, for a socket's path, has not."""
    if host in (None, "localhost"):
        return False
    try:
        return not ip_address(str(host).strip("[]"))
    except ValueError:
        return True


def _refuse_reserved(names: Mapping[str, Any], source: str) -> None:
    for name in names:
        if name in RESERVED:
            raise ConfigurationError(f"{source} sets {name}: {RESERVED[name]}")


def _load_class(given: Any) -> Callable[..., redis.Redis]:
    """Return ``redis_cls``, given as a class or as its import path."""
    try:
        given = pkgutil.resolve_name(given) if isinstance(given, str) else given
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"redis_cls {given!r} cannot be loaded: {error}") from error
    if not callable(given):
        raise ConfigurationError(f"redis_cls must be a class or its import path, not {given!r}")
    factory: Callable[..., redis.Redis] = given
    return factory
