"""The crawl's side of the reclaimer: puts requests back, and lets the idle spider close."""

import logging
from collections.abc import Callable, Collection
from functools import partial

from scrapy import Request, Spider

from scrapy_bloom.bloom.errors import shown, tagged
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.crawl.claims import request_codec
from scrapy_bloom.crawl.claims.claim_sweep import Reclaimed
from scrapy_bloom.crawl.claims.proposals import Proposals
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer, ReclaimerStatus
from scrapy_bloom.crawl.claims.settler import ClaimSettler
from scrapy_bloom.crawl.claims.tracker import ClaimTracker, set_claims
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.write_behind import WriteBehind

logger = logging.getLogger(__name__)


class Restorer:
    """Posts messages to the reclaimer in the background thread, and receives its events.

    Args:
        spider: the spider.
        engine: Scrapy's engine.
        failover: whether the server is up.
        report: counts and warns.
        keeps_headers: whether requests with credentials are stored; if not, none is put back.
        proposals: crawls requests of the ledger that are due; None if there is none.
    """

    def __init__(
        self,
        spider: Spider,
        engine: EngineAdapter,
        failover: Failover,
        report: Report,
        *,
        keeps_headers: bool = True,
        proposals: Proposals | None = None,
    ) -> None:
        self._spider, self._engine = spider, engine
        self._failover, self._report = failover, report
        self._keeps_headers, self._proposals = keeps_headers, proposals
        self._status = ReclaimerStatus()
        #: How often the reclaimer was asked whether the idle spider may close, and whether the
        #: answer is awaited.
        self._idle_number, self._is_asked = 0, False
        #: Whether the spider is idle.
        self._is_idle = False
        #: Whether the idle spider waits for the reclaimer.
        self._is_awaited = False
        #: Whether requests were stored with other spiders' claims.
        self._is_awaiting = False

    def start(
        self,
        reclaimer: Reclaimer,
        tracker: ClaimTracker,
        settler: ClaimSettler,
        write_behind: WriteBehind,
    ) -> None:
        """Begin, after the reclaimer has begun."""
        self._reclaimer, self._tracker, self._settler = reclaimer, tracker, settler
        self._put: Callable[[Job], None] = write_behind.put
        self._post: Callable[[Callable[[], object]], None] = write_behind.post
        self._status = reclaimer.status

    def may_close(self) -> bool:
        """Let the spider close when there is nothing to take over or to wait for."""
        self._tracker.sweep()
        if self._proposals and not self._proposals.may_close():
            return False
        if not self._failover.is_up or self._failover.is_closing:
            return True
        status = self._status
        if not status.is_looking:
            if not (status.has_peers or self._is_awaiting):
                return True
            if self._is_asked and status.may_end == self._idle_number:
                self._is_asked = False
                return True
            if not self._is_asked:
                self._is_asked = self._is_idle = True
                self._idle_number += 1
                idle = partial(self._reclaimer.idle, is_awaiting=self._is_awaiting)
                self._post(partial(idle, self._idle_number))
        self._is_awaited = True
        return False

    def resume(self) -> None:
        """Note that the crawl has something to do: the spider is not idle."""
        if self._is_idle:
            self._is_asked = self._is_idle = False
            self._post(self._reclaimer.resume)
        if self._proposals:
            self._proposals.resume()

    def await_other_spiders(self) -> None:
        """Note that a request was stored with another spider's claim, which may become free."""
        self._is_awaiting = True

    # -- events of the reclaimer --

    def looked(self, status: ReclaimerStatus) -> None:
        """Note the reclaimer's status; wake the engine if the idle spider waits for it."""
        self._status = status
        # Not otherwise: each look of the engine sends one more ``spider_idle``.
        if self._is_awaited and not status.is_looking:
            self._is_awaited = False
            self._engine.look()

    def found(self, found: Reclaimed) -> None:
        """Put requests back that were taken over from another worker."""
        if not self._failover.is_over:
            self.resume()
            self._restore(found)
            self.wanted()

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        """Note claims, free since a moment, that were ended: their requests are not stored."""
        self._report.dropped(len(fields))
        self._settler.dropped(window, fields, begun)

    def wanted(self) -> None:
        """Let the reclaimer take over more if the queue has room."""
        if not self._failover.is_over and self._engine.has_room():
            self._post(self._reclaimer.go_on)

    # -- putting back --

    def _restore(self, found: Reclaimed) -> None:
        tracker = self._tracker
        for name, text in found.requests.items():
            request = self._read(found, name, text)
            if request is None:
                self._drop(found, name)
                continue
            self._settler.length += len(text)
            tracker.restored, tracker.was_offered = request, False
            try:
                self._engine.crawl(request)
            except Exception:
                line = "Bloom filter: pending request %s cannot be scheduled"
                logger.exception(tagged("not-scheduled", line), shown(request))
                continue  # its claim stays, and the next run tries again
            finally:
                tracker.restored = None
            self._report.count("taken_over", found.window)
            if not tracker.was_offered:  # a middleware dropped it, for instance as offsite
                self._settler.settle(tracker.claims_of(request), JobKind.RELEASE)

    def _read(self, found: Reclaimed, name: str, text: str) -> Request | None:
        window = found.window
        reason = "it is not the request that was claimed"
        try:
            request = request_codec.load_stored(
                text, self._spider, keeps_headers=self._keeps_headers
            )
            claims = self._tracker.claims_of(request)
            for key in claims:
                if (window, name) == (key[0], field_of(key[1])):
                    set_claims(request, {**claims, key: len(text)})
                    if found.block_of(key[1]) != found.block:
                        self._put(Job(JobKind.CLAIM, *key, text))
                        self._drop(found, name)
                    return request
        except ValueError as error:
            reason = str(error)
        self._report.count("not_restored", window)
        self._report.warn_once(
            "not-restored",
            f"a pending request of another run cannot be put back: {reason}. Has the spider "
            "changed? Its URL is crawled when it is found again (bloom/not_restored counts them)",
        )
        return None

    def _drop(self, found: Reclaimed, name: str) -> None:
        self._put(Job(JobKind.DROP, found.window, name.encode(), block=found.block))
