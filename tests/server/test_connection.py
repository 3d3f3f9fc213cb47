"""Clients that a caller may pass, that repeat nothing, and errors that say what to do."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis, exceptions
from support.answering import SECRET
from support.both import PATIENCE, Both, use
from support.loops import eventually
from support.polling import until_it_works
from support.proxy import Fault, Kind, Proxy
from support.servers import Server, free_port

from scrapy_bloom.bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.errors import (
    ConfigurationError,
    NotReadyError,
    ServerFullError,
    StorageError,
    explain,
)

# -- what a caller passes as the client --


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        (AsyncBloomFilter, lambda: None, r"is None. Pass an object of redis\.asyncio\.Redis or"),
        (BloomFilter, lambda: Redis, r"Pass an object of redis\.Redis or redis\.RedisCluster"),
        (BloomFilter, Redis().pipeline, r"Pass an object of redis\.Redis"),
        (AsyncBloomFilter, redis.asyncio.Redis().pipeline, r"object of redis\.asyncio\.Redis"),
        (BloomFilter, redis.asyncio.Redis, r"Pass an object of redis\.Redis"),
        (AsyncBloomFilter, Redis, r"Pass an object of redis\.asyncio\.Redis"),
    ],
)
def test_what_is_no_client_is_refused(kind: type, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(make(), "k")


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {}])
def test_clients_that_decode_and_either_protocol_work(
    server: Server, client: Redis, options: dict[str, Any]
) -> None:
    with Redis.from_url(server.url, **options) as other:
        bloom = BloomFilter(other, "k", capacity=1_000, window="2 days")
        assert bloom.add_many(["grün", b"\xff"]) == [True, True]
        assert bloom.info().windows["default"].count == 2

    async def use() -> None:
        async with redis.asyncio.Redis.from_url(server.url, **options) as own:
            other = AsyncBloomFilter(own, "k", capacity=1_000)
            assert await other.contains(["grün", b"\xff", "c"]) == [True, True, False]

    asyncio.run(use())
    assert "grün" in BloomFilter(client, "k")


# -- one command is sent once --


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.RESET_REPLY])
def test_what_a_lost_reply_has_recorded_is_seen_and_was_never_asked_twice(
    server: Server, client: Redis, kind: Kind
) -> None:
    async def steps(both: Both) -> None:
        assert both.bloom.add("a")
        assert await both.other.add("b")
        for item in "cd":
            proxy.fault = Fault(kind, times=1)
            with pytest.raises(NotReadyError):
                await both.other.add(item) if item == "c" else both.bloom.add(item)
        assert proxy.struck == 2
        until_it_works(lambda: both.bloom.add("warm"), NotReadyError)
        assert both.bloom.contains(["c", "d"]) == [True, True], "they were carried out"

    with Proxy(server.port) as proxy:
        use(proxy.url, steps, timeout=1)


def test_a_client_that_repeats_does_not_repeat_what_the_filter_sends(
    server: Server, client: Redis
) -> None:
    with Proxy(server.port) as proxy, Redis(port=proxy.port, socket_timeout=0.5) as other:
        bloom = BloomFilter(other, "k", blocks=1)
        until_it_works(lambda: bloom.add("opens it"), StorageError)
        proxy.fault = Fault(Kind.DROP_REPLY, times=1)
        with pytest.raises(NotReadyError):
            bloom.add("a")
        assert proxy.struck == 1
        assert "a" in BloomFilter(client, "k")


def test_idle_connections_that_the_server_closes_are_made_again(any_binary: str) -> None:
    async def steps(both: Both) -> None:
        both.bloom.add("a")
        await both.other.add("b")
        with server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
            idle = partial(client.info, "clients")
            await eventually(lambda: idle()["connected_clients"] == 1, "they are closed")
        await asyncio.sleep(0.01)  # the loop hears of it
        assert not both.bloom.add("a")
        assert not await both.other.add("b")

    with Server(any_binary) as server:
        use(server.url, steps)


def test_a_server_that_accepts_nothing_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    """A unix socket with a full backlog blocks in connect()."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as filler:
        server.bind(str(path))
        server.listen(0)
        filler.connect(str(path))
        with closing(connect(f"unix://{path}", timeout=0.2)) as connection:
            started = time.monotonic()
            with pytest.raises(NotReadyError):
                BloomFilter(connection.client, "k").open()
    assert time.monotonic() - started < 60


