"""The claims of a crawl: a URL counts as seen for good once its page is crawled.

A lookup claims a request and stores it with its claim. The claim is settled when the page is
crawled (``tracker.py``). Claims of dead workers are taken over (``recovery.py``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, repeat

from scrapy import Request, Spider
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
from scrapy_bloom.crawl.identity import Key, is_start, name_of, pops_start_urls
from scrapy_bloom.crawl.in_flight import PageItems
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind, JobQueue
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.lookups import Lookup
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.settler import ClaimSettler
from scrapy_bloom.crawl.tracker import META, NO_ROOM, ClaimTracker
from scrapy_bloom.crawl.workers import Process, Queue, Worker
from scrapy_bloom.fingerprinter import VERSIONED
from scrapy_bloom.settings import DEFAULT, RUN, BloomSettings

#: Times that a failed URL is tried again without being found again.
MAX_ATTEMPTS = 5
#: Times that a chain of redirects may come back to a URL, for instance with a new cookie.
MAX_RETURNS = 2


class Claims:
    """Claims requests when they are scheduled; their pages are recorded when they are crawled.

    Args:
        context: what all parts use.
        queue: the crawl's queue of requests.
        server: of the filters.
        local: what this process knows.
        jobs: are written later.
        page_items: decides which pages have an item; None if all are recorded.

    Attributes:
        me: this worker.
        owner: whose claims jobs make and end.
        settler: settles claims.
        tracker: follows requests through the engine.
        certain: verdicts after which a URL stays seen.
        awaits_other_spiders: whether requests were stored with claims of other spiders, which may
            become free.
    """

    def __init__(
        self,
        context: Context,
        queue: Queue,
        server: Server,
        local: LocalState,
        jobs: JobQueue,
        *,
        page_items: PageItems | None,
    ) -> None:
        assert context.spider is not None  # noqa: S101 - it is checked before
        self._spider, self._settings, self._queue = context.spider, context.settings, queue
        self._local, self._jobs, self._page_items = local, jobs, page_items
        self._token = context.token
        self.me = _new_worker(self._spider, self._settings, queue)
        memory, cooldown = self._settings.pending_memory, self._settings.retry_after
        self._max_length = memory // 4
        owner = self.me.shared_queue or self.me.id
        claim = partial(claim_protocol.claim, memory=memory)
        self._claim = partial(claim, owner=owner, cooldown=cooldown)
        retry = RetryPolicy(workers.failed_id(self._spider.name), cooldown, MAX_ATTEMPTS)
        self.owner = ClaimOwner(owner, self.me.id, retry)
        ledgers = frozenset(server.filters.forgetting) if self._settings.ledger else frozenset()
        only_items = page_items is not None
        self.settler = ClaimSettler(context, local, jobs, ledgers, only_items=only_items)
        self.tracker = ClaimTracker(
            context, server, self.settler, queue, page_items, keep_once=self.let_pass
        )
        # Other workers may end the claims of a shared queue at any time. MINE may be about to end.
        own = (Verdict.NEW, Verdict.UNKEPT) if not queue.is_shared else ()
        self.certain = frozenset((Verdict.SEEN, *own))
        self.awaits_other_spiders = False
        self._pops_start_urls = pops_start_urls(self._spider)
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
            self.tracker.not_kept_reason = NO_ROOM
        elif verdict is Verdict.NEW:
            self.settler.length += len(text)
        if verdict is Verdict.OTHER_SPIDERS:
            self.awaits_other_spiders = True
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
            if lookup.verdict is Verdict.OTHER_SPIDERS:
                self.awaits_other_spiders = True

    def record_later(self, key: Key, request: Request) -> None:
        """Claim a request after an outage."""
        self._put_claim(JobKind.CLAIM, key, self._mark(request, key), request)

    def take_claimed(self, key: Key, request: Request) -> bool | None:
        """Return whether a request that has its claim is new; None if it has no claim.

        Such a request is put back, or redirected to itself.
        """
        tracker, to_repeat = self.tracker, self._local.to_repeat
        inherited = tracker.offer.inherited
        is_restored = request is tracker.restored
        if not is_restored:
            if key not in inherited:
                return None
            if _goes_in_circles(request):
                return False
        if key[0] != RUN:
            if not self._queue.is_shared:
                self._local.versions.claimed(key)
            return True
        # This run may have crawled a page that another run claimed; but not one that failed here.
        repeated = to_repeat.intersection(inherited)
        to_repeat -= repeated
        return (is_restored and bool(repeated)) or self._local.take(key[1])

    def decided(self, key: Key, verdict: Verdict) -> None:
        """Note the verdict on the request that the scheduler is offered."""
        if verdict.is_new and self._page_items and self._queue.is_shared and key[0] != RUN:
            # If another worker crawls it and it has no item, only that worker would know: two such
            # pages that link each other would be pushed by turns for ever.
            self._local.take(key[1], for_run=True)
        offer = self.tracker.offer
        offer.is_seen = not verdict.is_new
        # Other workers may end the claims of a shared queue, and this one is not notified.
        is_mine = verdict is Verdict.NEW and not self._queue.is_shared
        if is_mine and key[1].startswith(VERSIONED):
            self._local.versions.claimed(key)
        if verdict in UNKEPT_ELSEWHERE:
            offer.unkept, offer.is_same_page = key, verdict is Verdict.YIELD_AGAIN

    def attach(self, request: Request, key: Key, length: int) -> None:
        """Give a request the claim that was made when it was looked up."""
        self.tracker.attach_claim(request, key, length)

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
        if not self._settings.keep_headers and request_codec.has_credentials(request):
            self.tracker.not_kept_reason = (
                f"{shown(request)} has cookies, credentials or a proxy, and BLOOM_KEEP_HEADERS is "
                "False"
            )
            return ""
        try:
            text = request_codec.dump(request, self._spider)
        except request_codec.NotKeepableError as error:
            self.tracker.not_kept_reason = f"{shown(request)} cannot be written as JSON: {error}"
            return ""
        # Other workers settle the claims of a shared queue.
        length = self._jobs.length if self._queue.is_shared else self.settler.length
        if self._max_length and length + len(text) > self._max_length:
            self.tracker.not_kept_reason = NO_ROOM
            return ""
        request.meta[META][name] = len(text)
        return text


def _new_worker(spider: Spider, settings: BloomSettings, queue: Queue) -> Worker:
    return Worker(
        workers.worker_id(spider.name),
        until=0,
        heartbeat=settings.heartbeat,
        process=Process.own(),
        queue=workers.queue_id(spider.name, queue.name) if queue.is_shared else queue.name,
    )


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
