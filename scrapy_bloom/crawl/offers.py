"""Follows requests through the scheduler.

A request is claimed before it is scheduled, and carries its claims in ``meta`` into the scheduler's
queue: its own, and those of the requests that became this one by redirects and retries.

The target of a redirect has no stored request, because the request that led to it has one, without
the proxy, cookies and credentials that middlewares have added since.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_bytes
from weakref import WeakKeyDictionary

from scrapy import Request

from scrapy_bloom.bloom.protocol.claims import NewClaim
from scrapy_bloom.bloom.protocol.rings import DEFAULT
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.endings import ONCE, Joint, Page
from scrapy_bloom.crawl.identity import is_start
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.pages import Pages
from scrapy_bloom.crawl.queue import META, Claimed, Queue, set_claims
from scrapy_bloom.crawl.rule import Known


@dataclass(slots=True)
class Offer:
    """The request that the scheduler is being offered.

    Args:
        inherited: claims of the requests that have become this one.
        is_successor: whether it's a redirect or a retry.
        is_redirect: whether it's a redirect.
        is_restored: whether it's picked up, or back in the queue.
        is_queued: whether it's in the queue already.
        duplicate: its key, and what is known of it, if the dupefilter has refused it.
    """

    inherited: Claimed = field(default_factory=dict)
    is_successor: bool = False
    is_redirect: bool = False
    is_restored: bool = False
    is_queued: bool = False
    duplicate: tuple[Key, Known] | None = None


class Offers:
    """Listens to the scheduler: see ``hooks.SchedulerListener``.

    Args:
        context: the objects that all parts use.
        pages: of the requests that leave the scheduler.
        put: queues an op.

    Attributes:
        pages: the same.
        offer: what the scheduler is being offered; a new one in between.
        unsaved: requests that share an object with others of their page, or may do so.
        queue: the requests in the scheduler's queue.
        handed_out_count: requests that the crawl has got to do.
        priority: of the last one.
    """

    def __init__(self, context: Context, pages: Pages, put: Callable[[Op], None]) -> None:
        self._context, self.pages, self._put = context, pages, put
        self._endings = pages.endings
        self.offer = Offer()
        self.unsaved: WeakKeyDictionary[Request, Joint] = WeakKeyDictionary()
        self.queue = Queue(context.server.bloom.session.windows)
        self.handed_out_count = self.priority = 0
        self._restored: Request | None = None

    # -- the request that is being offered --

    def attach(self, request: Request, key: Key, *, is_stored: bool) -> None:
        """Give a request its claim, besides those that it inherits."""
        set_claims(request, {**self.offer.inherited, key: is_stored})

    def text_of(self, request: Request) -> str:
        """Return a request as it is stored; "" if it cannot be, or what led to it is stored."""
        is_unsaved = self.offer.is_successor or request in self.unsaved
        return "" if is_unsaved else self._context.text_of(request)

    def keep(self, request: Request, key: Key | None = None) -> None:
        """Claim a request that is not looked up, so that a crash does not lose it.

        Args:
            request: the request.
            key: of the window "run", which only this process knows; None with ``dont_filter``.
        """
        offer = self.offer
        if offer.is_queued or (is_start(request) and not self._context.pops_starts):
            return  # it has claims, or the next run makes it again
        text = self.text_of(request)
        claims: Claimed = {**offer.inherited}
        if key is not None:
            claims[key] = bool(text)
        if not (offer.inherited or offer.is_successor):  # else what led to it has claims
            once = _name(text, self._endings.once)
            self._endings.once.add(once)
            self._put(Op(OpKind.KEEP, NewClaim.of(once, text)))
            claims[once] = bool(text)
        if claims:
            set_claims(request, claims)

    def restore(self, request: Request, claim: Key, schedule: Callable[[Request], None]) -> None:
        """Schedule a request that was picked up, with its claims."""
        set_claims(request, {claim: True})
        self.queue.picked_up.add(request)
        self._restored = request
        try:
            schedule(request)
        finally:
            if self._restored is request:  # a middleware has dropped it, for instance as offsite
                self._restored = None
                self._settle(request, OpKind.DROP)

    # -- events of the scheduler --

    def offered(self, request: Request) -> None:
        """Find out which claims a request inherits."""
        self.offer = offer = Offer()
        if request is self._restored:
            self._restored, offer.is_restored = None, True
            offer.inherited = self.queue.claims_of(request)
        elif request in self.queue:
            offer.is_queued = True
        else:
            offer.is_successor = request in self.pages.successors
            offer.is_redirect = request in self.pages.redirects
            offer.inherited = self.pages.successors.pop(request, {})
            if offer.inherited:
                set_claims(request, offer.inherited)
            else:  # another request's, whose meta was copied
                request.meta.pop(META, None)
        if request.dont_filter:
            self.keep(request)

    def accepted(self, request: Request) -> None:
        """Note a request in the queue; if it is not stored, its page waits for it."""
        offer, self.offer = self.offer, Offer()
        parent, claims = self.pages.yielded.pop(request, None), self.queue.claims_of(request)
        joint = self.unsaved.pop(request, None)
        if not claims or offer.is_queued:
            return
        self.queue.put(request)
        own = next(reversed(claims))
        if claims[own]:
            return
        for claim, is_stored in claims.items():
            if not is_stored:
                self._endings.here.setdefault(claim, [])
        if offer.is_successor:
            self._endings.targets.add(own)
            return
        if parent is not None and parent is self.pages.page_of(request):
            self.pages.repeats(parent, {own: ""})
        elif parent is not None and not (joint is not None and joint.is_passed_on):
            self._endings.wait(parent, own)
        if joint is not None:
            self._endings.join(own, joint)
        else:
            self._context.monitor.count("unserializable", own[0])
            self._context.warn_unsaved(request)

    def refused(self, request: Request) -> None:
        """Let a request's page, or the claims that it inherited, know that it's a duplicate."""
        offer, self.offer = self.offer, Offer()
        parent = self.pages.yielded.pop(request, None)
        if offer.is_queued:
            return
        if offer.duplicate is None:  # dropped by a scheduler of the project's own
            self._settle(request, OpKind.DROP)
        elif offer.is_successor:
            key, known = offer.duplicate
            page = self.pages.make(request, offer.inherited)
            page.outcome, page.target = OpKind.CONFIRM, key
            self._endings.led_to(page, key, known, None)
            self._endings.finish(page)
        else:
            self.led_to(parent, request, *offer.duplicate)

    def lost(self, request: Request, error: BaseException) -> None:
        """Try a request again later that the queue did not take, or the page that yielded it."""
        parent, self.offer = self.pages.yielded.pop(request, None), Offer()
        if parent is not None:
            parent.error = "a-request-was-not-queued"
        self._context.monitor.warn_once(
            "not-queued",
            f"the scheduler's queue didn't take {request} ({type(error).__name__}: {error}), so it "
            "is retried later. If a kill has damaged JOBDIR, delete that folder",
        )
        self._settle(request, OpKind.FAIL, "not-queued")

    def not_read(self, error: Exception) -> None:
        """Say why the crawl stands still: Scrapy tries to read the queue again and again."""
        self._context.monitor.warn_once(
            "not-read",
            f"the scheduler's queue can't be read ({type(error).__name__}: {error}), so the crawl "
            "stands still. If a kill has damaged JOBDIR, stop it and delete that folder",
        )

    def handed_out(self, request: Request) -> bool:
        """Follow a request that has left the queue; return whether it's still this worker's."""
        claims = self.queue.pop(request)
        if claims is None:
            return False
        self.handed_out_count, self.priority = self.handed_out_count + 1, request.priority
        self.pages.sweep()
        request.meta.pop(META, None)
        page = self.pages.make(request, claims)
        self.queue.picked_up.discard(request)
        if page.claims:
            self.pages.follow(request, page)
        return True

    # -- claims --

    def _settle(self, request: Request, outcome: OpKind, error: str = "") -> None:
        """Settle the claims of a request that isn't crawled."""
        page = self.pages.make(request, self.queue.claims_of(request))
        page.outcome, page.error = outcome, error
        self._endings.settle(page)

    def take_back(self, request: Request, enqueue: Callable[[Request], None]) -> None:
        """Have a request again that was given to nobody."""
        if not self.queue.take_back(request):
            self._restored = request
            enqueue(request)

    def store(self, request: Request) -> None:
        """Store a queued request that turns out to share nothing."""
        text = self.text_of(request)
        key = self.queue.store(request) if text else None
        if key in self._endings.here:
            self._endings.store(key, text)

    def led_to(self, page: Page | None, request: Request, key: Key, known: Known) -> None:
        """Note that a page has yielded a request for a URL that isn't new."""
        text = "" if known is Known.ELSEWHERE else self.text_of(request)
        self._endings.led_to(page or Page({}), key, known, text)


def _name(text: str, taken: Collection[Key]) -> Key:
    """Return the key of a request that isn't looked up: the same in each run, if it's free."""
    digest = blake2b(text.encode(), digest_size=8).digest() if text else token_bytes(8)
    key = DEFAULT, ONCE + digest
    while key in taken:
        key = DEFAULT, key[1] + b"+"
    return key
