"""Commands on a connection of a pool: each reply is its command's, or an error of ours."""

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from redis._parsers import _AsyncRESP2Parser, _HiredisParser, _RESP2Parser
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry
from support.answering import answering
from support.servers import Server

from scrapy_bloom import AsyncBloomFilter, BloomFilter, StorageError
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.driver import Exchanger
from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.bloom.protocol.cached_ring import to_resp
from scrapy_bloom.migrate import SetSource

TIMEOUT = 1.0
PARSERS = [_HiredisParser, _RESP2Parser]


def frame(*words: str | int) -> bytes:
    return b"*%d\r\n%b" % (len(words), to_resp(*words))


def echo(exchanger: Exchanger, text: str) -> bool:
    """Whether the reply to ECHO is its own."""
    reply: object = exchanger.exchange(frame("ECHO", text))
    return reply == text.encode()


@pytest.fixture(params=[False, True], ids=["pool", "kept"])
def keeps(request: pytest.FixtureRequest) -> bool:
    """Whether the connection is kept between two commands."""
    return bool(request.param)


@contextmanager
def exchanging(port: int, parser: type, keeps: bool) -> Iterator[Exchanger]:
    retry = Retry(NoBackoff(), 0)
    with Redis(port=port, retry=retry, socket_timeout=TIMEOUT, protocol=2) as plain:
        plain.connection_pool.connection_kwargs["parser_class"] = parser
        exchanger = Exchanger(plain.connection_pool)
        exchanger.keeps_connection = keeps
        yield exchanger


@pytest.fixture(params=PARSERS)
def parser(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def exchanger(parser: type, keeps: bool, server: Server, client: Redis) -> Iterator[Exchanger]:
    with exchanging(server.port, parser, keeps) as exchanger:
        yield exchanger


# -- each reply is its command's --


def test_a_late_reply_is_not_taken_for_that_of_the_next_command(
    exchanger: Exchanger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has timed out, or was interrupted."""

    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    assert echo(exchanger, "first")
    with pytest.raises(redis.TimeoutError):
        exchanger.exchange(frame("BLPOP", "nothing", "20"))
    assert echo(exchanger, "second")
    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            exchanger.exchange(frame("BLPOP", "nothing", "0.1"))
    for number in range(3):
        assert echo(exchanger, f"after {number}")
        time.sleep(0.1)


def test_threads_do_not_share_a_connection(exchanger: Exchanger) -> None:
    def repeat(name: str) -> bool:
        return all(echo(exchanger, f"{name} {number}") for number in range(300))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(repeat, "abcd"))
    exchanger.give_back()
    assert not exchanger._pool._in_use_connections


def test_after_a_fork_the_parents_connection_is_not_used(exchanger: Exchanger) -> None:
    exchanger.keeps_connection = True
    before = exchanger.exchange(frame("CLIENT", "ID"))
    exchanger._kept[0].pid -= 1
    assert exchanger.exchange(frame("CLIENT", "ID")) != before


# -- servers that close --


def test_a_server_that_has_closed_the_connection_meanwhile_costs_no_command(
    exchanger: Exchanger, client: Redis
) -> None:
    for number in range(3):
        assert echo(exchanger, str(number))
        client.client_kill_filter(_type="normal", skipme=True)


def test_a_server_that_closes_in_the_middle_of_a_reply_is_an_error(
    parser: type, keeps: bool
) -> None:
    whole = b"*2\r\n$2\r\nok\r\n$1\r\n1\r\n"

    def serve(listener: socket.socket) -> None:
        for reply in (whole[:11], whole):
            with listener.accept()[0] as peer:
                while b"EVALSHA" not in (data := peer.recv(65_536)):
                    peer.sendall(b"+OK\r\n" * data.count(b"SETINFO"))
                peer.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        thread.submit(serve, listener)
        with exchanging(listener.getsockname()[1], parser, keeps) as exchanger:
            with pytest.raises(redis.ConnectionError):
                exchanger.exchange(frame("EVALSHA", "x"))
            assert exchanger.exchange(frame("EVALSHA", "x")) == [b"ok", b"1"]
            exchanger.give_back()


# -- connections --


@pytest.mark.parametrize("decode", [False, True])
def test_replies_may_be_decoded_and_scripts_forgotten(
    server: Server, client: Redis, keeps: bool, decode: bool
) -> None:
    """On the only connection of a pool."""
    with server.client(decode_responses=decode, max_connections=1) as plain:
        # Of many runs, one would take a new item for seen at the error rate of 1e-5.
        bloom = BloomFilter(plain, "gr\u00fcn", capacity=5, blocks=1, error_rate=1e-9)
        if keeps:
            bloom.keep_connection()
        assert [bloom.add(item) for item in "aab\u00fc\u00fc"] == [True, False, True, True, False]
        client.script_flush()
        assert [bloom.add(str(number)) for number in range(40)] == [True] * 40
        assert bloom.add_many(["a", "b", "c"]) == [False, False, True]
        assert (bloom.info().count, "c" in bloom, "d" in bloom) == (44, True, False)
        assert bloom.server_id()


def test_unusual_clients_are_used_too(server: Server, client: Redis) -> None:
    class Own(Redis):
        """With another pool, for example."""

    for make in (Own, partial(Redis, single_connection_client=True)):
        with closing(make(host="127.0.0.1", port=server.port)) as other:
            bloom = BloomFilter(other, "k")
            assert bloom.add(str(make))
            assert not bloom.add(str(make))


#: Nested a thousand times; numbers that are none; lengths that are none; types of other protocols.
REPLIES = [
    *(b"*1\r\n" * 3_000, b":abc\r\n", b"*x\r\n", b"$x\r\n", b"*-5\r\n", b"\xff\xff\r\n"),
    *(b"%1\r\n+a\r\n+b\r\n", b"+\xff\r\n", b"-ERR \xff\r\n"),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: repr(reply[:12]))
def test_replies_that_are_not_rediss(reply: bytes, parser: type) -> None:
    with (
        answering(reply) as port,
        closing(connect(f"redis://127.0.0.1:{port}", timeout=10)) as connection,
    ):
        connection.client.connection_pool.connection_kwargs["parser_class"] = parser
        bloom = BloomFilter(connection.client, "f")
        with pytest.raises(StorageError) as caught:
            bloom.open()
        assert not isinstance(caught.value, NotReadyError)
        with pytest.raises(StorageError):
            bloom._driver.exchange(b"*1\r\n%b" % to_resp("PING"))
        if reply[:1] not in b"-+":  # a server may refuse INFO, or leave things out
            with pytest.raises(StorageError):
                bloom.server_id()


def test_a_set_on_what_is_no_server() -> None:
    with answering(b":abc\r\n") as port, Redis(port=port, protocol=2) as client:
        client.connection_pool.connection_kwargs["parser_class"] = _RESP2Parser
        with pytest.raises(StorageError, match="is not a Redis server"):
            SetSource(client, "key", "Redis", "window")


@pytest.mark.parametrize("reply", [reply for reply in REPLIES if reply[:1] in b"*:$"])
def test_replies_that_are_not_rediss_in_the_event_loop(reply: bytes) -> None:
    async def query(port: int) -> None:
        client = redis.asyncio.Redis(port=port, protocol=2)
        client.connection_pool.connection_kwargs["parser_class"] = _AsyncRESP2Parser
        async with client:
            bloom = AsyncBloomFilter(client, "f", timeout=10)
            with pytest.raises(StorageError):
                await bloom.open()
            with pytest.raises(StorageError):
                await bloom._driver.server_id()

    with answering(reply) as port:
        asyncio.run(query(port))
