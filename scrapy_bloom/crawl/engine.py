"""Scrapy's running engine, as far as it is used: private names of its are in this file only."""

from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.crawl.engine_hooks import RequestListener, watch
from scrapy_bloom.crawl.outputs import Outputs

#: Requests in the queue below which more of those that were left behind are put back.
FEW_REQUESTS = 256


class EngineAdapter:
    """The engine of a crawl.

    Args:
        crawler: the running crawler.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def tell(self, listener: RequestListener) -> None:
        """Tell a listener what becomes of requests, from now on."""
        if self._engine is not None:
            watch(self._engine, listener)

    def crawl(self, request: Request) -> None:
        """Schedule a request."""
        self._engine.crawl(request)

    def pass_outputs_to(self, outputs: Outputs) -> None:
        """Pass what callbacks yield to this, from now on.

        Raises:
            ConfigurationError: the engine is of a version that is not known.
        """
        if self._engine is None:
            return
        try:
            outputs.hook(self._engine.scraper)
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
