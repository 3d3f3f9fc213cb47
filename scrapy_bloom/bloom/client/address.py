"""Reads the address of a server, and explains mistakes in it without showing its password."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis.connection import parse_url

from scrapy_bloom.bloom.errors import ConfigurationError

#: The port of a host that names none, by the kind of the address.
PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}
#: The schemes of all addresses, without "embedded:".
SCHEMES = (
    *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
    *("redis+sentinel", "rediss+sentinel"),
)
FORMS = (
    "Use redis://host:port/db, rediss:// for TLS, unix:///path, redis+cluster://host:port, "
    "redis+sentinel://host:port/service/db (several hosts with commas) or embedded:[/data/dir]"
)
#: The parts of an address before its hosts, its hosts, and the rest, if it may have several hosts.
_SEVERAL = re.compile(r"(\w+\+\w+://(?:[^/?#]*@)?)([^/?#]*)(.*)", re.DOTALL)
#: Arguments of redis-py's clients that users may choose.
OPTIONS = frozenset(
    (
        *("db", "username", "password", "credential_provider", "client_name"),
        *("health_check_interval", "socket_keepalive", "socket_keepalive_options"),
        *("ssl_ca_certs", "ssl_ca_data", "ssl_certfile", "ssl_keyfile"),
        *("ssl_cert_reqs", "ssl_check_hostname"),
    )
)
#: Those that redis-py's clients for clusters ignore or don't know.
NOT_FOR_CLUSTERS = frozenset(("ssl_min_version", "ssl_ciphers", "ssl_password"))
#: What the argument ``ssl`` may be.
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "none": False}
_CREDENTIALS = re.compile(r"(?<=:)//[^/?#\s]*@")


@dataclass(frozen=True)
class Address:
    """An address in its parts.

    Attributes:
        kind: "cluster", "sentinel", or "" for a single server.
        label: the address without user, password and options.
        nodes: the hosts and ports of a cluster's nodes, or of Sentinels.
        service: the name of the service that the Sentinels watch.
        options: arguments of redis-py's client.
        sentinel_options: arguments of its clients for the Sentinels.
    """

    kind: str
    label: str
    nodes: tuple[tuple[str, int], ...]
    service: str
    options: dict[str, Any]
    sentinel_options: dict[str, Any]

    @classmethod
    def parse(cls, url: str, params: dict[str, Any]) -> "Address":
        """Read an address, and the arguments that are given beside it.

        Raises:
            ConfigurationError: the address or an argument is wrong.
        """
        parts, kind = _split(url)
        scheme = parts.scheme.partition("+")[0]
        user, at, hosts = parts.netloc.rpartition("@")
        path, service = parts.path, ""
        nodes = [_node(host, PORTS[kind], url) for host in hosts.split(",") if scheme != "unix"]
        if kind == "sentinel":
            service, _, db = path.removeprefix("/").partition("/")
            path = f"/{db}" if db else ""
            if not service:
                raise _wrong(
                    url, "names no service. Add it, for example redis+sentinel://host/mymaster"
                )
        if scheme != "unix" and not re.fullmatch(r"(/\d*)?", path):
            raise _wrong(url, f"has a database that is no number. {FORMS}")
        plain = f"{scheme}://{user}{at}{'host' if kind else hosts}{path}?{parts.query}"
        try:
            given: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
        except ValueError:
            raise _wrong(url, f"has an option that redis-py can't read. {FORMS}") from None
        where = {name: given.pop(name) for name in ("host", "port", "path") if name in given}
        given.pop("connection_class", None)
        given |= params
        if _is_on("ssl", given.pop("ssl", False)):
            if scheme == "unix":
                raise _wrong(url, "is a Unix socket, which has no TLS. Remove the argument ssl")
            scheme = "rediss"
        own, others = _chosen(kind, given, is_tls=scheme == "rediss")
        if kind == "cluster" and own.pop("db", 0):
            raise _wrong(url, "has a database, but clusters have only database 0. Remove it")
        if not kind:
            own |= {"unix_socket_path" if name == "path" else name: where[name] for name in where}
        if scheme == "rediss":
            own["ssl"] = True
        label = f"{scheme}{'+' if kind else ''}{kind}://{hosts}{parts.path}"
        return cls(kind, label, tuple(nodes) if kind else (), service, own, others)


def _split(url: str) -> tuple[SplitResult, str]:
    """Return the parts of an address whose form is right, and its kind."""
    several = _SEVERAL.fullmatch(url.strip())
    try:
        # Newer versions of Python reject several hosts if one of them has brackets.
        parts = urlsplit(f"{several[1]}host{several[3]}" if several else url)
    except ValueError:
        raise _wrong(url, f"can't be read. {FORMS}") from None
    if several:
        parts = parts._replace(netloc=f"{parts.netloc.removesuffix('host')}{several[2]}")
    if "://" not in url or not parts.scheme:
        host = url.partition("?")[0].rpartition("@")[2]
        if not re.fullmatch(r"[\w.-]+(:\d+)?(/\d*)?|/[\w./-]+", host):  # it may be a password
            host = "localhost:6379"
        user = "user:password@" if "@" in url else ""
        near = get_close_matches(url.partition(":")[0].lower(), ["embedded"])
        scheme = "unix://" if host.startswith("/") else "redis://"
        fixed = "embedded:" if near else f"{scheme}{user}{host}"
        raise ConfigurationError(f'`url` has no scheme. Write "{fixed}"')
    if parts.scheme not in SCHEMES:
        near = get_close_matches(parts.scheme, [*SCHEMES, "embedded"], 1)
        fix = f"Did you mean {near[0]}?" if near else FORMS
        raise _wrong(url, f"has an unknown scheme. {fix}")
    is_unix = parts.scheme == "unix"
    if is_unix and parts.netloc.rpartition("@")[2]:
        raise _wrong(url, "has no absolute path. Write unix:///path/to/socket")
    if "@" in parts.query or "#" in url or ("@" in parts.path and not is_unix):
        raise _wrong(
            url,
            "has a special character in its user or password. Write it percent-encoded, @ as %40",
        )
    return parts, parts.scheme.partition("+")[2]


def _node(text: str, port: int, url: str) -> tuple[str, int]:
    """Return a host and its port."""
    found = re.fullmatch(r"(\[[^]]*\]|[^:\[\]]*)(?::(\d{1,5}))?", text)
    if not found or not 0 < int(found[2] or port) < 1 << 16:
        raise _wrong(url, "has a port that isn't a number from 1 to 65535, or a wrong host")
    return found[1].strip("[]") or "localhost", int(found[2] or port)


def _chosen(
    kind: str, given: dict[str, Any], *, is_tls: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the client, and those of clients for Sentinels.

    redis-py would ignore some of them silently: all that a cluster's client doesn't know, and those
    for TLS without it.
    """
    known = OPTIONS if kind == "cluster" else OPTIONS | NOT_FOR_CLUSTERS
    own, others = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        short = name.removeprefix("sentinel_") if kind == "sentinel" else name
        is_own = short == name
        if short not in (known if is_own else (known | {"ssl"}) - {"db"}):
            near = get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]}?" if near else "Remove it."
            raise _bad_argument(f"{name!r:.60} can't be set. {fix}")
        if short.startswith("ssl_") and is_own and not is_tls:
            raise _bad_argument(f"{name} needs TLS. Use rediss://, or the argument ssl = True")
        if short in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
            _check_file(name, value)
        (own if is_own else others)[short] = _is_on(name, value) if short == "ssl" else value
    for one in own, others:
        if "ssl_certfile" in one:  # redis-py 7.1 doesn't look for the key in the same file
            one.setdefault("ssl_keyfile", one["ssl_certfile"])
    return own, others


def _is_on(name: str, value: object) -> bool:
    """Return whether a flag is on."""
    if (flag := _FLAGS.get(f"{value}".strip().lower())) is None:
        raise _bad_argument(f"{name} = {value!r:.60} can't be used. Use True for TLS, or False")
    return flag


def _check_file(name: str, path: Any) -> None:
    try:
        open(path, "rb").close()  # noqa: PTH123 - whatever OpenSSL opens
    except (OSError, TypeError, ValueError) as error:
        raise _bad_argument(
            f"{name} = {path!r:.200} can't be read ({error}). Give a PEM file"
        ) from None


def without_credentials(text: str) -> str:
    """Return a text without the users and passwords of addresses in it."""
    return _CREDENTIALS.sub("//***@", text)


def _bad_argument(problem: str) -> ConfigurationError:
    return ConfigurationError(f"In `url` or `params`, {problem}")


def _wrong(url: str, problem: str) -> ConfigurationError:
    """Return an error that shows of an address no more than its scheme."""
    scheme = re.match(r"[\w+.-]*://", url)
    shown = f" {scheme[0]}..." if scheme else ""
    return ConfigurationError(f"`url`{shown} {problem}")
