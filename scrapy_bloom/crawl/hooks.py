"""Wraps methods of Scrapy's parts, on the objects of this crawl, to follow requests and outputs.

Scrapy has no signals for a request that is dropped by a middleware, fails or turns into another
one, and none for the end of a callback.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

from scrapy import Request
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import ConfigurationError

#: What belongs to the item that is being processed.
_current: ContextVar[Any] = ContextVar("item", default=None)
#: The same by the id of the item, for Scrapy 2.13, where a pipeline's Deferred loses the context.
_by_item: dict[int, Any] = {}


class SchedulerListener(Protocol):
    """Is called with the events of requests that enter and leave the scheduler."""

    def offered(self, request: Request) -> None:
        """The scheduler is about to receive it."""

    def accepted(self, request: Request) -> None:
        """The scheduler has queued it."""

    def refused(self, request: Request) -> None:
        """The scheduler has refused it: a duplicate."""

    def lost(self, request: Request, error: BaseException) -> None:
        """The scheduler's queue has failed: the request is lost."""

    def handed_out(self, request: Request) -> bool:
        """It has left the scheduler; return whether it's the engine's now, and not dropped."""

    def not_read(self, error: Exception) -> None:
        """The scheduler's queue has failed to give a request."""


class PageListener(Protocol):
    """Is called with the events of requests that have left the scheduler."""

    def turned_into(self, request: Request, successor: Request) -> None:
        """The downloader's middlewares made another request of it: a redirect, or a retry."""

    def raised(self, request: Request, error: BaseException) -> None:
        """Its callback or errback, or a spider middleware, raised, even if that was handled."""

    def finished(self, request: Request, result: Response | Failure) -> None:
        """Its callback or errback has ended, and all its output is processed."""


def check_method(method: Callable[..., Any], *parameters: str, is_async: bool = False) -> None:
    """Refuse a method that is called or answers in another way than all known versions.

    Args:
        method: will be wrapped.
        parameters: names that its first parameters have; "" for any.
        is_async: whether it is a coroutine function.

    Raises:
        TypeError: it has another form.
    """
    signature = inspect.signature(method)
    found = list(signature.parameters.values())
    names = [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD]
    has_any = any(one.kind is one.VAR_POSITIONAL for one in found)
    matches = all(known in ("", name) for known, name in zip(parameters, names, strict=False))
    is_short = len(names) < len(parameters) and not has_any
    if is_short or not matches or inspect.iscoroutinefunction(method) != is_async:
        raise TypeError(f"{getattr(method, '__qualname__', method)} takes {signature}")


def watch_scheduler(scheduler: Any, listener: SchedulerListener) -> None:
    """Notify a listener of the requests that a scheduler gets and gives."""
    enqueue_request, next_request = scheduler.enqueue_request, scheduler.next_request
    check_method(enqueue_request, "")
    check_method(next_request)

    def enqueue(request: Request) -> bool:
        listener.offered(request)
        try:
            is_accepted = bool(enqueue_request(request))
        except BaseException as error:
            listener.lost(request, error)
            raise
        (listener.accepted if is_accepted else listener.refused)(request)
        return is_accepted

    def take() -> Request | None:
        try:
            request: Request | None = next_request()
        except Exception as error:
            listener.not_read(error)
            raise
        return request

    def hand_out() -> Request | None:
        request = take()
        while request is not None and not listener.handed_out(request):
            request = take()
        return request

    scheduler.enqueue_request, scheduler.next_request = enqueue, hand_out


def watch_downloader(downloader: Any, listener: PageListener) -> None:
    """Notify a listener of redirects and retries."""
    fetch = downloader.fetch

    def fetch_and_notify(request: Request, *args: Any) -> Any:
        def notify(result: Any) -> Any:
            if isinstance(result, Request):
                listener.turned_into(request, result)
            return result

        async def notify_later(result: Awaitable[Any]) -> Any:
            return notify(await result)

        # Scrapy's own returns a Deferred. One of the user's may answer immediately, or raise.
        result = fetch(request, *args)
        if isinstance(result, Deferred):
            return result.addCallback(notify)
        return notify_later(result) if inspect.isawaitable(result) else notify(result)

    downloader.fetch = fetch_and_notify


def watch_scraper(scraper: Any, listener: PageListener) -> None:
    """Notify a listener of the ends of callbacks, and of their exceptions."""
    enqueue_scrape, handle_spider_error = scraper.enqueue_scrape, scraper.handle_spider_error
    check_method(enqueue_scrape, "", "request")
    check_method(handle_spider_error, "", "request")
    #: What failed downloads gave: their errbacks aren't called through spider middlewares.
    failures: set[Failure] = set()

    def scrape(result: Response | Failure, request: Request, *args: Any) -> Any:
        def notify(outcome: Any) -> Any:
            failures.discard(result)
            listener.finished(request, result)
            return outcome

        if isinstance(result, Failure):
            failures.add(result)
        try:
            scraping = enqueue_scrape(result, request, *args)
        except BaseException as error:
            listener.raised(request, error)
            notify(None)
            raise
        return scraping.addBoth(notify)

    def handle_error(failure: Failure, request: Request, *args: Any) -> Any:
        if failure.value is not None:
            listener.raised(request, failure.value)
        return handle_spider_error(failure, request, *args)

    scraper.enqueue_scrape, scraper.handle_spider_error = scrape, handle_error
    _watch_callbacks(scraper, listener, failures)


