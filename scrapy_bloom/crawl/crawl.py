"""A crawl with its filters open: puts its parts together, begins and ends them."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.model.generations import forgotten_before
from scrapy_bloom.crawl.apply_jobs import JobApplier, LedgerWriter, Replicas
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.decider import Decider
from scrapy_bloom.crawl.delivery import Delivery
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.in_flight import PageItems
from scrapy_bloom.crawl.jobs import ClaimOwner, JobQueue
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.ledger_rules import LedgerRules
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.recovery import Recovery
from scrapy_bloom.crawl.runtime import finish_now, has_asyncio
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.workers import Queue
from scrapy_bloom.crawl.writer import Writer
from scrapy_bloom.settings import ITEMS


class Crawl:
    """The parts of a crawl whose filters are open.

    Args:
        context: what all parts use.
        identity: identifies requests.
        filters: are open.
        queue: of the crawl.
        rules: by which the spider's requests have their windows; None if it has no ledger.

    Attributes:
        server: of the filters.
        claims: of the crawl; None if a URL counts as seen once its request is scheduled.
        delivery: of the items of pages; None where no page is followed.
        decider: decides which requests are new.
    """

    def __init__(
        self,
        context: Context,
        identity: Identity,
        filters: Filters,
        queue: Queue,
        rules: LedgerRules | None,
    ) -> None:
        settings = context.settings
        self._context, self._timeout = context, settings.timeout
        self.server = server = Server(filters, settings.timeout, context.clock)
        self.local = local = LocalState(settings.cache_size, 2 * settings.heartbeat, context.clock)
        for window, bloom in filters.by_window.items():
            local.connected(window, bloom.session.now)
        filters.stay_quick()
        jobs = JobQueue()
        self.failover = failover = Failover(context, server, local)
        self.claims, self._recovery, self._ledger, ledger_writer = None, None, None, None
        self.delivery = None
        if settings.makes_claims:
            page_items = None
            if settings.remember == ITEMS:
                page_items = PageItems(identity.key, context.report)
            self.claims = Claims(context, queue, server, local, jobs, page_items=page_items)
            self._recovery = Recovery(context, server, self.claims, jobs, failover)
            self.delivery = Delivery(context.report, self.claims.settler)
        self.decider = Decider(
            context, identity, server, local, jobs=jobs, failover=failover, claims=self.claims
        )
        if self.claims is not None and rules is not None:
            self._ledger = Ledger(
                context, server, failover, self.claims, decider=self.decider, rules=rules
            )
            ledger_writer = LedgerWriter.of(self.claims.owner, frozenset(filters.forgetting))
        self._applier = JobApplier(
            self.claims.owner if self.claims else ClaimOwner(),
            server,
            context.token,
            failover,
            freed=self._recovery.look_soon if self._recovery else int,
            replicas=Replicas(settings.wait_replicas, settings.timeout / 2),
            ledger=ledger_writer,
        )
        self._writer = Writer(jobs, self._applier, server, failover, context.clock)
        #: Recovery and the ledger.
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, opening: Opening) -> None:
        """Begin to write, to recover and to follow requests.

        Raises:
            BloomError: the server cannot be used.
        """
        if self._recovery is not None and self.claims is not None:
            # Both before the first claim: a restart of the server may lose it, and other workers
            # take over claims of an owner without a heartbeat.
            _repeat(opening, self._identify_server)
            _repeat(opening, self._recovery.begin)
            if self._ledger is not None:
                _repeat(opening, self._ledger.begin)
            _repeat(opening, self._applier.check_replicas)
            self._context.engine.listen(self.claims.tracker)
        if has_asyncio():
            self.server.use_asyncio()
            self._writer.start()
            parts = self._recovery, self._ledger
            self._tasks = [asyncio.ensure_future(part.run()) for part in parts if part is not None]

    async def _identify_server(self) -> None:
        self.server.identify(await self.server.ask_id())
        if not self.server.id:
            self._context.report.restarts_unnoticed("does not show its run_id (INFO server)")

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
        counts = []
        for window, bloom in self.server.filters.by_window.items():
            session = bloom.session
            rings = [held.ring for held in session.held.values()] if session.complete else []
            if not rings or any(self.local.has_ended(window, ring.ends) for ring in rings):
                return None
            counts.append(f"{window}:{sum(forgotten_before(ring.generations) for ring in rings)}")
        return ",".join(counts) or None

    def clear(self) -> None:
        """Forget everything."""
        for bloom in self.server.filters.by_window.values():
            bloom.clear()
            self._context.report.cleared(bloom)
        self.local.clear()

    # -- the end --

    async def aclose(self) -> None:
        """Write what is queued, after the rounds that are under way, and close the connections."""
        self.failover.is_over = True
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
                await self._recovery.heartbeats.end()
        is_up = self.server.is_up
        await self.server.close_asyncio()
        self._context.report.closed(left)
        try:
            self._context.report.closing(self.server.filters, is_up=is_up)
        finally:
            self.server.filters.close()

    def close_now(self) -> None:
        """Do the same where no event loop runs, or none any more."""
        self._tasks.clear()
        self._writer.leave_loop()
        self.server.leave_loop()
        finish_now(self.aclose())


def _repeat(opening: Opening, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run what blocks, as long as the server may still become ready."""
    opening.run(lambda: finish_now(begin()))
