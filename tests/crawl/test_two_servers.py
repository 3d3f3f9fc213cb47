"""The queue of scrapy-redis on one server, the filter on another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.odd_site import SHARED_QUEUE, TREE, Lab, serve, tree
from support.outages import killed
from support.polling import until
from support.servers import LASTING, Server

PAGES = 60


@pytest.fixture
def queue(any_binary: str) -> Iterator[Server]:
    """The queue's server; it loses nothing when it is killed."""
    with Server(any_binary, *LASTING) as server:
        yield server


@pytest.fixture
def lab(lasting_server: Server, tmp_path: Path) -> Iterator[Lab]:
    """A tree of pages; crawls of it remember on a server of their own."""
    with serve(tree(PAGES)) as site, Lab(site, lasting_server.url, tmp_path) as lab:
        yield lab


def test_no_page_is_lost_while_the_queues_server_is_down(queue: Server, lab: Lab) -> None:
    """What could not be queued stays claimed on the other server, and is due a moment later."""
    settings: dict[str, Any] = {
        **SHARED_QUEUE,
        "REDIS_URL": queue.url,
        "BLOOM_HEARTBEAT": 1,
        "BLOOM_RETRY_AFTER": "1 s",
    }
    # So early that some of the pages under way have new links. Later ones may have none.
    lab.site.hold_after(5)
    with lab.start(TREE, **settings) as crawl:
        lab.saturate(crawl)
        with killed(queue):
            lab.site.release()
            until(lambda: "ERROR" in crawl.log or crawl.is_over, "the worker notices")
            crawl.kill()
    recorded = lab.recorded()
    lab.crawl(TREE, **settings)
    lab.wait_until_due()
    lab.crawl(TREE, **settings)
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()
    assert not lab.fetched_twice() & recorded
