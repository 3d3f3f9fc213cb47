"""Addresses of servers: from a URL to a client's arguments, and to a label without secrets."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.connection import SSLConnection, parse_url

from scrapy_bloom.bloom.client.routes import Address
from scrapy_bloom.bloom.errors import ConfigurationError

#: Forms of a server's address, for error messages.
URL_FORMS = (
    "redis://[[user]:password@]host[:port][/db], rediss://... (TLS), "
    "redis+cluster://[[user]:password@]host[:port][,host[:port]...], rediss+cluster://..., "
    "redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]...]/service[/db], "
    "rediss+sentinel://..., unix://[[user]:password@]/path/to/socket[?db=0] or embedded:[/data/dir]"
)
PORT, SENTINEL_PORT, MAX_PORT = 6379, 26379, 65535
#: Characters of an address at most: to match one takes quadratic time.
MAX_LENGTH = 4_096
#: Arguments that a URL says by its form, never in its query.
NOT_IN_QUERY = frozenset(
    (
        *("url", "host", "port", "path", "unix_socket_path", "ssl", "connection_class"),
        *("redis_cls", "startup_nodes"),
    )
)
#: What the arguments for sentinels begin with, in queries and in the arguments of clients.
OF_SENTINELS = "sentinel_"

_WHO = r"(?P<who>(?:(?P<user>[^:@/?#]*)(?P<password>:[^/?#]*)?@)?)"
HOST = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\])"
_HOST_AND_PORT = rf"{HOST}(?::[0-9]{{1,9}})?"
_HOSTS = rf"(?P<hosts>{_HOST_AND_PORT}(?:,{_HOST_AND_PORT})*)"
_DB = r"(?P<path>(?:/[0-9]*)?)"
_QUERY = r"(?:\?(?P<query>[^#]*))?"
_FORMS = tuple(
    re.compile(rf"(?P<scheme>{scheme})://{_WHO}(?P<where>{where}){_QUERY}")
    for scheme, where in (
        ("unix", r"(?P<path>/[^?#]+)"),
        ("rediss?", rf"(?P<hosts>{_HOST_AND_PORT})?{_DB}"),
        (r"rediss?\+cluster", _HOSTS + _DB),
        # The characters that a sentinel takes in the name of a service.
        (r"rediss?\+sentinel", rf"{_HOSTS}/(?P<service>[A-Za-z0-9._-]+){_DB}"),
    )
)


@dataclass(frozen=True)
class ParsedUrl:
    """What an address stands for.

    Attributes:
        arguments: of a client of the server, or of all servers.
        nodes: nodes of a cluster, or the sentinels of a service; none for one server.
        service: what the sentinels call the servers; "" without sentinels.
    """

    arguments: dict[str, Any] = field(repr=False)
    nodes: tuple[Address, ...] = ()
    service: str = ""

    @property
    def is_cluster(self) -> bool:
        """Whether it is a cluster."""
        return bool(self.nodes) and not self.service


def parse(url: str, setting: str) -> ParsedUrl:
    """Return what a URL stands for.

    Raises:
        ConfigurationError: it is none that can be used.
    """
    match = _match(url)
    if match is None:
        raise ConfigurationError(
            f"{setting} is not an address that can be used ({redact(url)!r}): {_expected(url)}"
        )
    source = f"{setting} {redact(url)!r}"
    parts = match.groupdict("")
    scheme, _, kind = parts["scheme"].partition("+")
    query = _query(parts["query"], source)
    # redis-py takes any other text than "false" for "true".
    own = {name: query.pop(name) for name in [*query] if _is_ours(name, kind)}
    host = "host" if kind else parts.get("hosts", "")
    try:
        arguments: dict[str, Any] = parse_url(  # type: ignore[no-untyped-call]
            f"{scheme}://{parts['who']}{host}{parts['path']}?{urlencode(query)}"
        )
    except ValueError as error:
        # urllib's own texts can quote the password.
        text = str(error) if str(error).startswith("Invalid value for") else "it cannot be parsed"
        raise ConfigurationError(f"{source} is wrong: {text}") from None
    arguments.pop("connection_class", None)
    if kind:
        del arguments["host"]
    if scheme == "unix":
        arguments["unix_socket_path"] = arguments.pop("path")
    elif scheme == "rediss":
        arguments["ssl"] = True
    nodes = tuple(_nodes(parts["hosts"], kind)) if kind else ()
    return ParsedUrl(arguments | own, nodes, parts.get("service", ""))


def _expected(url: str) -> str:
    """Return what to use in the place of a URL that is no address."""
    if _form_of(url) is not None:
        return "a port is a number from 1 to 65535"
    if difflib.get_close_matches(url.partition(":")[0].lower(), ["embedded"], cutoff=0.8):
        return 'did you mean "embedded:", or "embedded:/some/dir"?'
    return f"/ ? # in a password are written as %2F %3F %23; the forms are {URL_FORMS}"


def _nodes(hosts: str, kind: str) -> Iterable[Address]:
    for host in hosts.split(","):
        name, port = re.fullmatch(rf"({HOST})(?::([0-9]+))?", host).groups()  # type: ignore[union-attr]
        default = SENTINEL_PORT if kind == "sentinel" else PORT
        yield Address(name.strip("[]"), int(port or default))


def _query(text: str, source: str) -> dict[str, str]:
    """Return what a query says, each name once; refuse what the form of the URL says."""
    pairs = parse_qsl(text, keep_blank_values=True)
    query = dict(pairs)
    if misplaced := NOT_IN_QUERY & query.keys():
        raise ConfigurationError(f"{source} has {sorted(misplaced)} in its query; use {URL_FORMS}")
    if len(query) < len(pairs) or not all(query.values()):
        raise ConfigurationError(f"{source} sets an argument to nothing, or twice: set each once")
    return query


def _is_ours(name: str, kind: str) -> bool:
    return name == "ssl_check_hostname" or (kind == "sentinel" and name.startswith(OF_SENTINELS))


def _form_of(url: str) -> re.Match[str] | None:
    if len(url) > MAX_LENGTH:
        return None
    return next(filter(None, (form.fullmatch(url) for form in _FORMS)), None)


def _match(url: str) -> re.Match[str] | None:
    match = _form_of(url)
    if match is not None:
        ports = re.findall(rf"{HOST}:([0-9]+)", match.groupdict().get("hosts") or "")
        if not all(1 <= int(port) <= MAX_PORT for port in ports):
            return None
    return match


def is_embedded(url: str) -> bool:
    """Whether it is an embedded server's address. Another one may follow, with a password."""
    return url.startswith("embedded:") and "://" not in url


