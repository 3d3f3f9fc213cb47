"""The claims of a crawl: a URL counts as seen for good once its page is crawled.

A lookup claims a request and stores it with its claim. The claim is settled when the page is
crawled (``tracker.py``). Claims of dead workers are taken over (``recovery.py``).
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count, repeat

from scrapy import Request
from w3lib.url import canonicalize_url

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import UNKEPT_ELSEWHERE, CachedRing, Verdict
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT, RetryPolicy
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl import request_codec, workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.identity import Identity, is_start, name_of, pops_start_urls
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind
from scrapy_bloom.crawl.lookups import Lookup
from scrapy_bloom.crawl.pages import ClaimSettler
from scrapy_bloom.crawl.tracker import META, NO_ROOM, ClaimTracker
from scrapy_bloom.crawl.workers import Process, Queue, Worker
from scrapy_bloom.fingerprinter import VERSIONED, Key
from scrapy_bloom.settings import DEFAULT, ITEMS, RUN

#: Times that a failed URL is tried again without being found again.
MAX_ATTEMPTS = 5
#: Times that a chain of redirects may come back to a URL, for instance with a new cookie.
MAX_RETURNS = 2
#: Links of start pages, claimed by others, that are held at most: about 20 MB.
MAX_LEFT = 10_000


class Claims:
    """Claims requests when they are scheduled; their pages are recorded when they are crawled.

    Args:
        context: what all parts use; it has a spider.
        identity: identifies requests.
        queue: the crawl's queue of requests.
        ledgers: windows whose pages are recorded with their requests.

    Attributes:
        spider: the spider.
        me: this worker.
        owner: whose claims jobs make and end.
        settler: settles claims.
        tracker: follows requests through the engine.
        certain: verdicts after which a URL stays seen.
        awaits_other_spiders: whether requests were stored with claims of other spiders, which may
            become free.
    """

    def __init__(
        self, context: Context, identity: Identity, queue: Queue, ledgers: Collection[str] = ()
    ) -> None:
        spider, settings = context.engine.spider, context.settings
        assert spider is not None  # noqa: S101 - it is checked before
        self.spider, self._settings, self._is_shared = spider, settings, queue.is_shared
        self._local, self._jobs, self._token = context.local, context.jobs, context.token
        self.me = Worker(
            workers.worker_id(spider.name),
            until=0,
            heartbeat=settings.heartbeat,
            process=Process.own(),
            queue=workers.queue_id(spider.name, queue.name) if queue.is_shared else queue.name,
        )
        owner, cooldown = self.me.owner, settings.retry_after
        retry = RetryPolicy(workers.failed_id(spider.name), cooldown, MAX_ATTEMPTS)
        self.owner = ClaimOwner(owner, self.me.id, retry)
        claim = partial(claim_protocol.claim, memory=settings.pending_memory)
        self._claim = partial(claim, owner=owner, cooldown=cooldown)
        self._max_length = settings.pending_memory // 4
        self.settler = ClaimSettler(context, ledgers)
        self.tracker = ClaimTracker(
            *(context, self.settler, queue, identity.key),
            keep_once=self.let_pass,
            text_of=self._text_of,
        )
        # Other workers may end the claims of a shared queue at any time. MINE may be about to end.
        own = () if queue.is_shared else (Verdict.NEW, Verdict.UNKEPT)
        self.certain = frozenset((Verdict.SEEN, *own))
        self.awaits_other_spiders = False
        #: Links of start pages that another worker has claimed without storing them. No page has a
        #: claim that could wait for them.
        self._left_to_others: dict[Key, Request] = {}
        self._schedule = context.engine.crawl
        self._pops_start_urls = pops_start_urls(spider)
        #: One for each call: a repeated call with the same nonce changes nothing.
        self._nonces = map("{}.{:x}".format, repeat(context.token(4)), count())

    # -- claiming --

    def look_up_one(self, bloom: BloomFilter, key: Key, request: Request) -> Verdict:
        """Look up a request, and claim it if it is new, in one blocking round trip.

        Raises:
            StorageError: the outcome is unknown.
        """
        item, text = key[1], self._mark(request, key)
        nonce, header = next(self._nonces), bloom.session.header
        room = self._settings.pending_memory // header.blocks if header else 0
        page = _page_of(request, self.tracker)
        claim = (
            self.owner.owner,
            nonce,
            room,
            self._settings.retry_after,
            field_of(item),
            page,
            text,
        )
        verdict = bloom.run_one(
            item,
            partial(CachedRing.claim_one, claim=claim),
            partial(self._claim, items=[item], requests=[text], pages=[page], nonce=nonce),
        )
        if verdict is Verdict.UNKEPT:
            self.tracker.attach_claim(request, key, 0)
            self.tracker.not_kept(NO_ROOM)
        elif verdict is Verdict.NEW:
            self.settler.length += len(text)
        self._note_others(key, request, verdict)
        return verdict

    def look_up(
        self, lookups: Sequence[Lookup]
    ) -> Callable[[FilterSession], Operation[list[Verdict]]]:
        """Return the operation that looks up many requests of one window, and claims new ones."""
        texts = [self._mark(lookup.request, lookup.key) for lookup in lookups]
        pages = [_page_of(lookup.request, self.tracker) for lookup in lookups]
        for lookup, text in zip(lookups, texts, strict=True):
            lookup.length = len(text)
        items, nonce = [lookup.key[1] for lookup in lookups], next(self._nonces)
        return partial(self._claim, items=items, requests=texts, pages=pages, nonce=nonce)

    def answered(self, lookups: Sequence[Lookup]) -> None:
        """Note the verdicts of ``look_up``."""
        for lookup in lookups:
            if lookup.verdict is not Verdict.NEW:
                lookup.length = 0
            self.settler.length += lookup.length
            self._note_others(lookup.key, lookup.request, lookup.verdict)

    def _note_others(self, key: Key, request: Request, verdict: Verdict | None) -> None:
        """Note a request that another worker has, and may lose."""
        if verdict is Verdict.OTHER_SPIDERS:
            self.awaits_other_spiders = True
        is_left = verdict is Verdict.OTHERS_UNKEPT and not _page_of(request, self.tracker)
        if is_left and len(self._left_to_others) < MAX_LEFT:
            self._left_to_others[key] = request

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        """Crawl again what is lost with claims that were ended: see ``ClaimSettler.dropped``."""
        self.settler.dropped(window, fields, begun)
        for key in [*self._left_to_others]:
            if key[0] == window and field_of(key[1]) in fields:
                self._schedule(self._left_to_others.pop(key))

    def record_later(self, key: Key, request: Request) -> None:
        """Claim a request after an outage."""
        self._put_claim(JobKind.CLAIM, key, self._mark(request, key), request)

    def take_claimed(self, key: Key, request: Request) -> Verdict | None:
        """Return the verdict on a request that inherits claims; None if its own is not among them.

        If it is, the request is put back, or redirected to itself.
        """
        tracker, to_repeat = self.tracker, self._local.to_repeat
        inherited = tracker.offer.inherited
        is_restored = request is tracker.restored
        if not is_restored:
            if key not in inherited:
                return None
            if _goes_in_circles(request):
                return Verdict.SEEN
        if key[0] != RUN:
            if not self._is_shared:
                self._local.versions.claimed(key)
            return Verdict.NEW
        # This run may have crawled a page that another run claimed; but not one that failed here.
        repeated = to_repeat.intersection(inherited)
        to_repeat -= repeated
        is_new = (is_restored and bool(repeated)) or self._local.take(key[1])
        return Verdict.NEW if is_new else Verdict.SEEN

    def decided(self, key: Key, verdict: Verdict) -> None:
        """Note the verdict on the request that the scheduler is offered."""
        only_items = self._settings.remember == ITEMS
        if verdict.is_new and only_items and self._is_shared and key[0] != RUN:
            # If another worker crawls it and it has no item, only that worker would know: two such
            # pages that link each other would be pushed by turns for ever.
            self._local.take(key[1], for_run=True)
        offer = self.tracker.offer
        offer.is_seen = not verdict.is_new
        if verdict in UNKEPT_ELSEWHERE:
            offer.unkept, offer.is_same_page = key, verdict is Verdict.YIELD_AGAIN
        # Other workers may end the claims of a shared queue, and this one is not notified.
        is_mine = verdict is Verdict.NEW and not self._is_shared
        if is_mine and key[1].startswith(VERSIONED):
            self._local.versions.claimed(key)

    def give_back(self, key: Key, verdict: Verdict, length: int) -> None:
        """End the claim of a request that was looked up and never scheduled."""
        if verdict in (Verdict.NEW, Verdict.UNKEPT, Verdict.UNKNOWN):
            known = length if verdict is Verdict.NEW else 0
            self.settler.settle({key: known}, JobKind.RELEASE)

    def let_pass(self, request: Request) -> None:
        """Store a request that is neither tested nor recorded, so that a crash does not lose it.

        Requests that have claims are stored already; the next run makes start requests again.
        """
        if self.tracker.offer.inherited or (is_start(request) and not self._pops_start_urls):
            return
        key = DEFAULT, KEPT + bytes.fromhex(self._token(8))
        text = self._mark(request, key)
        if text:
            self._put_claim(JobKind.KEEP, key, text, request)

    def _put_claim(self, kind: JobKind, key: Key, text: str, request: Request) -> None:
        self._jobs.put(Job(kind, *key, text, page=_page_of(request, self.tracker)))
        self.settler.length += len(text)
        self.tracker.claim_later(request)

    def _mark(self, request: Request, key: Key) -> str:
        """Write a request's claims into its meta; return it as JSON, "" if it cannot be stored."""
        name = name_of(key)
        if self.tracker.offer.inherited:
            self.tracker.attach_claim(request, key, 0)
        else:
            request.meta[META] = {name: 0}
        text = self._text_of(request)
        # Other workers settle the claims of a shared queue.
        length = self._jobs.length if self._is_shared else self.settler.length
        if text and self._max_length and length + len(text) > self._max_length:
            self.tracker.not_kept(NO_ROOM)
            return ""
        request.meta[META][name] = len(text)
        return text

    def _text_of(self, request: Request) -> str:
        """Return a request as JSON, "" if it cannot be stored."""
        if not self._settings.keep_headers and request_codec.has_credentials(request):
            self.tracker.not_kept(
                f"{shown(request)} has cookies, credentials or a proxy, and BLOOM_KEEP_HEADERS is "
                "False"
            )
            return ""
        try:
            return request_codec.dump(request, self.spider)
        except request_codec.NotKeepableError as error:
            self.tracker.not_kept(f"{shown(request)} cannot be written as JSON: {error}")
            return ""


def _page_of(request: Request, tracker: ClaimTracker) -> str:
    """Return the field of the claim of what led to a request: a page or a redirect; "" for none."""
    page = tracker.pages.get(request)
    claim = page.claim if page is not None else next(reversed(tracker.offer.inherited), None)
    return field_of(claim[1]) if claim is not None else ""


def _goes_in_circles(redirect: Request) -> bool:
    """Whether a redirect comes back to a URL of its chain once too often."""
    chain = redirect.meta.get("redirect_urls", ())
    if len(chain) <= MAX_RETURNS:
        return False
    url = canonicalize_url(redirect.url)
    return sum(canonicalize_url(before) == url for before in chain) > MAX_RETURNS
