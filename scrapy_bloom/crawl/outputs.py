"""Looks up the requests that a callback has ready in one round trip, before they are scheduled.

Scrapy's scraper passes what is left of a callback's output, after all spider middlewares, to
``Scraper.handle_spider_output_async``. That method is replaced, on the object of this crawl. Here
the outputs are gathered as long as they come without waiting, and the duplicates are dropped. The
original method gets the others as a list, which it can process with as few tasks as there are
outputs: from an iterator, it would start CONCURRENT_ITEMS (100) tasks a page.
"""

import asyncio
import logging
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import shown, tagged
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.crawl.engine_hooks import check_method, drop_parsed
from scrapy_bloom.crawl.lookups import Lookup
from scrapy_bloom.crawl.pages import InFlightRequest

logger = logging.getLogger(__name__)

#: Outputs after which the event loop gets a turn, though the callback has more of them ready.
MAX_PER_TURN = 64
#: Seconds for which it is known whether ``request_dropped`` has receivers.
RECEIVERS_SECONDS = 0.1


class Outputs:
    """Takes the outputs of all callbacks and errbacks of a crawl.

    Args:
        crawler: the running crawler.
        crawl: decides which requests are new, and follows pages.
        batch: requests of a page that are looked up together, at most; 0 looks up none.
        log: logs a dropped request.
    """

    def __init__(
        self,
        crawler: Crawler,
        crawl: Crawl,
        batch: int,
        log: Callable[[Request, Spider], None],
    ) -> None:
        self.decider, self.claims = crawl.decider, crawl.claims
        self.batch, self._log = batch, log
        self.is_closed = False
        self.scraper: Any = None
        #: Items of one page that are processed at the same time, at most.
        self.max_items = 1
        self._crawler = crawler
        self._handle: Callable[..., Awaitable[None]] | None = None
        self._offsite: OffsiteMiddleware | None = None
        #: The pages under way, by the id of what their callback or errback got.
        self._pages: dict[int, list[Request]] = {}
        #: Whether ``request_dropped`` has receivers, and until when that holds.
        self._has_receivers, self._holds_until = False, 0.0

    def close(self) -> None:
        """Pass all requests on to the scheduler: the filter is closed."""
        self.is_closed = True

    def hook(self, scraper: Any) -> None:
        """Replace the scraper's method from now on.

        Raises:
            AttributeError: it has none.
            TypeError: it is called or answers in another way than all known versions.
        """
        handle = scraper.handle_spider_output_async
        check_method(handle, "", "request", "", is_async=True)
        check_method(scraper.handle_spider_error, "", "request", "")
        self.max_items = max(1, scraper.concurrent_items)
        self._offsite = self._crawler.get_downloader_middleware(OffsiteMiddleware)
        self.scraper, self._handle = scraper, handle
        scraper.handle_spider_output_async = self.handle

    async def handle(
        self,
        result: Iterable[Any] | AsyncIterator[Any],
        request: Request,
        response: Response | Failure,
    ) -> None:
        """Process the output of a callback or errback, as Scrapy's own method does."""
        outputs = result if isinstance(result, AsyncIterator) else _Asynchronous(result)
        # Of an item that raises, only the response is known; its request may be a copy.
        pages = self._pages.setdefault(id(response), [])
        pages.append(request)
        try:
            await _Page(self, request, response).process(outputs)
        except Exception as error:
            # Scrapy logs it, and the page would count as crawled without these outputs.
            if self.claims is not None:
                self.claims.tracker.raised(request, error)
            raise
        finally:
            pages.remove(request)
            if not pages:
                del self._pages[id(response)]

    def item_failed(self, response: Response | Failure | None, failure: Failure) -> None:
        """Note that a pipeline has raised: for the signal ``item_error``."""
        assert failure.value is not None  # noqa: S101 - Scrapy has caught it
        for page in self._pages.get(id(response), ()):
            if self.claims is not None:
                self.claims.tracker.raised(page, failure.value, in_pipeline=True)

    def pages_of(self, response: object) -> list[InFlightRequest]:
        """Return the pages under way, with claims, of what a callback or errback got."""
        if self.claims is None:
            return []
        page_of = self.claims.tracker.page_of
        found = map(page_of, self._pages.get(id(response), ()))
        return [page for page in found if page is not None]

    async def pass_on(
        self, outputs: list[Any], request: Request, response: Response | Failure
    ) -> None:
        """Have outputs processed, all at the same time, by Scrapy's own method."""
        assert self._handle is not None  # noqa: S101 - it is hooked
        # Only that method reads it, before it first waits.
        self.scraper.concurrent_items = len(outputs)
        await self._handle(outputs, request, response)

    def will_be_scheduled(self, request: Request) -> bool:
        """Whether Scrapy will not drop it as offsite, which it does after this point."""
        if self._offsite is None or request.meta.get("allow_offsite"):
            return True
        spider = self._crawler.spider
        try:
            return spider is not None and bool(self._offsite.should_follow(request, spider))
        except Exception:
            return True

    def drop(self, request: Request, lookup: Lookup) -> None:
        """Drop a duplicate, as the scheduler and the engine do."""
        self.decider.count_seen(lookup)
        spider = self._crawler.spider
        assert spider is not None  # noqa: S101 - it has yielded the request
        try:
            self._log(request, spider)
        except Exception:  # the project's own `log`: the page's other links go on
            line = "Bloom filter: duplicate request %s cannot be logged"
            logger.exception(tagged("not-logged", line), shown(request))
        now = time.monotonic()
        if now >= self._holds_until:  # to find out takes longer than all the rest
            receivers = getAllReceivers(self._crawler.signals.sender, signals.request_dropped)
            self._has_receivers = any(True for _ in liveReceivers(receivers))
            self._holds_until = now + RECEIVERS_SECONDS
        if self._has_receivers:
            self._crawler.signals.send_catch_log(
                signals.request_dropped, request=request, spider=spider
            )


