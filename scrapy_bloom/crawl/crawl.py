"""A crawl with its filters open: puts its parts together, begins and ends them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from scrapy.crawler import Crawler

from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError
from scrapy_bloom.bloom.model.generations import forgotten_before
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl import advice, workers
from scrapy_bloom.crawl.apply_jobs import JobApplier
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context, Opening, has_asyncio
from scrapy_bloom.crawl.decider import Decider
from scrapy_bloom.crawl.delivery import Delivery
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.jobs import ClaimOwner
from scrapy_bloom.crawl.ledger import Ledger, LedgerRules
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.recovery import Recovery
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.server import Filters, Server, connect_filters
from scrapy_bloom.crawl.workers import Queue
from scrapy_bloom.crawl.writer import Writer
from scrapy_bloom.recrawl_rules import WINDOW_NAME
from scrapy_bloom.settings import DEFAULT, ITEMS, BloomSettings
from scrapy_bloom.sitemaps import SitemapVersions

#: Windows that are looked for although the settings do not have them.
MAX_WINDOWS_LEFT = 500


class Crawl:
    """The parts of a crawl whose filters are open.

    Args:
        context: what all parts use.
        identity: identifies requests.
        queue: of the crawl.

    Attributes:
        context: what all parts use.
        server: of the filters.
        claims: of the crawl; None if a URL counts as seen once its request is scheduled.
        delivery: of the items of pages; None where no page is followed.
        decider: decides which requests are new.
    """

    def __init__(self, context: Context, identity: Identity, queue: Queue) -> None:
        self.context, settings = context, context.settings
        self._identity = identity
        self._timeout = settings.timeout
        self.server = context.server
        self.claims, self.delivery, self._recovery, self._ledger = None, None, None, None
        owner = ClaimOwner()
        freed: Callable[[], object] = int
        ledgers = frozenset(self.server.filters.forgetting if settings.ledger else ())
        if settings.makes_claims:
            self.claims = Claims(context, identity, queue, ledgers)
            self.delivery = Delivery(context.report, self.claims.settler)
            self._recovery = Recovery(context, self.claims)
            owner, freed = self.claims.owner, self._recovery.look_soon
        self._applier = JobApplier(context, owner, ledgers, freed)
        self._writer = Writer(context, self._applier)
        self.decider = Decider(context, identity, self._writer, self.claims)
        if self.claims is not None and settings.ledger:
            self._ledger = Ledger(context, self.claims, self.decider)
        #: Recovery and the ledger.
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, opening: Opening) -> None:
        """Begin to write, to recover and to follow requests.

        Raises:
            BloomError: the server cannot be used.
        """

        def run(begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
            opening.run(lambda: complete(begin()))

        filters = self.server.filters
        for window, bloom in filters.by_window.items():
            self.context.local.connected(window, bloom.session.now)
        filters.stay_quick()
        if self._recovery is not None and self.claims is not None:
            # Both before the first claim: a restart of the server may lose it, and other workers
            # take over claims of an owner without a heartbeat.
            run(self._identify_server)
            run(self._recovery.begin)
            if self._ledger is not None:
                run(self._ledger.begin)
            run(self._applier.check_replicas)
            self.context.engine.listen(self.claims.tracker)
        if has_asyncio():
            self.server.use_asyncio()
            self._writer.start()
            parts = self._recovery, self._ledger
            self._tasks = [asyncio.ensure_future(part.run()) for part in parts if part is not None]

    async def _identify_server(self) -> None:
        self.server.identify(await self.server.ask_id())
        if not self.server.id:
            self.context.report.restarts_unnoticed("does not show its run_id (INFO server)")

    def write_now(self) -> None:
        """Write what is queued, blocking: where no task does. What takes too long is left."""
        self._writer.write_now(self._timeout)

    def may_close(self) -> bool:
        """Return whether an idle spider may close; if not, the engine is woken later."""
        if self.claims is None or self._recovery is None:
            return True
        self.claims.tracker.sweep()
        return (self._ledger is None or self._ledger.may_close()) and self._recovery.may_close()

    def forgotten(self) -> str | None:
        """Return how often each filter's blocks have forgotten something, since it was created.

        None if that may have changed: the period of a block is over, and it was not used since.
        """
        counts, local = [], self.context.local
        for window, bloom in self.server.filters.by_window.items():
            session = bloom.session
            rings = [held.ring for held in session.held.values()] if session.complete else []
            if not rings or any(local.has_ended(window, ring.ends) for ring in rings):
                return None
            counts.append(f"{window}:{sum(forgotten_before(ring.generations) for ring in rings)}")
        return ",".join(counts) or None

    def clear(self) -> None:
        """Forget everything."""
        for bloom in self.server.filters.by_window.values():
            bloom.clear()
            self.context.report.cleared(bloom)
        self.context.local.clear()

    # -- the end --

    async def aclose(self) -> None:
        """Write what is queued, after the rounds that are under way, and close the connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.decider.lookups.finish()
        self.decider.give_back_reserved(0)
        if self.claims is not None and self.delivery is not None:
            self.claims.tracker.sweep()
            self.delivery.close()
        left = await self._writer.finish(self._timeout)
        if self._recovery is not None and self.server.is_up:
            with suppress(BloomError):
                await self._recovery.end()
        is_up = self.server.is_up
        await self.server.close_asyncio()
        self.context.report.closed(left)
        settings = self.context.settings
        try:
            self.context.report.closing(
                self.server.filters,
                is_up=is_up,
                names_pages=self._identity.names_pages,
                has_versions=self._identity.has_versions,
                only_items=settings.remember == ITEMS and not settings.recrawl_rules,
            )
        finally:
            self.server.filters.close()

    def close_now(self) -> None:
        """Do the same where no event loop runs, or none any more."""
        self._tasks.clear()
        self._writer.leave_loop()
        self.server.leave_loop()
        complete(self.aclose())


