"""The same crawl, whatever the filter is on: it finds the same pages and items, each once."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from example_site.build import Site
from example_site.serve import SiteServer, serve
from support.certificates import TLSServer
from support.crawling import PLAIN_SCRAPY, options, run_scrapy
from support.sentinels import start_sentinels
from support.servers import Server, start_cluster

STORIES = 24
#: What each run fetches: the start request, and what Scrapy itself asks for.
EACH_RUN = {"/", "/robots.txt"}
#: Rules, an item a page, and requests with meta. Those that topics lead to have a lambda as
#: callback, which is not stored with the claim.
SPIDER = """
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


def path_of(url):
    return urlsplit(url).path


class ShopSpider(CrawlSpider):
    name = "shop"
    allowed_domains = ["127.0.0.1"]
    links = LinkExtractor()
    rules = [
        Rule(LinkExtractor(allow="/topics/"), callback="parse_topic", follow=False),
        Rule(
            links,
            callback="parse_page",
            follow=True,
            process_links=lambda found: sorted(found, key=lambda link: link.url),
            process_request=lambda request, response: request.replace(
                meta={**request.meta, "path": path_of(request.url)}
            ),
        ),
    ]

    async def start(self):
        yield Request(self.settings["SITE_URL"] + "/")

    def parse_page(self, response):
        # An old address leads to a story that is linked too: the first of the two wins.
        requested = response.meta.get("redirect_urls", [response.url])[0]
        yield {"url": response.url, "kept_meta": response.meta["path"] == path_of(requested)}

    def parse_topic(self, response):
        yield {"url": response.url, "kept_meta": True}
        for link in self.links.extract_links(response):
            meta = {"path": path_of(link.url)}
            yield Request(link.url, callback=lambda page: self.parse_topic(page), meta=meta)
"""

Place = Callable[..., AbstractContextManager[dict[str, str]]]


# -- places --


@contextmanager
def standalone(binary: str, directory: Path) -> Iterator[dict[str, str]]:
    with Server(binary) as server:
        yield {"BLOOM_REDIS_URL": server.url}


@contextmanager
def sentinel(binary: str, directory: Path) -> Iterator[dict[str, str]]:
    with start_sentinels(binary) as watched:
        yield {"BLOOM_REDIS_URL": watched.url()}


@contextmanager
def cluster(binary: str, directory: Path) -> Iterator[dict[str, str]]:
    with start_cluster(binary) as nodes:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield {"BLOOM_REDIS_URL": f"redis+cluster://{hosts}"}


@contextmanager
def tls(binary: str, directory: Path) -> Iterator[dict[str, str]]:
    secure = TLSServer(directory)
    with secure.server:
        yield {"BLOOM_REDIS_URL": secure.url()}


@contextmanager
def embedded(binary: str, directory: Path) -> Iterator[dict[str, str]]:
    yield {"BLOOM_REDIS_URL": f"embedded:{directory / 'bloom'}"}


#: A crawl through Sentinel is in test_addresses_crawl.py, too.
PLACES: list[Any] = [
    *(standalone, cluster, tls, embedded),
    pytest.param(sentinel, marks=pytest.mark.slow),
]

# -- crawls --


@dataclass(frozen=True)
class Found:
    """What a crawl has fetched and scraped, and how often."""

    pages: Counter[str]
    items: Counter[tuple[str, bool]]


class Magazine:
    """The site, and crawls of it.

    Args:
        web: the site.
        directory: for the spider, and what it scrapes.
    """

    def __init__(self, web: SiteServer, directory: Path) -> None:
        self._web, self._directory = web, directory
        self._spider = directory / "everywhere.py"
        self._spider.write_text(SPIDER)
        self.expected = self.crawl(PLAIN_SCRAPY)
        assert len(self.expected.items) > STORIES
        assert {*self.expected.items.values()} == {1}

    def crawl(self, settings: dict[str, str]) -> Found:
        """Run the spider."""
        before, items = self._web.hits(), self._directory / "items.jsonl"
        arguments = ["runspider", str(self._spider), "-O", f"{items}:jsonlines"]
        done = run_scrapy(*arguments, *options(self._web, settings))
        assert done.returncode == 0, done.stderr
        assert "ERROR" not in done.stderr, done.stderr
        lines = [json.loads(line) for line in items.read_text().splitlines()]
        found = Counter((line["url"], line["kept_meta"]) for line in lines)
        return Found(self._web.hits() - before, found)


@pytest.fixture(scope="module")
def magazine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Magazine]:
    directory = tmp_path_factory.mktemp("everywhere")
    with serve(Site.build(directory / "site", count=STORIES).directory) as web:
        yield Magazine(web, directory)


@pytest.mark.parametrize("place", PLACES)
def test_the_same_pages_and_items_and_then_nothing_new(
    magazine: Magazine, place: Place, any_binary: str, tmp_path: Path
) -> None:
    with place(any_binary, tmp_path) as address:
        settings = {**address, "BLOOM_TIMEOUT": "30"}
        assert magazine.crawl(settings) == magazine.expected
        again = magazine.crawl(settings)
    assert set(again.pages) <= EACH_RUN
    assert not again.items