class _Page:
    """Processes the outputs of one callback.

    All of the callback runs in the task that awaits ``process``, because time-outs and cancel
    scopes belong to the task they are opened in. While it waits, and while it has more outputs than
    are gathered at a time, those it has yielded are handed over in tasks of their own.
    """

    def __init__(self, crawl: Outputs, request: Request, response: Response | Failure) -> None:
        self._crawl, self._decider = crawl, crawl.decider
        self._request, self._response = request, response
        self._note = crawl.claims.tracker.yields(request) if crawl.claims else None
        #: Gathered outputs, with the lookups of requests that need one.
        self._gathered: list[tuple[Any, Lookup | None]] = []
        self._lookups: dict[tuple[str, bytes], Lookup] = {}
        self._items = 0
        #: Tasks that process outputs handed over, and the number of items in them.
        self._handing_over: list[asyncio.Task[None]] = []
        self._busy = 0
        #: One lookup at a time, so that requests keep their order.
        self._lookup = asyncio.Lock()
        #: Outputs since the loop had its last turn.
        self._in_turn = 0
        #: Raised while outputs were handed over, by a fault of the project's or this package's.
        self._error: Exception | None = None
        #: A cancellation that came while the task did not wait for the callback.
        self._cancelled: asyncio.CancelledError | None = None

    async def process(self, outputs: AsyncIterator[Any]) -> None:
        """Process all outputs."""
        try:
            await self._gather(outputs)
        except BaseException:  # cancelled: what was yielded before is crawled
            self._begin_hand_over()
            raise
        finally:
            drop_parsed(self._response)  # now, and not after the lookups
        if not self._handing_over:
            await self._hand_over(*self._take())
        self._begin_hand_over()
        for handing_over in self._handing_over:
            await handing_over
        if self._error is not None:
            raise self._error

    async def _gather(self, outputs: AsyncIterator[Any]) -> None:
        while True:
            try:
                output = await self._next(outputs)
            except StopAsyncIteration:
                return
            except Exception:
                failure = Failure()  # type: ignore[no-untyped-call]
                self._begin_hand_over()
                self._crawl.scraper.handle_spider_error(failure, self._request, self._response)
                continue  # as Scrapy does: a middleware may have more to yield
            self._add(output)
            if self._is_full:
                self._begin_hand_over()
            self._in_turn += 1
            if self._in_turn >= MAX_PER_TURN or self._busy >= self._crawl.max_items:
                await self._pause()

    async def _next(self, outputs: AsyncIterator[Any]) -> Any:
        """Return the next output; if the callback waits, hand over what it has yielded before."""
        step: Any = outputs.__anext__()
        if not hasattr(step, "send"):
            step = _awaited(step)
        try:
            awaited = step.send(None)
        except StopIteration as stop:
            return stop.value
        self._begin_hand_over()
        self._cancel_callback()
        self._in_turn = 0
        return await _rest_of(step, awaited)

    def _add(self, output: Any) -> None:
        if not isinstance(output, Request):
            self._items += 1
            self._gathered.append((output, None))
            if output is not None and self._note is not None:
                self._note(output)
            return
        try:
            is_looked_up = self._crawl.batch and not self._crawl.is_closed
            prepare = self._decider.prepare
            lookup = prepare(output) if is_looked_up else None
        except Exception as error:
            # Scrapy would lose it without a log line.
            if self._crawl.claims is not None:
                self._crawl.claims.tracker.raised(self._request, error)
            return
        if lookup is not None:
            if lookup.verdict is not None:
                # At once: they are most links of a large site, and take memory while they wait.
                self._crawl.drop(output, lookup)
                return
            is_wanted = self._crawl.will_be_scheduled(output)
            lookup = self._lookups.setdefault(lookup.key, lookup) if is_wanted else None
        if self._note is not None:
            self._note(output)  # before the lookup: the claim may have to name the page
        self._gathered.append((output, lookup))

    @property
    def _is_full(self) -> bool:
        requests = len(self._gathered) - self._items
        return (
            requests >= (self._crawl.batch or MAX_PER_TURN)
            or self._items >= self._crawl.max_items - self._busy
        )

    # -- handing over --

    def _take(self) -> tuple[list[tuple[Any, Lookup | None]], list[Lookup]]:
        """Return the gathered outputs and their lookups, and clear both."""
        taken = self._gathered, list(self._lookups.values())
        self._gathered, self._lookups, self._items = [], {}, 0
        return taken

    def _begin_hand_over(self) -> None:
        """Hand over what is gathered, in a task of its own."""
        if not self._gathered:
            return
        weight = max(1, self._items)
        self._busy += weight
        self._forget_done()  # a callback may wait any number of times
        handing_over = self._hand_over(*self._take(), weight)
        self._handing_over.append(asyncio.ensure_future(handing_over))

    def _forget_done(self) -> None:
        """Forget tasks that have ended."""
        self._handing_over = [one for one in self._handing_over if not one.done()]

    async def _hand_over(
        self,
        gathered: list[tuple[Any, Lookup | None]],
        lookups: list[Lookup],
        weight: int = 0,
    ) -> None:
        """Look requests up, and pass on what is no duplicate."""
        try:
            async with self._lookup:
                if lookups:
                    await self._decider.decide_many(lookups)
            if outputs := [output for output, lookup in gathered if self._goes_on(output, lookup)]:
                await self._crawl.pass_on(outputs, self._request, self._response)
        except Exception as error:
            self._error = self._error or error
        finally:
            self._busy -= weight

    def _goes_on(self, output: Any, lookup: Lookup | None) -> bool:
        if lookup is not None and lookup.is_duplicate and not self._crawl.is_closed:
            self._crawl.drop(output, lookup)
            return False
        return True

    # -- waiting --

    async def _pause(self) -> None:
        """Give the loop its turn, and wait until more items may be handed over."""
        if self._in_turn >= MAX_PER_TURN:
            self._in_turn = 0
            await self._wait(asyncio.sleep(0))
        while self._busy >= self._crawl.max_items:
            self._forget_done()
            await self._wait(asyncio.wait(self._handing_over, return_when=asyncio.FIRST_COMPLETED))

    async def _wait(self, own: Awaitable[object]) -> None:
        """Wait for something that is not the callback's; a cancellation is meant for it.

        Not if all tasks are cancelled, as by a second Ctrl-C without a reactor: the event loop is
        about to be closed, and waits for this one.
        """
        try:
            await own
        except asyncio.CancelledError as error:
            if any(one.cancelling() for one in self._handing_over):
                raise
            self._cancelled = error

    def _cancel_callback(self) -> None:
        """Cancel the callback, which waits now, if its task was cancelled while it did not.

        That was a time-out or a cancel scope that the callback is in: raised where this waits, it
        would end the callback.
        """
        error, self._cancelled = self._cancelled, None
        task = asyncio.current_task() if error is not None else None
        if error is None or task is None:
            return
        if not task.cancelling():
            return  # the callback has left that scope
        task.uncancel()
        task.cancel(*error.args)


class _Asynchronous:
    """An iterable as an asynchronous iterator, which can go on after an exception."""

    def __init__(self, outputs: Iterable[Any]) -> None:
        self._outputs = iter(outputs)

    def __aiter__(self) -> "_Asynchronous":
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._outputs)
        except StopIteration:
            raise StopAsyncIteration from None


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@types.coroutine
def _rest_of(step: Any, awaited: Any) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine, which has been started and waits for something."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            step.close()
            raise
        except BaseException as error:
            resume, value = step.throw, error
        else:
            resume, value = step.send, sent
        try:
            awaited = resume(value)
        except StopIteration as stop:
            return stop.value
