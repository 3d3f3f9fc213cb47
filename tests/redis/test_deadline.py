"""One deadline for all of an operation, whatever the network does, and threads that do not connect.

No assertion on time is tight: where an operation may take 0.3 seconds, the time-outs of single
replies would let it take many times that.
"""

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis._parsers import _HiredisParser, _RESP2Parser
from scrapy.settings import Settings
from support.polling import until
from support.proxy import PASS, Fault, Kind, Proxy
from support.servers import Server, free_port

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client import deadline
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.deadline import BoundedSocket, may_connect, remaining, spend, within
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol.scripts import Call, load
from scrapy_bloom.crawl.filters import connect_filters
from scrapy_bloom.settings import BloomSettings

TIMEOUT = 0.3
#: Within the time-out, but not twice.
SLOWLY = 0.25
#: The time-out of a single reply; also what an operation gets that is to succeed.
PATIENCE = 10.0
LATE = "did not answer in time"
CLOSED = "closed the connection"
KEY = "d"


@contextmanager
def failing(match: str) -> Iterator[None]:
    """What is done fails, and long before the time-out of a reply."""
    started = time.monotonic()
    with pytest.raises(StorageError, match=match):
        yield
    assert time.monotonic() - started < 5 * TIMEOUT


@contextmanager
def ending(bloom: BloomFilter) -> Iterator[None]:
    """With the short time-out, what is done fails for it."""
    bloom._driver._timeout = TIMEOUT
    with failing(LATE):
        yield
    bloom._driver._timeout = PATIENCE


@contextmanager
def filter_at(url: str, parser: type = _HiredisParser, **params: Any) -> Iterator[BloomFilter]:
    """A filter of several blocks on a connection of its own."""
    with closing(connect(url, timeout=PATIENCE, params=params)) as connection:
        connection.client.connection_pool.connection_kwargs["parser_class"] = parser
        yield BloomFilter(
            connection.client,
            KEY,
            capacity=1_000,
            window="2 months",
            label=connection.label,
            timeout=PATIENCE,
        )


@pytest.fixture(scope="module")
def server(any_binary: str) -> Iterator[Server]:
    """One server: its kind does not matter to the network."""
    with Server(any_binary) as server:
        yield server


#: How the filter talks to the proxy, and the parser of its replies.
WAYS = {"tcp": _HiredisParser, "unix": _RESP2Parser}


