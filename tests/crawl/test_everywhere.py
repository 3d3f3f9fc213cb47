"""The same crawl, whatever the filter is on: it finds the same pages and items, each once.

One server is what all other crawls have.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from support.certificates import TLSServer
from support.odd_site import Lab, serve, tree
from support.sentinels import start_sentinels
from support.servers import start_cluster

PAGES = 40
SPIDER = """
class ShopSpider(OddSpider):
    def parse(self, response):
        yield {"url": response.url}
        yield from self.links(response)
"""
Place = Callable[[str, Path], AbstractContextManager[str]]


@contextmanager
def cluster(binary: str, directory: Path) -> Iterator[str]:
    with start_cluster(binary) as nodes:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield f"redis+cluster://{hosts}"


@contextmanager
def sentinel(binary: str, directory: Path) -> Iterator[str]:
    with start_sentinels(binary) as watched:
        yield watched.url()


@contextmanager
def tls(binary: str, directory: Path) -> Iterator[str]:
    secure = TLSServer(directory)
    with secure.server:
        yield secure.url()


@contextmanager
def embedded(binary: str, directory: Path) -> Iterator[str]:
    yield f"embedded:{directory / 'bloom'}"


@pytest.mark.parametrize("place", [cluster, sentinel, tls, embedded])
def test_the_same_pages_and_items_and_then_nothing_new(
    place: Place, any_binary: str, tmp_path: Path
) -> None:
    expected = [(Counter([*tree(PAGES)]), PAGES + 1), (Counter(["/"]), 1)]
    with (
        place(any_binary, tmp_path) as address,
        serve(tree(PAGES)) as site,
        Lab(site, "redis://127.0.0.1:1", tmp_path) as lab,
    ):
        for pages, items in expected:
            before = site.hits()
            with lab.start(SPIDER, BLOOM_REDIS_URL=address, BLOOM_TIMEOUT=30) as crawl:
                stats = crawl.wait()
            assert "ERROR" not in crawl.log
            assert site.hits() - before == pages
            assert stats["item_scraped_count"] == items
