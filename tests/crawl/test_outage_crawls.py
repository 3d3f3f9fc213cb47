"""Crawls of the example site, each in a process of its own, whose server fails midway."""

from contextlib import ExitStack
from pathlib import Path

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


def test_a_crawl_that_is_closed_leaves_nothing_marked_that_was_not_crawled(
    lasting_server: Server, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    settings = {"BLOOM_REDIS_URL": lasting_server.url}
    with ExitStack() as end:

        def kill() -> None:
            until(lambda: recorded(lasting_server, "links"), "a page is recorded")
            end.enter_context(killed(lasting_server))

        stats = crawl_and_act(web, tmp_path, {20: kill}, BLOOM_ON_REDIS_ERROR="close", **settings)
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
