"""What is put around the engine's methods: nothing is changed by it, whatever their form."""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, crawler
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from scrapy_bloom import ConfigurationError
from scrapy_bloom.crawl.engine import Engine, arguments_of

REQUEST, REDIRECT = Request("https://example.com/"), Request("https://example.com/to")
RESPONSE = Response("https://example.com/")


class RequestListener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.events.append((name, *arguments))


class Scheduler:
    def enqueue_request(self, request: Request) -> bool:
        return True

    def next_request(self) -> None:
        return None


class Scraper:
    def enqueue_scrape(self, result: Any, request: Request) -> Deferred[Any]:
        if isinstance(result, Failure):
            result.raiseException()
        return succeed(None)

    def handle_spider_error(self, _failure: Failure, request: Request, response: Any) -> None: ...

    async def call_spider_async(self, result: Any, request: Request) -> None: ...


class Downloader:
    def __init__(self, result: Any) -> None:
        self.result = result

    def fetch(self, request: Request, spider: object = None) -> Any:
        return self.result


def make(**parts: Any) -> Any:
    """Return an engine with an open spider."""
    parts = {"downloader": Downloader(None), "scraper": Scraper(), **parts}
    slot = SimpleNamespace(scheduler=parts.pop("scheduler", Scheduler()))
    return SimpleNamespace(_slot=slot, **parts)


def watch(engine: Any, listener: RequestListener) -> None:
    """Have a listener told of what an engine does."""
    crawler: Any = SimpleNamespace(engine=engine)
    Engine(crawler).listen(listener, listener)


def fetch(result: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return what a watched downloader returns, and what the listener was told."""
    engine, listener = make(downloader=Downloader(result)), RequestListener()
    watch(engine, listener)
    return engine.downloader.fetch(REQUEST), listener.events


def test_a_downloader_may_answer_in_any_form() -> None:
    async def answer() -> Request:
        return REDIRECT

    for result in (RESPONSE, "not a response", None):
        assert fetch(result) == (result, [])
    fetched, events = fetch(REDIRECT)
    assert fetched is REDIRECT
    (deferred, later), (coroutine, last) = fetch(succeed(REDIRECT)), fetch(answer())
    assert deferred.result is asyncio.run(coroutine) is REDIRECT
    assert events == later == last == [("turned_into", REQUEST, REDIRECT)]


def test_a_page_that_the_scraper_refuses_has_failed() -> None:
    engine, listener = make(), RequestListener()
    watch(engine, listener)
    error = ValueError("of the scraper")
    failure = Failure(error)
    with pytest.raises(ValueError, match="of the scraper"):
        engine.scraper.enqueue_scrape(failure, REQUEST)
    assert listener.events == [("raised", REQUEST, error), ("finished", REQUEST, failure)]


class AsyncScheduler(Scheduler):
    async def enqueue_request(self, request: Request) -> bool:  # type: ignore[override]
        return True


class SwappedScraper(Scraper):
    def handle_spider_error(self, request: Request, failure: Failure) -> None:  # type: ignore[override]
        ...


class OtherScraper(Scraper):
    def enqueue_scrape(self, pair: tuple[Any, Request]) -> Deferred[Any]:  # type: ignore[override]
        return succeed(None)


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"scheduler": AsyncScheduler()}, "AsyncScheduler.enqueue_request takes"),
        ({"scheduler": object()}, "has no attribute 'enqueue_request'"),
        ({"scraper": SwappedScraper()}, "SwappedScraper.handle_spider_error takes"),
        ({"scraper": OtherScraper()}, "OtherScraper.enqueue_scrape takes"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.split(" ")[0],
)
def test_an_unknown_form_is_an_error_before_the_first_page(parts: Any, what: str) -> None:
    with pytest.raises(ConfigurationError, match="follow requests through this engine") as e:
        watch(make(**parts), RequestListener())
    assert what in str(e.value)


# -- the arguments of spiders --

CRAWLS = """
import json
import sys
from scrapy import Spider, crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy_bloom.crawl.engine import arguments_of

class DupeFilter(BaseDupeFilter):
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.crawler = crawler
        return self

    def open(self):
        print(json.dumps(arguments_of(self.crawler)))

class Changing(Spider):
    def __init__(self, name, **kwargs):
        super().__init__(name, **{key: "changed" for key in kwargs})
        self.started = "an attribute"

    async def start(self):
        return
        yield

quiet = {"DUPEFILTER_CLASS": DupeFilter, "LOG_ENABLED": False, "TELNETCONSOLE_ENABLED": False}
process = getattr(crawler, sys.argv[1])({**quiet, **json.loads(sys.argv[2])})
process.crawl(Changing, "first", domain="a")
process.crawl(Changing, name="second")
process.crawl(crawler.Crawler(Changing, process.settings), "third", domain="b", _job=1)
process.start()
"""
ARGUMENTS = [
    {"0": "first", "domain": "a"},
    {"name": "second"},
    {"0": "third", "domain": "b", "_job": 1},
]
PROCESSES: list[tuple[str, dict[str, object]]] = [
    ("CrawlerProcess", {}),
    ("CrawlerProcess", {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}),
    ("AsyncCrawlerProcess", {}),  # since Scrapy 2.14
    ("AsyncCrawlerProcess", {"TWISTED_REACTOR_ENABLED": False}),
]


@pytest.mark.parametrize(
    ("process", "settings"), [one for one in PROCESSES if hasattr(crawler, one[0])], ids=str
)
def test_the_arguments_of_a_spider_are_those_of_the_call(
    process: str, settings: dict[str, object]
) -> None:
    """Of each crawl of a process, whatever the spider makes of them."""
    command = [sys.executable, "-c", CRAWLS, process, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines())
    assert sorted(found, key=str) == sorted(ARGUMENTS, key=str)


def test_a_crawler_that_does_not_crawl_has_no_arguments() -> None:
    assert arguments_of(get_crawler()) == {}
