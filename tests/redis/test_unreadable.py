"""Replies that are not Redis's: all of them become the error that callers handle."""

import asyncio
from contextlib import closing

import pytest
import redis.asyncio
from redis._parsers import _AsyncRESP2Parser, _HiredisParser, _RESP2Parser
from support.answering import answering

from scrapy_bloom import AsyncBloomFilter, BloomFilter, StorageError
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.bloom.protocol.scripts import to_resp
from scrapy_bloom.migrate import SetSource

#: Nested a thousand times; numbers that are none; lengths that are none; types of other protocols.
REPLIES = [
    *(b"*1\r\n" * 3_000, b":abc\r\n", b"*x\r\n", b"$x\r\n", b"*-5\r\n", b"\xff\xff\r\n", b"-\r\n"),
    *(b"%1\r\n+a\r\n+b\r\n", b"#x\r\n", b"(x\r\n", b"+\xff\r\n", b"-ERR \xff\r\n", b":5\r\n"),
]


@pytest.mark.parametrize("parser", [_HiredisParser, _RESP2Parser])
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
    with (
        answering(b":abc\r\n") as port,
        closing(connect(f"redis://127.0.0.1:{port}", timeout=10)) as connection,
    ):
        connection.client.connection_pool.connection_kwargs["parser_class"] = _RESP2Parser
        with pytest.raises(StorageError, match="is not a Redis server"):
            SetSource(connection.client, "key", "Redis", "window")


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
