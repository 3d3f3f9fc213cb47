"""Fixtures of several files: servers to stop, dupefilters, and the background thread alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis
from scrapy import Spider
from scrapy.utils.test import get_crawler
from support.dupefilters import Make
from support.odd_site import LabOf, labs
from support.servers import LASTING, Server
from support.workers import Shop
from support.write_behind import TIMEOUT, EventLog, FakeServer, MakeWriter

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl import apply_jobs, loop_writer, server_state, write_behind
from scrapy_bloom.crawl.write_behind import WriteBehind


@pytest.fixture
def own_server(any_binary: str) -> Iterator[Server]:
    """A server of the test's own."""
    with Server(any_binary) as server:
        yield server


@pytest.fixture
def lasting_server(any_binary: str) -> Iterator[Server]:
    """A server of the test's own that loses nothing when it is killed."""
    with Server(any_binary, *LASTING) as server:
        yield server


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are applied, and the server is looked for, after shorter times."""
    for module in (loop_writer, write_behind):
        monkeypatch.setattr(module, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(server_state, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(server_state, "LAST_RETRY_SECONDS", 0.1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server in memory: an operation on it is a name and items."""

    def named(name: str) -> Callable[..., tuple[str, Sequence[bytes], str]]:
        return lambda _, items, *args, server="", **kwargs: (name, items, server)

    for name in ("claim", "confirm", "hold", "release"):
        monkeypatch.setattr(claim_protocol, name, named(name))
    monkeypatch.setattr(apply_jobs, "add", named("add"))
    return FakeServer()


@pytest.fixture
def events() -> Iterator[EventLog]:
    """Receives the events of writers."""
    events = EventLog()
    yield events
    events.close()


@pytest.fixture
def make_writer(fake: FakeServer, events: EventLog) -> Iterator[MakeWriter]:
    """Makes writers on the server in memory; at the end, they stop and close their connections."""
    made: list[WriteBehind] = []

    def make(**options: Any) -> WriteBehind:
        made.append(WriteBehind(fake.filters, events.queue.put, events, **options))
        return made[-1]

    yield make
    for writer in made:
        writer.stop(TIMEOUT)
    events.close()
    assert fake.open == 0, "a connection is left"


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
