"""An engine as small as it gets, with the parts of Scrapy's that the product uses and wraps."""

import asyncio
import copy
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.http import Response
from scrapy.utils.request import request_from_dict
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.bloom.errors import BloomError
from simulation.callbacks import call
from simulation.site import Site, short
from simulation.world import World

#: Requests under way at a time, and items of a page.
CONCURRENCY, CONCURRENT_ITEMS = 4, 2
#: Seconds after which a callback's task is cancelled.
CANCELLED_AFTER = (0.0, 0.001, 0.01, 0.3)
#: Seconds that a download takes, an item's pipeline, and that pass between two looks for work.
DOWNLOADS, PIPELINES, IDLE_SECONDS = (0.1, 0.2, 0.2, 0.5), (0.0, 0.0, 0.1, 1.0), 5.0


class Scheduler:
    """A queue in memory, or one that processes share, which is scrapy-redis's.

    Args:
        crawler: the crawler.
        world: chooses what is next.
        shared: requests of all processes, as they are stored; None for a queue in memory.
    """

    def __init__(self, crawler: Any, world: World, shared: list[dict[str, Any]] | None) -> None:
        self._crawler, self._world, self._is_shared = crawler, world, shared is not None
        self._queue: list[Any] = [] if shared is None else shared
        self._filter: BloomDupeFilter

    def open(self) -> None:
        """Open the filter as Scrapy's scheduler does, or as scrapy-redis's."""
        if self._is_shared:
            self._filter = BloomDupeFilter.from_spider(self._crawler.spider)
        else:
            self._filter = BloomDupeFilter.from_crawler(self._crawler)
            self._filter.open()

    def close(self) -> Deferred[None] | None:
        """Close the filter; scrapy-redis's leaves it to the spider's signal."""
        is_open = hasattr(self, "_filter") and not self._is_shared
        return self._filter.close("finished") if is_open else None

    def __len__(self) -> int:
        return len(self._queue)

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request that is new."""
        if not request.dont_filter and self._filter.request_seen(request):
            self._filter.log(request, self._crawler.spider)
            return False
        stored = request.to_dict(spider=self._crawler.spider) if self._is_shared else request
        self._queue.append(copy.deepcopy(stored) if self._is_shared else stored)
        return True

    def next_request(self) -> Request | None:
        """Return any request of the queue."""
        if not self._queue:
            return None
        request = self._queue.pop(self._world.rng.randrange(len(self._queue)))
        return (
            request_from_dict(request, spider=self._crawler.spider) if self._is_shared else request
        )


class Downloader:
    """Fetches pages of the site."""

    def __init__(self, world: World, site: Site, name: str, spider: int) -> None:
        self._world, self._site, self._name, self._spider = world, site, name, spider

    async def fetch(self, request: Request) -> Response | Request:
        """Return the page, or the request that it redirects to."""
        await asyncio.sleep(self._world.rng.choice(DOWNLOADS))
        return self._site.fetch(request, self._name, self._spider)


class Scraper:
    """Runs callbacks, and processes what they yield."""

    def __init__(self, engine: "Engine", world: World, site: Site, name: str, spider: int) -> None:
        self._engine, self._world, self._site = engine, world, site
        self._name, self._spider = name, spider
        self.concurrent_items = CONCURRENT_ITEMS
        #: By id: outputs that were neither processed nor dropped yet.
        self.open: dict[int, Any] = {}
        self._raised: set[Request] = set()

    def enqueue_scrape(self, result: Response, request: Request) -> Deferred[None]:
        """Run a page's callback, and process what it yields."""
        scraped, scraping = Deferred[None](), asyncio.ensure_future(self._scrape(result, request))

        def end(_: object) -> None:
            if scraping.cancelled():  # Scrapy does not notice either: the page is never finished
                self._world.log(f"{self._name}: {short(request.url)} is CANCELLED")
                self._engine.done(request)
            else:
                scraped.callback(scraping.result())

        scraping.add_done_callback(end)
        if self._world.strikes("cancel"):
            loop = asyncio.get_running_loop()
            loop.call_later(self._world.rng.choice(CANCELLED_AFTER), scraping.cancel)
        return scraped

    def handle_spider_error(self, failure: Failure, request: Request, _: Response) -> None:
        """Note that a callback has raised."""
        self._raised.add(request)

    async def _scrape(self, response: Response, request: Request) -> None:
        yielded = list[Any]()
        callback, note = self._engine.spider.parse, self._note(yielded)
        outputs = call(self._world, self._site, response, callback, note)
        await self.handle_spider_output_async(outputs, request, response)
        lost = [output for output in yielded if self.open.pop(id(output), None) is not None]
        if lost:
            self._world.found.append(f"outputs are lost: {lost} of {response}")
        if request not in self._raised:
            self._site.crawled(response, self._name, self._spider)
        self._raised.discard(request)

    def _note(self, yielded: list[Any]) -> Any:
        def note(output: Any) -> Any:
            yielded.append(output)
            self.open[id(output)] = output
            return output

        return note

    async def handle_spider_output_async(
        self,
        result: Iterable[Any] | AsyncIterator[Any],
        request: Request,
        response: Response,
    ) -> None:
        """Process outputs: the product replaces this, and passes on a list."""
        assert isinstance(result, list)
        outputs = [self._process(output, response) for output in result]
        if len(outputs) == 1:
            await outputs[0]
        else:
            await asyncio.gather(*outputs)

    async def _process(self, output: Any, response: Response) -> None:
        self.open.pop(id(output), None)
        if isinstance(output, Request):
            self._engine.crawl(output)
            return
        await self.start_itemproc_async(output, response=response)

    async def start_itemproc_async(self, item: Any, *, response: Response) -> None:
        """Let a pipeline store an item: the product wraps this."""
        await asyncio.sleep(self._world.rng.choice(PIPELINES))
        try:
            self._site.store(response.url)
        except ConnectionError:
            self._world.log(f"{self._name}: the pipeline raises for {short(response.url)}")
            self._engine.send(signals.item_error, item=item, response=response, failure=Failure())


