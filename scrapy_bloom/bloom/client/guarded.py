"""Connections that are made only where that is allowed, and that never wait for ever.

Resolving a host name has no time-out. So a crawl's thread leaves connecting to a background thread.
"""

import socket
import threading
from typing import Any

import redis
from redis.connection import AbstractConnection


class _ThisThread(threading.local):
    may_connect = True


this_thread = _ThisThread()


class connecting:  # noqa: N801 - it reads as a statement: with connecting(allowed=False):
    """Allow or forbid connections in a ``with`` block; an outer block that forbids them counts."""

    __slots__ = ("_allowed", "_outer")

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def __enter__(self) -> None:
        self._outer = this_thread.may_connect
        this_thread.may_connect = self._outer and self._allowed

    def __exit__(self, *error: object) -> None:
        this_thread.may_connect = self._outer


class NotConnectedError(redis.ConnectionError):
    """There is no connection, and none may be made here."""


class NotTLSError(redis.ConnectionError):
    """The server does not use TLS on this port."""


class GuardedConnection(AbstractConnection):
    """A connection that is made only where that is allowed, and that never waits for ever."""

    def __init__(self, *, socket_timeout: float, **kwargs: Any) -> None:
        super().__init__(socket_timeout=socket_timeout, **kwargs)
        # redis-py does not pass the second on for unix sockets.
        self.socket_timeout = self.socket_connect_timeout = socket_timeout

    def _connect(self) -> Any:
        if not this_thread.may_connect:
            raise NotConnectedError("there is no connection, and none may be made here")
        self._locate()
        return super()._connect()  # type: ignore[safe-super, no-untyped-call]

    def _locate(self) -> None:
        """Find out where to connect to, if that changes."""


class TCPConnection(GuardedConnection, redis.Connection):
    """To a host."""


class TLSConnection(GuardedConnection, redis.SSLConnection):
    """To a host, with TLS."""

    def _connect(self) -> Any:
        try:
            return super()._connect()
        except TimeoutError as error:
            # Without TLS, a server takes the handshake for a part of a command, and waits for more.
            if "handshake" in str(error) and self._answers_without_tls():
                raise NotTLSError("the server answers without TLS") from error
            raise

    def _answers_without_tls(self) -> bool:
        try:
            address, seconds = (self.host, self.port), self.socket_connect_timeout
            with socket.create_connection(address, seconds) as plain:
                plain.sendall(b"PING\r\n")
                return plain.recv(1) in (b"+", b"-")
        except OSError:
            return False


class UnixConnection(GuardedConnection, redis.UnixDomainSocketConnection):
    """To a unix socket."""


#: redis-py's connections -> ours.
GUARDED: dict[type, Any] = {
    redis.Connection: TCPConnection,
    redis.SSLConnection: TLSConnection,
    redis.UnixDomainSocketConnection: UnixConnection,
}
