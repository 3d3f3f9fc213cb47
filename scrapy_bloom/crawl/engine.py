"""Scrapy's running engine, as far as it is used: private names of its are in this file only."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro

from scrapy_bloom.crawl.watch import Listener, watch

#: Requests in the queue below which more of those that were left behind are put back.
FEW_REQUESTS = 256


class Engine:
    """The engine of a crawl.

    Args:
        crawler: the running crawler.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def tell(self, listener: Listener) -> None:
        """Tell a listener what becomes of requests, from now on."""
        if self._engine is not None:
            watch(self._engine, listener)

    def crawl(self, request: Request) -> None:
        """Schedule a request."""
        self._engine.crawl(request)

    def wait_for_first_outputs(self) -> None:
        """From now on, wait for a page's first output before the workers for them are started.

        Scrapy starts CONCURRENT_ITEMS (100) tasks a page, which takes 1 ms. Where all links of a
        page are dropped, they are not needed; where they have to wait, they take longer.
        """
        scraper: Any = getattr(self._engine, "scraper", None)
        handle = getattr(scraper, "handle_spider_output_async", None)
        if not inspect.iscoroutinefunction(handle):
            return  # a version without such workers

        async def handle_if_any(result: Any, *args: Any, **kwargs: Any) -> None:
            outputs = await _started(result) if isinstance(result, AsyncIterator) else result
            if outputs is not None:
                await handle(outputs, *args, **kwargs)

        scraper.handle_spider_output_async = handle_if_any

    def has_room(self) -> bool:
        """Whether few requests are waiting."""
        if self._slot is None:
            return False
        scheduler = self._slot.scheduler
        try:
            return len(scheduler) < FEW_REQUESTS
        except TypeError:  # Scrapy does not ask for a length
            return not scheduler.has_pending_requests()

    def look(self) -> None:
        """Have it look at once whether it has anything to do; by itself, it does every 5 s."""
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
    def _engine(self) -> Any:
        try:
            return self._crawler.engine
        except RuntimeError:
            return None  # there is none yet: nothing is crawled

    @property
    def _slot(self) -> Any:
        return None if self._engine is None else self._engine._slot  # noqa: SLF001 - see above


async def _started(outputs: AsyncIterator[Any]) -> AsyncIterator[Any] | None:
    """Wait for the first output; return an iterator over all of them, None if there are none."""
    try:
        first = await outputs.__anext__()
    except StopAsyncIteration:
        return None
    except Exception as error:
        return _raising(error)  # it is Scrapy's to handle
    return _all(first, outputs)


async def _raising(error: Exception) -> AsyncIterator[Any]:
    raise error
    yield


async def _all(first: Any, others: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        yield first
        async for output in others:
            yield output
    finally:
        if isinstance(others, AsyncGenerator):
            await others.aclose()
