"""Operations end in time, whatever the network does; threads that do not connect."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis._parsers import _HiredisParser, _RESP2Parser
from support.certificates import TLSServer
from support.outages import stalled
from support.polling import until
from support.proxy import PASS, Fault, Kind, Proxy
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol.scripts import Call, load

TIMEOUT = 0.3
#: The time-out of operations that are to succeed, however busy the machine is.
PATIENCE = 10.0
LATE = "did not answer in time"
CLOSED = "closed the connection"
KEY = "d"


@contextmanager
def failing(match: str) -> Iterator[None]:
    """What is done fails, and not after as long as on a server that hangs for ever."""
    started = time.monotonic()
    with pytest.raises(StorageError, match=match):
        yield
    assert time.monotonic() - started < 20 * PATIENCE


@contextmanager
def ending(bloom: BloomFilter, match: str = LATE) -> Iterator[None]:
    """With the short time-out, what is done fails for it, or for another reason."""
    set_timeout(bloom, TIMEOUT)
    with failing(match):
        yield
    set_timeout(bloom, PATIENCE)


def set_timeout(bloom: BloomFilter, seconds: float) -> None:
    """Change the time-out of operations, of the live connections and of those to come."""
    bloom._driver._timeout = seconds
    pool = bloom._driver.client.connection_pool
    pool.connection_kwargs["socket_timeout"] = seconds
    for connection in pool._available_connections:
        connection.socket_timeout = connection.socket_connect_timeout = seconds
        if connection._sock is not None:
            connection._sock.settimeout(seconds)
            parser = connection._parser
            if isinstance(parser, _RESP2Parser):
                parser = parser._buffer
                parser.socket_timeout = seconds
            parser._socket_timeout = seconds


@contextmanager
def filter_at(url: str, parser: type = _HiredisParser, **params: Any) -> Iterator[BloomFilter]:
    """A filter of several blocks on a connection of its own."""
    with closing(connect(url, timeout=PATIENCE, params=params)) as connection:
        connection.client.connection_pool.connection_kwargs["parser_class"] = parser
        yield BloomFilter(
            connection.client, KEY, capacity=1_000, window="2 months", timeout=PATIENCE
        )


#: How the filter talks to the proxy, and the parser of its replies.
WAYS = {"tcp": _HiredisParser, "unix": _RESP2Parser}


@pytest.fixture(params=WAYS)
def proxy(
    request: pytest.FixtureRequest, server: Server, client: Redis, tmp_path: Path
) -> Iterator[Proxy]:
    path = tmp_path / "s" if request.param == "unix" else None
    with Proxy(server.port, path=path) as proxy:
        yield proxy


@pytest.fixture
def bloom(proxy: Proxy) -> Iterator[BloomFilter]:
    """A filter that is open and has a live connection, through the proxy."""
    with filter_at(proxy.url, WAYS["unix" if proxy.path else "tcp"]) as bloom:
        bloom.open()
        yield bloom


# -- whatever the network does --


FAULTS = {
    Fault(Kind.DROP_REQUEST): LATE,
    Fault(Kind.DROP_REPLY): LATE,
    Fault(Kind.DELAY, seconds=5 * TIMEOUT): LATE,
    Fault(Kind.HALF, size=1): LATE,
    Fault(Kind.HANG): LATE,
    Fault(Kind.RESET_REQUEST): CLOSED,
    Fault(Kind.RESET_REPLY): CLOSED,
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_no_fault_keeps_an_operation_beyond_its_time(
    bloom: BloomFilter, proxy: Proxy, fault: Fault
) -> None:
    proxy.fault = fault
    for call in (
        partial(bloom.add, "live connection"),
        partial(bloom.add, "new connection"),
        partial(bloom.add_many, map(str, range(1_000))),
        bloom.eviction_policy,
    ):
        with ending(bloom, FAULTS[fault]):
            call()
    proxy.fault = PASS
    assert bloom.add("at last")
    assert not bloom.add("at last")


# -- TLS --


def test_tls(tls_server: TLSServer) -> None:
    with Proxy(tls_server.port) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_cert_reqs=none&ssl_check_hostname=false"
        with filter_at(url) as bloom:
            bloom._driver.client.flushall()
            bloom.open()
            for fault in (Fault(Kind.HALF), Fault(Kind.HANG), Fault(Kind.DROP_REPLY)):
                proxy.fault = fault
                with ending(bloom):
                    bloom.add("live connection")
                with ending(bloom):
                    bloom.add("handshake")
                proxy.fault = PASS
                assert bloom.add(str(fault))
            bloom._driver.may_connect = False
            assert bloom.add("the live connection goes on")
            bloom._driver.client.connection_pool.disconnect()
            with failing("is not connected"):
                bloom.add("a")


# -- a thread that does not connect --


@contextmanager
def untouched(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It fails at once, and nobody hears of it: no resolver, no server."""

    def refuse(*args: object) -> None:
        raise AssertionError("a connection attempt")

    before = proxy.connections, proxy.requests
    with monkeypatch.context() as patch, failing("is not connected"):
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(socket.socket, "connect", refuse)
        yield
    time.sleep(0.02)
    assert (proxy.connections, proxy.requests) == before


