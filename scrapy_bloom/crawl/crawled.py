"""``BLOOM_REMEMBER = "crawled"``: a URL is remembered once its page is crawled.

Scheduling a request *claims* it, and keeps the request itself beside the filter. When its callback
has yielded its last, and what it yielded is claimed as well, the claim is *settled*: the URL is
recorded, or, if it failed, may be tried again later. What a dead worker had claimed is crawled by
somebody else.

A request carries its claims with it, in ``meta``: its own, and those of the requests it came of by
redirects and retries, which are settled together with it.
"""

import logging
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count, repeat

from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.core import pending
from scrapy_bloom.core.membership import NEW
from scrapy_bloom.core.pending import KEPT, field_of
from scrapy_bloom.core.rings import Steps
from scrapy_bloom.core.view import View
from scrapy_bloom.crawl import request_json
from scrapy_bloom.crawl.queues import Queue
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.takeover import Found
from scrapy_bloom.crawl.windows import LASTING, is_start
from scrapy_bloom.crawl.writer import CONFIRM, DROP, FAIL, HOLD, KEEP, RELEASE, TAKE, Job
from scrapy_bloom.filter import BloomFilter

logger = logging.getLogger(__name__)

#: The key of ``meta`` that holds a request's claims.
META = "bloom_claims"
#: Claims that a request carries at most: Scrapy follows 20 redirects.
MAX_CLAIMS = 50
#: Times that a failed URL is tried again without being found again.
MAX_ATTEMPTS = 5

_CLAIM = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,39}):((?:[0-9a-f]{2}){1,300})")
#: A claim: the window of the filter, and the fingerprint.
Claim = tuple[str, bytes]


@dataclass(slots=True)
class Flight:
    """A request that is the engine's.

    Args:
        claims: what is settled with it.
        error: what its callback raised.
        times: how often it has to finish.
    """

    claims: list[Claim]
    error: BaseException | None = None
    times: int = 1


