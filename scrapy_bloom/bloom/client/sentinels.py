"""The primary of a service, as Redis Sentinel names it, and connections that go to no other server.

redis-py's classes for Sentinel resolve for each client: a synchronous and an asyncio client can be
on two servers for a while, which splits a filter. And one silent sentinel takes a whole time-out.
"""

import asyncio
import re
import threading
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from scrapy_bloom.bloom.client import tls
from scrapy_bloom.bloom.client.addresses import label
from scrapy_bloom.bloom.client.guarded import GuardedConnection, TCPConnection, TLSConnection
from scrapy_bloom.bloom.client.routes import Address
from scrapy_bloom.bloom.errors import explain, tls_reason

#: What errors of sentinels name.
_WORDS = {
    "credentials": "as sentinel_username and sentinel_password",
    "start": "correct its address",
    "rights": "SENTINEL GET-MASTER-ADDR-BY-NAME",
    "other_key": "a key",
}
#: What a server answers to a script that writes, or to a blocked client, once it is no primary.
_DEMOTED = re.compile(r"READONLY|^UNBLOCKED")

_services: "WeakValueDictionary[str, Service]" = WeakValueDictionary()
_lock = threading.Lock()


class NoPrimaryError(redis.ConnectionError):
    """No server can be used as the primary of a service."""


class Service:
    """The primary of a service, found by its sentinels.

    All connections of a process to a service share one: if one finds another primary, the others
    leave the server that they are connected to before they send anything.

    Args:
        name: of the service.
        sentinels: where they listen.
        of_sentinels: further arguments of clients of the sentinels.
        of_servers: further arguments of clients of the servers.
        timeout: seconds until the primary is found, or not.
    """

    def __init__(
        self,
        name: str,
        sentinels: tuple[Address, ...],
        of_sentinels: Mapping[str, Any],
        of_servers: Mapping[str, Any],
        timeout: float,
    ) -> None:
        self._name, self._sentinels = name, [*sentinels]
        self._of_sentinels, self._of_servers = of_sentinels, of_servers
        self._timeout = timeout
        self._label = label(of_servers, sentinels, name)
        self._primary: Address | None = None
        #: What the label names: also a server that refuses this client.
        self._named: Address | None = None
        #: Whether the primary has said that it is none any more.
        self._is_left = False

    @classmethod
    def shared(
        cls,
        name: str,
        sentinels: tuple[Address, ...],
        of_sentinels: Mapping[str, Any],
        of_servers: Mapping[str, Any],
        timeout: float,
    ) -> "Service":
        """Return the service of this process with these arguments."""
        parts = (name, sentinels, sorted(of_sentinels.items()), sorted(of_servers.items()), timeout)
        with _lock:
            service = _services.get(repr(parts))
            if service is None:
                service = cls(name, sentinels, of_sentinels, of_servers, timeout)
                _services[repr(parts)] = service
            return service

    def __str__(self) -> str:
        return f"{self._name} at {self._named}" if self._named else self._label

    def is_primary(self, address: Address) -> bool:
        """Whether a server is the primary, as far as this process knows."""
        return address == self._primary and not self._is_left

    def note(self, error: Exception, address: Address) -> None:
        """Note a server's answer: after one of a replica, the primary is looked for again."""
        is_demoted = isinstance(error, redis.ReadOnlyError) or _DEMOTED.search(str(error))
        if is_demoted and address == self._primary:
            self._is_left = True

    def find(self) -> Address:
        """Return the primary: the first server that a sentinel names and that says that it is one.

        Raises:
            redis.RedisError: there is none, or it cannot be used.
            OSError: it cannot be reached.
        """
        deadline = time.monotonic() + self._timeout
        problems: list[str] = []
        named: list[Address] = []
        sentinels = self._sentinels
        for number, sentinel in enumerate(sentinels):
            # One that is silent leaves as much for each of the others, and for the server.
            left, parts = deadline - time.monotonic(), len(sentinels) - number + 1
            try:
                address = self._ask(sentinel, left / parts)
                if address in named:
                    continue
                named.append(address)
                left = deadline - time.monotonic()
                self._check(address, left / (parts - 1))
            except NoPrimaryError as error:
                problems.append(str(error))
            else:
                # Another thread may be doing the same.
                self._sentinels = [sentinel, *(one for one in sentinels if one != sentinel)]
                self._primary, self._named, self._is_left = address, address, False
                return address
        phrase = "cannot be reached now" if named else "cannot be found"
        raise NoPrimaryError(f"{phrase}: {'; '.join(problems)}")

    def _ask(self, sentinel: Address, seconds: float) -> Address:
        """Return where the primary is, as a sentinel knows.

        Raises:
            NoPrimaryError: it does not answer that.
        """
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        try:
            found = _call(sentinel, self._of_sentinels, seconds, *words)
        except (redis.RedisError, OSError) as error:
            text = str(explain(error, f"the sentinel {sentinel}", _WORDS))
            raise NoPrimaryError(re.sub(r"\bssl_", "sentinel_ssl_", text)) from error
        if not found:
            raise NoPrimaryError(f"the sentinel {sentinel} knows no service {self._name!r}")
        host, port = (part.decode() if isinstance(part, bytes) else part for part in found)
        return Address(host, int(port))

    def _check(self, address: Address, seconds: float) -> None:
        """Make sure that a server is a primary.

        Raises:
            NoPrimaryError: it is none, or does not answer.
            redis.RedisError: it refuses this client.
        """
        try:
            role = _call(address, self._of_servers, seconds, "ROLE")[0]
        except NoPermissionError:
            return  # a replica will refuse the first write
        except (redis.ResponseError, redis.AuthenticationError):
            self._named = address
            raise
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if tls_reason(error):
                self._named = address
                raise
            text = str(error).rstrip(".")
            raise NoPrimaryError(f"the server {address}: {text}") from error
        if role not in (b"master", "master"):
            raise NoPrimaryError(f"the server {address} is a replica")


