"""Operations end in time, whatever the network does; a process that is late is no outage."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
from redis import Redis
from redis._parsers import _HiredisParser, _RESP2Parser
from support.answering import refused
from support.both import PATIENCE
from support.certificates import TLSServer
from support.loops import eventually
from support.outages import stalled
from support.polling import until_it_works
from support.proxy import PASS, Fault, Kind, Proxy
from support.servers import Server

from scrapy_bloom.bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client import pools
from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.client.pools import PART_BYTES
from scrapy_bloom.bloom.client.transport import AsyncTransport, Transport
from scrapy_bloom.bloom.errors import NotReadyError, StorageError
from scrapy_bloom.bloom.protocol.scripts import Call

TIMEOUT = 0.3
LATE = "didn't answer in time"
STOPPED = "has stopped answering"
PING = Call("{k:0}:ring", ("PING",))
#: How the filter talks to the proxy, and the parser of its replies.
WAYS = {"tcp": _HiredisParser, "unix": _RESP2Parser}
FAULTS = {
    Fault(Kind.DROP_REQUEST): LATE,
    Fault(Kind.DROP_REPLY): LATE,
    Fault(Kind.DELAY, seconds=5 * TIMEOUT): LATE,
    Fault(Kind.HALF): LATE,
    Fault(Kind.HANG): LATE,
    Fault(Kind.RESET_REQUEST): STOPPED,
    Fault(Kind.RESET_REPLY): STOPPED,
}


@contextmanager
def failing(match: str) -> Iterator[None]:
    """What is done fails, and not after as long as on a server that hangs for ever."""
    started = time.monotonic()
    with pytest.raises(StorageError, match=match):
        yield
    assert time.monotonic() - started < 20 * PATIENCE


@contextmanager
def filter_at(url: str, parser: type = _HiredisParser, **params: Any) -> Iterator[BloomFilter]:
    """A filter of several blocks on a connection of its own, with a short time-out."""
    with closing(connect(url, timeout=TIMEOUT, **params)) as connection:
        connection.client.connection_pool.connection_kwargs["parser_class"] = parser
        bloom = BloomFilter(connection.client, "d", capacity=1_000, window="2 months")
        until_it_works(bloom.open, NotReadyError)
        yield bloom


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
        yield bloom


def works(bloom: BloomFilter, item: str) -> None:
    """A filter records an item, as soon as the machine is quiet enough for it."""
    until_it_works(partial(bloom.add, item), NotReadyError)
    until_it_works(lambda: bloom.contains(item), NotReadyError)
    assert item in bloom


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_no_fault_keeps_an_operation_beyond_its_time(
    bloom: BloomFilter, proxy: Proxy, fault: Fault
) -> None:
    proxy.fault = fault
    for call in (
        partial(bloom.add, "live connection"),
        partial(bloom.add, "new connection"),
        partial(bloom.add_many, [*map(str, range(1_000))]),
        bloom.transport.eviction_policies,
        lambda: bloom.transport.run(bloom.session.add([("default", b"a")]), TIMEOUT),
    ):
        with failing(FAULTS[fault]):
            call()
    proxy.fault = PASS
    works(bloom, "at last")


def test_tls(tls_server: TLSServer) -> None:
    with Proxy(tls_server.port) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_cert_reqs=none&ssl_check_hostname=false"
        with filter_at(url) as bloom:
            for fault in (Fault(Kind.HALF), Fault(Kind.HANG), Fault(Kind.DROP_REPLY)):
                proxy.fault = fault
                for item in ("live connection", "handshake"):
                    with failing(f"{LATE}|TLS"):
                        bloom.add(item)
                proxy.fault = PASS
                works(bloom, str(fault))


# -- replies that are late --


def echo(word: str) -> Any:
    """Return an operation whose reply is a word."""
    (reply,) = yield [Call(PING.key, ("ECHO", word))]
    return reply.data.decode()


@pytest.mark.parametrize("end", ["cancelled", "timed out"])
def test_no_call_gets_the_reply_of_one_that_was_given_up(proxy: Proxy, end: str) -> None:
    """It comes while a later call waits, on the one connection that there is."""
    timeout = TIMEOUT if end == "timed out" else PATIENCE

    async def use() -> None:
        async with redis.asyncio.Redis.from_url(proxy.url, max_connections=1) as client:
            transport = AsyncTransport(client, "here", PATIENCE)
            await transport.run(echo("a live connection"))
            proxy.fault = Fault(Kind.DELAY, seconds=10 * TIMEOUT, times=1)
            first = asyncio.ensure_future(AsyncTransport(client, "", timeout).run(echo("late")))
            await eventually(lambda: proxy.struck == 1)
            if end == "cancelled":
                first.cancel()
            await asyncio.wait([first])
            assert first.cancelled() or LATE in str(first.exception())
            assert [await transport.run(echo(word)) for word in "abc"] == [*"abc"]

    asyncio.run(use())


def broken() -> Any:
    """Return an operation whose second call can't be sent, when the first one has been."""
    yield [Call(PING.key, ("ECHO", "x" * PART_BYTES)), Call(PING.key, ("ECHO", cast("str", ())))]


def test_no_call_gets_the_reply_of_one_that_was_sent_in_part(proxy: Proxy) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis.from_url(proxy.url, max_connections=1) as client:
            transport = AsyncTransport(client, "here", PATIENCE)
            with refused("DataError"):
                await transport.run(broken())
            assert await transport.run(echo("a")) == "a"

    asyncio.run(use())
    with closing(Redis.from_url(proxy.url, max_connections=1)) as client:
        transport = Transport(client, "here")
        with refused("DataError"):
            transport.run(broken())
        assert transport.run(echo("a")) == "a"


# -- a process that is late --


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
    server: Server, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout, lateness = 0.1, 0.15
    with closing(connect(server.url, timeout=timeout)) as connection:
        bloom = BloomFilter(connection.client, "d", blocks=2, capacity=1_000)
        bloom.add_many(["a", "b"])
        operation = partial(bloom.session.add, [("default", b"c")])
        with waiting_for_the_gil(lateness):
            assert [v.name for v in bloom.transport.run(operation(), timeout)] == ["NEW"]
            assert [v.name for v in bloom.transport.run(operation(), timeout)] == ["SEEN"]
        monkeypatch.setattr(pools, "GRACE_SECONDS", PATIENCE)
        client.client_pause(20)  # no time is left, and the server needs a little
        assert [v.name for v in bloom.transport.run(operation(), 0)] == ["SEEN"]
        monkeypatch.undo()
        with stalled(server), waiting_for_the_gil(0.01), failing(LATE):
            bloom.add("a server that is silent")


def test_a_busy_event_loop_does_not_take_that_for_the_servers_silence(
    server: Server, client: Redis
) -> None:
    """A callback blocks it for longer than the time-out, while the reply is under way."""
    timeout = 0.4

    async def use() -> None:
        with closing(connect(server.url, timeout=timeout)) as connection:
            bloom = AsyncBloomFilter(connection.open_async(), "d", timeout, capacity=1_000)
            await bloom.open()
            for item in map(str, range(3)):
                call = asyncio.ensure_future(bloom.add(item))
                await asyncio.sleep(0)
                time.sleep(2 * timeout)
                assert await call
            with stalled(server), failing(LATE):
                await bloom.add("a server that is silent")
            await bloom.client.aclose()

    asyncio.run(use())
