"""Fixtures: one real server of each kind per session, an empty database per test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer, serve
from servers import Server, find_servers

SERVERS = find_servers()


@pytest.fixture(scope="session", params=sorted(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A running server; the test runs once on each kind. A missing one fails in CI."""
    binary = SERVERS[request.param]
    if binary is None:
        message = f"no {request.param} server on this machine (see README, Tests)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with Server(binary) as running:
        yield running


@pytest.fixture(scope="session")
def any_binary() -> str:
    """The binary of whichever server is there, for tests that need a server of their own."""
    return next(binary for binary in SERVERS.values() if binary)


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client on an empty database."""
    with server.client() as client:
        client.flushall()
        yield client


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
