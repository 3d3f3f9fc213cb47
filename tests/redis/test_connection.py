"""Clients that repeat nothing, addresses that leak nothing, errors that say what to do."""

import socket
import sys
import time
import traceback
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import Redis
from scrapy.settings import Settings
from support.answering import SECRET
from support.polling import until_it_works
from support.proxy import Fault, Kind, Proxy
from support.servers import Server, free_port

from scrapy_bloom.bloom.client.connection import connect, connect_scrapy_redis
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError, explain


def arguments(client: Redis) -> dict[str, Any]:
    return dict(client.connection_pool.connection_kwargs)


def message(error: BaseException) -> str:
    """Everything a log would show of an error."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


# -- one command is sent once --


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.RESET_REPLY])
def test_a_command_without_a_reply_is_never_repeated(
    server: Server, client: Redis, kind: Kind
) -> None:
    with Proxy(server.port) as proxy:
        theirs = {"REDIS_PORT": proxy.port, "REDIS_PARAMS": {"retry_on_timeout": True}}
        for key, connection in (
            ("ours", connect(proxy.url, timeout=0.2)),
            ("theirs", connect_scrapy_redis(Settings(theirs), timeout=0.2)),
        ):
            with closing(connection):
                until_it_works(connection.client.ping, redis.RedisError)
                proxy.fault = Fault(kind, times=1)
                with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                    connection.client.incr(key)
            assert client.get(key) == b"1"
        assert proxy.struck == 2


def test_a_server_that_accepts_nothing_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    """A unix socket with a full backlog blocks in connect()."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as filler:
        server.bind(str(path))
        server.listen(0)
        filler.connect(str(path))
        with closing(connect(f"unix://{path}", timeout=0.2)) as connection:
            started = time.monotonic()
            with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                connection.client.get("k")
    assert time.monotonic() - started < 60


# -- addresses --


@pytest.mark.parametrize(
    ("url", "expected", "label"),
    [
        ("redis://h", {"host": "h", "port": 6379, "db": 0}, "redis://h:6379/0"),
        ("redis://[::1]:7/3", {"host": "::1", "port": 7, "db": 3}, "redis://[::1]:7/3"),
        ("redis://u:p%40@h", {"username": "u", "password": "p@"}, "redis://h:6379/0"),
        ("redis://:p@q@h", {"username": None, "password": "p@q"}, "redis://h:6379/0"),
        ("redis://h?db=4&client_name=x", {"db": 4, "client_name": "x"}, "redis://h:6379/4"),
        ("rediss://h?ssl_cert_reqs=none", {"ssl_cert_reqs": "none"}, "rediss://h:6379/0"),
        ("unix:///a/s?db=2&password=p", {"path": "/a/s", "password": "p"}, "unix:///a/s?db=2"),
        ("unix://u:p@/a@b/s", {"path": "/a@b/s", "username": "u"}, "unix:///a@b/s"),
    ],
)
def test_urls(url: str, expected: dict[str, Any], label: str) -> None:
    with closing(connect(url)) as connection:
        assert arguments(connection.client).items() >= expected.items()
        assert connection.label == label
        assert "p%40" not in repr(connection)


