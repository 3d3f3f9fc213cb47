"""Addresses of servers: from a URL to a client's arguments, and to a label without secrets."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.connection import SSLConnection, parse_url

from scrapy_bloom.bloom.client import tls
from scrapy_bloom.bloom.errors import ConfigurationError

#: Forms of a server's address, for error messages.
URL_FORMS = (
    "redis://[[user]:password@]host[:port][/db], rediss://... (TLS), "
    "unix://[[user]:password@]/path/to/socket[?db=0] or embedded:[/data/dir]"
)
MAX_PORT = 65535
#: Arguments that a URL says by its form, never in its query.
NOT_IN_QUERY = frozenset(
    ("url", "host", "port", "path", "unix_socket_path", "ssl", "connection_class", "redis_cls")
)

_WHO = r"(?:(?P<user>[^:@/?#]*)(?P<password>:[^/?#]*)?@)?"
HOST = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\])"
_QUERY = r"(?:\?(?P<query>[^#]*))?"
_TCP = re.compile(
    rf"(?P<scheme>rediss?)://{_WHO}(?P<where>(?:{HOST}(?::(?P<port>[0-9]{{1,5}}))?)?(?:/[0-9]*)?)"
    rf"{_QUERY}"
)
_UNIX = re.compile(rf"(?P<scheme>unix)://{_WHO}(?P<where>/[^?#]+){_QUERY}")


def parse(url: str, setting: str) -> dict[str, Any]:
    """Return the arguments of ``redis.Redis`` that a URL stands for."""
    match = _match(url)
    if match is None:
        raise ConfigurationError(
            f"{setting} is not an address that can be used ({redact(url)!r}): expected {URL_FORMS},"
            " with a port from 1 to 65535 and / ? # in a password written as %2F %3F %23"
        )
    misplaced = NOT_IN_QUERY & parse_qs(match["query"] or "").keys()
    if misplaced:
        raise ConfigurationError(
            f"{setting} {redact(url)!r} has {sorted(misplaced)} in its query; use {URL_FORMS}"
        )
    try:
        arguments: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        # urllib's own texts can quote the password.
        text = str(error) if str(error).startswith("Invalid value for") else "it cannot be parsed"
        raise ConfigurationError(f"{setting} {redact(url)!r} is wrong: {text}") from None
    arguments.pop("connection_class", None)
    if match["scheme"] == "unix":
        arguments["unix_socket_path"] = arguments.pop("path")
    elif match["scheme"] == "rediss":
        arguments["ssl"] = True
    return arguments | _tls_options(match, f"{setting} {redact(url)!r}")


def _tls_options(match: re.Match[str], source: str) -> dict[str, str]:
    """Return the options of TLS whose texts redis-py would not check; refuse wrong ones."""
    query = parse_qs(match["query"] or "", keep_blank_values=True)
    options = {name: values[-1] for name, values in query.items() if tls.is_option(name)}
    if options and match["scheme"] != "rediss":
        raise ConfigurationError(f"{source} sets {', '.join(options)}: for TLS, use rediss://")
    tls.check_names(tuple(options), tls.IN_URL, source)
    for name, value in options.items():
        if not value or len(query[name]) > 1:
            raise ConfigurationError(f"{source} sets {name} to nothing, or twice: set it once")
    # redis-py takes any other text for "true".
    return {name: value for name, value in options.items() if name == "ssl_check_hostname"}


def _match(url: str) -> re.Match[str] | None:
    match = _UNIX.fullmatch(url)
    if match is None:
        match = _TCP.fullmatch(url)
        if match and not 1 <= int(match["port"] or 6379) <= MAX_PORT:
            return None
    return match


def redact(url: str) -> str:
    """Return a URL with every secret in it replaced by ``***``, however broken the URL is.

    What does not read as an address is hidden as a whole: any part of it may be a password.
    """
    if url.startswith("embedded:") and not url.startswith("embedded://"):
        return url
    match = _match(url)
    if match is None:
        scheme = re.match(r"(?:redis|rediss|unix|https?|embedded)://", url)
        return f"{scheme.group() if scheme else ''}***"
    who = "" if match["user"] is None else "***@"
    if match["password"]:
        who = f"{match['user']}:***@"
    query = ""
    if match["query"]:
        pairs = match["query"].split("&")
        query = "?" + "&".join(p if re.fullmatch(r"db=[0-9]+", p) else "***" for p in pairs)
    return f"{match['scheme']}://{who}{match['where']}{query}"


def label(arguments: Mapping[str, Any]) -> str:
    """Return the address in a client's arguments, without user name and password."""
    db = arguments.get("db") or 0
    if path := arguments.get("unix_socket_path"):
        return f"unix://{path}?db={db}" if db else f"unix://{path}"
    host = str(arguments.get("host", "localhost"))
    scheme = "rediss" if arguments.get("ssl") else "redis"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{arguments.get('port', 6379)}/{db}"


def label_of_client(client: Any) -> str:
    """Return the address that a client of redis-py's has, without credentials; else "Redis"."""
    nodes = getattr(getattr(client, "nodes_manager", None), "startup_nodes", None)
    if isinstance(nodes, Mapping) and nodes:
        node = next(iter(nodes.values()))
        return f"the cluster of {label({'host': node.host, 'port': node.port})}"
    pool = getattr(client, "connection_pool", None)
    arguments = getattr(pool, "connection_kwargs", None)
    if not isinstance(arguments, Mapping):
        return "Redis"
    if name := getattr(pool, "service_name", None):
        return f"the service {name!r} of Redis Sentinel"
    kind = getattr(pool, "connection_class", None)
    is_tls = isinstance(kind, type) and issubclass(kind, SSLConnection | AsyncSSLConnection)
    return label({**arguments, "unix_socket_path": arguments.get("path"), "ssl": is_tls})
