"""Crawls of the example site, each in a process of its own, whose server fails midway."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.crawling import crawl, crawl_and_act
from support.outages import killed
from support.polling import until
from support.servers import Server
from support.workers import recorded

from scrapy_bloom import BloomFilter
from scrapy_bloom.crawl.writer import CLOSED_WITHOUT_SERVER

#: Requests that a crawl of the example project has in flight, at most.
CONCURRENT_REQUESTS = 16


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine of 104 pages."""
    return Site.build(tmp_path / "site", count=64)


def test_a_crawl_goes_on_without_the_server(
    lasting_server: Server, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    # On a busy machine, what is left to be written at the end takes longer than the usual time.
    settings = {"BLOOM_REDIS_URL": lasting_server.url, "BLOOM_TIMEOUT": "30"}
    with ExitStack() as end:
        actions = {25: lambda: end.enter_context(killed(lasting_server)), 60: end.close}
        stats = crawl_and_act(web, tmp_path, actions, **settings)
        assert stats["finish_reason"] == "finished"
        assert stats["bloom/outages"] == 1
        assert stats["bloom/offline"] > 0
        expected = Counter(site.truth().crawl())
        assert web.hits() >= expected, "every page"
        expected += Counter(site.truth().crawl(site.truth()))
        crawl("links", web, tmp_path, **settings)
        assert web.hits() >= expected
        # A server that was restarted may have lost the claims on links of pages under way: they are
        # crawled again, by the next run if the server is back too late for this one. While it's
        # down, a page that was crawled may be fetched again, too.
        again = (web.hits() - expected).total()
        assert again <= 2 * CONCURRENT_REQUESTS
        before = web.hits()
        crawl("links", web, tmp_path, **settings)
        assert web.hits() - before == Counter(site.truth().crawl(site.truth())), "all is recorded"


def test_a_crawl_that_is_closed_leaves_nothing_marked_that_was_not_crawled(
    lasting_server: Server, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    settings = {"BLOOM_REDIS_URL": lasting_server.url}
    with ExitStack() as end:

        def kill() -> None:
            until(lambda: recorded(lasting_server, "links"), "a page is recorded")
            end.enter_context(killed(lasting_server))

        # Slow enough to be still under way when the server has been looked for twice.
        slow = {"BLOOM_ON_REDIS_ERROR": "close", "DOWNLOAD_DELAY": "0.05"}
        stats = crawl_and_act(web, tmp_path, {20: kill}, **slow, **settings)
        assert stats["finish_reason"] == CLOSED_WITHOUT_SERVER
        assert stats["bloom/fill_ratio"] is None, "it is not known"
    fetched, pages = web.hits(), site.truth().crawl()
    assert len(fetched) < len(pages)
    with lasting_server.client() as client:
        bloom = BloomFilter(client, "links:bloom")
        urls = [path for path in pages if fingerprint(Request(web.url + path)) in bloom]
    assert urls
    assert set(urls) <= set(fetched)
    crawl("links", web, tmp_path, **settings)
    assert set(web.hits()) == set(pages), "and the next crawl goes on"