BAD_URLS = [
    *("", "user:SECRET@localhost", "http://:SECRET@localhost", "redis:h", "redis://:SECRET@"),
    *("redis://:SECRET@h:port", "redis://:SECRET@h:65536", "redis://:SECRET@h/abc"),
    *("redis://:SECRET@h?db=x", "redis://:SECRET@[::1", "redis://:a/SECRET@h"),
    *("redis://:SECRET℀@h", "redis://h?password=SECRET&host=x", "unix://run/s?password=SECRET"),
    *("rediss://h?password=SECRET&ssl_cert_reqs=perhaps", "redis+sentinel://:SECRET@h/s/x"),
    *("redis+sentinel://h:1/", "redis+sentinel://h/s?sentinel_password=SECRET&sentinel_db=1"),
    "redis+sentinel://h/s?sentinel_password=SECRET&sentinel_ssl_cert_reqs=none",
    *("redis+cluster://:SECRET@h:1,h:0", "redis+cluster://:SECRET@h/1", "unix+cluster://:SECRET@h"),
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_urls_are_refused_without_a_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url.replace("SECRET", SECRET))
    text = message(caught.value)
    assert "`url`" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("socket_timeout", 30, "`timeout`"),
        ("retry", None, "repeated"),
        ("decode_responses", True, "bytes"),
        ("protocol", 3, "RESP2"),
        ("single_connection_client", True, "pool"),
    ],
)
def test_reserved_arguments_are_refused(name: str, value: object, remedy: str) -> None:
    message = f"`params` sets {name}: .*{remedy}"
    with pytest.raises(ConfigurationError, match=message):
        connect("redis://h", params={name: value})
    with pytest.raises(ConfigurationError, match=message):
        connect_scrapy_redis(Settings(), params={name: value})
    with pytest.raises(ConfigurationError, match=rf"`url` .*sets {name}: .*{remedy}"):
        connect(f"redis://h?{name}=1")
    for timeout in (0, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="`timeout`"):
            connect("redis://h", timeout=timeout)


# -- scrapy-redis's settings --


class Custom(Redis):
    """A class of the user's own."""


@pytest.mark.parametrize(
    ("given", "expected", "label"),
    [
        ({"HOST": "h", "PORT": "7", "DB": "2"}, {"host": "h", "port": 7, "db": 2}, "redis://h:7/2"),
        (
            {"URL": "redis://u:p@a/3", "HOST": "b", "PORT": 2},
            {"host": "a", "port": 2, "db": 3, "username": "u", "password": "p"},
            "redis://a:2/3",
        ),
        ({"URL": "redis:///4"}, {"host": "localhost", "db": 4}, "redis://localhost:6379/4"),
        ({"HOST": "::1"}, {"host": "::1"}, "redis://[::1]:6379/0"),
        (
            {"HOST": "b", "PARAMS": {"host": "a", "db": 1, "password": "p"}},
            {"host": "b", "db": 1, "password": "p"},
            "redis://b:6379/1",
        ),
        ({"PARAMS": '{"url": "redis://a:2"}'}, {"host": "a", "port": 2}, "redis://a:2/0"),
        ({"PARAMS": {"path": "/s", "db": 1}}, {"path": "/s", "db": 1}, "unix:///s?db=1"),
        ({"URL": "unix:///s", "HOST": "h"}, {"path": "/s"}, "unix:///s"),
        (
            {"URL": "rediss://a?ssl_cert_reqs=none&socket_timeout=30&client_name=x"},
            {"ssl_cert_reqs": "none", "client_name": None},
            "rediss://a:6379/0",
        ),
        (
            {"ENCODING": "latin-1", "DECODE_RESPONSES": True, "PARAMS": {"socket_timeout": 30}},
            {"decode_responses": False, "encoding": "utf-8"},
            "redis://localhost:6379/0",
        ),
    ],
)
def test_scrapy_redis(given: dict[str, Any], expected: dict[str, Any], label: str) -> None:
    settings = Settings({f"REDIS_{name}": value for name, value in given.items()})
    with closing(connect_scrapy_redis(settings)) as connection:
        taken = arguments(connection.client)
        assert taken.items() >= expected.items()
        assert connection.label == label
        assert taken["socket_timeout"] == 2.0
        assert taken["retry"]._retries == 0


def test_a_class_of_the_users_own() -> None:
    settings = Settings({"REDIS_PARAMS": {"redis_cls": f"{__name__}.Custom"}})
    with closing(connect_scrapy_redis(settings, params={"db": 5})) as connection:
        assert type(connection.client).__name__ == "Custom"
        assert arguments(connection.client)["db"] == 5


def test_a_function_that_makes_clients_has_no_asyncio_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may connect to another server than the address names, as Sentinel's ``master_for``."""
    caplog.set_level("INFO")
    elsewhere = partial(Redis)
    with closing(connect("redis://h", params={"redis_cls": elsewhere})) as connection:
        assert connection.open_async() is None
        assert "lookups block the crawl" in caplog.text
    with closing(connect("redis://h", params={"redis_cls": Redis})) as connection:
        assert isinstance(connection.open_async(), redis.asyncio.Redis)