def _watch_callbacks(scraper: Any, listener: PageListener, failures: set[Failure]) -> None:
    """Notify a listener of exceptions before a callback yields, which middlewares may hide."""
    call_spider = scraper.call_spider_async
    check_method(call_spider, "", "request", is_async=True)

    async def call(result: Response | Failure, request: Request) -> Any:
        if result in failures:
            return await call_spider(result, request)
        cause = result.value if isinstance(result, Failure) else None
        # A middleware raised, so the errback is called. Of an HttpError, the status decides.
        if cause is not None and not isinstance(cause, HttpError):
            listener.raised(request, cause)
        try:
            return await call_spider(result, request)
        except Exception as error:
            if error is not cause:
                listener.raised(request, error)
            raise

    scraper.call_spider_async = call


class Scraper:
    """Processes the outputs of callbacks.

    Args:
        scraper: Scrapy's own.
    """

    def __init__(self, scraper: Any) -> None:
        self._scraper = scraper

    def take_outputs(
        self,
        handle: Callable[..., Any],
        call: Callable[..., Any],
        raised: Callable[[Response, BaseException | None], None],
    ) -> None:
        """Have other methods process outputs, and call callbacks.

        Args:
            handle: is called with outputs, in the place of Scrapy's own method.
            call: the same with callbacks; gets Scrapy's own method first.
            raised: is called with a response whose outputs have raised, and with the exception,
                before spider middlewares are, which may hide it.

        Raises:
            ConfigurationError: the scraper is of a version that is not known.
        """
        try:
            check_method(self._scraper.handle_spider_error, "", "request", "")
            check_method(self._scraper.handle_spider_output_async, "", "request", "", is_async=True)
            check_method(self._scraper.call_spider_async, "", "request", is_async=True)
            manager = self._scraper.spidermw
            process_exception = manager._process_spider_exception  # noqa: SLF001 - see above
            check_method(process_exception, "response")
        except (AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"A page's links can't be looked up together in this engine ({error}). Use "
                "a version of Scrapy that scrapy-bloom supports"
            ) from error
        self._scraper.handle_spider_output_async = handle
        self._scraper.call_spider_async = partial(call, self._scraper.call_spider_async)

        def process_and_notify(response: Response, *args: Any) -> Any:
            error = next(one for one in args if isinstance(one, Exception | Failure))
            cause = error.value if isinstance(error, Failure) else error
            if not isinstance(cause, HttpError):  # else the status decides
                raised(response, cause)
            return process_exception(response, *args)

        manager._process_spider_exception = process_and_notify  # noqa: SLF001 - see above

    @property
    def items_at_a_time(self) -> int:
        """How many items of a callback are processed at a time."""
        count: int = self._scraper.concurrent_items
        return max(1, count)

    @property
    def middlewares(self) -> tuple[object, ...]:
        """The spider middlewares."""
        return tuple(self._scraper.spidermw.middlewares)

    def start_item(self, item: Any, response: Response | Failure) -> "asyncio.Future[None]":
        """Begin to process an item."""
        loop = asyncio.get_running_loop()
        if hasattr(self._scraper, "start_itemproc_async"):
            return loop.create_task(self._scraper.start_itemproc_async(item, response=response))
        processing: Deferred[None] = self._scraper.start_itemproc(item, response=response)
        return processing.asFuture(loop)  # before Scrapy 2.14

    def log_failure(self, request: Request, response: Response | Failure) -> None:
        """Log the exception that is being handled, and count it, as a callback's."""
        failure = Failure()  # type: ignore[no-untyped-call]
        self._scraper.handle_spider_error(failure, request, response)

    def watch_items(self, find: Callable[[Any], object]) -> None:
        """Let ``processing`` return what belongs to an item, by its response."""
        is_async = hasattr(self._scraper, "start_itemproc_async")  # from Scrapy 2.14 on
        name = "start_itemproc_async" if is_async else "start_itemproc"
        process = getattr(self._scraper, name)

        def forget(result: Any, item: Any) -> Any:
            _by_item.pop(id(item), None)
            return result

        def process_item(item: Any, *, response: Any) -> Any:
            _by_item[id(item)] = own = find(response)
            token = _current.set(own)
            try:
                return process(item, response=response).addBoth(forget, item)
            finally:
                _current.reset(token)

        async def process_item_async(item: Any, *, response: Any) -> None:
            token = _current.set(find(response))
            try:
                await process(item, response=response)
            finally:
                _current.reset(token)

        setattr(self._scraper, name, process_item_async if is_async else process_item)


def processing(item: object) -> Any:
    """Return what belongs to an item that a pipeline is processing; None if nothing is known."""
    return _by_item.get(id(item)) or _current.get()


def take_closings(exporter: Any) -> list[Coroutine[Any, Any, None]]:
    """Take what stores a feed's full batches: Scrapy 2.14 to 2.17 await it only in the end."""
    closings: list[Coroutine[Any, Any, None]] = getattr(exporter, "_pending_close_coros", [])
    taken = closings.copy()
    closings.clear()
    return taken


def asynchronous(outputs: Iterable[Any] | AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Return outputs as an asynchronous iterator."""
    return outputs if isinstance(outputs, AsyncIterator) else _Asynchronous(outputs)


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