class Engine:
    """Crawls the site from a start page until there is nothing left to do.

    Args:
        crawler: the crawler.
        world: the world.
        site: the site.
        name: of the process.
        spider: its number.
        shared_queue: requests of all processes, as they are stored; None for a queue in memory.
    """

    def __init__(
        self,
        crawler: Any,
        world: World,
        site: Site,
        name: str,
        *,
        spider: int,
        shared_queue: list[dict[str, Any]] | None,
    ) -> None:
        self._crawler, self._world, self._site, self._name = crawler, world, site, name
        self._number, self.spider = spider, crawler.spider
        self.downloader = Downloader(world, site, name, spider)
        self.scraper = Scraper(self, world, site, name, spider)
        self._slot = SimpleNamespace(
            scheduler=Scheduler(crawler, world, shared_queue),
            nextcall=SimpleNamespace(schedule=self._wake),
            close_if_idle=True,
        )
        self._under_way = set[Request]()
        self._woken: asyncio.Future[None] | None = None
        self._is_stopping = self._is_paused = False

    # -- what the product calls --

    def crawl(self, request: Request) -> None:
        """Schedule a request."""
        self.send(signals.request_scheduled, request=request)
        if not self._slot.scheduler.enqueue_request(request):
            self.send(signals.request_dropped, request=request)
        self._wake()

    def pause(self) -> None:
        """Hand out no more requests."""
        self._is_paused = True

    def unpause(self) -> None:
        """Hand out requests again."""
        self._is_paused = False
        self._wake()

    async def close_spider_async(self, *, reason: str) -> None:
        """End what is under way, and close."""
        self.stop()

    def stop(self) -> None:
        """End what is under way, and close."""
        self._is_stopping = True
        self._wake()

    def send(self, signal: Any, **what: Any) -> list[tuple[Any, Any]]:
        """Send a signal; return what its receivers return."""
        signalled: list[tuple[Any, Any]] = self._crawler.signals.send_catch_log(
            signal, spider=self.spider, dont_log=DontCloseSpider, **what
        )
        return signalled

    # -- the crawl --

    async def run(self) -> None:
        """Crawl."""
        world, name = self._world, self._name
        self._crawler.signals.connect(self._dropped, signals.request_dropped)
        try:
            self._slot.scheduler.open()
        except BloomError as error:
            world.log(f"{name}: cannot start: {error!s:.60}")
        else:
            self.send(signals.spider_opened)
            url = self._site.starts[self._number]
            self.crawl(
                Request(url, self.spider.parse, dont_filter=True, meta={"is_start_request": True})
            )
            await self._crawl()
        world.log(f"{name}: closes")
        if (closing := self._slot.scheduler.close()) is not None:
            await closing.asFuture(asyncio.get_running_loop())
        for _, closed in self.send(signals.spider_closed, reason="finished"):
            if closed is not None:
                await closed
        world.log(f"{name}: closed")

    async def _crawl(self) -> None:
        loop, scheduler = asyncio.get_running_loop(), self._slot.scheduler
        while True:
            while len(self._under_way) < CONCURRENCY and not (self._is_stopping or self._is_paused):
                request = scheduler.next_request()
                if request is None:
                    break
                self._under_way.add(request)
                loop.create_task(self._handle(request))
            if not self._under_way and (self._is_stopping or self._may_close()):
                return
            self._woken = loop.create_future()
            with_timer = loop.call_later(IDLE_SECONDS, self._wake)
            await self._woken
            with_timer.cancel()

    def _may_close(self) -> bool:
        if len(self._slot.scheduler) or self._is_paused:
            return False
        signalled = self.send(signals.spider_idle)
        is_refused = any(isinstance(answer, Failure) for _, answer in signalled)
        return not (is_refused or self._under_way or len(self._slot.scheduler))

    async def _handle(self, request: Request) -> None:
        # As in Scrapy, a redirect is scheduled in the step that ends its download: no other request
        # is handed out in between.
        result = await self.downloader.fetch(request)
        if isinstance(result, Request):
            self.crawl(result)
            self.done(request)
        else:
            self.scraper.enqueue_scrape(result, request).addCallback(lambda _: self.done(request))

    def done(self, request: Request) -> None:
        """Note that a request is no longer under way."""
        self._under_way.discard(request)
        self._wake()

    def _dropped(self, request: Request) -> None:
        self.scraper.open.pop(id(request), None)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