def test_embedded_without_posix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scrapy_bloom.bloom.client.embedded", None)
    with pytest.raises(ConfigurationError, match="Linux and macOS"):
        connect("embedded:")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"REDIS_URL": f"redis://:{SECRET}@h:x"}, "REDIS_URL"),
        ({"REDIS_PARAMS": {"url": f"h:{SECRET}@"}}, r"REDIS_PARAMS\['url'\]"),
        ({"REDIS_HOST": f":{SECRET}@h"}, "REDIS_HOST"),
        ({"REDIS_PORT": 70000}, "REDIS_PORT"),
        ({"REDIS_DB": -1}, "REDIS_DB"),
        ({"REDIS_PARAMS": f"{SECRET}"}, "REDIS_PARAMS"),
        ({"REDIS_PARAMS": {"redis_cls": "redis.Rediss"}}, "redis_cls"),
        ({"REDIS_PARAMS": {"redis_cls": 5}}, "redis_cls"),
        ({"REDIS_PARAMS": {"ssl_colour": 5}}, "REDIS_PARAMS"),
    ],
)
def test_bad_scrapy_redis_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        connect_scrapy_redis(Settings(settings))
    assert SECRET not in message(caught.value)
    assert "`url`" not in str(caught.value)


# -- explain --


def explanation(url: str, *command: object, **params: Any) -> str:
    """Run a command that fails and return what we say about it."""
    with closing(connect(url, params=params)) as connection:
        with pytest.raises((redis.RedisError, OSError)) as caught:
            connection.client.execute_command(*command)
        error = explain(caught.value, connection.label)
    assert isinstance(error, StorageError)
    assert connection.label in str(error)
    assert SECRET not in str(error)
    return str(error)


def test_nobody_listens(tmp_path: Path) -> None:
    assert "pass a client of another one" in explanation(f"redis://127.0.0.1:{free_port()}", "GET")
    assert "is not there" in explanation(f"unix://{tmp_path}/s", "PING")
    assert "cannot be resolved" in explanation("redis://no-such-host.invalid", "PING")


def test_what_a_server_refuses(any_binary: str) -> None:
    with Server(any_binary, "--requirepass", SECRET) as guarded:
        url = guarded.url
        assert "requires a password" in explanation(url, "PING")
        text = explanation(url, "PING", password=f"{SECRET}x")
        assert "refuses the user name" in text
        assert "correct them in the arguments of the client" in text
        with closing(connect(url, params={"password": SECRET})) as connection:
            connection.client.execute_command("ACL", "SETUSER", "a", "on", "nopass", "~k", "+ping")
            connection.client.lpush("k", "v")
        text = explanation(url, "GET", "k", username="a", password="any")
        assert "does not let this user" in text
        assert "another `key`" in explanation(url, "GET", "k", password=SECRET)
        assert "has no command LOGIN:" in explanation(url, "LOGIN", password=SECRET)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (redis.ResponseError("MISCONF Errors writing to the AOF file"), "free the disk"),
        (redis.ResponseError("BUSY Redis is busy running a script"), "SCRIPT KILL"),
        (redis.ConnectionError("max number of clients reached"), "maxclients"),
        (redis.ResponseError("MASTERDOWN Link with MASTER is down"), "lost its primary"),
        (redis.exceptions.MovedError("1 127.0.0.1:1"), "cluster"),
        # As Redis 6.2.14 answers a script with flags where INFO is forbidden.
        (redis.ResponseError("Error compiling script: near '#'"), "older than Redis 7.0: use"),
        (redis.ResponseError("ERR odd"), "answers ResponseError: ERR odd"),
    ],
)
def test_errors_that_are_hard_to_provoke(error: Exception, part: str) -> None:
    assert part in str(explain(error, "redis://h:1/0"))