def _call(address: Address, arguments: Mapping[str, Any], seconds: float, *words: str) -> Any:
    """Send a command on a connection of its own, and return the reply.

    Raises:
        redis.RedisError: as redis-py does.
        OSError: as redis-py does.
    """
    if seconds <= 0:
        raise redis.TimeoutError("timed out")
    times = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
    retry = Retry(NoBackoff(), 0)
    client = redis.Redis(
        **{**arguments, **times, "host": address.host, "port": address.port, "retry": retry}
    )
    try:
        return client.execute_command(*words)  # type: ignore[no-untyped-call]
    finally:
        client.connection_pool.disconnect()  # 5.0.0 does not when a client is closed


class _OfService(GuardedConnection):
    """A connection to the primary of a service."""

    def __init__(self, *, service: Service, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._service = service
        self._address: Address | None = None

    def _locate(self) -> None:
        self._address = self._service.find()
        self.host, self.port = self._address

    def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        if self._address and self._sock and not self._service.is_primary(self._address):
            self.disconnect()  # sending connects again
        return super().send_packed_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if self._address:
                self._service.note(error, self._address)
            raise


class _TCPOfService(_OfService, TCPConnection):
    pass


class _TLSOfService(_OfService, TLSConnection):
    pass


class _AsyncOfService(redis.asyncio.Connection):
    """As ``_OfService``, for asyncio."""

    def __init__(self, *, service: Service, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._service = service
        self._address: Address | None = None

    async def _connect(self) -> None:
        # One way to find the primary, for both kinds of client.
        self._address = await asyncio.get_running_loop().run_in_executor(None, self._service.find)
        self.host, self.port = self._address
        await super()._connect()  # type: ignore[no-untyped-call]

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        if self._address and self.is_connected and not self._service.is_primary(self._address):
            await self.disconnect(nowait=True)  # sending connects again
        return await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if self._address:
                self._service.note(error, self._address)
            raise


class _AsyncTLSOfService(_AsyncOfService, tls.AsyncTLSConnection):
    pass


_OF_SERVICE: dict[type, Any] = {
    TCPConnection: _TCPOfService,
    TLSConnection: _TLSOfService,
    redis.asyncio.Connection: _AsyncOfService,
    tls.AsyncTLSConnection: _AsyncTLSOfService,
}


def bind(client: Any, service: Service) -> None:
    """Let a client, of either kind, connect to the primary of a service."""
    pool = client.connection_pool
    pool.connection_class = _OF_SERVICE[pool.connection_class]
    pool.connection_kwargs["service"] = service
