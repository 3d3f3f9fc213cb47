"""Requests on their way through the engine, and pages that wait for requests that are not kept.

A request that is not kept on the server is lost with its process. Only the page that yielded it can
yield it again, so that page is settled after the request. A chain of pages that are not kept ends
at a start request, which the next run makes again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from scrapy import Request
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl import failures
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.jobs import JobKind
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.request_codec import NO_PARTS, PartNames
from scrapy_bloom.settings import RUN

#: Claim -> length in characters of the request stored with it; 0 if none is stored.
Claims = dict[Key, int]
#: Requests that are not kept and that pages wait for, at most: about 50 MB with their pages.
MAX_UNKEPT = 100_000
#: How a request ended that was not crawled -> how the pages that wait for it do, and why.
_INSTEAD = {
    JobKind.FAIL: (JobKind.LATER, failures.FAILED_LINK),
    JobKind.LATER: (JobKind.LATER, failures.FAILED_LINK),
    JobKind.REPEAT: (JobKind.REPEAT, failures.LOST_LINK),
}


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that has left the scheduler and is not settled yet.

    Args:
        claims: are settled with it.
        error: raised by its callback.
        item_error: what a pipeline has raised for one of its items, in words; "" for nothing.
        times: how often it has to finish: its callback may have yielded the request again.
        epoch: the epoch in which its callback began to yield, see ``failover.py``.
        has_queued: whether claims on its links were queued.
        kind: how it is settled when it waits for nothing; None until its callback is done.
        unkept: how many requests that it yielded are neither kept nor settled.
        held: how many feeds and pipelines have items of it that are not safe, see ``delivery.py``.
        instead: how it is settled instead of being recorded, because it has to yield one of these
            again: LATER if that request failed, REPEAT if it was lost; None for neither.
        reason: why it failed, is missing, or is crawled again.
        is_given_up: whether its claims stay as they are, for the next run.
        has_item: whether it has yielded an item, or counts as if it had.
        also: recorded with it, if it is kept and has yielded an item; None for nothing.
        yielded_with: what the spider had set on it; NO_PARTS after its callback.
        claim: its own claim; the others are of requests that became this one. None if it has none.
    """

    claims: Claims
    error: BaseException | None = None
    item_error: str = ""
    times: int = 1
    epoch: int = 0
    has_queued: bool = False
    kind: JobKind | None = None
    unkept: int = 0
    held: int = 0
    instead: JobKind | None = None
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
        pages: more than one only if the claim was lost in between, and granted again.
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
        #: Requests that no page waits for: start requests, and those that the spider schedules.
        self._orphans: set[Key] = set()

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, claim: Key, parent: InFlightRequest | None) -> list[InFlightRequest]:
        """Make a page wait for a request that was scheduled; return the pages that are given up."""
        if parent is None:
            if claim not in self._parents and len(self._orphans) < self._limit:
                self._orphans.add(claim)
            return []
        self._orphans.discard(claim)
        waiting = self._parents.setdefault(claim, _Waiting(0))
        waiting.since = self._clock()
        if not self.waits_for(parent, claim):
            waiting.pages.append(parent)
            parent.unkept += 1
            self._pages.setdefault(parent.claim, parent)
        return self._give_up_oldest() if len(self._parents) > self._limit else []

    def adopt(self, claim: Key, parent: InFlightRequest) -> list[InFlightRequest]:
        """Make a page wait for a request that no page waits for, if it is not settled.

        Not if that request waits for this page: both would wait for ever.
        """
        if claim not in self._orphans or self._waits_for_page(claim, parent):
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
        self._orphans.discard(claim)
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


#: The key of ``meta`` that says whether a page has an item, whatever it yields.
HAS_ITEM = "bloom_has_item"
#: Pages with this status or a higher one, which count as crawled, are errors such as 404.
ERROR_STATUS = 400


class PageItems:
    """Decides which pages have an item.

    Args:
        key_of: identifies a request.
        report: warns.
    """

    def __init__(self, key_of: Callable[[Request], Key], report: Report) -> None:
        self._key_of, self._report = key_of, report

    def judge(self, page: InFlightRequest, request: Request, result: Response | Failure) -> None:
        """Note whether a page that is crawled has an item, once its callback is done.

        A page that is not there lists nothing, so it counts as if it had one. A request with
        ``dont_filter`` is not recorded itself, but a retry from a callback is one: if it has an
        item, its URL is recorded like one that is crawled at the first attempt.
        """
        is_error = isinstance(result, Response) and result.status >= ERROR_STATUS
        page.has_item = self._marked(request, default=page.has_item or is_error)
        if page.has_item and any(item.startswith(KEPT) for _, item in page.claims):
            key = self._key_of(request)
            page.also = key if key[0] != RUN else None

    def _marked(self, request: Request, *, default: bool) -> bool:
        mark = request.meta.get(HAS_ITEM)
        if mark is None or isinstance(mark, bool):
            return default if mark is None else mark
        self._report.warn_once(
            "bad-has-item",
            f"meta['{HAS_ITEM}'] of {shown(request)} is a {type(mark).__name__}, and is True or "
            "False: what its callback yields counts",
        )
        return default