@pytest.fixture(params=WAYS)
def proxy(
    request: pytest.FixtureRequest, server: Server, client: redis.Redis, tmp_path: Path
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

SILENT = [
    Fault(Kind.DROP_REQUEST),
    Fault(Kind.DROP_REPLY),
    Fault(Kind.DELAY, seconds=5 * TIMEOUT),
    Fault(Kind.DRIBBLE, seconds=SLOWLY),
    Fault(Kind.HALF),
    Fault(Kind.HALF, size=1),
    Fault(Kind.HANG),
]


@pytest.mark.parametrize("fault", SILENT, ids=str)
def test_no_fault_keeps_an_operation_beyond_its_time(
    bloom: BloomFilter, proxy: Proxy, fault: Fault
) -> None:
    proxy.fault = fault
    with ending(bloom):
        bloom.add("live connection")
    with ending(bloom):
        bloom.add("new connection")
    with ending(bloom):
        bloom.add_many(map(str, range(1_000)))
    with ending(bloom):
        bloom.eviction_policy()
    proxy.fault = PASS
    assert bloom.add("at last")
    assert not bloom.add("at last")


@pytest.mark.parametrize("kind", [Kind.RESET_REQUEST, Kind.RESET_REPLY])
def test_a_reset_is_noticed_at_once(bloom: BloomFilter, proxy: Proxy, kind: Kind) -> None:
    proxy.fault = Fault(kind)
    for item in ("live connection", "new connection"):
        with failing(CLOSED):
            bloom.add(item)
    proxy.fault = PASS
    assert bloom.add("at last")


def test_nobody_listens_any_more(bloom: BloomFilter, proxy: Proxy) -> None:
    if proxy.path:
        pytest.skip("another socket file takes the place of the first")
    proxy.fault = Fault(Kind.REFUSE)
    assert bloom.add("the live connection goes on")
    bloom._driver.client.connection_pool.disconnect()
    with failing("is not there"):
        bloom.add("a")
    proxy.fault = PASS
    assert bloom.add("a")


def test_the_proxy_strikes_so_many_requests(bloom: BloomFilter, proxy: Proxy) -> None:
    bloom.add("the server knows the script")
    proxy.fault = Fault(Kind.RESET_REPLY, times=1)
    with failing(CLOSED):
        bloom.add("a")
    assert proxy.struck == 1
    assert not bloom.add("a")  # it had reached the server
    proxy.fault = Fault(Kind.RESET_REQUEST, times=1)
    with failing(CLOSED):
        bloom.add("b")
    assert bloom.add("b")
    proxy.fault = Fault(Kind.DROP_REQUEST, probability=0)
    assert bloom.add("c")
    assert proxy.struck == 2


def test_many_stale_rings_and_slow_replies(
    bloom: BloomFilter, proxy: Proxy, server: Server
) -> None:
    """Each block that another client has rotated costs a round trip."""
    with server.client() as client:
        BloomFilter(client, KEY).rotate()
    proxy.fault = Fault(Kind.DELAY, seconds=SLOWLY)
    with ending(bloom):
        bloom.add_many(map(str, range(1_000)))


def test_an_operation_on_all_blocks_has_the_time_for_each_round_trip(proxy: Proxy) -> None:
    """A filter of thousands of blocks takes longer to open than a single reply may."""
    proxy.fault = Fault(Kind.DELAY, seconds=TIMEOUT / 6)
    with filter_at(proxy.url) as bloom:
        bloom.open()
        bloom.clear()
        proxy.fault = Fault(Kind.HANG)
        with ending(bloom):
            bloom.clear()


def test_forgotten_scripts_and_slow_replies(
    bloom: BloomFilter, proxy: Proxy, client: redis.Redis
) -> None:
    proxy.fault = Fault(Kind.DELAY, seconds=0.6 * TIMEOUT)
    client.script_flush()
    with ending(bloom):
        bloom.add_many(map(str, range(1_000)))
    client.script_flush()
    bloom._driver.client.ping()
    with ending(bloom):
        bloom.add("a")


def test_a_slow_handshake(any_binary: str) -> None:
    """AUTH, CLIENT SETINFO twice, SELECT: each byte of each reply would restart a time-out."""
    params = {"password": "secret", "db": 3}
    with (
        Server(any_binary, "--requirepass", "secret") as server,
        Proxy(server.port) as proxy,
        filter_at(proxy.url, **params) as bloom,
    ):
        for fault in (Fault(Kind.DRIBBLE, TIMEOUT / 4), Fault(Kind.DELAY, SLOWLY)):
            proxy.fault = fault
            with ending(bloom):
                bloom.open()
        proxy.fault = PASS
        bloom.open()
        assert bloom._driver.client.client_info()["db"] == 3


def test_many_addresses_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address of a host gets what is left, not a time-out of its own."""
    with socket.socket() as full, ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # the kernel answers no more attempts than this
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())] * 8
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        with filter_at("redis://many.invalid") as bloom, ending(bloom):
            bloom.open()


def test_other_clients_are_looked_at_between_round_trips(proxy: Proxy, client: redis.Redis) -> None:
    ping = Call(load("header"), ("{k}:header",), ("read",))

    def steps() -> Any:
        while True:
            yield [ping]

    url = {"unix_socket_path": str(proxy.path)} if proxy.path else {"port": proxy.port}
    with redis.Redis(**url, socket_timeout=PATIENCE) as other:
        driver = Driver(other, timeout=TIMEOUT)
        driver.may_connect = False  # is not heeded
        proxy.fault = Fault(Kind.DELAY, seconds=SLOWLY / 2)
        with failing(LATE):
            driver.run(steps())
        assert driver.round_trips < 5
        other.connection_pool.disconnect()


# -- TLS --


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that talks TLS: Debian's, where it is installed."""
    binary, openssl = shutil.which("redis-server"), shutil.which("openssl")
    if not binary or not openssl:
        pytest.skip("no redis-server or no openssl")
    directory = tmp_path_factory.mktemp("tls")
    key, cert = directory / "key", directory / "cert"
    new = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*new, "-keyout", key, "-out", cert], check=True, capture_output=True)
    files = ("--tls-key-file", str(key), "--tls-cert-file", str(cert))
    port = free_port()
    options = ("--tls-port", str(port), *files, "--tls-auth-clients", "no")
    with Server(binary, *options):
        yield port


