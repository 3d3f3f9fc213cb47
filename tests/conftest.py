"""Fixtures: one real server of a kind per process, an empty database per test."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.utils.reactor import install_reactor
from support import leaks
from support.certificates import TLSServer
from support.clock import MOVED_TO, MovedServer, why_not
from support.examples import register_profiles
from support.nursery import close_shared_nursery
from support.polling import until
from support.servers import MISSING, SERVERS, Server, start_cluster

StartOnce = Callable[[type[Server], str], Any]
register_profiles()
# pytest-xdist sets it: tables would be as wide as the terminal of the developer.
os.environ.pop("COLUMNS", None)
# What a Scrapy process does first; up to 2.14, a crawler cannot be built without.
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")


def pytest_report_header() -> list[str]:
    """Say which servers the tests run on, and which are missing."""
    lines = [f"server {name}: {binary}" for name, binary in SERVERS.items()]
    return lines + [f"server {name}: NOT INSTALLED, nothing runs on it" for name in MISSING]


def pytest_sessionstart() -> None:
    """A missing server is for the user to know, and an error in CI."""
    if MISSING and os.environ.get("CI"):
        raise pytest.UsageError(f"no {' and no '.join(MISSING)} server on this machine")


def pytest_sessionfinish() -> None:
    """The reactor was not run, so nothing else closes its event loop."""
    reactor: Any = sys.modules["twisted.internet.reactor"]
    reactor._asyncioEventloop.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked `each_server` once on each kind of server, others on the first kind."""
    marker = metafunc.definition.get_closest_marker("each_server")
    if marker is None:
        return
    first, *others = SERVERS or ["none"]
    marks = [pytest.mark.slow] if marker.kwargs.get("others") == "slow" else []
    kinds = [first, *(pytest.param(other, marks=marks) for other in others)]
    for name in ("server", "moved_server"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, kinds, indirect=True, scope="session")


@pytest.fixture(scope="session", autouse=True)
def nursery_closed() -> Iterator[None]:
    """Crawlers are forked from one process, which ends with this one."""
    yield
    close_shared_nursery()


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """A test ends its threads and child processes; those of wider fixtures are there before."""
    threads, children = leaks.threads(), leaks.children()
    yield
    until(lambda: not leaks.threads() - threads, f"threads end: {leaks.threads() - threads}")
    left = [leaks.describe(pid) for pid in leaks.children() - children]
    assert not left, f"left running: {left}"


@pytest.fixture(scope="module", autouse=True)
def no_server_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Embedded servers end with their last user, although they are nobody's children."""
    yield
    directory = tmp_path_factory.getbasetemp().resolve()
    until(lambda: not leaks.servers_in(directory), f"no server runs in {directory}")


@pytest.fixture(scope="session")
def start_once() -> Iterator[StartOnce]:
    """Starts servers of the session, by class and binary, when they are first needed."""
    started: dict[tuple[type[Server], str], Server] = {}
    with ExitStack() as stack:

        def start(kind: type[Server], binary: str) -> Any:
            if (kind, binary) not in started:
                started[kind, binary] = stack.enter_context(kind(binary))
            return started[kind, binary]

        yield start


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, start_once: StartOnce, any_binary: str) -> Server:
    """A running server: the preferred kind, or each kind in turn where `each_server` is marked."""
    kind = getattr(request, "param", "")
    running: Server = start_once(Server, SERVERS.get(kind, any_binary))
    return running


@pytest.fixture(scope="session")
def any_binary() -> str:
    """The binary of whichever server is there, for tests that need a server of their own."""
    if not SERVERS:
        pytest.fail(f"no {' and no '.join(MISSING)} server on this machine")
    return next(iter(SERVERS.values()))


@pytest.fixture
def own_server(any_binary: str) -> Iterator[Server]:
    """A server of the test's own."""
    with Server(any_binary) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client on an empty database."""
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture(scope="module")
def nodes(any_binary: str) -> Iterator[list[Server]]:
    """Three primaries that share the slots."""
    with start_cluster(any_binary) as servers:
        yield servers


@pytest.fixture
def cluster(nodes: list[Server]) -> Iterator[redis.RedisCluster]:
    """A client of that cluster, which is empty."""
    with redis.RedisCluster(
        host="127.0.0.1", port=nodes[0].port, retry=Retry(NoBackoff(), 0)
    ) as client:
        client.flushall(target_nodes=redis.RedisCluster.PRIMARIES)
        yield client


@pytest.fixture(scope="session")
def moved_server(
    request: pytest.FixtureRequest, start_once: StartOnce, any_binary: str
) -> MovedServer:
    """The server behind ``moved``; where there can be none, CI fails."""
    reason = why_not()
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    kind = getattr(request, "param", "")
    running: MovedServer = start_once(MovedServer, SERVERS.get(kind, any_binary))
    return running


@pytest.fixture
def moved(moved_server: MovedServer) -> MovedServer:
    """A server whose clock the test moves: empty, and at noon (UTC) on 15 January 2027."""
    moved_server.set_time(MOVED_TO)
    with moved_server.client() as client:
        client.flushall()
    return moved_server


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSServer]:
    """A server that expects TLS, with an authority of its own."""
    secure = TLSServer(tmp_path_factory.mktemp("tls"))
    with secure.server:
        yield secure
