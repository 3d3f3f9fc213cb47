"""What a crawl does while its Redis server does not do what it is asked, and what comes after."""

import asyncio
import functools
import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import Request, Spider
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from support.crawling import crawl, needs_embedded, options, run
from support.proxy import PASS, Fault, Kind, Proxy
from support.servers import Server

from scrapy_bloom import BloomDupeFilter, BloomFilter, StorageError
from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.crawl import failover, server_state, write_behind
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.opening import Opening

#: BLOOM_TIMEOUT here, and what a call may take on a machine that has other things to do.
TIMEOUT = 0.5
IN_TIME = 3 * TIMEOUT
#: Seconds after which what ought to happen by itself has not.
PATIENCE = 20.0
REMEMBER = ["scheduled", "crawled"]
PASSWORD = "s3cret"
SLOTS = 16_384
#: Pages that a crawl of the example project has under way at most.
CONCURRENT_REQUESTS = 16
#: A name that has to be looked up.
HOST = "redis.test"


class Shop(Spider):
    name = "shop"


class EngineAdapter:
    """As much of Scrapy's engine as the filter needs here; takes down what it is told."""

    _slot = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def unpause(self) -> None:
        self.calls.append("unpause")

    async def close_spider_async(self, *, reason: str) -> None:
        self.calls.append(reason)


class Worker:
    """An open dupefilter, in a running event loop; closed at the end of a ``with`` block."""

    def __init__(self, url: str, **settings: object) -> None:
        given = {
            "BLOOM_REDIS_URL": url,
            "BLOOM_CAPACITY": 10_000,
            "BLOOM_TIMEOUT": TIMEOUT,
            **settings,
        }
        self.crawler = get_crawler(Shop, given)
        self.crawler.spider = self.crawler._create_spider("shop")
        self.dupefilter = BloomDupeFilter.from_crawler(self.crawler)
        self.dupefilter.open()
        self.deduplicator = self.dupefilter._deduplicator
        self.connections = self.dupefilter._crawl.connections
        self.thread: Any = self.dupefilter._crawl.write_behind
        self.crawler.engine = self.engine = EngineAdapter()

    def sees(self, number: int) -> bool:
        """Ask about a page, and see to it that there is an answer in time."""
        begin = time.monotonic()
        is_seen = self.dupefilter.request_seen(page(number))
        assert time.monotonic() - begin < IN_TIME
        return is_seen

    def stat(self, name: str) -> int:
        return self.crawler.stats.get_value(f"bloom/{name}", 0)

    def is_back(self) -> bool:
        """Whether the server is there again, as far as the crawl's thread knows."""
        return self.dupefilter._crawl.failover.is_up and self.stat("back") >= self.stat("outages")

    def __enter__(self) -> "Worker":  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *error: object) -> None:
        self.dupefilter.close("finished")


def page(number: int) -> Request:
    return Request(f"https://example.com/{number}")


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop, as Scrapy would."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the event loop run until something holds, which takes as long as it takes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what or condition}"
        await asyncio.sleep(0.01)


async def back(worker: Worker) -> None:
    """Wait until the crawl has its filters again."""
    await until(worker.is_back, "the server is not found again")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for servers more often, and count when they are back."""
    monkeypatch.setattr(write_behind, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(server_state, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(server_state, "LAST_RETRY_SECONDS", 0.2)
    server_back = Failover.server_back

    def back(self: Failover, filters: Filters) -> None:
        server_back(self, filters)
        self._report.stats.inc_value("bloom/back")

    monkeypatch.setattr(Failover, "server_back", back)


@pytest.fixture
def own(server: Server) -> Iterator[Server]:
    """A server of the test's own, of each kind."""
    with Server(server.binary) as own:
        yield own


def recorded(server: Server, spider: str = "shop") -> int:
    """Return how many pages are recorded."""
    with server.client() as client:
        return len(BloomFilter(client, f"{spider}:bloom"))


def claimed(server: Server) -> int:
    """Return how many pages are claimed."""
    with server.client() as client:
        return sum(client.hlen(key) for key in client.scan_iter("*:claims"))


def marked(server: Server, remember: str) -> int:
    """Return how many pages other workers leave alone."""
    counts = recorded(server), claimed(server)
    assert counts[remember == "scheduled"] == 0
    return sum(counts)


