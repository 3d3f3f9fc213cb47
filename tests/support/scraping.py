"""A scraper without Scrapy's engine, what it looks up, and the forms that outputs have."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.signalmanager import SignalManager
from twisted.python.failure import Failure

from scrapy_bloom.bloom.protocol.session import Key, Verdict
from scrapy_bloom.crawl.duplicates import Lookup
from scrapy_bloom.crawl.outputs import Outputs
from scrapy_bloom.crawl.pages import Page

PAGE, RESPONSE = Request("https://example.com/"), Response("https://example.com/")
ITEM = {"an": "item"}


def link(name: object = 0) -> Request:
    return Request(f"https://example.com/{name}")


def links(count: int) -> list[Request]:
    return [link(number) for number in range(count)]


async def nothing(item: Any) -> None: ...


async def one_turn(item: Any) -> None:
    """A pipeline that lets the loop run."""
    await asyncio.sleep(0)


class Scraper:
    """Processes lists of outputs as Scrapy's does: ``concurrent_items`` at a time."""

    def __init__(self, concurrent_items: int = 100) -> None:
        self.concurrent_items = concurrent_items
        self.lists: list[list[Any]] = []
        #: Outputs that are processed, in the order in which that ended.
        self.done: list[Any] = []
        self.errors: list[BaseException] = []
        self.parallel = self.most_parallel = 0
        #: Processes an item.
        self.pipeline: Callable[[Any], Awaitable[object]] = nothing

    async def handle_spider_output_async(
        self, result: Any, request: Request, response: Response
    ) -> None:
        assert (request, response) == (PAGE, RESPONSE)
        workers = asyncio.Semaphore(self.concurrent_items)
        self.lists.append(result)

        async def process(output: Any) -> None:
            async with workers:
                if not isinstance(output, Request):
                    self.parallel += 1
                    self.most_parallel = max(self.most_parallel, self.parallel)
                    await self.pipeline(output)
                    self.parallel -= 1
                self.done.append(output)

        await asyncio.gather(*map(process, result))

    def handle_spider_error(self, _failure: Failure, request: Request, response: Any) -> None:
        assert (request, response) == (PAGE, RESPONSE)
        assert _failure.value is not None
        self.errors.append(_failure.value)

    @property
    def flat(self) -> list[Any]:
        return [output for one in self.lists for output in one]


class FakeDuplicates:
    """Knows some requests to be duplicates; gives the verdicts of others when it is asked.

    It is also the pages, of which one is under way.
    """

    def __init__(self) -> None:
        self.known: list[Request] = []
        self.verdicts: dict[Request, Verdict] = {}
        self.broken: list[Request] = []
        self.rounds: list[list[Request]] = []
        self.dropped: list[Request] = []
        self.lost: list[Request] = []
        self.cancelled: list[Request] = []
        self.noted: list[Any] = []
        self.failed: list[tuple[Request, BaseException]] = []
        self.page = Page({})

    def prepare(self, request: Request) -> Lookup | None:
        if request in self.broken:
            raise LookupError
        verdict = Verdict.SEEN if request in self.known else None
        key = "", request.url.encode()
        return None if request.dont_filter else Lookup(key, request, verdict)

    async def look_up(self, lookups: Sequence[Lookup]) -> None:
        self.rounds.append([lookup.request for lookup in reversed(lookups)])
        for lookup in lookups:
            lookup.verdict = self.verdicts.get(lookup.request, Verdict.NEW)

    def count_seen(self, key: Key) -> None: ...

    def log(self, request: Request, spider: Spider) -> None:
        self.dropped.append(request)

    def begin(self, request: Request) -> Page:
        assert request is PAGE
        return self.page

    def yields(self, page: Page, output: object) -> None:
        assert page is self.page
        self.noted.append(output)

    def raised(self, page: Request, error: BaseException, *, in_pipeline: bool = False) -> None:
        if in_pipeline:
            self.failed.append((page, error))
            return
        assert page is PAGE
        is_cancelled = isinstance(error, asyncio.CancelledError)
        assert is_cancelled or isinstance(error, LookupError)
        (self.cancelled if is_cancelled else self.lost).append(page)


class ScraperLab:
    """A scraper whose outputs are looked up."""

    def __init__(self, scraper: Scraper | None = None) -> None:
        self.scraper, self.filter = scraper or Scraper(), FakeDuplicates()
        self.offsite: list[Request] = []
        middleware = SimpleNamespace(should_follow=lambda one, spider: one not in self.offsite)
        self.signals = SignalManager(self)
        crawler: Any = SimpleNamespace(
            spider=Spider("shop"),
            signals=self.signals,
            get_downloader_middleware=lambda _: middleware,
        )
        fake: Any = self.filter
        self.outputs = Outputs(crawler, fake, fake, self.filter.log)
        engine: Any = SimpleNamespace(engine=SimpleNamespace(scraper=self.scraper))
        self.outputs.hook(engine)

    async def handle(self, outputs: Any) -> None:
        await self.scraper.handle_spider_output_async(outputs, PAGE, RESPONSE)


# -- forms of output --


async def generate(outputs: Sequence[Any]) -> AsyncIterator[Any]:
    for output in outputs:
        yield output


class Countdown(AsyncIterator[Any]):
    """An asynchronous iterator that is no generator."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = iter(outputs)

    async def __anext__(self) -> Any:
        for output in self.outputs:
            return output
        raise StopAsyncIteration


FORMS = pytest.mark.parametrize(
    "form",
    [list, iter, generate, Countdown],
    ids=["list", "iterator", "asynchronous generator", "asynchronous iterator"],
)
