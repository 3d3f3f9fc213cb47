"""The primary of a service, as Redis Sentinel names it, the same for all clients of a process.

redis-py's classes for Sentinel resolve for each client: a synchronous and an asyncio client can be
on two servers for a while, which splits a filter. And one silent sentinel takes a whole time-out.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from scrapy_bloom.bloom.client.addresses import label
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


@dataclass(eq=False, repr=False)
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

    name: str
    sentinels: tuple[Address, ...]
    of_sentinels: Mapping[str, Any]
    of_servers: Mapping[str, Any]
    timeout: float
    _primary: Address | None = None
    #: What the label names: also a server that refuses this client.
    _named: Address | None = None

    def __post_init__(self) -> None:
        #: The one that answered the last time first.
        self._order = [*self.sentinels]

    def shared(self) -> "Service":
        """Return the one of this process with these arguments."""
        options = sorted(self.of_sentinels.items()), sorted(self.of_servers.items())
        parts = (self.sentinels, *options, self.timeout)
        with _lock:
            return _services.setdefault(repr((self.name, parts)), self)

    def __str__(self) -> str:
        if self._named:
            return f"{self.name} at {self._named}"
        return label(self.of_servers, self.sentinels, self.name)

    def has_moved(self, address: Address | None) -> bool:
        """Whether another server than this is the primary, as far as this process knows."""
        return address is not None and address != self._primary

    @contextmanager
    def noting(self, address: Address | None) -> Iterator[None]:
        """Note a server's reply: after one of a replica, the primary is looked for again."""
        try:
            yield
        except redis.ResponseError as error:
            is_demoted = isinstance(error, redis.ReadOnlyError) or _DEMOTED.search(str(error))
            if is_demoted and address == self._primary:
                self._primary = None
            raise

    def find(self) -> Address:
        """Return the primary: the first server that a sentinel names and that says that it is one.

        Raises:
            redis.RedisError: there is none, or it cannot be used.
            OSError: it cannot be reached.
        """
        deadline = time.monotonic() + self.timeout
        problems: list[str] = []
        named: list[Address] = []
        sentinels = self._order
        for parts, sentinel in zip(range(len(sentinels), 0, -1), sentinels, strict=True):
            # One that is silent leaves as much for each of the others, and for the server.
            try:
                address = self._ask(sentinel, (deadline - time.monotonic()) / (parts + 1))
                if address in named:
                    continue
                named.append(address)
                self._check(address, (deadline - time.monotonic()) / parts)
            except NoPrimaryError as error:
                problems.append(str(error))
            else:
                # Another thread may be doing the same.
                self._order = [sentinel, *(one for one in sentinels if one != sentinel)]
                self._primary = self._named = address
                return address
        phrase = "cannot be reached now" if named else "cannot be found"
        raise NoPrimaryError(f"{phrase}: {'; '.join(problems)}")

    def _ask(self, sentinel: Address, seconds: float) -> Address:
        """Return where the primary is, as a sentinel knows; ``NoPrimaryError`` if it does not."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        try:
            found = _call(sentinel, self.of_sentinels, seconds, *words)
        except (redis.RedisError, OSError) as error:
            text = str(explain(error, f"the sentinel {sentinel}", _WORDS))
            raise NoPrimaryError(re.sub(r"\bssl_", "sentinel_ssl_", text)) from error
        if not found:
            raise NoPrimaryError(f"the sentinel {sentinel} knows no service {self.name!r}")
        host, port = found
        return Address(host.decode(), int(port))

    def _check(self, address: Address, seconds: float) -> None:
        """Make sure that a server is a primary.

        Raises:
            NoPrimaryError: it is none, or does not answer.
            redis.RedisError: it refuses this client.
        """
        try:
            role = _call(address, self.of_servers, seconds, "ROLE")[0]
        except NoPermissionError:
            return  # a replica will refuse the first write
        except (redis.ResponseError, redis.ConnectionError, redis.TimeoutError, OSError) as error:
            is_refusal = isinstance(error, redis.ResponseError | redis.AuthenticationError)
            if is_refusal or tls_reason(error):
                self._named = address
                raise
            text = str(error).rstrip(".")
            raise NoPrimaryError(f"the server {address}: {text}") from error
        if role != b"master":
            raise NoPrimaryError(f"the server {address} is a replica")


def _call(address: Address, arguments: Mapping[str, Any], seconds: float, *words: str) -> Any:
    """Send a command on a connection of its own, and return the reply."""
    if seconds <= 0:
        raise redis.TimeoutError("timed out")
    times = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
    own = {"host": address.host, "port": address.port, "retry": Retry(NoBackoff(), 0)}
    with redis.Redis(**{**arguments, **times, **own}) as client:
        # redis-py 6.4 fails on the replies to its own methods for SENTINEL.
        return client.execute_command(*words)