class Crawled:
    """Claims what is scheduled, and settles what has been crawled. Listens to the engine.

    Args:
        spider: the spider.
        owner: whose the claims of scheduled requests are: this worker's, or its queue's.
        queue: the queue.
        windows: the windows that have a filter.
        crawled_statuses: HTTP statuses of pages that count as crawled.
        put: has a job done by the writer.
        ignored: is told the fingerprint of what a middleware has dropped.
        forget: is told which claims may be made again.
        busy: is told that there is something to do.
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
        ignored: Callable[[bytes], None],
        forget: Callable[[Claim], None],
        busy: Callable[[], None],
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
        self._put, self._ignored, self._forget = put, ignored, forget
        self._busy, self._report = busy, report
        #: One for each claim: another sighting by this process is "seen".
        self._nonces = map("{}.{:x}".format, repeat(secrets.token_hex(4)), count())
        #: Claims that are this worker's, made or taken over and not settled; not if they are its
        #: queue's: then, those of requests that were handed out, and that nobody will settle.
        self._unsettled = 0
        #: Whether the scheduler was told that the request it was offered is seen.
        self.is_seen = False
        self._in_flight: dict[Request, Flight] = {}
        #: What a request in flight has turned into, until the scheduler is offered it.
        self._successors: dict[Request, list[Claim]] = {}
        #: The request that the scheduler is being offered, if its claims came along rightfully.
        self._inherited: list[Claim] = []
        #: The claims it came with otherwise.
        self._set_aside: object = None
        #: The request that is being put back, and whether it has come as far as the scheduler.
        self._restored: Request | None = None
        self._was_offered = False

    # -- claiming --

    def is_claimed(self, claim: Claim, request: Request) -> bool:
        """Whether a request is claimed already: it is being put back, or leads back to itself."""
        return request is self._restored or claim in self._inherited

    def take(self, bloom: BloomFilter, claim: Claim, request: Request) -> str:
        """Claim a request; return the verdict: NEW, SEEN, MINE or OTHERS.

        Raises:
            StorageError: the outcome is unknown.
        """
        _, item = claim
        text, nonce = self.mark(request, claim), next(self._nonces)
        verdict = bloom.run(lambda view: pending.take_one(view, item, text, self._owner, nonce))
        self.took(verdict == NEW)
        return verdict

    def taking(self, items: Sequence[bytes], texts: Sequence[str]) -> Callable[[View], Steps[str]]:
        """Return the operation that claims many requests, which are marked; then say ``took``."""
        nonce = next(self._nonces)
        return lambda view: pending.take(view, items, texts, self._owner, nonce)

    def took(self, count: int) -> None:
        """Take note of new claims."""
        self._unsettled += count * (not self._is_queues)

    def give_back(self, claim: Claim) -> None:
        """End the claim of a request that was not scheduled."""
        self._settle([claim], RELEASE)

    def take_later(self, claim: Claim, request: Request) -> None:
        """Claim a request when the server is back."""
        self._put(Job(TAKE, *claim, self.mark(request, claim)))
        self.took(1)

    def keep_once(self, request: Request) -> None:
        """Keep a request that is not to be remembered, so that it is not lost in a crash.

        Not what has claims already, and not start requests, which the next run makes again.
        """
        if self._inherited or (is_start(request) and not self._pops_start_urls):
            return
        claim = LASTING, KEPT + secrets.token_bytes(8)
        self._put(Job(KEEP, *claim, self.mark(request, claim)))
        self.took(1)

    @property
    def is_leaving_claims(self) -> bool:
        """Whether there are claims that this worker would leave behind now."""
        return self._unsettled > 0 or bool(self._is_queues and self._in_flight)

    @property
    def are_claims_own(self) -> bool:
        """Whether only this worker ends the claims that it makes."""
        return not self._is_queues

    def hand_over(self, request: Request, claim: Claim) -> None:
        """Give a request its claims: this one, and those of what it came of."""
        claims = [*self._inherited, claim]
        # A chain of redirects that is longer than any should be.
        self._settle(claims[:-MAX_CLAIMS], CONFIRM)
        request.meta[META] = [_write(one) for one in claims[-MAX_CLAIMS:]]

    def mark(self, request: Request, claim: Claim) -> str:
        """Give a request its claims; return it as JSON, "" if it cannot be kept."""
        self.hand_over(request, claim)
        try:
            return request_json.dump(request, self._spider)
        except request_json.NotKeepableError as error:
            self._report.count("not_kept")
            self._report.warn_once(
                "not kept",
                f"{request} cannot be kept as JSON: {error}. If this process is killed, requests "
                "like it are not taken up by another one (bloom/not_kept counts them)",
            )
            return ""

    # -- what the engine does: see ``watch.Listener`` --

    def offered(self, request: Request) -> None:
        """Find out which claims a request has by right, and keep what is not to be remembered."""
        self.is_seen, self._set_aside = False, None
        if request is self._restored:
            self._was_offered = True
            self._inherited = self._claims(request)
            return
        self._inherited = self._successors.pop(request, [])
        if self._inherited:
            if request.meta.get("redirect_urls") and request.meta.get("retry_times"):
                # Of a retry, which is not to be filtered, a redirect takes that along.
                request.dont_filter &= any(item.startswith(KEPT) for _, item in self._inherited)
            request.meta[META] = [_write(claim) for claim in self._inherited]
        else:  # came along with meta=response.meta: another page's
            self._set_aside = request.meta.pop(META, None)
        if request.dont_filter:
            self.keep_once(request)

    def accepted(self, request: Request) -> None:  # noqa: ARG002 - the listener's interface
        """Nothing to do: the request will be handed out."""
        self._inherited = []

    def refused(self, request: Request) -> None:
        """Settle what it came of: the end of a redirect is known already."""
        inherited, self._inherited = self._inherited, []
        if self._set_aside is not None:
            # Its own after all, if it is in the queue already and was yielded again.
            request.meta[META] = self._set_aside
        if self.is_seen:
            self._settle(inherited, CONFIRM)
        else:  # dropped by a scheduler of the user's
            self._settle(self._claims(request), RELEASE)

    def lost(self, request: Request) -> None:
        """Have it tried again later: whoever links it may never do so again."""
        self._inherited = []
        if request is not self._restored:
            self._settle(self._claims(request), FAIL)

    def handed_out(self, request: Request) -> None:
        """Take note that a request is under way."""
        self._busy()
        self.sweep()
        claims = self._claims(request)
        if not claims:
            return
        flight = self._in_flight.get(request)
        if flight is None:
            self._in_flight[request] = Flight(claims)
        else:  # its callback has yielded it again
            flight.claims += claims
            flight.times += 1
        for claim in claims if self._may_be_others else ():
            self._put(Job(HOLD, *claim))

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
        """Settle a request."""
        flight = self._in_flight.get(request)
        if flight is None:
            return
        flight.times -= 1
        if flight.times:
            return
        del self._in_flight[request]
        kind = self._outcome(flight, result)
        if kind is None:
            # The crawl is closing: the next one goes on from here.
            self._unsettled += len(flight.claims) * self._is_queues
            return
        if kind == RELEASE:
            self._drop(flight.claims)
        else:
            self._settle(flight.claims, kind)

    def _outcome(self, flight: Flight, result: Response | Failure) -> str | None:
        if isinstance(flight.error, CloseSpider):
            return None
        if isinstance(result, Failure):
            return RELEASE if isinstance(result.value, IgnoreRequest) else FAIL
        is_crawled = flight.error is None and result.status in self._crawled_statuses
        return CONFIRM if is_crawled else FAIL

    def _drop(self, claims: Sequence[Claim]) -> None:
        """Settle what a middleware has dropped: it would drop it again in this run."""
        for _, item in claims:
            if not item.startswith(KEPT):
                self._ignored(item)
        self._settle(claims, RELEASE)

    def _settle(self, claims: Sequence[Claim], kind: str) -> None:
        for window, item in claims:
            is_kept = item.startswith(KEPT)
            self._put(Job(RELEASE if is_kept and kind == CONFIRM else kind, window, item))
            if kind != CONFIRM:
                self._forget((window, item))
            self._unsettled -= not self._is_queues
            self._report.count(_STATS[kind], window)

    def sweep(self) -> None:
        """Settle what has turned into requests that were dropped on their way to the scheduler.

        That way is one step of the engine: none is under way when this is called.
        """
        for claims in self._successors.values():
            self._drop(claims)
        self._successors.clear()

    # -- putting back --

    def restore(self, found: Found, crawl: Callable[[Request], None]) -> None:
        """Put requests back that were taken over from somebody else.

        Args:
            found: their claims.
            crawl: schedules a request.
        """
        for field, text in found.requests.items():
            request = self._read(found.window, field, text)
            if request is None:
                self._put(Job(DROP, found.window, field.encode(), block=found.block))
                continue
            self._unsettled += not self._is_queues
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

    def _read(self, window: str, field: str, text: str) -> Request | None:
        reason = "it is not the request that was claimed"
        try:
            request = request_json.load(text, self._spider)
            claims = self._claims(request)
            if any((window, field) == (name, field_of(item)) for name, item in claims):
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

    def _claims(self, request: Request) -> list[Claim]:
        """Read a request's claims, trusting nothing."""
        given = request.meta.get(META)
        if not isinstance(given, list) or len(given) > MAX_CLAIMS:
            return []
        matches = [_CLAIM.fullmatch(text) for text in given if isinstance(text, str)]
        claims = [(match[1], bytes.fromhex(match[2])) for match in matches if match]
        return [claim for claim in claims if claim[0] in self._windows]


#: What is counted when a claim is settled.
_STATS = {CONFIRM: "crawled", RELEASE: "released", FAIL: "failed"}


def _write(claim: Claim) -> str:
    window, item = claim
    return f"{window}:{item.hex()}"
