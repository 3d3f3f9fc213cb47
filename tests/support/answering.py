"""Servers that are no Redis, with one answer to everything; and errors, which show no secret."""

import socketserver
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from scrapy_bloom.bloom.errors import StorageError
from support.serving import serving

SECRET = "S3CRET"

#: What a client sends when it connects; it wants an answer to each.
GREETINGS = (b"SETINFO", b"SELECT")


@contextmanager
def answering(reply: bytes, *, to_greetings: bytes = b"+OK\r\n") -> Iterator[int]:
    """Run a server that has one reply to all commands; yield its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                while data := self.request.recv(1 << 16):
                    greetings = sum(map(data.count, GREETINGS))
                    # A filter is opened by several calls at once.
                    calls = max(1, data.count(b"EVALSHA"))
                    self.request.sendall(to_greetings * greetings or reply * calls)

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_address[1]


@contextmanager
def refused(*parts: str, error: type[Exception] = StorageError) -> Iterator[None]:
    """What is done fails with a message that has these parts, and no secret."""
    with pytest.raises(error) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)
    assert SECRET not in str(caught.value)