async def outlive(
    cause: Callable[[], AbstractContextManager[object]],
    server: Server,
    *,
    url: str,
    remember: str,
    says: str,
    caplog: pytest.LogCaptureFixture,
    forgets: bool = False,
) -> None:
    """Go through an outage, and find everything as it should be, during and after it."""
    with Worker(url, BLOOM_REMEMBER=remember) as worker:
        assert not worker.sees(0)
        with cause():
            caplog.clear()
            assert not worker.sees(1), "an unknown outcome is new"
            assert worker.sees(1), "and final"
            round_trips = worker.connections.round_trips
            assert not any(worker.sees(number) for number in range(2, 10))
            assert all(worker.sees(number) for number in range(10)), "before and since"
            assert worker.connections.round_trips == round_trips, "nobody is asked any more"
            assert (worker.stat("unknown"), worker.stat("offline")) == (1, 8)
            await until(lambda: re.search(says, caplog.text), f"{says} in {caplog.text}")
            assert not worker.sees(10)
            assert worker.sees(10), "although the server was looked for"
        await back(worker)
        await until(lambda: worker.stat("recorded_late") == 10)
        assert "reconnected" in caplog.text
        assert worker.stat("outages") == worker.stat("unknown") == 1
        assert all(worker.sees(number) for number in range(1, 11))
        assert not worker.sees(11)
        assert worker.stat("unknown") == 1
        with Worker(url, BLOOM_REMEMBER=remember) as other:
            assert all(other.sees(number) for number in range(1, 12))
            assert other.sees(0) is not forgets
            assert not other.sees(12)
        assert marked(server, remember) == 13
    assert PASSWORD not in caplog.text
    assert "Traceback" not in caplog.text


# -- what befalls the server --


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def stalled(server: Server) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """Restart a server that has a lot to load, or takes its time as if it had."""
    with server.client() as client, client.pipeline() as pipeline:
        for number in range(1_000):
            pipeline.set(f"ballast:{number}", "x" * 100)
        pipeline.execute()
        client.save()
    server.kill()
    slowly = ("--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024")
    server.options += slowly
    start = threading.Thread(target=server.start)
    start.start()
    try:
        yield
    finally:
        start.join()


@contextmanager
def admin(server: Server, *undo: str, url: str | None = None) -> Iterator[redis.Redis]:
    """Give a client, and have the server obey a command at the end."""
    with redis.Redis.from_url(url or server.unix_url) as client:
        client.ping()
        try:
            yield client
        finally:
            client.execute_command(*undo)


@contextmanager
def replica(server: Server) -> Iterator[None]:
    with admin(server, "REPLICAOF", "NO", "ONE") as client:
        client.replicaof("127.0.0.1", "1")
        yield


@contextmanager
def full(server: Server) -> Iterator[None]:
    with admin(server, "CONFIG", "SET", "maxmemory", "0") as client:
        client.config_set("maxmemory", 1)
        yield


@contextmanager
def unplugged(server: Server) -> Iterator[None]:
    """A node of a cluster loses its slots; with none at all, it would be slow to recover."""
    with admin(server, "CLUSTER", "ADDSLOTSRANGE", "1", str(SLOTS - 1)) as client:
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 1, SLOTS - 1)
        yield


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """Everybody has to give a password, and those who were inside are thrown out."""
    with admin(server, "CONFIG", "SET", "requirepass", "") as client:
        client.config_set("requirepass", "0ther")
        kick(client)
        yield


@contextmanager
def other_password(server: Server) -> Iterator[None]:
    undo = ("CONFIG", "SET", "requirepass", PASSWORD)
    with admin(server, *undo, url=f"unix://:{PASSWORD}@{server.socket}") as client:
        client.config_set("requirepass", "0ther")
        kick(client)
        yield


@contextmanager
def forbidden(server: Server) -> Iterator[None]:
    with admin(server, "ACL", "SETUSER", "default", "+@all") as client:
        client.acl_setuser("default", enabled=True, commands=["-evalsha", "-eval"])
        yield


@contextmanager
def forbidden_keys(server: Server) -> Iterator[None]:
    with admin(server, "ACL", "SETUSER", "default", "~*") as client:
        client.acl_setuser("default", enabled=True, reset_keys=True, keys=["other:*"])
        yield


@contextmanager
def replaced(server: Server) -> Iterator[None]:
    """Somebody else uses the filter's keys for something else."""
    with server.client() as client:
        rings = client.keys("*:ring")
        for key in rings:
            client.rename(key, b"saved:" + key)
            client.set(key, "mine")
        yield
        for key in rings:
            client.rename(b"saved:" + key, key)


@contextmanager
def crowded(server: Server) -> Iterator[None]:
    with admin(server, "CONFIG", "SET", "maxclients", "100") as client:
        client.config_set("maxclients", 1)
        kick(client)
        yield


