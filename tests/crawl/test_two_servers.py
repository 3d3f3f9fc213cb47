"""The queue of scrapy-redis on one server, the filter on another: workers, kills, outages."""

from collections.abc import Iterator
from contextlib import ExitStack
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


def distributed(queue: Server, **settings: Any) -> dict[str, Any]:
    """Return the settings of a worker; the lab adds where the filter is."""
    return {**SHARED_QUEUE, "REDIS_URL": queue.url, "BLOOM_HEARTBEAT": 1, **settings}


def assert_complete(lab: Lab) -> None:
    """All pages are recorded, and nothing is claimed any more."""
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()


def test_the_queue_goes_on_while_the_filters_server_is_down(
    queue: Server, lasting_server: Server, lab: Lab
) -> None:
    """What is found meanwhile goes to the queue, and is recorded when the server is back."""
    settings = distributed(queue, BLOOM_TIMEOUT=0.5)
    lab.site.hold_after(15)
    with ExitStack() as outage, lab.start(TREE, **settings) as crawl:
        lab.saturate(crawl)
        outage.enter_context(killed(lasting_server))
        fetched = lab.site.hits().total()
        lab.site.hold_after(20)
        until(lambda: lab.site.hits().total() >= fetched + 20, "the crawl goes on")
        outage.close()
        lab.site.release()
        stats = crawl.wait()
    assert stats["bloom/outages"] == 1
    assert set(lab.site.hits()) == lab.site.pages.keys()
    lab.crawl(TREE, **settings)
    assert_complete(lab)


def test_no_page_is_lost_while_the_queues_server_is_down(queue: Server, lab: Lab) -> None:
    """What could not be queued stays claimed on the other server, and is due a moment later."""
    settings = distributed(queue, BLOOM_RETRY_AFTER="1 s")
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
    due = max((claim.time for claim in lab.claims().values()), default=0)
    until(lambda: lab.now() >= due, "what the queue could not take is due")
    lab.crawl(TREE, **settings)
    assert_complete(lab)
    assert not lab.fetched_twice() & recorded
