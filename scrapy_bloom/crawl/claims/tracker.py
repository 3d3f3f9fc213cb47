"""``BLOOM_REMEMBER = "crawled"``: a URL is remembered once its page is crawled.

Scheduling a request *claims* it, and keeps the request itself beside the filter. When its callback
has yielded its last, and what it yielded is claimed as well, the claim is *settled*: the URL is
recorded, or, if it failed, may be tried again later. What a dead worker had claimed is crawled by
somebody else.

A request carries its claims into the scheduler's queue, in ``meta``: its own, and those of the
requests it came of by redirects and retries, which are settled together with it.

A request that cannot be kept is lost with this process, so the page that yielded it is not settled
before: see ``flights.py``.
"""

import logging
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count, repeat
from weakref import WeakKeyDictionary

from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.header import in_range
from scrapy_bloom.bloom.protocol import claims as claim_protocol
from scrapy_bloom.bloom.protocol.claims import KEPT, UNKEPT, field_of
from scrapy_bloom.bloom.protocol.membership import NEW
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl.claims import request_codec
from scrapy_bloom.crawl.claims.in_flight import (
    MAX_UNKEPT,
    ClaimKey,
    Claims,
    InFlightRequest,
    UnkeptRequests,
)
from scrapy_bloom.crawl.claims.queues import Queue
from scrapy_bloom.crawl.claims.reclaimer import Reclaimed
from scrapy_bloom.crawl.identity import is_start
from scrapy_bloom.crawl.stats import Report
from scrapy_bloom.crawl.write_behind import (
    CONFIRM,
    DONE,
    DROP,
    FAIL,
    HOLD,
    KEEP,
    RELEASE,
    REPEAT,
    TAKE,
    Job,
)
from scrapy_bloom.settings import LASTING

logger = logging.getLogger(__name__)

#: The key of ``meta`` that holds a request's claims.
META = "bloom_claims"
#: Claims that a request carries at most: Scrapy follows 20 redirects.
MAX_CLAIMS = 50
#: Times that a failed URL is tried again without being found again.
MAX_ATTEMPTS = 5

_CLAIM = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,39}):((?:[0-9a-f]{2}){1,300})")


