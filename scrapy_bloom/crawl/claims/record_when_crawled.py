"""``BLOOM_REMEMBER = "crawled"``: a URL counts as seen for good once its page is crawled.

A lookup claims a request and stores it with its claim. The claim is settled when the page is
crawled (``tracker.py``). Claims of dead workers are taken over (``reclaimer.py``).
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
from scrapy_bloom.crawl.claims import request_codec, workers
from scrapy_bloom.crawl.claims.in_flight import PageItems
from scrapy_bloom.crawl.claims.ledger_task import WithLedger
from scrapy_bloom.crawl.claims.policy import LookUp, Lookup, Policy
from scrapy_bloom.crawl.claims.proposals import Proposals
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer
from scrapy_bloom.crawl.claims.restorer import Restorer
from scrapy_bloom.crawl.claims.settler import ClaimSettler
from scrapy_bloom.crawl.claims.tracker import META, NO_ROOM, ClaimTracker
from scrapy_bloom.crawl.claims.workers import Process, Queue, Worker
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Key, is_start, name_of, pops_start_urls
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind, run_blocking
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import InMain, Runtime
from scrapy_bloom.crawl.write_behind import WriteBehind
from scrapy_bloom.fingerprinter import VERSIONED
from scrapy_bloom.settings import DEFAULT, RUN, BloomSettings

#: Times that a failed URL is tried again without being found again.
MAX_ATTEMPTS = 5
#: Times that a chain of redirects may come back to a URL, for instance with a new cookie.
MAX_RETURNS = 2


class RecordWhenCrawled(Policy):
    """Claims requests when they are scheduled, and records them when they are crawled.

    Args:
        spider: the spider.
        settings: the crawl's settings.
        queue: the crawl's queue.
        engine: Scrapy's engine.
        failover: whether the server is up.
        report: counts and warns.
        local: what this process knows.
        page_items: decides which pages have an item; None if all are recorded.
        proposals: crawls requests of the ledger that are due; None if there is none.
        in_main: schedules a function in the crawl's thread.
        runtime: clock and random numbers.
    """

    follows_outputs = True

    def __init__(
        self,
        spider: Spider,
        settings: BloomSettings,
        queue: Queue,
        *,
        engine: EngineAdapter,
        failover: Failover,
        report: Report,
        local: LocalState,
        page_items: PageItems | None,
        proposals: Proposals | None,
        in_main: InMain,
        runtime: Runtime,
    ) -> None:
        self._spider, self._settings, self._queue = spider, settings, queue
        self._engine, self._report = engine, report
        self._local, self._page_items, self._proposals = local, page_items, proposals
        self._token, self._clock = runtime.token, runtime.monotonic
        self._max_length = settings.pending_memory // 4
        me = _new_worker(spider, settings, queue)
        self._owner = me.shared_queue or me.id
        limited = partial(claim_protocol.claim, memory=settings.pending_memory)
        self._claim = partial(limited, owner=self._owner, cooldown=settings.retry_after)
        retry = RetryPolicy(workers.failed_id(spider.name), settings.retry_after, MAX_ATTEMPTS)
        self.claims = ClaimOwner(self._owner, me.id, retry)
        self._restorer = Restorer(
            spider,
            engine,
            failover,
            report,
            keeps_headers=settings.keep_headers,
            proposals=proposals,
        )
        reclaimer = partial(Reclaimer, me, spider.name, cooldown=settings.retry_after)
        self._reclaimer = reclaimer(self._restorer, in_main, runtime)
        self.task = WithLedger(self._reclaimer, proposals.task) if proposals else self._reclaimer
        # Other workers may end the claims of a shared queue at any time. MINE may be about to end.
        own = (Verdict.NEW, Verdict.UNKEPT) if not queue.is_shared else ()
        self.certain = frozenset((Verdict.SEEN, *own))
        self._pops_start_urls = pops_start_urls(spider)
        #: One for each call: a repeated call with the same nonce changes nothing.
        self._nonces = map("{}.{:x}".format, repeat(runtime.token(4)), count())

    def start(self, filters: Filters, write_behind: WriteBehind, opening: Opening) -> None:
        """See ``Policy``."""
        self._put, self._write_behind = write_behind.put, write_behind
        self._settler = ClaimSettler(
            self._put,
            self._local,
            self._report,
            self._clock,
            only_items=self._page_items is not None,
            keeps=self._proposals.added if self._proposals else bool,
        )
        self.doubtful, self.uncertain = self._settler.doubtful, self._settler.uncertain
        self._tracker = ClaimTracker(
            self._settler,
            windows=tuple(filters.by_window),
            crawled_statuses=self._settings.crawled_statuses,
            may_be_others=bool(self._queue.name),
            put=self._put,
            keep_once=self.let_pass,
            handed_out=self._restorer.resume,
            page_items=self._page_items,
            report=self._report,
        )
        # Both before the first claim: a restart of the server may lose it, and other workers take
        # over claims of an owner without a heartbeat.
        write_behind.server.identify(opening.run(filters.server_id))
        if not write_behind.server.id:
            self._report.restarts_unnoticed("does not show its run_id (INFO server)")
        opening.run(partial(self._reclaimer.begin, filters))
        if self._proposals:
            opening.run(partial(self._proposals.start, filters, write_behind))
        opening.run(lambda: run_blocking(write_behind.check_replicas(), filters))
        self._restorer.start(self._reclaimer, self._tracker, self._settler, write_behind)
        self._engine.listen(self._tracker)
        write_behind.wake()

    # -- claiming --

    def look_up_one(self, bloom: BloomFilter, key: Key, request: Request) -> Verdict:
        """See ``Policy``."""
        item, text = key[1], self._mark(request, key)
        nonce, header = next(self._nonces), bloom.session.header
        room = self._settings.pending_memory // header.blocks if header else 0
        page = _page_of(request, self._tracker)
        claim = (self._owner, nonce, room, self._settings.retry_after, field_of(item), page, text)
        verdict = bloom.run_one(
            item,
            partial(CachedRing.claim_one, claim=claim),
            partial(self._claim, items=[item], requests=[text], pages=[page], nonce=nonce),
        )
        if verdict is Verdict.UNKEPT:
            self._tracker.attach_claim(request, key, 0)
            self._tracker.not_kept_reason = NO_ROOM
        elif verdict is Verdict.NEW:
            self._settler.length += len(text)
        if verdict is Verdict.OTHER_SPIDERS:
            self._restorer.await_other_spiders()
        return verdict

    def look_up(self, lookups: Sequence[Lookup]) -> LookUp:
        """See ``Policy``."""
        texts = [self._mark(lookup.request, lookup.key) for lookup in lookups]
        pages = [_page_of(lookup.request, self._tracker) for lookup in lookups]
        for lookup, text in zip(lookups, texts, strict=True):
            lookup.length = len(text)
        items, nonce = [lookup.key[1] for lookup in lookups], next(self._nonces)
        return partial(self._claim, items=items, requests=texts, pages=pages, nonce=nonce)

    def answered(self, lookups: Sequence[Lookup]) -> None:
        """See ``Policy``."""
        for lookup in lookups:
            if lookup.verdict is not Verdict.NEW:
                lookup.length = 0
            self._settler.length += lookup.length
            if lookup.verdict is Verdict.OTHER_SPIDERS:
                self._restorer.await_other_spiders()

    def record_later(self, key: Key, request: Request) -> None:
        """See ``Policy``."""
        self._settler.uncertain.add(key)
        self._put_claim(JobKind.CLAIM, key, self._mark(request, key), request)

    def take_claimed(self, key: Key, request: Request) -> bool | None:
        """See ``Policy``."""
        tracker, to_repeat = self._tracker, self._settler.to_repeat
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
        """See ``Policy``."""
        if verdict.is_new and self._page_items and self._queue.is_shared and key[0] != RUN:
            # If another worker crawls it and it has no item, only that worker would know: two such
            # pages that link each other would be pushed by turns for ever.
            self._local.take(key[1], for_run=True)
        offer = self._tracker.offer
        offer.is_seen = not verdict.is_new
        # Other workers may end the claims of a shared queue, and this one is not notified.
        is_mine = verdict is Verdict.NEW and not self._queue.is_shared
        if is_mine and key[1].startswith(VERSIONED):
            self._local.versions.claimed(key)
        if verdict in UNKEPT_ELSEWHERE or key in self.doubtful or key in self.uncertain:
            offer.unkept, offer.is_same_page = key, verdict is Verdict.YIELD_AGAIN

    def attach_claim(self, request: Request, key: Key, length: int) -> None:
        """See ``Policy``."""
        self._tracker.attach_claim(request, key, length)

    def give_back(self, key: Key, verdict: Verdict, length: int) -> None:
        """See ``Policy``."""
        if verdict in (Verdict.NEW, Verdict.UNKEPT, Verdict.UNKNOWN):
            known = length if verdict is Verdict.NEW else 0
            self._settler.settle({key: known}, JobKind.RELEASE)

    def let_pass(self, request: Request) -> None:
        """Store a request that is neither tested nor recorded, so that a crash does not lose it.

        Requests that have claims are stored already; the next run makes start requests again.
        """
        if self._tracker.offer.inherited or (is_start(request) and not self._pops_start_urls):
            return
        key = DEFAULT, KEPT + bytes.fromhex(self._token(8))
        text = self._mark(request, key)
        if text:
            self._put_claim(JobKind.KEEP, key, text, request)

    def _put_claim(self, kind: JobKind, key: Key, text: str, request: Request) -> None:
        self._put(Job(kind, *key, text, page=_page_of(request, self._tracker)))
        self._settler.length += len(text)
        self._tracker.claim_later(request, key)

    def _mark(self, request: Request, key: Key) -> str:
        """Write a request's claims into its meta; return it as JSON, "" if it cannot be stored."""
        name = name_of(key)
        if self._tracker.offer.inherited:
            self._tracker.attach_claim(request, key, 0)
        else:
            request.meta[META] = {name: 0}
        if not self._settings.keep_headers and request_codec.has_credentials(request):
            self._tracker.not_kept_reason = (
                f"{shown(request)} has cookies, credentials or a proxy, and BLOOM_KEEP_HEADERS is "
                "False"
            )
            return ""
        try:
            text = request_codec.dump(request, self._spider)
        except request_codec.NotKeepableError as error:
            self._tracker.not_kept_reason = f"{shown(request)} cannot be written as JSON: {error}"
            return ""
        # Other workers settle the claims of a shared queue.
        waiting = self._write_behind.queue
        length = waiting.length if self._queue.is_shared else self._settler.length
        if self._max_length and length + len(text) > self._max_length:
            self._tracker.not_kept_reason = NO_ROOM
            return ""
        request.meta[META][name] = len(text)
        return text

    # -- pages --

    def yields(self, page: Request) -> Callable[[object], None] | None:
        """See ``Policy``."""
        return self._tracker.yields(page)

    def yields_again(self, page: Request, key: Key) -> None:
        """See ``Policy``."""
        self._tracker.yields_again(page, key)

    def raised(self, page: Request, error: BaseException, *, in_pipeline: bool = False) -> None:
        """See ``Policy``."""
        self._tracker.raised(page, error, in_pipeline=in_pipeline)

    def forget(self, key: Key) -> None:
        """See ``Policy``."""
        self._settler.to_repeat.add(key)

    def begin_epoch(self, epoch: int) -> None:
        """See ``Policy``."""
        self._tracker.epoch = max(epoch, self._tracker.epoch)

    # -- the end --

    def may_close(self) -> bool:
        """See ``Policy``."""
        return self._restorer.may_close()

    def finish(self) -> None:
        """See ``Policy``."""
        self._tracker.sweep()


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
