"""Crawls as a user with exactly the rights that ``scrapy bloom acl`` prints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.odd_site import SHARED_QUEUE, Lab, serve, tree
from support.rights import PASSWORD, USER, denials
from support.servers import Server

from scrapy_bloom.bloom.protocol.rights import Rules

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


@pytest.fixture
def lab(server: Server, client: redis.Redis, tmp_path: Path) -> Iterator[Lab]:
    """Crawls log in as the user."""
    client.execute_command(*Rules.of([KEY]).setuser(USER, PASSWORD).split())
    denials(client)
    address = f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}/0"
    with serve(tree(PAGES)) as site, Lab(site, address, tmp_path) as lab:
        lab.client = client
        yield lab
    client.acl_deluser(USER)


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