@contextmanager
def nameless(server: Server) -> Iterator[None]:
    """The name of the host is not found any more, after a long search."""

    def fail(*args: object, **kwargs: object) -> None:
        time.sleep(IN_TIME)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with mock.patch("socket.getaddrinfo", fail), server.client() as client:
        client.ping()
        kick(client)
        yield


@contextmanager
def known_host(host: str) -> Iterator[None]:
    """Have a name stand for this machine."""
    getaddrinfo = socket.getaddrinfo

    def find(name: object, *args: Any, **kwargs: Any) -> object:
        return getaddrinfo("127.0.0.1" if name == host else name, *args, **kwargs)

    with mock.patch("socket.getaddrinfo", find):
        yield


def kick(client: redis.Redis) -> None:
    """Close everybody else's connections."""
    client.client_kill_filter(_type="normal", skipme=True)


@dataclass(frozen=True)
class Trouble:
    """What befalls a server.

    Attributes:
        cause: brings it about, and ends it.
        says: a regular expression of what the log says.
        options: of the server.
        host: under which the crawl knows it.
        forgets: whether it forgets what it knew.
        is_slow: whether once for each server is enough.
    """

    cause: Callable[[Server], AbstractContextManager[object]]
    says: str
    options: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    forgets: bool = False
    is_slow: bool = False


LASTING = ("--appendonly", "yes", "--appendfsync", "always")
CLUSTER = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
TROUBLES = [
    Trouble(killed, "is not there: start a server", forgets=True),
    Trouble(killed, "is not there: start a server", LASTING),
    Trouble(stalled, "did not answer in time: see whether it is up"),
    Trouble(loading, "is still loading its data: wait", is_slow=True),
    Trouble(replica, "is a read-only replica: use the address of its primary"),
    Trouble(full, "is out of memory: raise its maxmemory"),
    Trouble(unplugged, "node of a cluster that cannot serve this", CLUSTER, is_slow=True),
    Trouble(locked, "requires a password: give it in BLOOM_REDIS_URL"),
    Trouble(
        other_password,
        "refuses the user name or the password: correct them in BLOOM_REDIS_URL",
        ("--requirepass", PASSWORD),
        f":{PASSWORD}@127.0.0.1",
    ),
    Trouble(forbidden, "does not let this user do that: grant it the filter's keys and"),
    Trouble(forbidden_keys, "does not let this user do that: grant it the filter's keys and"),
    Trouble(replaced, r"key '\{shop:bloom:\d+\}:ring' holds a string.* delete it"),
    Trouble(crowded, "has no connection left: raise its maxclients|closed the connection: see"),
    Trouble(nameless, "host name that cannot be resolved: correct it", (), HOST),
]


