"""Addresses of servers: a URL, on the first line, and further arguments of the client as JSON."""

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

from scrapy.settings import BaseSettings

from fuzz.mutate import json_text, raw
from fuzz.target import SECRET, Target, object_in
from scrapy_bloom.bloom.client.addresses import is_embedded, label, parse, redact
from scrapy_bloom.bloom.client.connection import connect, connect_scrapy_redis
from scrapy_bloom.bloom.errors import ConfigurationError


def run(data: bytes) -> None:
    """Read an address, and make clients of it, which do not connect."""
    first, _, rest = data.partition(b"\n")
    url, params = first.decode("utf-8", "surrogateescape"), object_in(rest)
    # A class is any one that can be imported. And what a mutation copies elsewhere is no secret.
    for name in params.keys() - {"password", "url"}:
        if name == "redis_cls" or SECRET in f"{name} {params[name]}":
            del params[name]
    redacted = redact(url)
    try:
        target = parse(url, "`url`")
    except ConfigurationError as error:
        _check(url, str(error))
    else:
        text = label(target.arguments, target.nodes, target.service)
        _check_label(target.arguments, text, redacted)
        if target.is_cluster:  # a client of it would connect
            return
    if len(data) % 2:
        _open_scrapy_redis(url, params)
    elif not is_embedded(url):  # that starts a server
        _open(url, params)


def _check(url: str, text: str) -> None:
    """See that a message does not show the password before the host; a path may have the word."""
    authority = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]
    if f":{SECRET}@" in authority and url.count(SECRET) == 1:
        assert SECRET not in text, f"it shows a secret: {text}"


def _check_label(arguments: dict[str, Any], *texts: str) -> None:
    hidden = arguments.get("password") or ""
    shown = f"{arguments.get('host')} {arguments.get('unix_socket_path')} {arguments.get('path')}"
    if len(hidden) >= len(SECRET) and hidden not in shown:
        assert all(hidden not in text for text in texts)


def _open(url: str, params: dict[str, Any]) -> None:
    try:
        connection = connect(url, params=params)
    except ConfigurationError as error:
        _check(url, str(error))
        return
    _check_label(connection.client.connection_pool.connection_kwargs, connection.label)
    connection.close()


def _open_scrapy_redis(url: str, params: dict[str, Any]) -> None:
    # scrapy-redis takes both from settings; what it has no name for is an argument of the client.
    names = {"REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}
    settings = {name: params[key] for name, key in names.items() if key in params}
    for given in ({"REDIS_URL": url, "REDIS_PARAMS": params}, settings | {"REDIS_PARAMS": params}):
        try:
            connect_scrapy_redis(BaseSettings(given)).close()
        except ConfigurationError as error:
            _check(url, str(error))


_URLS = (
    f"redis://user:{SECRET}@localhost:6379/3",
    f"rediss://:{SECRET}@[::1]:1/?ssl_cert_reqs=none&db=2",
    f"unix://user:{SECRET}@/tmp/redis.sock?db=1",
    f"redis://a:{SECRET}@h/0?socket_keepalive=yes&health_check_interval=3&max_connections=10",
    f"redis://a:{SECRET}@h:99999/",
    f"redis://a:{SECRET}@h:6379/9999999999999999999",
    f"redis://:{SECRET}%2F%3F%23@h?protocol=3&retry_on_timeout=1",
    f"redis://h?password={SECRET}",
    f"redis+cluster://u:{SECRET}@h:7000,[::1]:7001,i/0?client_name=x",
    f"rediss+sentinel://:{SECRET}@h,i:5/main/2?sentinel_password={SECRET}&sentinel_ssl=true",
    f"http://:{SECRET}@h",
    "redis://" + "a" * 1_000,
    "redis://h?" + "db=1&" * 1_000,
    "redis://h/" + "1" * 5_000,
    "embedded://x",
    "",
)
_PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"db": 1, "username": "a", "password": SECRET, "client_name": "c", "health_check_interval": 5},
    {"host": "h", "port": "6380", "ssl": True, "ssl_cert_reqs": "none", "max_connections": 5},
    {"unix_socket_path": "/tmp/a", "socket_keepalive": True, "socket_keepalive_options": {"1": 2}},
    {"path": "/tmp/a", "url": f"redis://:{SECRET}@h", "host": "::1", "encoding": "latin-1"},
)


def _seeds() -> Iterator[bytes]:
    for url in _URLS:
        yield url.encode()
    for params in _PARAMS:
        yield f"{_URLS[0]}\n{json.dumps(params)}".encode()
        yield f"{_URLS[2]}\n{json.dumps(params)}".encode()


def _mutate(data: bytes, dice: Random) -> bytes:
    url, _, params = data.partition(b"\n")
    if dice.random() < 0.5:
        url = raw(url, dice)
    else:
        params = json_text(params or b"{}", dice)
    return url + b"\n" + params


TARGET = Target(run, _seeds, _mutate, max_length=6_000)
