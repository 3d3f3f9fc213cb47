"""Settles this worker's claims, and those of pages that wait for them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl.claims import failures
from scrapy_bloom.crawl.claims.in_flight import MAX_UNKEPT, Claims, InFlightRequest, UnkeptRequests
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.report import Report

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
        put: queues a job.
        local: what this process knows.
        report: counts and warns.
        clock: returns seconds.
        only_items: whether pages without an item are remembered for this run only.
        keeps: is called with the window of each page that is to be recorded, if its request is
            stored.

    Attributes:
        length: characters of the requests stored with the claims of this worker.
        uncertain: claims that were made without a reply of the server.
        doubtful: requests that are not stored, and that only pages wait for whose claims are not
            certain.
        to_repeat: claims in the window "run" that this run takes up again, although the local state
            has them.
    """

    def __init__(
        self,
        put: Callable[[Job], None],
        local: LocalState,
        report: Report,
        clock: Callable[[], float],
        *,
        only_items: bool,
        keeps: Callable[[str], object],
    ) -> None:
        self._put, self._local, self._report = put, local, report
        self._only_items, self._keeps = only_items, keeps
        self._unkept = UnkeptRequests(clock)
        self.doubtful = self._unkept.doubtful
        self.length = 0
        self.uncertain: set[Key] = set()
        self.to_repeat: set[Key] = set()

    def ignore(self, claims: Claims) -> None:
        """Note requests that a middleware dropped: it would drop them again in this run."""
        for _, item in claims:
            if not item.startswith(KEPT):
                self._local.take(item)

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
                is_last=page.has_queued or bool(page.relies_on or page.yielded),
                relies_on=frozenset(page.relies_on or ()),
                yielded=frozenset(page.yielded or ()),
            )
        if is_kept:
            if kind in (JobKind.FAIL, JobKind.REPEAT):
                self.to_repeat.add(claim)
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
            if length and job.kind is JobKind.CONFIRM:
                self._keeps(window)
        else:
            # A listing that is tried later stays seen for this run.
            self._local.discard(claim, for_run=kind in (JobKind.FAIL, JobKind.REPEAT))
        self.length -= length
        self.uncertain.discard(claim)
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
        if claim in self.doubtful:
            self._unkept.rely(page, claim)
        if claim in self.uncertain:
            page.has_yielded(claim)
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
