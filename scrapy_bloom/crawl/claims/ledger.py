"""The claims that this worker has: made, settled, waited for."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl.claims.in_flight import (
    MAX_UNKEPT,
    Claims,
    InFlightRequest,
    OpenClaims,
    UnkeptRequests,
)
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.report import Report

#: The stat that counts a settled claim.
_STATS = {
    JobKind.CONFIRM: "crawled",
    JobKind.RELEASE: "released",
    JobKind.FAIL: "failed",
    JobKind.REPEAT: "repeated",
}


class ClaimLedger:
    """Counts claims and settles them.

    Args:
        is_queues: whether claims are the shared queue's until a request is handed out.
        put: queues a job.
        take: records a fingerprint in this process for this run.
        forget: removes a key from the local cache.
        claims: counts them.
        report: counts and warns.
    """

    def __init__(
        self,
        *,
        is_queues: bool,
        put: Callable[[Job], None],
        take: Callable[[bytes], object],
        forget: Callable[[Key], None],
        claims: OpenClaims,
        report: Report,
    ) -> None:
        self._is_queues = is_queues
        self._put, self._open = put, claims
        self._take, self._forget, self._report = take, forget, report
        self._unkept = UnkeptRequests()
        #: Claims of this run's window "run" that will be taken up again: the local state has them.
        self.to_repeat: set[Key] = set()

    def add(self, count: int, length: int) -> None:
        """Count new claims, and the length of their requests together."""
        if not self._is_queues:
            self._open.count += count
            self._open.length += length

    @property
    def has_open_claims(self) -> bool:
        """Whether there are claims that this worker would leave behind now."""
        return self._open.count > 0 or (self._is_queues and bool(self._unkept))

    def leave(self, page: InFlightRequest) -> None:
        """Leave the claims of a page as they are, for the next run."""
        self._open.count += len(page.claims) * self._is_queues

    def ignore(self, claims: Claims) -> None:
        """Note requests that a middleware has dropped: it would drop them again in this run."""
        for _, item in claims:
            if not item.startswith(KEPT):
                self._take(item)

    def settle(self, claims: Claims, kind: JobKind, page: InFlightRequest | None = None) -> None:
        """End claims, and then those of pages that waited for them only.

        Args:
            claims: are ended.
            kind: of the jobs that end them.
            page: the page they are of; None if its callback was not called.
        """
        ending = [(claims, kind, page)]
        while ending:
            claims, kind, page = ending.pop()
            for claim, length in claims.items():
                self._end(claim, length, kind, page)
                parent = self._unkept.settle(claim, kind)
                if parent is not None:
                    ending.append((parent.claims, parent.end(), parent))

    def _end(self, claim: Key, length: int, kind: JobKind, page: InFlightRequest | None) -> None:
        window, item = claim
        job = Job(kind, window, item)
        if page is not None:
            job = replace(job, epoch=page.epoch, is_last=page.has_queued)
        if item.startswith(KEPT):
            if kind in (JobKind.FAIL, JobKind.REPEAT):
                self.to_repeat.add(claim)
            if kind is JobKind.CONFIRM:
                job = replace(job, kind=JobKind.DONE)
        self._put(job)
        if kind is not JobKind.CONFIRM:
            self._forget(claim)
        if not self._is_queues:
            self._open.count -= 1
            self._open.length -= length
        self._report.count(_STATS[kind], window)

    # -- requests that are not stored: see in_flight.py --

    def wait_for(self, claim: Key, page: InFlightRequest | None) -> None:
        """Settle a page only after a request that it yielded, and that is not stored."""
        self._give_up(self._unkept.add(claim, page))

    def adopt(self, claim: Key, page: InFlightRequest) -> None:
        """Do so with a request that no page waits for, as one of them has yielded it now."""
        self._give_up(self._unkept.adopt(claim, page))

    def _give_up(self, pages: Iterable[InFlightRequest]) -> None:
        for given_up in pages:
            if given_up.kind is not None:
                self.leave(given_up)
            self._report.warn_once(
                "given up",
                f"{MAX_UNKEPT:,} requests that could not be kept are pending: pages that wait for "
                "them are not recorded, and the next run fetches them again",
            )

    def dropped(self, window: str, fields: Collection[str]) -> None:
        """Crawl the pages again that wait for requests which are lost: their claims were ended."""
        for claim in self._unkept.find(window, fields):
            self._forget(claim)
            page = self._unkept.settle(claim, JobKind.REPEAT)
            if page is not None:
                self.settle(page.claims, page.end(), page)