# -- opening --


def open_crawl(
    crawler: Crawler, settings: BloomSettings, identity: Identity, report: Report, opening: Opening
) -> Crawl:
    """Open the filters of a crawl, and begin it.

    Args:
        crawler: the running crawler.
        settings: its settings.
        identity: identifies requests.
        report: counts and warns.
        opening: repeats what may be repeated.

    Raises:
        BloomError: a setting cannot work, or the server cannot be used.
    """
    _check_surroundings(crawler, settings)
    opener, clock = _Opener(crawler, settings, identity, report, opening), opening.runtime.monotonic
    server = Server(opener.open(), settings.timeout, clock)
    local = LocalState(settings.cache_size, 2 * settings.heartbeat, clock)
    context = Context(settings, EngineAdapter(crawler), report, opening.runtime, server, local)
    crawl = Crawl(context, identity, Queue.of(crawler.settings))
    try:
        crawl.begin(opening)
    except BaseException:
        crawl.close_now()
        raise
    if isinstance(crawler.spider, SitemapVersions) and settings.may_skip_sitemaps:
        crawler.spider.bloom_forgotten = crawl.forgotten
    return crawl


def _check_surroundings(crawler: Crawler, settings: BloomSettings) -> None:
    """Refuse to claim requests where pages cannot be followed.

    Raises:
        ConfigurationError: says what is missing.
    """
    if not settings.makes_claims:
        return
    needs = f'BLOOM_REMEMBER = "{settings.remember}" needs'
    if crawler.spider is None:
        raise ConfigurationError(
            f"{needs} the spider when the filter is opened, and the crawler has none: set "
            "crawler.spider, or build the filter with from_spider"
        )
    if not has_asyncio():
        raise ConfigurationError(
            f"{needs} asyncio, and the crawl runs on another reactor: remove TWISTED_REACTOR from "
            "the settings (Scrapy's default is the asyncio reactor), or set BLOOM_REMEMBER = "
            '"scheduled"'
        )


class _Opener:
    """Opens the filters of a crawl, with those of windows that the settings no longer have."""

    def __init__(
        self,
        crawler: Crawler,
        settings: BloomSettings,
        identity: Identity,
        report: Report,
        opening: Opening,
    ) -> None:
        self._settings, self._report, self._run = settings, report, opening.run
        self._spider = crawler.spider
        self._connect = partial(
            connect_filters,
            settings,
            crawler.settings,
            fingerprinter=identity.fingerprinter,
            notify=report.happened,
        )

    def open(self) -> Filters:
        """Connect, and read or create the filters.

        Raises:
            BloomError: a setting cannot work, or the server cannot be used.
        """
        if finding := advice.on_short_window(self._settings.schedule):
            self._report.warn_once("short-window", f"Bloom filter: {finding}")
        filters = self._open()
        claims, ledgers = self._find_left(filters)
        if not self._settings.makes_claims:
            counts = {**count_claims(filters), **claims}
            self._report.claims_ignored(sum(counts.values()))
        elif claims or ledgers:
            self._report.windows_left(claims)
            filters.close()
            filters = self._open(claims.keys() | ledgers)
        return filters

    def _open(self, left: Collection[str] = ()) -> Filters:
        # Clients for clusters connect at once.
        filters = self._run(partial(self._connect, left=left))
        try:
            for bloom in filters.by_window.values():
                self._run(bloom.open)
        except BaseException:
            filters.close()
            raise
        return filters

    def _find_left(self, filters: Filters) -> tuple[dict[str, int], Collection[str]]:
        """Return what there is in windows that the settings no longer have.

        The number of claims of each that has any; those with requests in their ledgers that were
        not looked up by the rules of the settings.
        """
        names = [name for name in filters.by_window if name != DEFAULT]
        noted = filter(WINDOW_NAME.fullmatch, self._run(partial(filters.noted_windows, names)))
        left = {*sorted({*noted} - filters.by_window.keys())[:MAX_WINDOWS_LEFT]}
        if not left:
            return {}, ()
        others = self._run(partial(self._connect, left=left))
        ledgers: Collection[str] = ()
        try:
            counts = self._run(partial(count_claims, others))
            if self._spider is not None and self._settings.ledger:
                tag, digest = workers.tag(self._spider.name), self._settings.windows.digest
                rules = LedgerRules(Server(filters), tag, digest)
                ledgers = self._run(lambda: complete(rules.unread(Server(others), left)))
        finally:
            others.close()
        return {window: counts[window] for window in left if counts[window]}, ledgers


def count_claims(filters: Filters) -> dict[str, int]:
    """Return how many claims there are in each window; no filter is created.

    Raises:
        StorageError: the server does not answer, or a filter cannot be read.
    """
    counts = {}
    for window, bloom in filters.by_window.items():
        snapshot = bloom.run(FilterSession.look)
        counts[window] = sum(snapshot.claims.values()) if snapshot else 0
    return counts
