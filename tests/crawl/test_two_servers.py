"""The queue of scrapy-redis on one server, the filter on another."""

from pathlib import Path
from typing import Any

from support.odd_site import SHARED_QUEUE, TREE, Lab, serve, tree
from support.outages import killed
from support.polling import until
from support.servers import LASTING, Server

PAGES = 60


def test_no_page_is_lost_while_the_queues_server_is_down(
    any_binary: str, lasting_server: Server, tmp_path: Path
) -> None:
    """What could not be queued stays claimed on the other server, and is due a moment later."""
    with (
        Server(any_binary, *LASTING) as queue,
        serve(tree(PAGES)) as site,
        Lab(site, lasting_server.url, tmp_path) as lab,
    ):
        settings: dict[str, Any] = {
            **SHARED_QUEUE,
            "REDIS_URL": queue.url,
            "BLOOM_HEARTBEAT": 1,
            "BLOOM_RETRY_AFTER": "1 s",
        }
        # So early that some of the pages under way have new links. Later ones may have none.
        site.hold_after(5)
        with lab.start(TREE, **settings) as crawl:
            lab.saturate(crawl)
            with killed(queue):
                site.release()
                until(lambda: "ERROR" in crawl.log or crawl.is_over, "the worker notices")
                crawl.kill()
        recorded = lab.recorded()
        lab.crawl(TREE, **settings)
        lab.wait_until_due()
        lab.crawl(TREE, **settings)
        assert lab.recorded() == site.pages.keys() - {"/"}
        assert not lab.claims()
        assert not lab.fetched_twice() & recorded
