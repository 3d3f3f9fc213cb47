"""Crawls by each form of address, and through failovers of services and clusters."""

import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from example_site.build import Site
from example_site.serve import SiteServer, serve
from support.certificates import TLSServer
from support.crawling import crawl, crawl_and_act
from support.polling import until
from support.replicas import start_cluster_with_replica
from support.sentinels import Watched, start_sentinels
from support.servers import Server

RECONNECTED, OUTAGE = "Bloom filter: reconnected to ", "(bloom/outages counts on)"


@pytest.fixture
def watched(any_binary: str) -> Iterator[Watched]:
    with start_sentinels(any_binary) as watched:
        yield watched


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine of 104 pages."""
    return Site.build(tmp_path / "site", count=64)


def wait_for_crawl(directory: Path) -> None:
    """Wait until a crawl has found the new primary."""
    log = directory / "log"
    until(lambda: RECONNECTED in log.read_text(), "the crawl uses the new primary")


def check(log: str, web: SiteServer, site: Site, outages: int) -> None:
    """See that all pages were crawled, and that the log has one outage and one recovery."""
    assert web.hits() >= Counter(site.truth().crawl()), "every page"
    assert outages == log.count(OUTAGE) == log.count(RECONNECTED) == 1


def kill(primary: Server) -> None:
    primary.kill()


def stall(primary: Server) -> None:
    primary.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("batch", ["0", "64"])
@pytest.mark.parametrize("fail", [kill, stall])
def test_a_primary_is_replaced(
    fail: Callable[[Server], None], batch: str, watched: Watched, site: Site, tmp_path: Path
) -> None:
    primary, replica = watched.servers

    def wait_for_failover() -> None:
        until(lambda: watched.primary() == replica.port, "the replica is promoted")
        wait_for_crawl(tmp_path)

    settings = {"BLOOM_REDIS_URL": watched.url(), "BLOOM_BATCH": batch}
    with serve(site.directory) as web:
        try:
            actions = {25: lambda: fail(primary), 60: wait_for_failover}
            stats = crawl_and_act(web, tmp_path, actions, **settings)
        finally:
            primary.process.send_signal(signal.SIGCONT)
        log = (tmp_path / "log").read_text()
        check(log, web, site, stats["bloom/outages"])
        assert f"{RECONNECTED}mymaster at 127.0.0.1:{replica.port};" in log
        assert re.search(rf"mymaster at 127.0.0.1:{primary.port} .*counts on", log)
        crawl("links", web, tmp_path, **settings)
        before = web.hits()
        crawl("links", web, tmp_path, **settings)
        assert web.hits() - before == Counter(site.truth().crawl(site.truth())), "all is recorded"


def test_a_primary_of_a_cluster_is_replaced(any_binary: str, site: Site, tmp_path: Path) -> None:
    with start_cluster_with_replica(any_binary) as (nodes, replica), serve(site.directory) as web:

        def wait_for_failover() -> None:
            with replica.client() as client:
                until(lambda: client.role()[0] == b"master", "the replica is promoted")
            wait_for_crawl(tmp_path)

        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        settings = {"BLOOM_REDIS_URL": f"redis+cluster://{hosts}"}
        actions = {25: nodes[0].kill, 60: wait_for_failover}
        stats = crawl_and_act(web, tmp_path, actions, **settings)
        log = (tmp_path / "log").read_text()
        check(log, web, site, stats["bloom/outages"])
        assert f"{RECONNECTED}redis+cluster://{hosts};" in log
        crawl("links", web, tmp_path, **settings)
        before = web.hits()
        crawl("links", web, tmp_path, **settings)
        assert web.hits() - before == Counter(site.truth().crawl(site.truth())), "all is recorded"


def test_a_crawl_starts_while_a_primary_of_a_cluster_is_replaced(
    any_binary: str, site: Site, tmp_path: Path
) -> None:
    with start_cluster_with_replica(any_binary) as (nodes, _), serve(site.directory) as web:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        nodes[0].kill()
        stats = crawl("links", web, tmp_path, BLOOM_REDIS_URL=f"redis+cluster://{hosts}")
        assert web.hits() == Counter(site.truth().crawl())
    assert "bloom/outages" not in stats


@pytest.fixture(scope="module")
def addresses(
    server: Server, tls_server: TLSServer, nodes: list[Server], any_binary: str
) -> Iterator[dict[str, str]]:
    """An address of each form, of empty servers."""
    for own in (server, tls_server.server):
        with own.client() as client:
            client.flushall()
    with start_sentinels(any_binary) as watched:
        yield {
            "redis": server.url,
            "unix": f"{server.unix_url}?db=1",
            "rediss": tls_server.url(),
            "redis+sentinel": watched.url(),
            "redis+cluster": f"redis+cluster://127.0.0.1:1,127.0.0.1:{nodes[1].port}",
        }


@pytest.mark.parametrize("form", ["redis", "unix", "rediss", "redis+sentinel", "redis+cluster"])
def test_a_crawl_by_each_form_of_address(
    form: str, addresses: dict[str, str], site: Site, web: SiteServer, tmp_path: Path
) -> None:
    settings = {"BLOOM_REDIS_URL": addresses[form], "BLOOM_TIMEOUT": "10"}
    stats = crawl("links", web, tmp_path, **settings)
    assert web.hits() == Counter(site.truth().crawl())
    assert "bloom/outages" not in stats
    assert stats["bloom/async_round_trips"] > 0
    before = web.hits()
    crawl("links", web, tmp_path, **settings)
    assert web.hits() - before == Counter(site.truth().crawl(site.truth())), "all is recorded"
