"""Crawls by each form of address, and through failovers of services and clusters."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_site.build import Site
from example_site.serve import serve
from support.crawling import crawl, crawl_and_act
from support.polling import until
from support.replicas import start_cluster_with_replica
from support.sentinels import Watched, start_sentinels

RECONNECTED, OUTAGE = "Bloom filter: reconnected to ", "(bloom/outages counts on)"


@pytest.fixture
def watched(any_binary: str) -> Iterator[Watched]:
    with start_sentinels(any_binary) as watched:
        yield watched


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine of 104 pages."""
    return Site.build(tmp_path / "site", count=64)


def test_a_primary_is_replaced(watched: Watched, site: Site, tmp_path: Path) -> None:
    primary, replica = watched.servers

    def wait_for_failover() -> None:
        until(lambda: watched.primary() == replica.port, "the replica is promoted")
        log = tmp_path / "log"
        until(lambda: RECONNECTED in log.read_text(), "the crawl uses the new primary")

    settings = {"BLOOM_REDIS_URL": watched.url(), "BLOOM_BATCH": "0"}
    with serve(site.directory) as web:
        actions = {25: primary.kill, 60: wait_for_failover}
        stats = crawl_and_act(web, tmp_path, actions, **settings)
        log = (tmp_path / "log").read_text()
        assert web.hits() >= Counter(site.truth().crawl()), "every page"
        assert stats["bloom/outages"] == log.count(OUTAGE) == log.count(RECONNECTED) == 1
        assert f"{RECONNECTED}mymaster at 127.0.0.1:{replica.port};" in log
        assert re.search(rf"mymaster at 127.0.0.1:{primary.port} .*counts on", log)
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
