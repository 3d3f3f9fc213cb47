"""Settles this worker's claims, and those of pages that wait for them."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl import failures
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.in_flight import MAX_UNKEPT, Claims, InFlightRequest, UnkeptRequests
from scrapy_bloom.crawl.jobs import Job, JobKind, JobQueue
from scrapy_bloom.crawl.local_state import LocalState

#: The stat that counts a settled claim.
_STATS = {
    JobKind.CONFIRM: "crawled",
    JobKind.RELEASE: "released",
    JobKind.FAIL: "failed",
    JobKind.LATER: "failed",
    JobKind.REPEAT: "repeated",
}


class ClaimSettler:
    """Settles claims.

    Args:
        context: what all parts use.
        local: what this process knows.
        jobs: are written later.
        ledgers: windows whose pages are recorded with their requests.
        only_items: whether pages without an item are remembered for this run only.

    Attributes:
        length: characters of the requests stored with the claims of this worker.
        kept: pages that were recorded with their requests.
    """

    def __init__(
        self,
        context: Context,
        local: LocalState,
        jobs: JobQueue,
        ledgers: Collection[str],
        *,
        only_items: bool,
    ) -> None:
        self._report, self._local, self._put = context.report, local, jobs.put
        self._ledgers, self._only_items = ledgers, only_items
        self._unkept = UnkeptRequests(context.clock)
        self.length = self.kept = 0

    def ignore(self, claims: Claims) -> None:
        """Note requests that a middleware dropped: it would drop them again in this run."""
        for _, item in claims:
            if not item.startswith(KEPT):
                self._local.take(item)

    def hold(self, claim: Key) -> None:
        """Make a claim this worker's: the queue's, or another worker's, it may be."""
        self._put(Job(JobKind.HOLD, *claim))

    def settle(self, claims: Claims, kind: JobKind, page: InFlightRequest | None = None) -> None:
        """End claims, then the claims of pages that waited for these only.

        Args:
            claims: are ended.
            kind: of the jobs that end them.
            page: their page; None if its callback was not called.
        """
        ending = [(claims, kind, page)]
        while ending:
            claims, kind, page = ending.pop()
            for claim, length in claims.items():
                self._end(claim, length, kind, page)
                parents = self._unkept.settle(claim, kind)
                ending += [(parent.claims, parent.end(), parent) for parent in parents]

    def _end(self, claim: Key, length: int, kind: JobKind, page: InFlightRequest | None) -> None:
        window, item = claim
        is_kept = item.startswith(KEPT)
        is_read_each_run = self._only_items and not is_kept and not (page and page.has_item)
        if kind is JobKind.LATER and not is_read_each_run:
            kind = JobKind.FAIL
        job, also = Job(kind, window, item), None
        if page is not None:
            job = replace(
                job,
                reason=page.reason,
                epoch=page.epoch,
                is_last=page.has_queued,
                waiting=self._unkept.waiting(claim),
            )
        if is_kept:
            if kind in (JobKind.FAIL, JobKind.REPEAT):
                self._local.to_repeat.add(claim)
            if kind is JobKind.CONFIRM:
                job = replace(job, kind=JobKind.DONE)
                also = page.also if page is not None else None
        elif is_read_each_run and kind in (JobKind.CONFIRM, JobKind.LATER):
            self._local.take(item, for_run=True)
            if kind is JobKind.CONFIRM:
                self._report.count("without_item", window)
                job = replace(job, kind=JobKind.DONE)
        self._put(job)
        if also is not None:
            self._put(Job(JobKind.RECORD, *also))
        if kind is JobKind.CONFIRM:
            self._local.versions.crawled(claim)
            if length and job.kind is JobKind.CONFIRM and window in self._ledgers:
                self._report.count("ledger_added", window)
                self.kept += 1
        else:
            # A listing that is tried later stays seen for this run.
            is_tried = kind in (JobKind.FAIL, JobKind.REPEAT)
            self._local.discard(claim, for_run=is_tried, is_unkept=is_tried and not length)
        self.length -= length
        self._report.count(_STATS[kind], window)

    # -- requests that are not stored: see in_flight.py --

    def wait_for(self, claim: Key, page: InFlightRequest | None) -> None:
        """Settle a page only after a request that it yielded and that is not stored."""
        self._warn_given_up(self._unkept.add(claim, page))

    def also_yielded(self, claim: Key, page: InFlightRequest, *, is_same: bool) -> None:
        """Settle a page only after such a request, if no other page waits for it.

        Args:
            claim: of the request.
            page: yielded it too.
            is_same: whether the page that waits for it is this one, crawled twice. If the request
                failed, and this page were recorded, no page would yield it again.
        """
        self._warn_given_up(self._unkept.adopt(claim, page))
        if is_same and not self._unkept.waits_for(page, claim):
            page.set_instead(JobKind.LATER, failures.TWICE)

    def finish(self, page: InFlightRequest) -> None:
        """Settle a page whose callback is done, unless it waits for requests."""
        if self._unkept.is_crawled_twice(page):
            page.set_instead(JobKind.LATER, failures.TWICE)
        if page.is_complete or page.kind is JobKind.FAIL:
            self.settle(page.claims, page.end(), page)

    def _warn_given_up(self, pages: Iterable[InFlightRequest]) -> None:
        if any(pages):
            self._report.warn_once(
                "too-many-unkept",
                f"{MAX_UNKEPT:,} requests that could not be kept are pending: pages that wait for "
                "them are not recorded, and the next run fetches them again",
            )

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        """Crawl pages again whose requests are lost: their claims were ended.

        Args:
            window: of the claims.
            fields: of the claims.
            begun: when it was found that they are free. A claim that this process has made since is
                another one of the same URL.
        """
        for claim in self._unkept.find(window, fields, begun):
            self._local.discard(claim, for_run=True)
            for page in self._unkept.settle(claim, JobKind.REPEAT):
                self.settle(page.claims, page.end(), page)
