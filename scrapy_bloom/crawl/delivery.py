"""Pages whose items are not safe yet: in feeds that are not stored, or held by a pipeline.

A page is settled when its callback and the pipelines are done with it. An item may be lost later:
in the buffer of a feed, or in a pipeline that writes many rows at a time. So a page waits for the
feeds that have taken its items, under ``BLOOM_CONFIRM = "delivered"``, and for pipelines that say
so by ``hold``. What is not delivered in the end is crawled again by the next run.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import Any

from pydispatch.errors import DispatcherError
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter, FeedSlot
from scrapy.http import Response
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import tagged
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.crawl import failures
from scrapy_bloom.crawl.engine_hooks import EngineAdapter, check_method
from scrapy_bloom.crawl.jobs import JobKind
from scrapy_bloom.crawl.pages import ClaimSettler, InFlightRequest
from scrapy_bloom.crawl.report import Report

logger = logging.getLogger(__name__)

#: Returns the pages under way of what a callback or errback got.
PagesOf = Callable[[object], Collection[InFlightRequest]]
#: Pages that wait for their items at most: about 50 MB. Beyond it, the oldest are given up.
MAX_PAGES = 100_000


class Delivery:
    """The pages that wait for their items.

    Args:
        report: counts and warns.
        settler: settles pages.
    """

    def __init__(self, report: Report, settler: ClaimSettler) -> None:
        self._report, self._settler = report, settler
        #: In the order in which they began to wait.
        self._pages: dict[InFlightRequest, None] = {}

    def hold(self, page: InFlightRequest) -> None:
        """Let a page wait for one thing more."""
        page.held += 1
        self._pages[page] = None
        if len(self._pages) > MAX_PAGES:
            self._give_up(next(iter(self._pages)))

    def release(self, page: InFlightRequest) -> None:
        """Let a page wait for one thing less; settle it if that was the last one."""
        page.held -= 1
        if not page.held and page in self._pages:
            del self._pages[page]
            self._settler.finish(page)

    def fail(self, page: InFlightRequest, error: str) -> None:
        """Settle a page as one whose pipeline has raised."""
        page.item_error = page.item_error or error
        if page.kind is None or page not in self._pages:
            self.release(page)  # its callback is not done, or it is settled
            return
        del self._pages[page]
        page.kind, page.reason = JobKind.FAIL, page.item_error
        self._settler.finish(page)

    def close(self) -> None:
        """Have the next run crawl all pages again that still wait."""
        left = [page for page in self._pages if page.kind is not None]
        self._pages.clear()
        for page in left:
            page.held = 0
            page.set_instead(JobKind.REPEAT, failures.UNDELIVERED)
            self._settler.finish(page)
        if left:
            self._report.count("undelivered", count=len(left))
            text = (
                "Bloom filter: items of %s were not stored: the next run crawls these pages again"
            )
            logger.warning(tagged("undelivered", text), plural(len(left), "page"))

    def _give_up(self, page: InFlightRequest) -> None:
        del self._pages[page]
        page.is_given_up = True
        self._report.count("undelivered")
        self._report.warn_once(
            "too-many-undelivered",
            f"{MAX_PAGES:,} pages wait until their items are stored: the oldest are not recorded, "
            "and the next run fetches them again. Store items more often: set "
            "FEED_EXPORT_BATCH_ITEM_COUNT, or release what pipelines hold",
        )


# -- what pipelines hold --


class Hold:
    """An item that is not safe yet. Its page is recorded once all its items are.

    ``release`` and ``fail`` may be called from any thread, once; further calls do nothing.
    """

    def __init__(self, delivery: Delivery | None, pages: Collection[InFlightRequest]) -> None:
        self._delivery, self._pages = delivery, pages
        self._loop = asyncio.get_running_loop() if pages else None
        if delivery is not None:
            for page in pages:
                delivery.hold(page)

    def release(self) -> None:
        """Note that the item is safe."""
        self._end(lambda delivery, page: delivery.release(page))

    def fail(self, reason: str) -> None:
        """Note that the item is lost: its page has failed, as if the pipeline had raised.

        Args:
            reason: is shown by ``scrapy bloom failed``, without passwords in URLs.
        """
        error = failures.of_pipeline(str(reason))
        self._end(lambda delivery, page: delivery.fail(page, error))

    def _end(self, how: Callable[[Delivery, InFlightRequest], None]) -> None:
        pages, self._pages = self._pages, ()
        if self._loop is None or self._delivery is None:
            return
        for page in pages:
            if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - documented, never raises
                how(self._delivery, page)
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(how, self._delivery, page)


#: The pages whose item is being processed: one, or copies of one.
_current: ContextVar[tuple[Delivery, Collection[InFlightRequest]]] = ContextVar("pages")


def hook_items(scraper: Any, delivery: Delivery, pages_of: PagesOf) -> None:
    """Let ``hold`` know of which pages the item is that is being processed.

    Raises:
        AttributeError: the scraper has no such method.
        TypeError: it is called in another way than all known versions.
    """
    is_async = hasattr(scraper, "start_itemproc_async")  # from Scrapy 2.14 on
    name = "start_itemproc_async" if is_async else "start_itemproc"
    process = getattr(scraper, name)
    check_method(process, "", is_async=is_async)

    def process_item(item: Any, *, response: Any) -> Any:
        token = _current.set((delivery, pages_of(response)))
        try:
            return process(item, response=response)
        finally:
            _current.reset(token)

    async def process_item_async(item: Any, *, response: Any) -> None:
        token = _current.set((delivery, pages_of(response)))
        try:
            await process(item, response=response)
        finally:
            _current.reset(token)

    setattr(scraper, name, process_item_async if is_async else process_item)


def hold(item: object) -> Hold:  # noqa: ARG001 - says what it is about
    """Keep the page of an item unrecorded until the item is safe.

    For a pipeline's ``process_item``. It does nothing without the filter, and for items that no
    page has yielded.

    Args:
        item: that the pipeline is processing.

    Returns:
        What the pipeline calls later: ``release()`` when the item is written, or ``fail(reason)``.
    """
    return Hold(*_current.get((None, ())))


# -- feeds --


class Feeds:
    """Has pages wait for the feeds that have taken their items.

    Args:
        crawler: the running crawler.
        delivery: the pages that wait.
        pages_of: returns the pages of a response.
    """

    def __init__(
        self,
        crawler: Crawler,
        delivery: Delivery,
        pages_of: PagesOf,
    ) -> None:
        assert crawler.spider is not None  # noqa: S101 - pages are claimed
        self._delivery, self._pages_of, self._spider = delivery, pages_of, crawler.spider
        extensions = crawler.extensions.middlewares if crawler.extensions else ()
        self._exporters = [one for one in extensions if isinstance(one, FeedExporter)]
        #: The files that are being written, with the items that each had.
        self._slots: list[tuple[FeedSlot, int]] = []
        #: File -> pages that wait for it; which of ``_slots`` are stored; which cannot be.
        self._pages: dict[FeedSlot, dict[InFlightRequest, None]] = defaultdict(dict)
        self._stored: set[FeedSlot] = set()
        self._failed: set[FeedSlot] = set()
        connect = crawler.signals.connect
        # After the exporters' own, which extensions have connected before.
        connect(self._read_slots, signals.spider_opened)
        connect(self._item_scraped, signals.item_scraped)
        connect(self._slot_closed, signals.feed_slot_closed)
        #: Those that are closed here: others, of a project's own, close by themselves.
        self._closing: list[FeedExporter] = []
        for exporter in self._exporters:
            with suppress(DispatcherError):
                crawler.signals.disconnect(exporter.close_spider, signals.spider_closed)
                self._closing.append(exporter)

    def warn_of_kills(self, report: Report) -> None:
        """Warn of feeds that are written when the crawl ends: a kill loses all their items."""
        for exporter in self._exporters:
            for uri, options in exporter.feeds.items():
                if not options["batch_item_count"]:
                    report.warn_once(
                        "feed-at-the-end",
                        f"Bloom filter: the feed {failures.redact(uri)} is written when the crawl "
                        "ends: after a kill, the next run crawls all its pages again. To write it "
                        "in parts, set FEED_EXPORT_BATCH_ITEM_COUNT = 1000, and put "
                        "%(batch_id)05d into its name",
                        uri,
                    )

    async def close(self) -> None:
        """Store all feeds, as the exporters do when the spider is closed."""
        for exporter in self._closing:
            await exporter.close_spider(self._spider)

    def _read_slots(self) -> None:
        known = {slot for slot, _ in self._slots}
        slots = [slot for exporter in self._exporters for slot in exporter.slots]
        for slot in slots:
            if slot not in known:
                self._watch(slot)
        self._slots = [(slot, slot.itemcount) for slot in slots]
        self._stored.intersection_update(slots)

    def _item_scraped(self, response: Response | Failure | None) -> None:
        """Let the pages of an item wait for the files that have taken it: they count one more."""
        took = [slot for slot, count in self._slots if slot.itemcount > count]
        for slot in took:
            if slot in self._stored:
                continue  # before Scrapy 2.19, at once: this was the last item
            waiting = self._pages[slot]
            for page in self._pages_of(response):
                if page not in waiting:
                    waiting[page] = None
                    self._delivery.hold(page)
        self._read_slots()

    def _slot_closed(self, slot: FeedSlot) -> None:
        """Settle the pages of a file that is stored; those of another one wait for the end."""
        if slot in self._failed:
            return
        self._stored.add(slot)
        for page in self._pages.pop(slot, {}):
            self._delivery.release(page)

    def _watch(self, slot: FeedSlot) -> None:
        """Note whether a file cannot be stored: the signal does not say so."""
        store = slot.storage.store

        def failed(error: Any) -> Any:
            self._failed.add(slot)
            return error

        async def awaited(stored: Awaitable[object]) -> None:
            try:
                await stored
            except BaseException as error:
                failed(error)
                raise

        def watched(file: Any) -> Any:
            try:
                stored = store(file)
            except Exception as error:
                failed(error)
                raise
            if isinstance(stored, Deferred):
                return stored.addErrback(failed)
            return awaited(stored) if isawaitable(stored) else stored

        slot.storage.store = watched  # type: ignore[method-assign]


def watch_items(
    crawler: Crawler, delivery: Delivery, pages_of: PagesOf, report: Report, *, feeds: bool
) -> Feeds | None:
    """Have pages wait for what pipelines hold and, if they should, for feeds, which are returned.

    Raises:
        ConfigurationError: the engine is of a version that is not known.
    """
    hook = partial(hook_items, delivery=delivery, pages_of=pages_of)
    EngineAdapter(crawler).hook_scraper(hook)
    if not feeds:
        return None
    watched = Feeds(crawler, delivery, pages_of)
    watched.warn_of_kills(report)
    return watched
