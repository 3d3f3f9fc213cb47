"""Follows requests through the engine, and settles their claims.

A request is claimed when it is scheduled. When its callback has yielded its last request, and these
are claimed, its claim is *settled*: the URL is recorded or, if it failed, tried again later.

A request carries its claims in ``meta`` into the scheduler's queue: its own, and those of the
requests that became this one by redirects and retries. They are settled together.

A request that is not stored is lost with this process, so the page that yielded it is settled
after it: see ``pages.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl import failures
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.identity import name_of
from scrapy_bloom.crawl.jobs import JobKind
from scrapy_bloom.crawl.pages import ClaimSettler, InFlightRequest, PageClaims
from scrapy_bloom.crawl.request_codec import (
    NO_PARTS,
    SET_LATER,
    PartNames,
    note_set_later,
    set_later,
)
from scrapy_bloom.crawl.workers import Queue
from scrapy_bloom.fingerprinter import Key
from scrapy_bloom.settings import ITEMS, RUN

#: The key of ``meta`` that holds a request's claims.
META = "bloom_claims"
#: The key of ``meta`` that says whether a page has an item, whatever it yields.
HAS_ITEM = "bloom_has_item"
#: The first status of pages that are missing, such as 404, even if they count as crawled.
MISSING = 400
#: Why a request is not stored, if its own values are no reason.
NO_ROOM = (
    "there is no room for more pending requests (BLOOM_PENDING_MEMORY bytes for all workers, and a "
    "quarter of it for each)"
)


@dataclass(slots=True)
class Offer:
    """The request that the scheduler is being offered.

    Args:
        inherited: its claims, if it is a redirect, a retry, or put back.
        is_seen: whether the dupefilter answered that it is a duplicate.
        unkept: the claim of an equal request that is not stored.
        is_same_page: whether that request was yielded by the same page, crawled twice.
    """

    inherited: PageClaims = field(default_factory=dict)
    is_seen: bool = False
    unkept: Key | None = None
    is_same_page: bool = False


class ClaimTracker:
    """Listens to the engine: see ``engine_hooks.RequestListener``.

    Args:
        context: what all parts use.
        settler: settles claims.
        queue: of the crawl; claims in it may be another worker's.
        key_of: identifies a request.
        keep_once: stores a request that is neither tested nor recorded.
        text_of: returns a request as it is stored with its claim; "" if it cannot be stored.

    Attributes:
        offer: the request that the scheduler is being offered.
        restored: the request that is being put back.
        pages: of requests that the scheduler has not been offered yet.
        handed_out_count: requests that the crawl has got to do.
    """

    def __init__(
        self,
        context: Context,
        settler: ClaimSettler,
        queue: Queue,
        key_of: Callable[[Request], Key],
        *,
        keep_once: Callable[[Request], None],
        text_of: Callable[[Request], str],
    ) -> None:
        self._report, self._server, self._settler = context.report, context.server, settler
        self._windows = tuple(context.server.filters.by_window)
        self._crawled_statuses = context.settings.crawled_statuses
        self._only_items = context.settings.remember == ITEMS
        self._may_be_others = bool(queue.name)
        self._key_of, self._keep_once, self._text_of = key_of, keep_once, text_of
        self.handed_out_count = 0
        self.offer = Offer()
        self.restored: Request | None = None
        self._was_offered = False
        #: Why the last request could not be stored.
        self._not_kept_reason = ""
        self.pages: WeakKeyDictionary[Request, InFlightRequest] = WeakKeyDictionary()
        #: The claims of requests in the queue. Requests in a queue on a disk or in Redis have them
        #: in ``meta`` too, because they come out of it as other objects.
        self._queued: WeakKeyDictionary[Request, list[PageClaims]] = WeakKeyDictionary()
        self._in_flight: dict[Request, InFlightRequest] = {}
        #: Redirects and retries that the scheduler has not been offered yet.
        self._successors: dict[Request, PageClaims] = {}

    def attach_claim(self, request: Request, claim: Key, length: int) -> None:
        """Give a request its claims: this one, and those that it inherits."""
        set_claims(request, {**self.offer.inherited, claim: length})

    def not_kept(self, reason: str) -> None:
        """Note why the request that is looked up now cannot be stored."""
        self._not_kept_reason = reason

    def restore(self, request: Request, schedule: Callable[[Request], None]) -> bool:
        """Schedule a request with its claims; return whether the scheduler was offered it.

        If not, a middleware has dropped it, for instance as offsite.
        """
        self.restored, self._was_offered = request, False
        try:
            schedule(request)
        finally:
            self.restored = None
        return self._was_offered

    def claim_later(self, request: Request) -> None:
        """Note that a job claims a request: its page is settled after that job."""
        parent = self.pages.get(request)
        if parent is not None:
            parent.has_queued = True

    def yields(self, page: Request) -> Callable[[object], None] | None:
        """Return a function for each request and item that a page yields; None for none."""
        flight = self._in_flight.get(page)
        if flight is None:
            return None
        flight.epoch = self._server.epoch

        def note(output: object) -> None:
            if isinstance(output, Request):
                self.pages[output] = flight
            else:
                flight.has_item = True

        return note

    def page_of(self, request: Request) -> InFlightRequest | None:
        """Return the page of a request that is under way and has a claim."""
        return self._in_flight.get(request)

    # -- what the engine does --

    def offered(self, request: Request) -> None:
        """Find out which claims a request inherits; store a request that is not looked up."""
        if request is self.restored:
            self._was_offered = True
            self.offer = Offer(self.claims_of(request))
            return
        self.offer = Offer(inherited := self._successors.pop(request, {}))
        if inherited:
            set_claims(request, inherited)
        else:  # made when it was looked up; or another request's, whose meta was copied
            request.meta.pop(META, None)
        if request.dont_filter:
            self._keep_once(request)

    def accepted(self, request: Request) -> None:
        """Note a request in the queue; if it is not stored, its page waits for it."""
        parent, claims = self.pages.pop(request, None), self._take_claims(request)
        if claims:
            self._queued.setdefault(request, []).append(claims)
            if not self.offer.inherited and not any(claims.values()):
                claim = next(iter(claims))
                self._report.count("not_kept", claim[0])
                self._report.warn_once(
                    "not-kept",
                    f"{self._not_kept_reason or NO_ROOM}. If the crawl stops before such a request "
                    "is crawled, the next run fetches the page that yielded it again "
                    "(bloom/not_kept counts them)",
                )
                self._settler.wait_for(claim, parent)
        self.offer = Offer()

    def refused(self, request: Request) -> None:
        """Settle the claims that a duplicate inherited: they led to a known URL."""
        offer, self.offer = self.offer, Offer()
        parent, claims = self.pages.pop(request, None), self._take_claims(request)
        if offer.unkept is not None and parent is not None:
            self._settler.also_yielded(offer.unkept, parent, is_same=offer.is_same_page)
        if offer.is_seen:
            # Another worker may lose the request that the same redirect has led to.
            kind = JobKind.LATER if offer.is_same_page else JobKind.CONFIRM
            reason = failures.OTHERS_TARGET if offer.is_same_page else ""
            redirected = InFlightRequest({}, epoch=self._server.epoch, reason=reason)
            self._settler.settle(offer.inherited, kind, redirected)
        else:  # redirected in circles, or dropped by a scheduler of the user's
            self._settler.ignore(offer.inherited)
            self._settler.settle(claims, JobKind.RELEASE)

    def lost(self, request: Request) -> None:
        """Try a request again later: its page is settled by then, and does not yield it again."""
        self.offer = Offer()
        if request is self.restored:
            return
        parent, claims = self.pages.pop(request, None), self._take_claims(request)
        if parent is not None and not any(claims.values()):
            parent.set_instead(JobKind.LATER, failures.FAILED_LINK)
        unqueued = InFlightRequest({}, epoch=self._server.epoch, reason=failures.NOT_QUEUED)
        self._settler.settle(claims, JobKind.FAIL, unqueued)

    def handed_out(self, request: Request) -> None:
        """Follow a request that has left the queue."""
        self.handed_out_count += 1
        self.sweep()
        later = set_later(request)
        request.meta.pop(SET_LATER, None)
        queued = self._queued.get(request)
        # The same request may be in the queue twice, with other claims.
        claims = queued.pop() if queued else self._take_claims(request)
        if not claims:
            return
        flight = self._in_flight.get(request)
        if flight is None:
            self._in_flight[request] = InFlightRequest(
                claims,
                epoch=self._server.epoch,
                yielded_with=PartNames.of(request).without(later),
            )
        else:  # its callback has yielded it again
            flight.claims |= claims
            flight.times += 1
        for claim in claims if self._may_be_others else ():
            self._settler.hold(claim)

    def turned_into(self, request: Request, successor: Request) -> None:
        """Pass claims on to a redirect's target, or to a retry."""
        flight = self._in_flight.pop(request, None)
        if flight is not None:
            self._successors[successor] = flight.claims
            if not _is_retry(request, successor) and request.meta.get("retry_times"):
                # Retries have dont_filter, and a redirect of a retry copies it.
                successor.dont_filter &= any(item.startswith(KEPT) for _, item in flight.claims)
            note_set_later(successor, PartNames.of(request).without(flight.yielded_with))

    def raised(self, request: Request, error: BaseException, *, in_pipeline: bool = False) -> None:
        """Note that links of a page may not have been found, or that an item was not stored."""
        flight = self._in_flight.get(request)
        if flight is None:
            return
        if in_pipeline:
            flight.item_error = flight.item_error or failures.of_pipeline(error)
        else:
            flight.error = error

    def finished(self, request: Request, result: Response | Failure) -> None:
        """Settle a request, unless it waits for requests that it yielded and are not stored."""
        flight = self._in_flight.get(request)
        if flight is None:
            return
        flight.times -= 1
        if flight.times:
            return
        del self._in_flight[request]
        yielded_with, flight.yielded_with = flight.yielded_with, NO_PARTS  # 100,000 pages may wait
        kind = self._outcome(flight, result)
        if kind is None or flight.is_given_up:
            return  # the claims stay for the next run
        if kind is JobKind.RELEASE:
            self._settler.ignore(flight.claims)
        is_missing = isinstance(result, Response) and result.status >= MISSING
        if kind is JobKind.FAIL or is_missing:
            described = failures.describe(request, result, flight.error)
            flight.reason = flight.item_error or described
        if kind is JobKind.FAIL:
            note_set_later(request, PartNames.of(request).without(yielded_with))
            set_claims(request, dict.fromkeys(flight.claims, 0))
            flight.text = self._text_of(request)
            for name in (META, SET_LATER):  # an errback may have kept the request
                del request.meta[name]
        if kind is JobKind.CONFIRM and self._only_items:
            # A page that is not there lists nothing: it counts as if it had an item.
            self._judge_items(flight, request, default=flight.has_item or is_missing)
        flight.kind = kind
        self._settler.finish(flight)

    def sweep(self) -> None:
        """Settle redirects and retries that were dropped on their way to the scheduler.

        That way is one step of the engine: none is under way when this is called.
        """
        for claims in self._successors.values():
            self._settler.ignore(claims)
            self._settler.settle(claims, JobKind.RELEASE)
        self._successors.clear()

    def _outcome(self, flight: InFlightRequest, result: Response | Failure) -> JobKind | None:
        if isinstance(flight.error, CloseSpider):
            return None
        if flight.item_error:
            return JobKind.FAIL
        if isinstance(result, Failure):
            return JobKind.RELEASE if isinstance(result.value, IgnoreRequest) else JobKind.FAIL
        is_crawled = flight.error is None and result.status in self._crawled_statuses
        return JobKind.CONFIRM if is_crawled else JobKind.FAIL

    def _judge_items(self, page: InFlightRequest, request: Request, *, default: bool) -> None:
        """Note whether a page that is crawled has an item, once its callback is done.

        A request with ``dont_filter`` is not recorded itself, but a retry from a callback is one:
        if it has an item, its URL is recorded like one that is crawled at the first attempt.
        """
        mark = request.meta.get(HAS_ITEM)
        page.has_item = mark if isinstance(mark, bool) else default
        if mark is not None and not isinstance(mark, bool):
            self._report.warn_once(
                "bad-has-item",
                f"meta['{HAS_ITEM}'] of {shown(request)} is a {type(mark).__name__}, and is True "
                "or False: what its callback yields counts",
            )
        if page.has_item and any(item.startswith(KEPT) for _, item in page.claims):
            key = self._key_of(request)
            page.also = key if key[0] != RUN else None

    def _take_claims(self, request: Request) -> PageClaims:
        claims = self.claims_of(request)
        request.meta.pop(META, None)
        return claims

    def claims_of(self, request: Request) -> PageClaims:
        """Return a request's claims, as far as they are valid: stored text may be anything."""
        try:
            given = {key_of(name): int(length) for name, length in request.meta[META].items()}
        except (KeyError, AttributeError, TypeError, ValueError):
            return {}
        return {key: length for key, length in given.items() if key[0] in self._windows}


def _is_retry(request: Request, successor: Request) -> bool:
    """Whether a request was made to try another one again, which may be a redirect's target."""
    return bool(successor.meta.get("retry_times") != request.meta.get("retry_times"))


def set_claims(request: Request, claims: PageClaims) -> None:
    """Write claims into a request's ``meta``."""
    request.meta[META] = {name_of(key): length for key, length in claims.items()}


def key_of(name: str) -> Key:
    """Return a key from its text in ``meta``."""
    window, _, item = name.partition(":")
    return window, bytes.fromhex(item)
