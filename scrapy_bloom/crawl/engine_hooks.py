"""Scrapy's engine: its private names, and hooks where it has no signals.

Scrapy has signals for a request that is offered and for a response. It has none for a request that
is dropped by a middleware, fails or turns into another one, and none for the end of a callback. So
five public methods of the engine's parts are wrapped, on the objects of this crawl.
(One more is replaced in ``outputs.py``, which sees what callbacks yield.)
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response, TextResponse
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import ConfigurationError

#: Requests in the queue below which more of those that were left behind are put back.
FEW_REQUESTS = 256


class RequestListener(Protocol):
    """Is called with the events of requests."""

    def offered(self, request: Request) -> None:
        """The scheduler is about to receive it."""

    def accepted(self, request: Request) -> None:
        """The scheduler has queued it."""

    def refused(self, request: Request) -> None:
        """The scheduler has refused it: a duplicate."""

    def lost(self, request: Request) -> None:
        """The scheduler's queue has failed: the request is lost."""

    def handed_out(self, request: Request) -> None:
        """It has left the scheduler and is the engine's."""

    def turned_into(self, request: Request, successor: Request) -> None:
        """The downloader's middlewares made another request of it: a redirect, or a retry."""

    def raised(self, request: Request, error: BaseException) -> None:
        """Its callback or errback, or a spider middleware, raised."""

    def finished(self, request: Request, result: Response | Failure) -> None:
        """Its callback or errback has ended, and all its output is processed."""


def watch(engine: Any, listener: RequestListener) -> None:
    """Call a listener with the events of requests, from now on.

    Args:
        engine: Scrapy's ``ExecutionEngine``, with an open spider.
        listener: is called.

    Raises:
        ConfigurationError: the engine is of a version that is not known.
    """
    try:
        # The scheduler is a public attribute of the engine from Scrapy 2.19 on only.
        scheduler, downloader, scraper = engine._slot.scheduler, engine.downloader, engine.scraper  # noqa: SLF001
        _watch_scheduler(scheduler, listener)
        _watch_downloader(downloader, listener)
        _watch_scraper(scraper, listener)
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"BLOOM_REMEMBER cannot follow requests through this engine ({error}): set "
            'it to "scheduled", or use a version of Scrapy that scrapy-bloom is tested with'
        ) from error


def check_method(method: Callable[..., Any], *parameters: str, is_async: bool = False) -> None:
    """Refuse a method that is called or answers in another way than all known versions.

    Args:
        method: will be wrapped.
        parameters: names that its first parameters have; "" for any.
        is_async: whether it is a coroutine function.

    Raises:
        TypeError: it has another form, which the text names.
    """
    name = getattr(method, "__qualname__", repr(method))
    if inspect.iscoroutinefunction(method) != is_async:
        raise TypeError(f"{name} is {'no' if is_async else 'a'} coroutine function")
    try:
        signature = inspect.signature(method)
    except ValueError:
        return  # compiled, without a signature
    found = list(signature.parameters.values())
    positional = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    has_any = any(p.kind is p.VAR_POSITIONAL for p in found)
    if len(positional) < len(parameters) and not has_any:
        raise TypeError(f"{name} takes {signature}")
    for known, actual in zip(parameters, positional, strict=False):
        if known not in ("", actual):
            raise TypeError(f"{name} takes {signature}")


def drop_parsed(response: Response | Failure) -> None:
    """Drop the parsed tree of a page whose callback has ended; if it is used again, it is parsed.

    A response and its selector refer to each other, so that both, 1 to 2 MB for a large page, wait
    for the garbage collector: in a crawl of Python's documentation, up to 100 pages at a time.
    """
    if isinstance(response, TextResponse):
        response._cached_selector = None  # noqa: SLF001


def _watch_scheduler(scheduler: Any, listener: RequestListener) -> None:
    enqueue_request, next_request = scheduler.enqueue_request, scheduler.next_request
    check_method(enqueue_request, "")
    check_method(next_request)

    def enqueue(request: Request) -> bool:
        listener.offered(request)
        try:
            is_accepted = bool(enqueue_request(request))
        except BaseException:
            listener.lost(request)
            raise
        (listener.accepted if is_accepted else listener.refused)(request)
        return is_accepted

    def hand_out() -> Request | None:
        request: Request | None = next_request()
        if request is not None:
            listener.handed_out(request)
        return request

    scheduler.enqueue_request, scheduler.next_request = enqueue, hand_out


