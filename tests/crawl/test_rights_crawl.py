"""Crawls as a user with exactly the rights that ``scrapy bloom acl`` prints, and with fewer."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from support.odd_site import SHARED_QUEUE, Lab, OddSite, serve, tree
from support.polling import until
from support.rights import PASSWORD, USER, denials
from support.servers import Server, start_cluster

from scrapy_bloom.bloom.protocol.rights import CLUSTER, Rules

PAGES = 40
KEY = "odd:bloom"
#: Rotates and grows.
ALL_AT_ONCE: dict[str, Any] = {
    "BLOOM_CAPACITY": 20,
    "BLOOM_BLOCKS": 2,
    "BLOOM_RECRAWL_AFTER": "2 days",
    "BLOOM_ROTATE_EVERY": "1 day",
    "BLOOM_HEARTBEAT": 1,
    "BLOOM_RECRAWL_RULES": '[["/1[0-9]$", "1 day"]]',
}
#: As redis_cls: a client for clusters.
CLUSTER_CLIENT = json.dumps({"redis_cls": "redis.RedisCluster"})


def grant(admin: Any, *more: str, key: str = KEY) -> None:
    admin.execute_command(*Rules.of([key], more=more).setuser(USER, PASSWORD).split())
    denials(admin)


@pytest.fixture
def site() -> Iterator[OddSite]:
    """A site of which each page is linked."""
    with serve(tree(PAGES)) as site:
        yield site


@pytest.fixture
def lab(server: Server, client: redis.Redis, site: OddSite, tmp_path: Path) -> Iterator[Lab]:
    """Crawls log in as the user."""
    grant(client)
    with Lab(site, f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}/0", tmp_path) as lab:
        lab.client = client
        yield lab
    client.acl_deluser(USER)


def refused(lab: Lab, **settings: Any) -> str:
    """Run a crawl that does not begin; return its log."""
    with lab.start(**settings) as crawl:
        until(lambda: crawl.is_over, "the crawl ends")
        return crawl.log


@pytest.mark.each_server(others="slow")
def test_a_crawl_with_the_rights_that_are_printed(server: Server, lab: Lab) -> None:
    """Killed and started again, it goes on where it stopped."""
    settings = {**ALL_AT_ONCE, **SHARED_QUEUE, "REDIS_URL": server.url}
    lab.kill_midway(10, **settings)
    done = lab.crawl(**settings)
    assert lab.site.hits().keys() == lab.site.pages.keys()
    assert denials(lab.client) == []
    assert PASSWORD not in done.log
    assert " ERROR: " not in done.log
    assert "bloom/outages" not in done.stats
    again = lab.crawl(**settings)
    assert again.hits.keys() <= {"/"}


def test_a_crawl_without_a_right_does_not_begin(lab: Lab) -> None:
    lab.client.execute_command("ACL", "SETUSER", USER, "-hset", "-expireat")
    log = refused(lab)
    assert f"the user {USER!r} may not run EXPIREAT, HSET on redis://127" in log
    assert "scrapy bloom acl prints the rules" in log
    assert "did not answer" not in log
    assert PASSWORD not in log
    assert not lab.site.hits()
    assert not lab.client.keys("*")


@pytest.mark.slow
@pytest.mark.each_server
def test_a_crawl_on_a_cluster(server: Server, site: OddSite, tmp_path: Path) -> None:
    """On a cluster of servers of the same kind."""
    with ExitStack() as stack:
        nodes = stack.enter_context(start_cluster(server.binary))
        admins = [stack.enter_context(node.client()) for node in nodes]
        for admin in admins:
            grant(admin, *CLUSTER)
        url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{nodes[0].port}"
        lab = stack.enter_context(Lab(site, url, tmp_path))
        settings = {**ALL_AT_ONCE, "BLOOM_BLOCKS": 16, "BLOOM_REDIS_PARAMS": CLUSTER_CLIENT}
        with lab.start(**settings) as crawl:
            crawl.wait()
        assert " ERROR: " not in crawl.log
        assert site.hits().keys() == site.pages.keys()
        assert [denials(admin) for admin in admins] == [[]] * len(nodes)
        admins[2].execute_command("ACL", "SETUSER", USER, "-unlink")
        assert "may not run UNLINK" in refused(lab, **settings)