@pytest.mark.parametrize(
    ("trouble", "remember"),
    [
        pytest.param(trouble, remember, id=f"{trouble.cause.__name__}-{remember}")
        for trouble in TROUBLES
        for remember in (REMEMBER[1:] if trouble.is_slow else REMEMBER)
    ],
)
@in_loop
async def test_what_befalls_the_server_costs_one_time_out_and_is_made_up_for(
    trouble: Trouble, remember: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with known_host(HOST), Server(server.binary, *trouble.options) as own:
        if trouble.options == CLUSTER:
            await found_cluster(own)
        url = f"redis://{trouble.host}:{own.port}/0"
        cause = functools.partial(trouble.cause, own)
        # What is looked at afterwards needs no password.
        own.unix_url = f"unix://:{PASSWORD}@{own.socket}" if "@" in url else own.unix_url
        await outlive(
            cause,
            own,
            url=url,
            remember=remember,
            says=trouble.says,
            caplog=caplog,
            forgets=trouble.forgets,
        )


async def found_cluster(server: Server) -> None:
    """Make a server a cluster of one node."""
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        await until(lambda: client.cluster("INFO")["cluster_state"] == "ok")


# -- what befalls the connection --

FAULTS = {
    "half-open": (Fault(Kind.HANG), "did not answer in time"),
    "swallowed": (Fault(Kind.DROP_REQUEST), "did not answer in time"),
    "reply lost": (Fault(Kind.DROP_REPLY), "did not answer in time"),
    "late": (Fault(Kind.DELAY, 3 * TIMEOUT), "did not answer in time"),
    "in dribs and drabs": (Fault(Kind.DRIBBLE, TIMEOUT / 2), "did not answer in time"),
    "reset": (Fault(Kind.RESET_REQUEST), "closed the connection: see its log"),
    "reset by the reply": (Fault(Kind.RESET_REPLY), "closed the connection: see its log"),
    "half a reply": (Fault(Kind.HALF), "did not answer in time"),
    "a byte of a reply": (Fault(Kind.HALF, size=1), "did not answer in time"),
}


@contextmanager
def struck(proxy: Proxy, fault: Fault) -> Iterator[None]:
    proxy.fault = fault
    yield
    proxy.fault = PASS


@pytest.mark.parametrize("remember", REMEMBER)
@pytest.mark.parametrize("name", FAULTS)
@in_loop
async def test_what_befalls_the_connection_costs_one_time_out_and_is_made_up_for(
    name: str, remember: str, lasting: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fault, says = FAULTS[name]
    with Proxy(lasting.port) as proxy:
        cause = functools.partial(struck, proxy, fault)
        await outlive(cause, lasting, url=proxy.url, remember=remember, says=says, caplog=caplog)


@pytest.fixture
def lasting(any_binary: str) -> Iterator[Server]:
    """A server of whichever kind is there that keeps all it is told, even if it is killed."""
    with Server(any_binary, *LASTING) as server:
        yield server


# -- what is answered --


class Liar:
    """Passes everything on to a server, unless it has an answer of its own to every command."""

    def __init__(self, server_port: int) -> None:
        self.answer = b""
        self._server_port = server_port
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.url = f"redis://127.0.0.1:{self._sockets[0].getsockname()[1]}/0"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, function: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=function, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._sockets[0].accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += client, server
                self._start(self._ask, client, server)
                self._start(self._reply, client, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if self.answer:
                    commands = len(re.findall(rb"(?:^|\r\n)\*\d+\r\n\$", data))
                    client.sendall(self.answer * commands)
                else:
                    server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _reply(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()


NO_REDIS = "is not a Redis server|a script (answered|returned)"
ANSWERS = {
    "moved": (b"-MOVED 7 127.0.0.1:1\r\n", "node of a cluster that cannot serve this"),
    "ask": (b"-ASK 7 127.0.0.1:1\r\n", "node of a cluster that cannot serve this"),
    "loading": (b"-LOADING Redis is loading the dataset in memory\r\n", "is still loading"),
    "busy": (b"-BUSY Redis is busy running a script\r\n", "is busy with a long script"),
    "misconf": (b"-MISCONF Redis is configured to save RDB\r\n", "cannot save to its disk"),
    "noreplicas": (b"-NOREPLICAS Not enough good replicas\r\n", "too few of its replicas"),
    "masterdown": (b"-MASTERDOWN Link with MASTER is down\r\n", "has lost its primary"),
    "unknown error": (b"-WHATEVER it is\r\n", "WHATEVER it is"),
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n", NO_REDIS),
    "bytes": (bytes(range(256)) + b"\r\n", NO_REDIS),
    "ok": (b"+OK\r\n", NO_REDIS),
    "number": (b":5\r\n", NO_REDIS),
    "nil": (b"$-1\r\n", NO_REDIS),
    "empty list": (b"*0\r\n", NO_REDIS),
    "a list": (b"*2\r\n+ok\r\n+9\r\n", NO_REDIS),
    "nested": (b"*1\r\n*1\r\n*0\r\n", NO_REDIS),
    "a lot": (b"$9999999999\r\nmuch", "did not answer in time|" + NO_REDIS),
    "no text": (b"*2\r\n$2\r\n\xff\xfe\r\n$1\r\n\x80\r\n", "does something else write"),
}


@contextmanager
def lying(liar: Liar, answer: bytes) -> Iterator[None]:
    liar.answer = answer
    yield
    liar.answer = b""


@pytest.mark.parametrize("name", ANSWERS)
@in_loop
async def test_whatever_is_answered_costs_one_time_out_and_is_made_up_for(
    name: str, lasting: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    answer, says = ANSWERS[name]
    remember = REMEMBER[len(name) % 2]
    with closing(Liar(lasting.port)) as liar:
        cause = functools.partial(lying, liar, answer)
        await outlive(cause, lasting, url=liar.url, remember=remember, says=says, caplog=caplog)


# -- no outage --


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_a_server_that_forgets_its_scripts_is_no_outage(remember: str, own: Server) -> None:
    with Worker(own.url, BLOOM_REMEMBER=remember) as worker, own.client() as client:
        for number in range(5):
            client.script_flush()
            assert not worker.sees(number)
            client.script_flush()
            assert worker.sees(number)
        assert worker.stat("outages") == worker.stat("unknown") == worker.stat("offline") == 0
    assert marked(own, remember) == 5


@in_loop
async def test_the_window_of_a_run_needs_no_server(own: Server) -> None:
    hub = Request("https://example.com/", meta={"bloom_window": "run"})
    with Worker(own.url, BLOOM_REMEMBER="scheduled") as worker, killed(own):
        assert not worker.dupefilter.request_seen(hub)
        assert worker.dupefilter.request_seen(hub)
        assert worker.stat("outages") == 0


@in_loop
async def test_a_server_that_stalls_before_the_first_request_hides_nothing(own: Server) -> None:
    with Worker(own.url) as worker:
        with stalled(own):
            assert not worker.sees(0)
        await back(worker)
        assert worker.sees(0)


@in_loop
async def test_many_round_trips_have_one_time_out(lasting: Server) -> None:
    """Each reply comes in time, and together they would not."""
    with Proxy(lasting.port) as proxy, Worker(proxy.url) as worker:
        with lasting.client() as client:
            client.flushall()
            client.script_flush()
        with struck(proxy, Fault(Kind.DELAY, TIMEOUT * 0.7)):
            assert not worker.sees(0)
            assert worker.stat("unknown") == 1
        await back(worker)
        assert worker.sees(0)


# -- at the start --


def once(function: Callable[[], object], after: float) -> threading.Timer:
    timer = threading.Timer(after, function)
    timer.start()
    return timer


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_a_crawl_waits_at_its_start_for_a_server_that_is_slow(
    remember: str, own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    own.process.send_signal(signal.SIGSTOP)
    once(lambda: own.process.send_signal(signal.SIGCONT), after=5 * TIMEOUT)
    with Worker(own.url, BLOOM_REMEMBER=remember) as worker:
        assert not worker.sees(0)
        assert worker.stat("outages") == 0
    assert caplog.text.count("Waiting for it, up to 30 s") == 1


@in_loop
async def test_a_crawl_waits_at_its_start_for_a_server_that_loads_its_data(own: Server) -> None:
    with loading(own):
        await until(lambda: is_loading(own))
        with Worker(own.url) as worker:
            assert not worker.sees(0)
            assert worker.stat("outages") == 0


def is_loading(server: Server) -> bool:
    """Without redis-py, whose version 5.0 leaves a socket open then."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(100)
    except ConnectionError:  # it does not listen yet
        return False
    assert reply.startswith(b"-LOADING"), "it has loaded its data already"
    return True


@in_loop
async def test_the_thread_waits_for_its_first_connection(own: Server) -> None:
    """A server that is slow then has not failed the crawl."""
    with Worker(own.url, BLOOM_REMEMBER="scheduled") as worker:
        with stalled(own):
            worker.thread.put(Job(JobKind.RELEASE, "lasting", b"whatever"))
            await asyncio.sleep(3 * TIMEOUT)
        await until(lambda: not worker.thread.queue)
        assert worker.stat("outages") == 0


def test_waiting_for_a_slow_server_has_an_end() -> None:
    calls = []

    def time_out() -> None:
        calls.append(None)
        raise NotReadyError("too late")

    with pytest.raises(NotReadyError):
        Opening(patience=0.5).run(time_out)
    assert len(calls) > 1
    calls.clear()
    with pytest.raises(NotReadyError):
        Opening(is_over=lambda: True).run(time_out)
    assert len(calls) == 1


def test_a_server_that_is_not_there_is_not_waited_for() -> None:
    begin = time.monotonic()
    with pytest.raises(StorageError, match="is not there"):
        Worker("redis://127.0.0.1:1/0")
    assert time.monotonic() - begin < PATIENCE


@needs_embedded
@in_loop
async def test_the_advice_about_an_embedded_server_is_not_to_use_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Worker(f"embedded:{tmp_path / 'data'}") as worker:
        path = worker.connections.filters.connection._server.socket_path
        with redis.Redis(unix_socket_path=str(path)) as client:
            pid = client.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert not worker.sees(0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "did not answer in time: see whether it is up, or start the crawl" in caplog.text
        assert "BLOOM_REDIS_URL" not in caplog.text
        await back(worker)


# -- on the way back --


@in_loop
async def test_outages_come_again(own: Server) -> None:
    own.kill()
    own.options = LASTING
    own.start()
    with Worker(own.url, BLOOM_REMEMBER="scheduled") as worker:
        for outage in range(3):
            with killed(own):
                assert not worker.sees(outage)
                assert not worker.sees(10 + outage)
            await back(worker)
            assert worker.stat("outages") == worker.stat("unknown") == outage + 1
        assert all(worker.sees(number) for number in (0, 1, 2, 10, 11, 12))


@in_loop
async def test_what_is_written_is_remembered_here_until_the_filter_can_be_asked(
    own: Server,
) -> None:
    with Worker(own.url, BLOOM_REMEMBER="scheduled") as worker, ExitStack() as outage:
        outage.enter_context(killed(own))
        assert not worker.sees(0)
        connect, calls = worker.thread._connect, []

        def connect_for_the_thread_only() -> Filters:
            calls.append(None)
            if len(calls) % 2 == 0 and len(calls) < 6:
                raise StorageError("there is one connection, and it is taken")
            return connect()

        worker.thread._connect = connect_for_the_thread_only
        outage.close()
        await until(lambda: worker.stat("recorded_late") == 1)
        assert worker.sees(0)
        await back(worker)
        assert worker.sees(0)


@in_loop
async def test_a_crawl_that_is_busy_when_the_server_is_back_does_without_a_little_longer(
    own: Server,
) -> None:
    """It may yield many requests before it is told."""
    with Worker(own.url, BLOOM_REMEMBER="scheduled") as worker:
        with killed(own):
            assert not worker.sees(0)
        deadline = time.monotonic() + PATIENCE
        while worker.thread.server.is_down:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not worker.sees(1)
        assert worker.sees(1)
        await back(worker)
        assert worker.stat("outages") == worker.stat("unknown") == 1
        await until(lambda: worker.stat("recorded_late") == 2)
    assert recorded(own) == 2


@in_loop
async def test_an_outage_that_crawl_and_thread_notice_is_one(own: Server) -> None:
    with Worker(own.url) as worker:
        with stalled(own):
            worker.thread.put(Job(JobKind.RELEASE, "lasting", b"whatever"))
            await asyncio.sleep(TIMEOUT / 3)
            assert not worker.sees(0)
            await until(lambda: worker.stat("outages"))
        await back(worker)
        assert worker.stat("outages") == 1


@in_loop
async def test_an_outage_that_the_thread_notices_costs_the_crawl_nothing(own: Server) -> None:
    with Worker(own.url) as worker:
        with killed(own):
            worker.thread.put(Job(JobKind.RELEASE, "lasting", b"whatever"))
            await until(lambda: worker.stat("outages"))
            assert not worker.sees(0)
            assert worker.sees(0)
        await back(worker)
        assert (worker.stat("unknown"), worker.stat("offline")) == (0, 1)
    assert claimed(own) == 1


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_a_bad_connection_hides_nothing_and_repeats_nothing(
    remember: str, lasting: Server
) -> None:
    with Proxy(lasting.port) as proxy, Worker(proxy.url, BLOOM_REMEMBER=remember) as worker:
        proxy.fault = Fault(Kind.RESET_REPLY, probability=0.05)
        deadline, count = time.monotonic() + PATIENCE, 0
        while worker.stat("outages") < 3:
            assert not worker.sees(count)
            assert worker.sees(count // 2)
            await asyncio.sleep(0.001)
            count += 1
            assert time.monotonic() < deadline
        proxy.fault = PASS
        await back(worker)
        await until(lambda: not worker.thread.queue)
        assert all(worker.sees(number) for number in range(count))
        assert marked(lasting, remember) == count


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_pages_are_made_up_for_in_their_windows(remember: str, own: Server) -> None:
    windows = {"BLOOM_WINDOWS": {"listing": "1 day", "daily": "2 days"}}
    with Worker(own.url, BLOOM_REMEMBER=remember, **windows) as worker:
        with killed(own):
            for name in ("lasting", "listing", "daily", "listing"):
                asked = Request(f"https://example.com/{name}", meta={"bloom_window": name})
                worker.dupefilter.request_seen(asked)
        await back(worker)
        for name in ("lasting", "listing", "daily"):
            for other in ("lasting", "listing", "daily"):
                asked = Request(f"https://example.com/{name}", meta={"bloom_window": other})
                assert worker.dupefilter.request_seen(asked) is (name == other)


# -- the end --


@in_loop
async def test_filters_that_come_when_the_crawl_is_over_are_closed(own: Server) -> None:
    with Worker(own.url, BLOOM_REDIS_PARAMS={"client_name": "ours"}) as worker:
        with killed(own):
            assert not worker.sees(0)
        deadline = time.monotonic() + PATIENCE
        while worker.thread.server.is_down:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with own.client() as client:
        await until(lambda: "ours" not in [entry["name"] for entry in client.client_list()])


@pytest.mark.parametrize("outage", [killed, stalled])
@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_a_crawl_ends_in_time_without_the_server_and_says_what_is_not_recorded(
    remember: str,
    outage: Callable[[Server], AbstractContextManager[None]],
    own: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Worker(own.url, BLOOM_REMEMBER=remember) as worker:
        with outage(own):
            assert not any(worker.sees(number) for number in range(3))
            begin = time.monotonic()
            worker.dupefilter.close("finished")
            assert time.monotonic() - begin < 2 * TIMEOUT + 2
        assert "3 records could not be written" in caplog.text
        assert not worker.sees(3)
    await until(lambda: "scrapy-bloom" not in {thread.name for thread in threading.enumerate()})
    assert marked(own, remember) <= 3


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_what_is_left_is_written_at_the_end_if_the_server_is_there(
    remember: str, own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with Worker(own.url, BLOOM_REMEMBER=remember, BLOOM_TIMEOUT=5) as worker, killed(own):
        worker.thread.server._failures = 1_000  # it would not be looked for in a long time
        assert not any(worker.sees(number) for number in range(3))
    assert marked(own, remember) == 3
    assert "could not be written" not in caplog.text


# -- the policy --

CLOSED = "bloom_redis_unavailable"


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_the_spider_is_closed_once_if_that_is_wanted(
    remember: str, own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"BLOOM_REMEMBER": remember, "BLOOM_ON_REDIS_ERROR": "close"}
    with Worker(own.url, **settings) as worker:
        with killed(own):
            assert not worker.sees(0)
            assert "The spider is closed, unless the server is back at once" in caplog.text
            await until(lambda: worker.engine.calls)
            assert not worker.sees(1), "requests come until it is closed"
            assert worker.sees(1)
            await until(lambda: worker.thread.server._failures > 2)
        await back(worker)
        assert worker.engine.calls == [CLOSED]
    assert marked(own, remember) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", HOST])
@in_loop
async def test_the_spider_is_not_closed_because_a_connection_was(host: str, own: Server) -> None:
    """An idle one is made anew at once; a name would have to be looked up, in the thread."""
    with ExitStack() as stack:
        stack.enter_context(known_host(HOST))
        url = f"redis://{host}:{own.port}/0"
        # "scheduled": the thread has nothing to do, and does not miss the server while it restarts.
        settings = {"BLOOM_ON_REDIS_ERROR": "close", "BLOOM_REMEMBER": "scheduled"}
        worker = stack.enter_context(Worker(url, **settings))
        client = stack.enter_context(own.client())
        client.ping()
        kick(client)
        assert not worker.sees(0)
        assert worker.sees(0)
        await back(worker)
        with killed(own):
            pass
        assert not worker.sees(1)
        await back(worker)
        assert worker.sees(1)
        assert worker.stat("outages") == (2 if host == HOST else 0)
        assert worker.engine.calls == []


@in_loop
async def test_a_connection_that_was_closed_is_no_outage(own: Server) -> None:
    with Worker(own.url) as worker, own.client() as client:
        for number in range(3):
            client.ping()
            kick(client)
            assert not worker.sees(number)
            assert worker.sees(number)
        assert worker.stat("outages") == worker.stat("unknown") == 0


@in_loop
async def test_the_spider_is_not_closed_without_being_asked_to(own: Server) -> None:
    with Worker(own.url) as worker:
        with killed(own):
            assert not worker.sees(0)
            await until(lambda: worker.thread.server._failures > 2)
        await back(worker)
        assert worker.engine.calls == []


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_the_crawl_waits_when_there_is_room_for_no_more(
    remember: str, own: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failover, "MAX_OFFLINE", 5)
    with Worker(own.url, BLOOM_REMEMBER=remember) as worker:
        for outages in (1, 2):
            with killed(own):
                assert not any(worker.sees(outages * 100 + number) for number in range(4))
                assert worker.engine.calls == ["pause", "unpause"] * (outages - 1)
                # Those that are under way when it is paused come all the same.
                assert not any(worker.sees(outages * 100 + number) for number in range(4, 9))
                assert worker.engine.calls == ["pause", "unpause"] * (outages - 1) + ["pause"]
            await back(worker)
            assert worker.engine.calls == ["pause", "unpause"] * outages
            await until(lambda: not worker.thread.queue)
    assert "remembers 5 requests by itself" in caplog.text
    assert marked(own, remember) == 9, "those of the second outage"


@needs_embedded
@in_loop
async def test_an_embedded_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with Worker(f"embedded:{tmp_path / 'data'}", BLOOM_TIMEOUT=5) as worker:
        assert not worker.dupefilter.request_seen(page(0))
        path = worker.connections.filters.connection._server.socket_path
        with redis.Redis(unix_socket_path=str(path)) as client:
            pid = client.info("server")["process_id"]
        os.kill(pid, signal.SIGKILL)
        assert not worker.dupefilter.request_seen(page(1))
        await back(worker)
        assert all(worker.dupefilter.request_seen(page(number)) for number in range(2))
        assert worker.stat("outages") == 1


# -- crawls --


Actions = dict[int, Callable[[], object]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine of 104 pages."""
    return Site.build(tmp_path / "site", count=64)


def crawl_and_act(
    web: SiteServer, directory: Path, actions: Actions, **settings: str
) -> dict[str, Any]:
    """Crawl, and act when so many pages are asked for, before they are sent; return the stats."""
    count, lock = web.count, threading.Lock()
    stats = directory / "stats.json"
    # One by one, so that something is asked all the time; for batches, see test_outputs_crawl.py.
    settings = {"BLOOM_BATCH": "0", "BLOOM_CACHE_SIZE": "0", **settings}
    line = options(web, {"STATS_FILE": stats, **settings})

    def count_and_act(url: str) -> None:
        with lock:
            count(url)
            actions.get(web.hits().total(), int)()

    web.count = count_and_act
    try:
        done = run("-m", "scrapy", "crawl", "links", *line)
    finally:
        web.count = count
    assert done.returncode == 0, done.stderr
    assert "] ERROR: " not in done.stderr
    result: dict[str, Any] = json.loads(stats.read_text())
    return result


@pytest.mark.parametrize("outage", [killed, stalled])
def test_a_crawl_goes_on_without_the_server(
    outage: Callable[[Server], AbstractContextManager[None]],
    lasting: Server,
    site: Site,
    web: SiteServer,
    tmp_path: Path,
) -> None:
    remember = "crawled" if outage is killed else "scheduled"
    with ExitStack() as end:
        settings = {"BLOOM_REDIS_URL": lasting.url, "BLOOM_REMEMBER": remember}
        actions = {25: lambda: end.enter_context(outage(lasting)), 60: end.close}
        stats = crawl_and_act(web, tmp_path, actions, **settings)
        assert stats["finish_reason"] == "finished"
        assert stats["bloom/outages"] == 1
        assert stats["bloom/offline"] > 0
        expected = Counter(site.truth().crawl())
        assert web.hits() >= expected, "every page"
        expected += Counter(site.truth().crawl(site.truth()))
        crawl("links", web, tmp_path, **settings)
        assert web.hits() >= expected
        # A server that was restarted may have lost the claims on links of pages under way: they are
        # crawled again, by the next run if the server is back too late for this one.
        again = (web.hits() - expected).total()
        assert again <= stats.get("bloom/repeated", 0), "and once; all is recorded"
        assert again <= 2 * CONCURRENT_REQUESTS
        before = web.hits()
        crawl("links", web, tmp_path, **settings)
        assert web.hits() - before == Counter(site.truth().crawl(site.truth())), "all is recorded"


def test_a_server_that_stalls_at_the_first_claim_hides_nothing(
    lasting: Server, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    """The home page, which nobody claims, is the second that is asked for, after robots.txt."""
    with ExitStack() as end:
        actions = {2: lambda: end.enter_context(stalled(lasting)), 20: end.close}
        stats = crawl_and_act(web, tmp_path, actions, BLOOM_REDIS_URL=lasting.url)
        assert stats["finish_reason"] == "finished"
        assert web.hits() == Counter(site.truth().crawl())


@pytest.mark.parametrize("remember", REMEMBER)
def test_a_crawl_that_is_closed_leaves_nothing_marked_that_was_not_scheduled(
    remember: str, lasting: Server, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    with ExitStack() as end:
        settings = {"BLOOM_REDIS_URL": lasting.url, "BLOOM_REMEMBER": remember}

        def kill() -> None:
            deadline = time.monotonic() + PATIENCE
            while not recorded(lasting, "links"):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            end.enter_context(killed(lasting))

        stats = crawl_and_act(web, tmp_path, {50: kill}, BLOOM_ON_REDIS_ERROR="close", **settings)
        assert stats["finish_reason"] == CLOSED
    fetched, pages = web.hits(), site.truth().crawl()
    assert len(fetched) < len(pages)
    with lasting.client() as client:
        bloom = BloomFilter(client, "links:bloom")
        urls = [path for path in pages if fingerprint(Request(web.url + path)) in bloom]
    if remember == "scheduled":
        assert stats["bloom/new"] <= len(urls) <= stats["bloom/new"] + stats.get("bloom/unknown", 0)
        return
    assert urls
    assert set(urls) <= set(fetched)
    crawl("links", web, tmp_path, **settings)
    assert set(web.hits()) == set(pages), "and the next crawl goes on"
