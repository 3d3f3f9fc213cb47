"""Follows requests through the engine, and settles their claims.

Scheduling a request claims it. When its callback has yielded its last, and what it yielded is
claimed as well, the claim is *settled*: the URL is recorded, or, if it failed, may be tried again
later. What a dead worker had claimed is crawled by another one.

A request carries its claims into the scheduler's queue, in ``meta``: its own, and those of the
requests it came of by redirects and retries, which are settled together with it.

A request that cannot be stored is lost with this process, so the page that yielded it is not
settled before: see ``in_flight.py``.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.bloom.model.header import in_range
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl.claims import request_codec
from scrapy_bloom.crawl.claims.in_flight import Claims, InFlightRequest
from scrapy_bloom.crawl.claims.ledger import ClaimLedger
from scrapy_bloom.crawl.identity import Key, name_of
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.report import Report

#: The key of ``meta`` that holds a request's claims.
META = "bloom_claims"
#: Claims that a request carries at most: Scrapy follows 20 redirects.
MAX_CLAIMS = 50
#: Why a request is not stored, if its own values are no reason.
NO_ROOM = (
    "there is no room for more pending requests (BLOOM_PENDING_MEMORY bytes for all workers, and a "
    "quarter of it for each)"
)

_CLAIM = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,39}):((?:[0-9a-f]{2}){1,300})")


@dataclass(slots=True)
class Offer:
    """The request that the scheduler is being offered.

    Args:
        inherited: its claims, if they came along rightfully: of a redirect, a retry, or put back.
        is_seen: whether the scheduler got the answer that it is a duplicate.
        unkept: the claim of an equal request that is in the queue, and is not stored.
    """

    inherited: Claims = field(default_factory=dict)
    is_seen: bool = False
    unkept: Key | None = None


class ClaimTracker:
    """Listens to the engine: see ``engine_hooks.RequestListener``.

    Args:
        spider: the spider.
        ledger: settles claims.
        windows: the windows that have a filter.
        crawled_statuses: HTTP statuses of pages that count as crawled.
        may_be_others: whether claims in the queue may be another worker's.
        put: queues a job.
        keep_once: stores a request that is neither tested nor recorded.
        handed_out: is called when the crawl gets a request to do.
        report: counts and warns.
    """

    def __init__(
        self,
        spider: Spider,
        ledger: ClaimLedger,
        *,
        windows: Collection[str],
        crawled_statuses: frozenset[int],
        may_be_others: bool,
        put: Callable[[Job], None],
        keep_once: Callable[[Request], None],
        handed_out: Callable[[], object],
        report: Report,
    ) -> None:
        self._spider, self._ledger, self._windows = spider, ledger, windows
        self._crawled_statuses = crawled_statuses
        self._may_be_others = may_be_others
        self._put, self._keep_once = put, keep_once
        self._handed_out, self._report = handed_out, report
        #: The epoch in which pages begin now: see ``failover.py``.
        self.epoch = 0
        self.offer = Offer()
        #: The request that is being put back, and whether the scheduler was offered it.
        self.restored: Request | None = None
        self.was_offered = False
        #: Why the last request could not be stored.
        self.not_kept_reason = ""
        #: The claims of requests in the queue. In the queue itself they are in ``meta``, and so are
        #: those of a request that comes out of it as another object, from a disk or from Redis.
        self._queued: WeakKeyDictionary[Request, list[Claims]] = WeakKeyDictionary()
        self._in_flight: dict[Request, InFlightRequest] = {}
        #: Pages of requests that the scheduler has not been offered yet.
        self._parents: WeakKeyDictionary[Request, InFlightRequest] = WeakKeyDictionary()
        #: What a request in flight has turned into, until the scheduler is offered it.
        self._successors: dict[Request, Claims] = {}

    @property
    def has_requests(self) -> bool:
        """Whether requests are in flight."""
        return bool(self._in_flight)

    def attach_claim(self, request: Request, claim: Key, length: int) -> None:
        """Give a request its claims: this one, and those of what it came of."""
        claims = [*self.offer.inherited.items(), (claim, length)]
        # A chain of redirects that is longer than any should be.
        self._settle_redirected(dict(claims[:-MAX_CLAIMS]))
        set_claims(request, dict(claims[-MAX_CLAIMS:]))

    def claim_later(self, request: Request) -> None:
        """Note that a job claims a request: its page is not settled before."""
        parent = self._parents.get(request)
        if parent is not None:
            parent.has_queued = True

    def yields(self, page: Request) -> Callable[[Request], None] | None:
        """Return a function to be called with each request that a page yields; None for none."""
        flight = self._in_flight.get(page)
        if flight is None:
            return None
        flight.epoch = self.epoch

        def note(child: Request) -> None:
            self._parents[child] = flight

        return note

    # -- what the engine does --

    def offered(self, request: Request) -> None:
        """Find out which claims a request has by right; store what is not looked up."""
        if request is self.restored:
            self.was_offered = True
            self.offer = Offer(self.claims_of(request))
            return
        self.offer = Offer(inherited := self._successors.pop(request, {}))
        if inherited:
            if request.meta.get("redirect_urls") and request.meta.get("retry_times"):
                # Of a retry, which is not filtered, a redirect takes that along.
                request.dont_filter &= any(item.startswith(KEPT) for _, item in inherited)
            set_claims(request, inherited)
        else:  # made when it was looked up; or another request's, whose meta was copied
            request.meta.pop(META, None)
        if request.dont_filter:
            self._keep_once(request)

    def accepted(self, request: Request) -> None:
        """Wait until the request is handed out; its page waits for it if it is not stored."""
        parent, claims = self._parents.pop(request, None), self.claims_of(request)
        if claims:
            del request.meta[META]
            self._queued.setdefault(request, []).append(claims)
            if not self.offer.inherited and not any(claims.values()):
                self._note_unkept(next(iter(claims)), parent)
        self.offer = Offer()

    def refused(self, request: Request) -> None:
        """Settle what it came of: the end of a redirect is known already."""
        offer, self.offer = self.offer, Offer()
        parent, claims = self._parents.get(request), self.claims_of(request)
        self._forget_offer(request)
        if offer.unkept is not None and parent is not None:
            self._ledger.adopt(offer.unkept, parent)
        if offer.is_seen:
            self._settle_redirected(offer.inherited)
        else:  # dropped by a scheduler of the user's
            self._ledger.settle(claims, JobKind.RELEASE)

    def lost(self, request: Request) -> None:
        """Try it again later: its page is settled by then, and does not yield it again."""
        self.offer = Offer()
        parent, claims = self._parents.get(request), self.claims_of(request)
        if parent is not None and not any(claims.values()):
            parent.instead = JobKind.FAIL
        if request is not self.restored:
            self._forget_offer(request)
            self._ledger.settle(claims, JobKind.FAIL)

    def handed_out(self, request: Request) -> None:
        """Follow a request that is under way."""
        self._handed_out()
        self.sweep()
        claims = self._claims_out_of_queue(request)
        if not claims:
            return
        flight = self._in_flight.get(request)
        if flight is None:
            self._in_flight[request] = InFlightRequest(claims, epoch=self.epoch)
        else:  # its callback has yielded it again
            flight.claims |= claims
            flight.times += 1
        for claim in claims if self._may_be_others else ():
            self._put(Job(JobKind.HOLD, *claim))

    def turned_into(self, request: Request, successor: Request) -> None:
        """Pass claims on to a redirect's target, or to a retry."""
        flight = self._in_flight.pop(request, None)
        if flight is not None:
            self._successors[successor] = flight.claims

    def raised(self, request: Request, error: BaseException) -> None:
        """Note that a page's links may not all have been found."""
        if request in self._in_flight:
            self._in_flight[request].error = error

    def finished(self, request: Request, result: Response | Failure) -> None:
        """Settle a request, unless it waits for requests that it yielded and are not stored."""
        flight = self._in_flight.get(request)
        if flight is None:
            return
        flight.times -= 1
        if flight.times:
            return
        del self._in_flight[request]
        kind = self._outcome(flight, result)
        if kind is None or flight.is_given_up:
            self._ledger.leave(flight)  # the next run goes on from here
            return
        if kind is JobKind.RELEASE:
            self._ledger.ignore(flight.claims)
        flight.kind = kind
        if flight.is_complete or kind is JobKind.FAIL:
            self._ledger.settle(flight.claims, flight.end(), flight)

    def sweep(self) -> None:
        """Settle what has turned into requests that were dropped on their way to the scheduler.

        That way is one step of the engine: none is under way when this is called.
        """
        for claims in self._successors.values():
            self._ledger.ignore(claims)
            self._ledger.settle(claims, JobKind.RELEASE)
        self._successors.clear()

    def _outcome(self, flight: InFlightRequest, result: Response | Failure) -> JobKind | None:
        if isinstance(flight.error, CloseSpider):
            return None
        if isinstance(result, Failure):
            return JobKind.RELEASE if isinstance(result.value, IgnoreRequest) else JobKind.FAIL
        is_crawled = flight.error is None and result.status in self._crawled_statuses
        return JobKind.CONFIRM if is_crawled else JobKind.FAIL

    def _note_unkept(self, claim: Key, parent: InFlightRequest | None) -> None:
        self._report.count("not_kept", claim[0])
        self._report.warn_once(
            "not kept",
            f"{self.not_kept_reason or NO_ROOM}. If the crawl stops before such a request is "
            "crawled, the next run fetches the page that yielded it again (bloom/not_kept counts "
            "them)",
        )
        self._ledger.wait_for(claim, parent)

    def _forget_offer(self, request: Request) -> None:
        self._parents.pop(request, None)
        request.meta.pop(META, None)

    def _settle_redirected(self, claims: Claims) -> None:
        """Record URLs that led to one that is crawled, or in the queue, on its own."""
        self._ledger.settle(claims, JobKind.CONFIRM, InFlightRequest({}, epoch=self.epoch))

    def _claims_out_of_queue(self, request: Request) -> Claims:
        queued = self._queued.get(request)
        if queued:
            return queued.pop()  # the same request may be in the queue twice, with other claims
        claims = self.claims_of(request)
        request.meta.pop(META, None)
        return claims

    def claims_of(self, request: Request) -> Claims:
        """Read a request's claims, trusting nothing."""
        given = request.meta.get(META)
        if not isinstance(given, dict) or len(given) > MAX_CLAIMS:
            return {}
        claims: Claims = {}
        for text, length in given.items():
            match = _CLAIM.fullmatch(text) if isinstance(text, str) else None
            if (
                match
                and match[1] in self._windows
                and in_range(length, 0, request_codec.MAX_LENGTH)
            ):
                claims[match[1], bytes.fromhex(match[2])] = length
        return claims


def set_claims(request: Request, claims: Claims) -> None:
    """Write claims into a request's ``meta``."""
    request.meta[META] = {name_of(key): length for key, length in claims.items()}
