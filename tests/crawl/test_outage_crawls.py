"""Crawls, each in a process of its own, whose server fails midway."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.odd_site import Lab, serve, tree
from support.outages import killed
from support.polling import until
from support.servers import Server

from scrapy_bloom.crawl.writer import CLOSED_WITHOUT_SERVER

PAGES = 100
#: Requests that a crawl has in flight, at most.
CONCURRENT_REQUESTS = 8
#: Pages that a crawl gets before the outage, and during it.
BEFORE, DURING = 25, 35


@pytest.fixture
def lab(lasting_server: Server, tmp_path: Path) -> Iterator[Lab]:
    with serve(tree(PAGES)) as site, Lab(site, lasting_server.url, tmp_path) as lab:
        yield lab


def test_a_crawl_goes_on_without_the_server(lab: Lab, lasting_server: Server) -> None:
    # On a busy machine, what is left to be written at the end takes longer than the usual time.
    settings: dict[str, Any] = {"BLOOM_TIMEOUT": 30, "CONCURRENT_REQUESTS": CONCURRENT_REQUESTS}
    with lab.midway(BEFORE, **settings) as crawl:
        # What is not recorded by then may be crawled again.
        until(lambda: len(lab.recorded()) >= BEFORE - CONCURRENT_REQUESTS, "pages are recorded")
        with killed(lasting_server):
            fetched = lab.site.hits().total()
            lab.site.hold_after(DURING)
            until(lambda: lab.site.hits().total() >= fetched + DURING, "it continues")
        # While it reconnects, pages that were crawled may be fetched again.
        until(lambda: "reconnected to" in crawl.log, "the server is found again")
        lab.site.release()
        stats = crawl.wait()
    assert "ERROR" not in crawl.log
    assert stats["finish_reason"] == "finished"
    assert stats["bloom/outages"] == 1
    assert stats["bloom/offline"] > 0
    assert not lab.missing()
    # A server that was restarted may have lost the claims on links of pages under way: they are
    # crawled again.
    lab.crawl(**settings)
    again = lab.site.hits() - Counter([*lab.site.pages, "/"])
    assert again.total() <= 2 * CONCURRENT_REQUESTS
    assert lab.crawl(**settings).hits == {"/": 1}, "all is recorded"


def test_a_crawl_that_is_closed_leaves_nothing_marked_that_was_not_crawled(
    lab: Lab, lasting_server: Server
) -> None:
    with lab.midway(BEFORE, BLOOM_ON_REDIS_ERROR="close") as crawl:
        until(lab.recorded, "a page is recorded")
        with killed(lasting_server):
            lab.site.hold_after(1)
            until(lambda: f"({CLOSED_WITHOUT_SERVER})" in crawl.log, "it closes")
            lab.site.release()
            stats = crawl.wait()
    assert stats["finish_reason"] == CLOSED_WITHOUT_SERVER
    assert stats["bloom/fill_ratio"] is None, "it is not known"
    assert lab.missing()
    recorded = lab.recorded()
    assert recorded
    assert recorded <= lab.site.hits().keys()
    lab.crawl()
    assert not lab.missing(), "and the next crawl goes on"