@pytest.mark.parametrize("parser", [_HiredisParser, _RESP2Parser])
def test_tls(tls_port: int, parser: type) -> None:
    with Proxy(tls_port) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_cert_reqs=none&ssl_check_hostname=false"
        with filter_at(url, parser) as bloom:
            bloom._driver.client.flushall()
            bloom.open()
            assert bloom.add_many(map(str, range(1_000))).count(True) > 990
            for fault in (
                Fault(Kind.DRIBBLE, seconds=TIMEOUT / 10),
                Fault(Kind.HALF),
                Fault(Kind.HANG),
                Fault(Kind.DROP_REPLY),
            ):
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


def test_the_setting_bounds_operations() -> None:
    settings = Settings({"BLOOM_TIMEOUT": 0.7, "BLOOM_REDIS_URL": "redis://127.0.0.1"})
    with closing(connect_filters(BloomSettings.from_scrapy(settings, "shop"), settings)) as filters:
        assert filters.lasting._driver._timeout == 0.7


# -- a late reply --


@pytest.mark.parametrize("fault", [Fault(Kind.DELAY, 3 * TIMEOUT, times=1), Fault(Kind.HALF)])
@pytest.mark.parametrize("pipeline", [False, True])
def test_a_late_reply_is_nobodys_answer(
    bloom: BloomFilter, proxy: Proxy, fault: Fault, pipeline: bool
) -> None:
    client = bloom._driver.client

    def echo(*words: bytes) -> list[bytes]:
        if not pipeline:
            return [client.echo(word) for word in words]
        with client.pipeline(transaction=False) as batch:
            for word in words:
                batch.echo(word)
            return batch.execute(raise_on_error=False)

    assert echo(b"before") == [b"before"]
    proxy.fault = fault
    with within(TIMEOUT), pytest.raises(redis.TimeoutError):
        echo(b"first", b"second")
    assert client.connection_pool._available_connections[0]._sock is None
    proxy.fault = PASS
    time.sleep(3 * TIMEOUT)
    assert echo(b"third") == [b"third"]
    assert echo(b"fourth", b"fifth") == [b"fourth", b"fifth"]


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
    bloom: BloomFilter, proxy: Proxy, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = bloom._driver
    assert driver.may_connect
    driver.may_connect = False
    assert bloom.add("live")
    client.client_kill_filter(_type="normal", skipme=True)
    until(lambda: not proxy.open_connections, "the connections are closed")
    for _ in range(2):
        with untouched(proxy, monkeypatch):
            bloom.add("closed by the server while idle")
    with untouched(proxy, monkeypatch):
        bloom.add_many(map(str, range(1_000)))
    with untouched(proxy, monkeypatch):
        bloom.eviction_policy()
    reconnect(bloom)
    assert bloom.add("live again")
    proxy.fault = Fault(Kind.DROP_REPLY, times=1)
    with ending(bloom):
        bloom.add("a")
    with untouched(proxy, monkeypatch):
        bloom.add("after a time-out")
    driver.may_connect = True
    assert not bloom.add("a")


