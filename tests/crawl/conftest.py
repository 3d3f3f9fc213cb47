"""Fixtures of several files: servers to stop, and dupefilters."""

from collections.abc import Iterator

import pytest
import redis
from scrapy import Spider
from scrapy.utils.test import get_crawler
from support.dupefilters import Make
from support.odd_site import LabOf, labs
from support.servers import LASTING, Server
from support.workers import Shop

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.crawl import outage


@pytest.fixture
def lasting_server(any_binary: str) -> Iterator[Server]:
    """A server of the test's own that loses nothing when it is killed."""
    with Server(any_binary, *LASTING) as server:
        yield server


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is looked for after shorter times."""
    monkeypatch.setattr(outage, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(outage, "LAST_RETRY", 0.1)


@pytest.fixture
def make(server: Server, client: redis.Redis) -> Iterator[Make]:
    """Makes open dupefilters on an empty server; they are closed at the end."""
    made: list[BloomDupeFilter] = []

    def build(
        spidercls: type[Spider] = Shop, *, is_open: bool = True, **settings: object
    ) -> BloomDupeFilter:
        settings = {
            "BLOOM_REDIS_URL": server.url,
            "BLOOM_CAPACITY": 10_000,
            "BLOOM_REMEMBER": "scheduled",
            **settings,
        }
        crawler = get_crawler(spidercls, settings)
        crawler.spider = crawler._create_spider(spidercls.name)
        dupefilter = BloomDupeFilter.from_crawler(crawler)
        made.append(dupefilter)
        if is_open:
            dupefilter.open()
        return dupefilter

    yield build
    for dupefilter in made:
        dupefilter.close("finished")


@pytest.fixture(scope="module")
def lab_of(any_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabOf]:
    """Makes labs: sites, and crawls of them that share a server."""
    with labs(any_binary, tmp_path_factory.mktemp) as make:
        yield make
