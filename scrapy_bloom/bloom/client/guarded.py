"""Connections that are made only where that is allowed, and that never wait for ever."""

from typing import Any

import redis
from redis.connection import AbstractConnection

from scrapy_bloom.bloom.client.connect_guard import this_thread


class NotConnectedError(redis.ConnectionError):
    """There is no connection, and none may be made here."""


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


class UnixConnection(GuardedConnection, redis.UnixDomainSocketConnection):
    """To a unix socket."""


#: redis-py's connections -> ours.
GUARDED: dict[type, Any] = {
    redis.Connection: TCPConnection,
    redis.SSLConnection: TLSConnection,
    redis.UnixDomainSocketConnection: UnixConnection,
}
