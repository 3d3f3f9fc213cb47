"""BloomSpiderMiddleware: asks about a page's links together, before the scheduler is offered them.

It stands nearest the engine, so that it sees what will be scheduled, and claims nothing else. What
it finds seen is dropped here; what is new ``BloomDupeFilter.request_seen`` finds answered.
"""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.http import Response

from scrapy_bloom.crawl.asking import Question
from scrapy_bloom.crawl.basket import Fate, in_batches_without_asyncio
from scrapy_bloom.crawl.engine import Engine
from scrapy_bloom.crawl.mainthread import has_asyncio
from scrapy_bloom.crawl.pump import Turn, in_batches
from scrapy_bloom.crawl.windows import RUN
from scrapy_bloom.dupefilter import BloomDupeFilter

#: Its place in ``SPIDER_MIDDLEWARES``: nearer the engine than all of Scrapy's own.
ORDER = 0
#: Seconds after which whoever has connected to ``request_dropped`` is told, at the latest.
LISTENERS = 0.1


class BloomSpiderMiddleware:
    """Claims the requests of a page in one round trip that does not block, and drops duplicates.

    ``SPIDER_MIDDLEWARES = {"scrapy_bloom.BloomSpiderMiddleware": 0}``, or the add-on. It does
    nothing in a crawl with another dupefilter, or with ``BLOOM_BATCH = 0``. Without an asyncio loop
    (another reactor than asyncio's) it blocks, once a page instead of once a link, and leaves start
    requests alone.

    Args:
        crawler: the running crawler.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._offsite: OffsiteMiddleware | None = None
        self._is_started = False
        self._turn = Turn()
        #: Whether anybody wants to be told of what is dropped, and until when that holds.
        self._is_told, self._told_until = False, 0.0
        BloomDupeFilter.will_ask(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "BloomSpiderMiddleware":
        """Build the middleware for Scrapy."""
        return cls(crawler)

    async def process_spider_output(
        self,
        response: Response,
        result: AsyncIterator[Any],
        spider: Spider | None = None,  # noqa: ARG002 - before Scrapy 2.14
    ) -> AsyncIterator[Any]:
        """Pass on what a callback yields, without the duplicates."""
        async for output in self._filter(result, response):
            yield output

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on what ``start()`` yields, without the duplicates.

        Start requests of the window "run" are not asked about: where they all are, as they are by
        default, ``start()`` goes on exactly as without this.
        """
        dupefilter = BloomDupeFilter.of(self._crawler)
        is_asked = dupefilter is not None and dupefilter.settings.start_window != RUN
        filtered = self._filter(start, None) if is_asked and has_asyncio() else start
        async for output in filtered:
            yield output

    def process_start_requests(
        self,
        start_requests: Iterable[Any],
        spider: Spider,  # noqa: ARG002 - Scrapy's interface
    ) -> Iterable[Any]:
        """Change nothing: Scrapy 2.13 calls it where another middleware has this method only."""
        return start_requests

    def _filter(self, outputs: AsyncIterator[Any], page: Response | None) -> AsyncIterator[Any]:
        """Return outputs without the duplicates; ``page`` is None for those of ``start()``."""
        dupefilter = BloomDupeFilter.of(self._crawler)
        if dupefilter is None or not dupefilter.settings.batch:
            return outputs
        if not self._is_started:
            self._is_started = True
            self._offsite = self._crawler.get_downloader_middleware(OffsiteMiddleware)
            if has_asyncio():
                Engine(self._crawler).wait_for_first_outputs()
        return self._without_duplicates(dupefilter, outputs, page)

    async def _without_duplicates(
        self, dupefilter: BloomDupeFilter, outputs: AsyncIterator[Any], page: Response | None
    ) -> AsyncIterator[Any]:
        size = dupefilter.settings.batch
        asked: dict[Request, Question] = {}

        def decide(request: Request) -> Fate:
            try:
                question = dupefilter.question(request)
            except Exception as error:
                if page is None:
                    return Fate.PASSED  # the scheduler raises it, and Scrapy ends the crawl
                # Scrapy would lose it without a log line, and hang after a hundred of a page.
                dupefilter.lost_link(page.request, error)
                return Fate.DROPPED
            if question is None:
                return Fate.PASSED
            if question.verdict and dupefilter.is_duplicate(request, question):
                # At once: they are most links of a large site, and take memory while they wait.
                self._drop(dupefilter, request)
                return Fate.DROPPED
            if not self._will_be_scheduled(request):
                return Fate.PASSED
            asked[request] = question
            return Fate.ASKED

        if has_asyncio():
            batches = in_batches(outputs, size, decide, self._turn, is_lazy=page is None)
        else:
            batches = in_batches_without_asyncio(outputs, size, decide)
        # If this is cancelled, the callback ends now, not when its generator is collected.
        async with aclosing(batches):
            async for batch in batches:
                requests = [output for output in batch if isinstance(output, Request)]
                questions = _once_each([asked[request] for request in requests if request in asked])
                if questions:
                    await dupefilter.ask(questions)
                for output in batch:
                    if isinstance(output, Request) and dupefilter.is_duplicate(
                        output, asked.pop(output, None)
                    ):
                        self._drop(dupefilter, output)
                    else:
                        yield output

    def _will_be_scheduled(self, request: Request) -> bool:
        """Whether Scrapy will not find it offsite, which it says after it has left this place."""
        if self._offsite is None or request.meta.get("allow_offsite"):
            return True
        spider = self._crawler.spider
        try:
            return spider is not None and bool(self._offsite.should_follow(request, spider))
        except Exception:
            return True

    def _drop(self, dupefilter: BloomDupeFilter, request: Request) -> None:
        """Drop a duplicate, as the scheduler and the engine do."""
        spider = self._crawler.spider
        assert spider is not None  # noqa: S101 - it has yielded the request
        dupefilter.log(request, spider)
        if self._has_listeners():
            self._crawler.signals.send_catch_log(
                signals.request_dropped, request=request, spider=spider
            )

    def _has_listeners(self) -> bool:
        """Whether anybody wants to be told of a dropped request, as of a moment ago.

        To look for each link takes longer than whatever else is done to drop it.
        """
        now = time.monotonic()
        if now >= self._told_until:
            receivers = getAllReceivers(self._crawler.signals.sender, signals.request_dropped)
            self._is_told = any(True for _ in liveReceivers(receivers))
            self._told_until = now + LISTENERS
        return self._is_told


def _once_each(questions: Sequence[Question]) -> Sequence[Question]:
    """Return the first question about each; on the others the scheduler decides."""
    first: dict[object, Question] = {}
    for question in questions:
        first.setdefault((question.window, question.item), question)
    return list(first.values())