class ClaimTracker:
    """Claims what is scheduled, and settles what has been crawled. Listens to the engine.

    Args:
        spider: the spider.
        owner: whose the claims of scheduled requests are: this worker's, or its queue's.
        queue: the queue.
        windows: the windows that have a filter.
        crawled_statuses: HTTP statuses of pages that count as crawled.
        put: has a job done by the writer.
        backlog: returns the characters of the requests in jobs that are waiting.
        ignored: is told the fingerprint of what a middleware has dropped.
        forget: is called with claims that may be made again.
        busy: is called when there is something to do.
        memory: bytes that the claims on a filter take at most; a quarter of it for this process.
        report: counts and warns.
    """

    def __init__(
        self,
        spider: Spider,
        owner: str,
        *,
        queue: Queue,
        windows: Collection[str],
        crawled_statuses: frozenset[int],
        put: Callable[[Job], None],
        backlog: Callable[[], int],
        ignored: Callable[[bytes], None],
        forget: Callable[[ClaimKey], None],
        busy: Callable[[], None],
        memory: int,
        report: Report,
    ) -> None:
        self._spider, self._owner, self._windows = spider, owner, windows
        #: Whether claims are the queue's until a request is handed out, or may be another worker's.
        self._is_queues = queue.is_shared
        self._may_be_others = bool(queue.name)
        # What scrapy-redis's spiders start with is gone from its list then.
        self._pops_start_urls = any(
            base.__module__.startswith("scrapy_redis.") for base in type(spider).__mro__
        )
        self._crawled_statuses = crawled_statuses
        self._put, self._backlog = put, backlog
        self._ignored, self._forget = ignored, forget
        self._busy, self._report = busy, report
        self._memory, self._max_kept = memory, memory // 4
        #: The epoch in which pages begin now: see ``Writer``.
        self.epoch = 0
        #: One for each claim: another sighting by this process is "seen".
        self._nonces = map("{}.{:x}".format, repeat(secrets.token_hex(4)), count())
        #: Claims that are this worker's, made or taken over and not settled, and the characters of
        #: their requests; not if they are its queue's: then, those of requests that were handed
        #: out, and that nobody will settle.
        self._unsettled = self._kept = 0
        #: Claims of this run's window "run" that will be taken up again: its set has them.
        self.to_repeat: set[ClaimKey] = set()
        #: Why a request could not be kept.
        self._not_kept_reason = ""
        #: Whether the scheduler was told that the request it was offered is seen; and its claim if
        #: that is in the queue without its request, where it may be lost.
        self.is_seen = False
        self.unkept_claim: ClaimKey | None = None
        #: The claims of requests in the queue. In the queue itself they are in ``meta``, and so are
        #: those of a request that comes out of it as another object, from a disk or from Redis.
        self._queued: WeakKeyDictionary[Request, list[Claims]] = WeakKeyDictionary()
        self._in_flight: dict[Request, InFlightRequest] = {}
        #: Pages of requests that the scheduler has not been offered yet.
        self._parents: WeakKeyDictionary[Request, InFlightRequest] = WeakKeyDictionary()
        self._unkept = UnkeptRequests()
        #: What a request in flight has turned into, until the scheduler is offered it.
        self._successors: dict[Request, Claims] = {}
        #: The request that the scheduler is being offered, if its claims came along rightfully.
        self._inherited: Claims = {}
        #: The request that is being put back, and whether it has come as far as the scheduler.
        self._restored: Request | None = None
        self._was_offered = False

    # -- claiming --

    def is_claimed(self, claim: ClaimKey, request: Request) -> bool:
        """Whether a request is claimed already: it is being put back, or leads back to itself."""
        return request is self._restored or claim in self._inherited

    def claim(self, bloom: BloomFilter, claim: ClaimKey, request: Request) -> str:
        """Claim a request; return the verdict: NEW, SEEN, MINE or OTHERS.

        Raises:
            StorageError: the outcome is unknown.
        """
        _, item = claim
        text, nonce = self.mark(request, claim), next(self._nonces)
        verdict = bloom.run(
            lambda session: claim_protocol.claim_one(
                session, item, text, self._owner, nonce, memory=self._memory
            )
        )
        if verdict == UNKEPT:
            self._attach(request, claim, 0)
            text, self._not_kept_reason = "", _NO_ROOM
        if verdict in (NEW, UNKEPT):
            self.took(1, len(text))
        return verdict

    def taking(
        self, items: Sequence[bytes], texts: Sequence[str]
    ) -> Callable[[FilterSession], Operation[list[Verdict]]]:
        """Return the operation that claims many requests, which are marked; then say ``took``."""
        nonce = next(self._nonces)
        return lambda session: claim_protocol.claim(
            session, items, texts, self._owner, nonce, memory=self._memory
        )

    def took(self, count: int, length: int) -> None:
        """Take note of new claims, and of the length of their requests together."""
        if not self._is_queues:
            self._unsettled += count
            self._kept += length

    def give_back(self, claim: ClaimKey, length: int) -> None:
        """End the claim of a request that was not scheduled."""
        self._settle({claim: length}, RELEASE)

    def take_later(self, claim: ClaimKey, request: Request) -> None:
        """Claim a request when the server is back."""
        text = self.mark(request, claim)
        self._put_claim(Job(TAKE, *claim, text), request)

    def keep_once(self, request: Request) -> None:
        """Keep a request that is not to be remembered, so that it is not lost in a crash.

        Not what has claims already, and not start requests, which the next run makes again.
        """
        if self._inherited or (is_start(request) and not self._pops_start_urls):
            return
        claim = LASTING, KEPT + secrets.token_bytes(8)
        text = self.mark(request, claim)
        if text:
            self._put_claim(Job(KEEP, *claim, text), request)
        else:
            self.took(1, 0)

    def _put_claim(self, job: Job, request: Request) -> None:
        """Have a claim made in the background; its page is not settled before."""
        self._put(job)
        self.took(1, len(job.request))
        parent = self._parents.get(request)
        if parent is not None:
            parent.has_queued = True

    @property
    def is_leaving_claims(self) -> bool:
        """Whether there are claims that this worker would leave behind now."""
        if self._unsettled > 0:
            return True
        return self._is_queues and bool(self._in_flight or self._unkept)

    @property
    def are_claims_own(self) -> bool:
        """Whether only this worker ends the claims that it makes."""
        return not self._is_queues

    def hand_over(self, request: Request, claim: ClaimKey, length: int) -> None:
        """Give a request its claims, of which one was made before, perhaps for another page.

        Args:
            request: the request.
            claim: the claim that was made.
            length: of the request that is kept with it; 0 if none is.
        """
        self._attach(request, claim, length)

    def mark(self, request: Request, claim: ClaimKey) -> str:
        """Give a request its claims; return it as JSON, "" if it cannot be kept."""
        self._attach(request, claim, 0)
        text = self._dump(request)
        request.meta[META][_write(claim)] = len(text)
        return text

    def _attach(self, request: Request, claim: ClaimKey, length: int) -> None:
        """Give a request its claims: this one, and those of what it came of."""
        claims = [*self._inherited.items(), (claim, length)]
        # A chain of redirects that is longer than any should be.
        self._settle(dict(claims[:-MAX_CLAIMS]), CONFIRM, InFlightRequest({}, epoch=self.epoch))
        _put_in_meta(request, dict(claims[-MAX_CLAIMS:]))

    def _dump(self, request: Request) -> str:
        try:
            text = request_codec.dump(request, self._spider)
        except request_codec.NotKeepableError as error:
            self._not_kept_reason = f"{request} cannot be written as JSON: {error}"
            return ""
        # Of a shared queue, other workers settle what this one has claimed.
        kept = self._backlog() if self._is_queues else self._kept
        if not self._memory or kept + len(text) <= self._max_kept:
            return text
        self._not_kept_reason = _NO_ROOM
        return ""

    # -- what the engine does: see ``watch.Listener`` --

    def offered(self, request: Request) -> None:
        """Find out which claims a request has by right, and keep what is not to be remembered."""
        self.is_seen, self.unkept_claim = False, None
        if request is self._restored:
            self._was_offered = True
            self._inherited = self._claims(request)
            return
        self._inherited = self._successors.pop(request, {})
        if self._inherited:
            if request.meta.get("redirect_urls") and request.meta.get("retry_times"):
                # Of a retry, which is not to be filtered, a redirect takes that along.
                request.dont_filter &= any(item.startswith(KEPT) for _, item in self._inherited)
            _put_in_meta(request, self._inherited)
        else:  # made when it was asked about; or another request's, whose meta was copied
            request.meta.pop(META, None)
        if request.dont_filter:
            self.keep_once(request)

    def accepted(self, request: Request) -> None:
        """Wait until the request is handed out; its page waits for it if it is not kept."""
        parent, claims = self._parents.pop(request, None), self._claims(request)
        if claims:
            del request.meta[META]
            self._queued.setdefault(request, []).append(claims)
            if not self._inherited and not any(claims.values()):
                self._note_unkept(next(iter(claims)), parent)
        self._inherited = {}

    def _note_unkept(self, claim: ClaimKey, parent: InFlightRequest | None) -> None:
        """Take note of a request that is not kept."""
        self._report.count("not_kept", claim[0])
        self._report.warn_once(
            "not kept",
            f"{self._not_kept_reason or _NO_ROOM}. If the crawl stops before such a request is "
            "crawled, the next run fetches the page that yielded it again (bloom/not_kept counts "
            "them)",
        )
        if parent is not None:  # else it is a start request, which the next run makes again
            self._wait_for(claim, parent)

    def _wait_for(self, claim: ClaimKey, parent: InFlightRequest) -> None:
        """Do not settle a page before a request that it yielded, and that is not kept."""
        for flight in self._unkept.add(claim, parent):
            if flight.kind:
                self._leave(flight)
            self._report.warn_once(
                "given up",
                f"{MAX_UNKEPT:,} requests that could not be kept are pending: pages that wait for "
                "them are not recorded, and the next run fetches them again",
            )

    def refused(self, request: Request) -> None:
        """Settle what it came of: the end of a redirect is known already."""
        inherited, self._inherited = self._inherited, {}
        parent, claims = self._parents.get(request), self._claims(request)
        self._forget_offer(request)
        if self.unkept_claim is not None and parent is not None:
            self._wait_for(self.unkept_claim, parent)
        if self.is_seen:
            self._settle(inherited, CONFIRM, InFlightRequest({}, epoch=self.epoch))
        else:  # dropped by a scheduler of the user's
            self._settle(claims, RELEASE)

    def lost(self, request: Request) -> None:
        """Have it tried again later: its page is settled by then, and does not yield it again."""
        self._inherited = {}
        parent, claims = self._parents.get(request), self._claims(request)
        if parent is not None and not any(claims.values()):
            parent.instead = FAIL
        if request is not self._restored:
            self._forget_offer(request)
            self._settle(claims, FAIL)

    def _forget_offer(self, request: Request) -> None:
        self._parents.pop(request, None)
        request.meta.pop(META, None)

    def handed_out(self, request: Request) -> None:
        """Take note that a request is under way."""
        self._busy()
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
            self._put(Job(HOLD, *claim))

    def _claims_out_of_queue(self, request: Request) -> Claims:
        queued = self._queued.get(request)
        if queued:
            return queued.pop()  # the same request may be in the queue twice, with other claims
        claims = self._claims(request)
        request.meta.pop(META, None)
        return claims

    def yields(self, request: Request) -> Callable[[Request], None] | None:
        """Return what takes note of the requests that a page yields; None for nothing."""
        flight = self._in_flight.get(request)
        if flight is None:
            return None
        flight.epoch = self.epoch

        def note(child: Request) -> None:
            self._parents[child] = flight

        return note

    def turned_into(self, request: Request, successor: Request) -> None:
        """Hand claims on to a redirect's target, or to a retry."""
        flight = self._in_flight.pop(request, None)
        if flight is not None:
            self._successors[successor] = flight.claims

    def raised(self, request: Request, error: BaseException) -> None:
        """Take note that a page's links may not all have been found."""
        if request in self._in_flight:
            self._in_flight[request].error = error

    def finished(self, request: Request, result: Response | Failure) -> None:
        """Settle a request, unless it waits for requests that it yielded and that are not kept."""
        flight = self._in_flight.get(request)
        if flight is None:
            return
        flight.times -= 1
        if flight.times:
            return
        del self._in_flight[request]
        kind = self._outcome(flight, result)
        if kind is None or flight.is_given_up:
            self._leave(flight)  # the next run goes on from here
            return
        if kind == RELEASE:
            self._ignore(flight.claims)
        flight.kind = kind
        if flight.is_complete or kind == FAIL:
            self._settle(flight.claims, flight.end(), flight)

    def _outcome(self, flight: InFlightRequest, result: Response | Failure) -> str | None:
        if isinstance(flight.error, CloseSpider):
            return None
        if isinstance(result, Failure):
            return RELEASE if isinstance(result.value, IgnoreRequest) else FAIL
        is_crawled = flight.error is None and result.status in self._crawled_statuses
        return CONFIRM if is_crawled else FAIL

    def _leave(self, flight: InFlightRequest) -> None:
        """Leave the claims of a page as they are, for the next run."""
        self._unsettled += len(flight.claims) * self._is_queues

    def _ignore(self, claims: Claims) -> None:
        """Take note of what a middleware has dropped: it would drop it again in this run."""
        for _, item in claims:
            if not item.startswith(KEPT):
                self._ignored(item)

    def _settle(self, claims: Claims, kind: str, page: InFlightRequest | None = None) -> None:
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
                self._end_claim(claim, length, kind, page)
                parent = self._unkept.settle(claim, kind)
                if parent is not None:
                    ending.append((parent.claims, parent.end(), parent))

    def _end_claim(
        self, claim: ClaimKey, length: int, kind: str, page: InFlightRequest | None
    ) -> None:
        window, item = claim
        job = Job(kind, window, item)
        if page is not None:
            job = replace(job, epoch=page.epoch, is_last=page.has_queued)
        if item.startswith(KEPT):
            if kind in (FAIL, REPEAT):
                self.to_repeat.add(claim)
            if kind == CONFIRM:
                job = replace(job, kind=DONE)
        self._put(job)
        if kind != CONFIRM:
            self._forget(claim)
        if not self._is_queues:
            self._unsettled -= 1
            self._kept -= length
        self._report.count(_STATS[kind], window)

    def sweep(self) -> None:
        """Settle what has turned into requests that were dropped on their way to the scheduler.

        That way is one step of the engine: none is under way when this is called.
        """
        for claims in self._successors.values():
            self._ignore(claims)
            self._settle(claims, RELEASE)
        self._successors.clear()

    # -- putting back --

    def restore(self, found: Reclaimed, crawl: Callable[[Request], None]) -> None:
        """Put requests back that were taken over from another worker.

        Args:
            found: their claims.
            crawl: schedules a request.
        """
        for field, text in found.requests.items():
            request = self._read(found.window, field, text)
            if request is None:
                self._put(Job(DROP, found.window, field.encode(), block=found.block))
                continue
            # All, because all are settled together: those of a chain may be taken over one by one.
            self.took(len(self._claims(request)), len(text))
            self._restored, self._was_offered = request, False
            try:
                crawl(request)
            except Exception:
                logger.exception(
                    "Bloom filter: %s, which was left behind, cannot be put back", request
                )
                continue  # the claim stays, for the next one to try
            finally:
                self._restored = None
            self._report.count("taken_over", found.window)
            if not self._was_offered:
                self._settle(self._claims(request), RELEASE)  # offsite, by now

    def dropped(self, window: str, fields: Collection[str]) -> None:
        """Crawl the pages again that wait for requests which are lost: their claims were ended."""
        for claim in self._unkept.find(window, fields):
            self._forget(claim)
            parent = self._unkept.settle(claim, REPEAT)
            if parent is not None:
                self._settle(parent.claims, parent.end(), parent)

    def is_repeated(self, request: Request) -> bool:
        """Whether a request is put back that this process has crawled before, without success."""
        repeated = self.to_repeat.intersection(self._inherited)
        self.to_repeat -= repeated
        return request is self._restored and bool(repeated)

    def _read(self, window: str, field: str, text: str) -> Request | None:
        reason = "it is not the request that was claimed"
        try:
            request = request_codec.load(text, self._spider)
            claims = self._claims(request)
            for name, item in claims:
                if (window, field) == (name, field_of(item)):
                    _put_in_meta(request, {**claims, (name, item): len(text)})
                    return request
        except ValueError as error:
            reason = str(error)
        self._report.count("not_restored", window)
        self._report.warn_once(
            "not restored",
            f"a request that was left behind cannot be put back: {reason}. Has the spider changed? "
            "Its URL is crawled when it is found again (bloom/not_restored counts them)",
        )
        return None

    def _claims(self, request: Request) -> Claims:
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


_NO_ROOM = (
    "there is no room for more pending requests (BLOOM_PENDING_MEMORY bytes for all workers, and a "
    "quarter of it for each)"
)
#: What is counted when a claim is settled.
_STATS = {CONFIRM: "crawled", RELEASE: "released", FAIL: "failed", REPEAT: "repeated"}


def _put_in_meta(request: Request, claims: Claims) -> None:
    request.meta[META] = {_write(claim): length for claim, length in claims.items()}


def _write(claim: ClaimKey) -> str:
    window, item = claim
    return f"{window}:{item.hex()}"