def _watch_downloader(downloader: Any, listener: RequestListener) -> None:
    fetch = downloader.fetch

    def fetch_and_notify(request: Request, *args: Any) -> Any:
        def notify(result: Any) -> Any:
            if isinstance(result, Request):
                listener.turned_into(request, result)
            return result

        async def notify_later(result: Awaitable[Any]) -> Any:
            return notify(await result)

        # Scrapy's own returns a Deferred. One of the user's may answer at once, or raise.
        result = fetch(request, *args)
        if isinstance(result, Deferred):
            return result.addCallback(notify)
        return notify_later(result) if inspect.isawaitable(result) else notify(result)

    downloader.fetch = fetch_and_notify


def _watch_scraper(scraper: Any, listener: RequestListener) -> None:
    enqueue_scrape, handle_spider_error = scraper.enqueue_scrape, scraper.handle_spider_error
    check_method(enqueue_scrape, "", "request")
    check_method(handle_spider_error, "", "request")

    def scrape(result: Response | Failure, request: Request, *args: Any) -> Any:
        def notify(outcome: Any) -> Any:
            # A failure here is one of the scraper's own bookkeeping, after the callback.
            listener.finished(request, result)
            return outcome

        try:
            scraping = enqueue_scrape(result, request, *args)
        except BaseException as error:
            listener.raised(request, error)
            listener.finished(request, result)
            raise
        return scraping.addBoth(notify)

    def handle_error(failure: Failure, request: Request, *args: Any) -> Any:
        if failure.value is not None:
            listener.raised(request, failure.value)
        return handle_spider_error(failure, request, *args)

    scraper.enqueue_scrape, scraper.handle_spider_error = scrape, handle_error


class EngineAdapter:
    """The engine of a crawl.

    Args:
        crawler: the running crawler.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def listen(self, listener: RequestListener) -> None:
        """Call a listener with the events of requests, from now on."""
        if self._engine is not None:
            watch(self._engine, listener)

    def crawl(self, request: Request) -> None:
        """Schedule a request."""
        self._engine.crawl(request)

    def hook_scraper(self, hook: Callable[[Any], None]) -> None:
        """Pass the scraper to a function that replaces a method of it.

        Raises:
            ConfigurationError: the engine is of a version that is not known.
        """
        if self._engine is None:
            return
        try:
            hook(self._engine.scraper)
        except (AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"a page's links cannot be looked up together in this engine ({error}): set "
                'BLOOM_BATCH = 0 and BLOOM_REMEMBER = "scheduled", or use a version of Scrapy that '
                "scrapy-bloom is tested with"
            ) from error

    def has_room(self) -> bool:
        """Whether few requests are waiting."""
        if self._slot is None:
            return False
        scheduler = self._slot.scheduler
        try:
            return len(scheduler) < FEW_REQUESTS
        except TypeError:  # a scheduler need not have a length
            return not scheduler.has_pending_requests()

    def look(self) -> None:
        """Make the engine look for work at once; by itself, it looks every 5 s."""
        if self._slot is not None:
            self._slot.nextcall.schedule()

    def pause(self) -> None:
        """Hand out no more requests."""
        self._engine.pause()

    def unpause(self) -> None:
        """Hand out requests again."""
        self._engine.unpause()

    def close_spider(self, reason: str) -> None:
        """Close the spider gracefully."""
        if hasattr(self._engine, "close_spider_async"):
            deferred_from_coro(self._engine.close_spider_async(reason=reason))
        else:  # before Scrapy 2.14
            self._engine.close_spider(self._crawler.spider, reason)

    @property
    def spider(self) -> Spider | None:
        """The crawler's, or the one that the engine was opened with; None before."""
        return self._crawler.spider or getattr(self._engine, "spider", None)

    @property
    def closes_when_idle(self) -> bool:
        """Whether its spider is closed when there is nothing to do."""
        return self._slot is None or bool(self._slot.close_if_idle)

    @property
    def _engine(self) -> Any:
        try:
            return self._crawler.engine
        except RuntimeError:
            return None  # the crawl has not begun

    @property
    def _slot(self) -> Any:
        return None if self._engine is None else self._engine._slot  # noqa: SLF001 - see above
