"""Fixtures: one real server of each kind per session, an empty database per test."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis
from clock import MOVED_TO, MovedServer, why_not
from example_site.build import Site
from example_site.serve import SiteServer, serve
from scrapy.utils.reactor import install_reactor
from servers import Server, find_servers

FOUND = find_servers()
SERVERS = {name: binary for name, binary in FOUND.items() if binary}
MISSING = sorted(FOUND.keys() - SERVERS.keys())
# Never a timed assertion; in CI, hypothesis has such a profile of its own.
if not os.environ.get("CI"):
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
# What a Scrapy process does first; up to 2.14, a crawler cannot be built without.
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")


def pytest_report_header() -> list[str]:
    """Say which servers the tests run on, and which are missing."""
    lines = [f"server {name}: {binary}" for name, binary in SERVERS.items()]
    return lines + [f"server {name}: NOT INSTALLED, nothing runs on it" for name in MISSING]


def pytest_sessionstart() -> None:
    """A missing server is for the user to know, and an error in CI."""
    if not SERVERS or (MISSING and os.environ.get("CI")):
        raise pytest.UsageError(f"no {' and no '.join(MISSING)} server on this machine")


@pytest.fixture(scope="session", params=sorted(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A running server; the test runs once on each kind."""
    with Server(SERVERS[request.param]) as running:
        yield running


@pytest.fixture(scope="session")
def any_binary() -> str:
    """The binary of whichever server is there, for tests that need a server of their own."""
    return next(iter(SERVERS.values()))


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client on an empty database."""
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session", params=sorted(SERVERS))
def moved_server(request: pytest.FixtureRequest) -> Iterator[MovedServer]:
    """The server behind ``moved``; where there can be none, CI fails."""
    reason = why_not()
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with MovedServer(SERVERS[request.param]) as running:
        yield running


@pytest.fixture
def moved(moved_server: MovedServer) -> MovedServer:
    """A server whose clock the test moves: empty, and at noon (UTC) on 15 January 2027."""
    moved_server.set_time(MOVED_TO)
    with moved_server.client() as client:
        client.flushall()
    return moved_server


@pytest.fixture
def redis_url(any_binary: str) -> Iterator[str]:
    """The address of a server of the test's own."""
    with Server(any_binary) as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine of less than half the size, to be crawled quickly. The demo crawls the whole."""
    return Site.build(tmp_path / "site", count=128)


@pytest.fixture
def web(site: Site) -> Iterator[SiteServer]:
    """The site on a server, which counts what is fetched."""
    with serve(site.directory) as server:
        yield server
