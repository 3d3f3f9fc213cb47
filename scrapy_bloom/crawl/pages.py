"""Pages on their way: they wait for requests that are not stored; then their claims are settled.

A request that is not stored on the server is lost with its process. Only the page that yielded it
can yield it again, so that page is settled after the request. A chain of such pages ends at a start
request, which the next run makes again.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl import failures
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.request_codec import NO_PARTS, PartNames
from scrapy_bloom.fingerprinter import Key
from scrapy_bloom.settings import ITEMS

#: Claim -> length in characters of the request stored with it; 0 if none is stored.
PageClaims = dict[Key, int]
#: Requests that are not kept and that pages wait for, at most: about 50 MB with their pages.
MAX_UNKEPT = 100_000
#: How a request ended that was not crawled -> how the pages that wait for it do, and why.
_INSTEAD = {
    JobKind.FAIL: (JobKind.LATER, failures.FAILED_LINK),
    JobKind.LATER: (JobKind.LATER, failures.FAILED_LINK),
    JobKind.REPEAT: (JobKind.REPEAT, failures.LOST_LINK),
}
#: The stat that counts a settled claim.
_STATS = {
    JobKind.CONFIRM: "crawled",
    JobKind.RELEASE: "released",
    JobKind.FAIL: "failed",
    JobKind.LATER: "failed",
    JobKind.REPEAT: "repeated",
}


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that has left the scheduler and is not settled yet.

    Args:
        claims: are settled with it.
        error: raised by its callback.
        item_error: what a pipeline has raised for one of its items, in words; "" for nothing.
        times: how often it has to finish: its callback may have yielded the request again.
        epoch: the epoch in which its callback began to yield, see ``server.py``.
        has_queued: whether claims on its links were queued.
        kind: how it is settled when it waits for nothing; None until its callback is done.
        unkept: how many requests that it yielded are neither kept nor settled.
        held: how many feeds and pipelines have items of it that are not safe, see ``delivery.py``.
        instead: how it is settled instead of being recorded, because it has to yield one of these
            again: LATER if that request failed, REPEAT if it was lost; None for neither.
        text: the request as JSON, if it failed.
        reason: why it failed, is missing, or is crawled again.
        is_given_up: whether its claims stay as they are, for the next run.
        has_item: whether it has yielded an item, or counts as if it had.
        also: recorded with it, if it is kept and has yielded an item; None for nothing.
        yielded_with: what the spider had set on it; NO_PARTS after its callback.
        claim: its own claim; the others are of requests that became this one. None if it has none.
    """

    claims: PageClaims
    error: BaseException | None = None
    item_error: str = ""
    times: int = 1
    epoch: int = 0
    has_queued: bool = False
    kind: JobKind | None = None
    unkept: int = 0
    held: int = 0
    instead: JobKind | None = None
    text: str = ""
    reason: str = ""
    is_given_up: bool = False
    has_item: bool = False
    also: Key | None = None
    yielded_with: PartNames = NO_PARTS
    claim: Key | None = field(init=False)

    def __post_init__(self) -> None:
        self.claim = next(reversed(self.claims), None)

    @property
    def is_complete(self) -> bool:
        """Whether it can be settled."""
        is_awaited = self.unkept or self.held
        return self.kind is not None and not is_awaited and not self.is_given_up

    def set_instead(self, kind: JobKind, reason: str) -> None:
        """Note that it will not be recorded."""
        self.instead = kind
        self.reason = self.reason or reason

    def end(self) -> JobKind:
        """Return how it is settled; called once."""
        kind, self.kind = self.kind, None
        assert kind is not None  # noqa: S101 - its callback is done
        return self.instead if kind is JobKind.CONFIRM and self.instead else kind


@dataclass(slots=True)
class _Waiting:
    """Pages that wait for one request.

    Args:
        since: when the request was scheduled last.
        pages: none of a start request, or one that the spider schedules; more than one only if the
            claim was lost in between, and granted again.
    """

    since: float
    pages: list[InFlightRequest] = field(default_factory=list)