def redact(url: str) -> str:
    """Return a URL with every secret in it replaced by ``***``, however broken the URL is.

    What does not read as an address is hidden as a whole: any part of it may be a password.
    """
    if is_embedded(url):
        return url
    match = _match(url)
    if match is None:
        scheme = re.match(r"(?:rediss?(?:\+(?:cluster|sentinel))?|unix|https?|embedded)://", url)
        return f"{scheme.group() if scheme else ''}***"
    who = "" if match["user"] is None else "***@"
    if match["password"]:
        who = f"{match['user']}:***@"
    query = ""
    if match["query"]:
        pairs = match["query"].split("&")
        query = "?" + "&".join(p if re.fullmatch(r"db=[0-9]+", p) else "***" for p in pairs)
    return f"{match['scheme']}://{who}{match['where']}{query}"


def label(arguments: Mapping[str, Any], nodes: Iterable[Address] = (), service: str = "") -> str:
    """Return the address in a client's arguments, without user name and password."""
    db = arguments.get("db") or 0
    scheme = "rediss" if arguments.get("ssl") else "redis"
    if hosts := ",".join(map(str, nodes)):
        return (
            f"{scheme}+sentinel://{hosts}/{service}" if service else f"{scheme}+cluster://{hosts}"
        )
    if path := arguments.get("unix_socket_path"):
        return f"unix://{path}?db={db}" if db else f"unix://{path}"
    address = Address(str(arguments.get("host", "localhost")), arguments.get("port", PORT))
    return f"{scheme}://{address}/{db}"


def label_of_client(client: Any) -> object:
    """Return the address that a client of redis-py's has, without credentials; else "Redis".

    Its text may change: of a service, it names the primary.
    """
    nodes = getattr(getattr(client, "nodes_manager", None), "startup_nodes", None)
    if isinstance(nodes, Mapping) and nodes:
        node = next(iter(nodes.values()))
        return f"the cluster of {label({'host': node.host, 'port': node.port})}"
    pool = getattr(client, "connection_pool", None)
    arguments = getattr(pool, "connection_kwargs", None)
    if not isinstance(arguments, Mapping):
        return "Redis"
    if service := arguments.get("service"):
        return service
    if name := getattr(pool, "service_name", None):
        return f"the service {name!r} of Redis Sentinel"
    kind = getattr(pool, "connection_class", None)
    is_tls = isinstance(kind, type) and issubclass(kind, SSLConnection | AsyncSSLConnection)
    is_tls = is_tls or arguments.get("context") is not None  # clients.py makes it so
    return label({**arguments, "unix_socket_path": arguments.get("path"), "ssl": is_tls})


def user_of_client(client: Any) -> str:
    """Return whom a client of redis-py's logs in as, for messages."""
    pool = getattr(client, "connection_pool", None) or getattr(client, "nodes_manager", client)
    arguments = getattr(pool, "connection_kwargs", None)
    if not isinstance(arguments, Mapping) or arguments.get("credential_provider"):
        return "this user"
    return f"the user {arguments.get('username') or 'default'!r}"