def test_nothing_is_sent_before_the_first_connection(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filter_at(proxy.url) as bloom:
        bloom._driver.may_connect = False
        with untouched(proxy, monkeypatch):
            bloom.open()
        reconnect(bloom)
        bloom.open()
        assert proxy.connections == 1


def reconnect(bloom: BloomFilter) -> None:
    """Make a connection as a background thread does: by an operation on the same client."""
    other = BloomFilter(bloom._driver.client, KEY, timeout=PATIENCE)
    thread = threading.Thread(target=other.eviction_policy)
    thread.start()
    thread.join()


# -- within --


#: Of nested blocks: their seconds, whether they may connect, and the seconds that are then waited.
blocks = st.lists(
    st.tuples(st.none() | st.integers(0, 20), st.booleans(), st.integers(0, 10)), max_size=6
)


@given(blocks)
def test_the_earliest_end_counts(nested: list[tuple[int | None, bool, int]]) -> None:
    ends: list[float] = []
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(deadline.here, "waited", 100.0)
        stack.callback(check, [], [])
        for depth, (seconds, connects, waited) in enumerate(nested, 1):
            outer = list(ends), [connect for _, connect, _ in nested[: depth - 1]]
            stack.callback(check, *outer)
            stack.enter_context(within(seconds, connect=connects))
            ends += [] if seconds is None else [deadline.here.waited + seconds]
            spend(waited)
            check(ends, [connect for _, connect, _ in nested[:depth]])


def check(ends: list[float], connects: list[bool]) -> None:
    assert may_connect() == all(connects)
    waited = deadline.here.waited
    if not ends:
        assert remaining() is None
    elif min(ends) > waited:
        assert remaining() == min(ends) - waited
    else:
        with pytest.raises(TimeoutError):
            remaining()


def test_another_thread_has_limits_of_its_own() -> None:
    seen = []
    with within(5, connect=False):
        thread = threading.Thread(target=lambda: seen.extend([remaining(), may_connect()]))
        thread.start()
        thread.join()
    assert seen == [None, True]


def test_an_error_ends_a_block() -> None:
    with pytest.raises(KeyError), within(5, connect=False):
        raise KeyError
    assert remaining() is None
    assert may_connect()


# -- the socket --


def test_a_peer_that_reads_slowly() -> None:
    ours, theirs = socket.socketpair()

    def read() -> None:
        while theirs.recv(65_536):
            time.sleep(TIMEOUT / 10)

    thread = threading.Thread(target=read)
    thread.start()
    started = time.monotonic()
    with ours, theirs:
        with within(TIMEOUT), pytest.raises(TimeoutError):
            BoundedSocket(ours, 60).sendall(bytes(50_000_000))
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert time.monotonic() - started < 3 * TIMEOUT


def test_all_is_sent_in_pieces() -> None:
    class Slow:
        sent = b""

        def send(self, data: bytes) -> int:
            self.sent += bytes(data[:3])
            return min(len(data), 3)

        def settimeout(self, seconds: float) -> None:
            assert seconds > 0

        def fileno(self) -> int:
            return -1

    slow = Slow()
    BoundedSocket(slow, 60).sendall(b"0123456789")
    assert slow.sent == b"0123456789"


def test_after_a_deadline_a_socket_has_its_own_timeout_again() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bounded = BoundedSocket(ours, TIMEOUT)
        with within(0.01), pytest.raises(TimeoutError):
            bounded.recv(1)
        assert ours.gettimeout() < 0.011
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            bounded.recv(1)
        assert time.monotonic() - begin >= TIMEOUT


def test_a_socket_that_must_not_wait_does_not() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, within(60):
        bounded = BoundedSocket(ours, 60)
        bounded.settimeout(0)
        with pytest.raises(BlockingIOError):
            bounded.recv(1)
        with pytest.raises(BlockingIOError):
            bounded.recv_into(bytearray(1))


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
    server: Server, client: redis.Redis
) -> None:
    timeout, lateness = 0.1, 0.15
    with closing(connect(server.url, timeout=timeout)) as connection:
        bloom = BloomFilter(connection.client, KEY, blocks=2, capacity=1_000, timeout=timeout)
        with waiting_for_the_gil(lateness):
            assert bloom.add("connecting, handshakes, the header and all rings")
            assert not bloom.add("connecting, handshakes, the header and all rings")
        client.client_pause(10_000, all=False)
        try:
            with waiting_for_the_gil(0.01), failing(LATE):
                bloom.add("a server that is silent")
        finally:
            client.client_unpause()