# -- what errors say --


def explanation(url: str, **params: Any) -> str:
    """Open a filter, which fails, and return what we say about it."""
    with closing(connect(url, timeout=PATIENCE, **params)) as connection:
        bloom = BloomFilter(connection.client, "k", label=connection.label)
        with pytest.raises(StorageError) as caught:
            bloom.open()
    assert str(caught.value).startswith(f"{connection.label} ")
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_nobody_listens(tmp_path: Path) -> None:
    away = "can't be reached. Start it, or correct `url`"
    assert away in explanation(f"redis://:{SECRET}@127.0.0.1:{free_port()}/3")
    assert away in explanation(f"unix://{tmp_path}/s?password={SECRET}")
    assert "can't be resolved. Correct its host" in explanation("redis://no-such-host.invalid")
    awaited = AsyncBloomFilter(f"redis://127.0.0.1:{free_port()}", "k")
    with pytest.raises(NotReadyError, match=away):
        asyncio.run(awaited.open())


def test_a_server_that_was_there_has_stopped_answering(any_binary: str) -> None:
    async def steps(both: Both) -> None:
        both.bloom.add("a")
        server.kill()
        text = "has stopped answering. See whether it runs"
        for _ in range(2):
            with pytest.raises(NotReadyError, match=text):
                both.bloom.add("b")
        awaited = both.bloom.awaited(both.other.client)
        with pytest.raises(NotReadyError, match=text):
            await awaited.run(both.bloom.session.add([("default", b"b")]))

    with Server(any_binary) as server:
        use(server.url, steps)


def test_what_a_server_refuses(any_binary: str) -> None:
    with Server(any_binary, "--requirepass", SECRET) as guarded:
        rejects = "rejects the user or the password. Correct them in `url` or"
        assert rejects in explanation(guarded.url)
        assert rejects in explanation(guarded.url, password=f"{SECRET}x")
        with guarded.client(password=SECRET) as client:
            client.execute_command("ACL", "SETUSER", "a", "on", "nopass", "~k", "+ping")
            text = explanation(guarded.url, username="a", password="any")
            assert "forbids this user a command or a key" in text
            client.lpush("{k:0}:ring", "v")
            text = "holds something else under one of the keys {k:0}:*. Delete it, or"
            assert text in explanation(guarded.url, password=SECRET)


@pytest.mark.parametrize(
    ("error", "kind", "part"),
    [
        (exceptions.BusyLoadingError("into memory"), NotReadyError, "is loading its data"),
        (exceptions.OutOfMemoryError("not allowed"), ServerFullError, "Raise its maxmemory"),
        (redis.ResponseError("MISCONF Errors writing to the AOF"), StorageError, "Free the disk"),
        (redis.ConnectionError("max number of clients reached"), NotReadyError, "maxclients"),
        (redis.ResponseError("MASTERDOWN Link with MASTER is down"), NotReadyError, "is down"),
        (exceptions.MovedError("1 127.0.0.1:1"), StorageError, "redis+cluster://"),
        (exceptions.ReadOnlyError("no"), NotReadyError, "is a read-only replica. Use its primary"),
        (exceptions.InvalidResponse("got 'H'"), StorageError, "isn't a Redis server"),
        # Redis 6.2, and OCI Cache with shards.
        (redis.ResponseError("Error compiling script"), StorageError, "is older than Redis 7.0"),
        (redis.ResponseError("unknown command 'EVALSHA'"), StorageError, "forbids Lua scripts"),
        (redis.ResponseError("unknown command 'SENTINEL'"), StorageError, "isn't a Sentinel"),
        (redis.ResponseError("ERR odd"), StorageError, "answered with an error"),
    ],
)
def test_errors_that_are_hard_to_provoke(
    error: Exception, kind: type[StorageError], part: str
) -> None:
    explained = explain(error, "redis://h:1/0")
    assert type(explained) is kind
    assert part in str(explained)