class UnkeptRequests:
    """Maps requests that are not kept to the pages that wait for them.

    Args:
        clock: returns seconds.
        limit: requests at most. Beyond it, the pages that wait longest are given up.
    """

    def __init__(self, clock: Callable[[], float], limit: int = MAX_UNKEPT) -> None:
        self._clock, self._limit = clock, limit
        self._parents: dict[Key, _Waiting] = {}
        #: The claims of pages that wait -> the pages.
        self._pages: dict[Key | None, InFlightRequest] = {}

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, claim: Key, parent: InFlightRequest | None) -> list[InFlightRequest]:
        """Make a page wait for a request that was scheduled; return the pages that are given up."""
        waiting = self._parents.setdefault(claim, _Waiting(0))
        waiting.since = self._clock()
        if parent is not None and not self.waits_for(parent, claim):
            waiting.pages.append(parent)
            parent.unkept += 1
            self._pages.setdefault(parent.claim, parent)
        return self._give_up_oldest() if len(self._parents) > self._limit else []

    def adopt(self, claim: Key, parent: InFlightRequest) -> list[InFlightRequest]:
        """Make a page wait for a request that no page waits for, if it is not settled.

        Not if that request waits for this page: both would wait for ever.
        """
        waiting = self._parents.get(claim)
        if waiting is None or waiting.pages or self._waits_for_page(claim, parent):
            return []
        return self.add(claim, parent)

    def _waits_for_page(self, claim: Key, page: InFlightRequest) -> bool:
        """Whether a request is a page, or waits for it by way of others."""
        found, waiting = set[Key](), [*page.claims]
        while waiting and claim not in found:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                pages = self._parents[one].pages if one in self._parents else ()
                waiting += [other for page in pages for other in page.claims]
        return claim in found

    def waits_for(self, page: InFlightRequest, claim: Key) -> bool:
        """Whether a page waits for a request."""
        return claim in self._parents and any(one is page for one in self._parents[claim].pages)

    def waiting(self, claim: Key) -> tuple[str, ...]:
        """Return the fields of the claims of pages that wait for a request."""
        pages = self._parents[claim].pages if claim in self._parents else ()
        return tuple(field_of(page.claim[1]) for page in pages if page.claim)

    def is_crawled_twice(self, page: InFlightRequest) -> bool:
        """Whether the same page, crawled before, waits for requests: this one must not be recorded.

        If one of them failed, no page would yield it again.
        """
        return self._pages.get(page.claim, page) is not page

    def settle(self, claim: Key, kind: JobKind) -> list[InFlightRequest]:
        """Note how a claim is settled; return the pages that can be settled now."""
        pages = self._pop(claim) if claim in self._parents else []
        if kind in _INSTEAD:
            for page in pages:
                page.set_instead(*_INSTEAD[kind])
        return [page for page in pages if page.is_complete]

    def find(self, window: str, fields: Collection[str], before: float) -> list[Key]:
        """Return the claims of a window, made before a moment, with one of these fields."""
        return [
            claim
            for claim, waiting in self._parents.items()
            if claim[0] == window and waiting.since < before and field_of(claim[1]) in fields
        ]

    def _give_up_oldest(self) -> list[InFlightRequest]:
        """Give up the pages that wait longest, and the pages that wait for them."""
        given_up, waiting = [], self._pop(next(iter(self._parents)))
        while waiting:
            flight = waiting.pop()
            if flight.is_given_up:
                continue
            flight.is_given_up = True
            given_up.append(flight)
            for claim in flight.claims:
                if claim in self._parents:
                    waiting += self._pop(claim)
        return given_up

    def _pop(self, claim: Key) -> list[InFlightRequest]:
        """Return the pages that wait for a request, and forget the request."""
        pages = self._parents.pop(claim).pages
        for page in pages:
            page.unkept -= 1
            if not page.unkept and self._pages.get(page.claim) is page:
                del self._pages[page.claim]
        return pages


class ClaimSettler:
    """Settles claims.

    Args:
        context: what all parts use.
        ledgers: windows whose pages are recorded with their requests.

    Attributes:
        length: characters of the requests stored with the claims of this worker.
        kept: pages that were recorded with their requests.
    """

    def __init__(self, context: Context, ledgers: Collection[str]) -> None:
        self._report, self._local, self._put = context.report, context.local, context.jobs.put
        self._ledgers = ledgers
        #: Whether pages without an item are remembered for this run only.
        self._only_items = context.settings.remember == ITEMS
        self._unkept = UnkeptRequests(context.clock)
        self.length = self.kept = 0

    def ignore(self, claims: PageClaims) -> None:
        """Note requests that a middleware dropped: it would drop them again in this run."""
        for _, item in claims:
            if not item.startswith(KEPT):
                self._local.take(item)

    def hold(self, claim: Key) -> None:
        """Make a claim this worker's: the queue's, or another worker's, it may be."""
        self._put(Job(JobKind.HOLD, *claim))

    def settle(
        self, claims: PageClaims, kind: JobKind, page: InFlightRequest | None = None
    ) -> None:
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
                request=page.text if length and claim == page.claim else "",
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

    # -- requests that are not stored: see above --

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