def test_nothing_is_sent_without_a_connection(
    bloom: BloomFilter, proxy: Proxy, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = bloom._driver
    assert driver.may_connect
    driver.may_connect = False
    assert bloom.add("live")
    client.client_kill_filter(_type="normal", skipme=True)
    until(lambda: not proxy.open_connections, "the connections are closed")
    for call in (
        partial(bloom.add, "closed by the server while idle"),
        partial(bloom.add_many, map(str, range(1_000))),
        bloom.eviction_policy,
    ):
        with untouched(proxy, monkeypatch):
            call()
    # The writer connects, by an operation on the same client.
    other = BloomFilter(driver.client, KEY, timeout=PATIENCE)
    thread = threading.Thread(target=other.eviction_policy)
    thread.start()
    thread.join()
    assert bloom.add("live again")
    proxy.fault = Fault(Kind.DROP_REPLY, times=1)
    with ending(bloom):
        bloom.add("a")
    with untouched(proxy, monkeypatch):
        bloom.add("after a time-out")
    driver.may_connect = True
    assert not bloom.add("a")


# -- a thread that is late --


@contextmanager
def waiting_for_the_gil(seconds: float) -> Iterator[None]:
    """Have this thread wait so long for the GIL, each time that it lets go of it."""
    is_over, before = threading.Event(), sys.getswitchinterval()

    def hold() -> None:
        while not is_over.is_set():
            pass

    thread = threading.Thread(target=hold)
    sys.setswitchinterval(seconds)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        sys.setswitchinterval(before)
        thread.join()


def test_a_thread_that_is_late_does_not_take_that_for_the_servers_silence(
    server: Server, client: Redis
) -> None:
    timeout, lateness = 0.1, 0.15
    with closing(connect(server.url, timeout=timeout)) as connection:
        bloom = BloomFilter(connection.client, KEY, blocks=2, capacity=1_000, timeout=timeout)
        with waiting_for_the_gil(lateness):
            bloom.open()
            assert bloom.add("a")
            assert not bloom.add("a")
            assert bloom.add_many(["b", "c"]) == [True, True]
        with stalled(server), waiting_for_the_gil(0.01), failing(LATE):
            bloom.add("a server that is silent")


#: Within the time-out, but not twice.
SLOWLY = 0.25


def test_an_operation_ends_between_round_trips(proxy: Proxy, client: Redis) -> None:
    ping = Call(load("header"), ("{k:0}:header", "{k:0}:ring"), ("",))

    def steps() -> Any:
        while True:
            yield [ping]

    url = {"unix_socket_path": str(proxy.path)} if proxy.path else {"port": proxy.port}
    with Redis(**url, socket_timeout=PATIENCE) as other:
        driver = Driver(other, timeout=TIMEOUT)
        driver.may_connect = False  # only clients of ``connect`` obey
        proxy.fault = Fault(Kind.DELAY, seconds=SLOWLY / 2)
        with failing(LATE):
            driver.run(steps())
        assert 4 <= driver.round_trips <= 6
        other.connection_pool.disconnect()
