"""``BLOOM_REMEMBER = "crawled"``: a URL counts as seen for good once its page is crawled.

A request is claimed when it is looked up, and stored with its claim; its page's end settles it
(``tracker.py``). Claims of dead workers are taken over (``reclaimer.py``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, repeat

from scrapy import Request, Spider

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT, RetryPolicy
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl.apply_jobs import ClaimOwner
from scrapy_bloom.crawl.claims import request_codec, workers
from scrapy_bloom.crawl.claims.in_flight import OpenClaims
from scrapy_bloom.crawl.claims.ledger import ClaimLedger
from scrapy_bloom.crawl.claims.policy import LookUp, Lookup, Policy
from scrapy_bloom.crawl.claims.queues import Queue
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer
from scrapy_bloom.crawl.claims.restorer import Restorer
from scrapy_bloom.crawl.claims.tracker import META, NO_ROOM, ClaimTracker
from scrapy_bloom.crawl.claims.workers import Process, Worker
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.failover import Failover
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Key, name_of
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import InMain, Runtime
from scrapy_bloom.crawl.windows import is_start
from scrapy_bloom.crawl.write_behind import WriteBehind
from scrapy_bloom.settings import LASTING, RUN, BloomSettings

#: Times that a failed URL is tried again without being found again.
MAX_ATTEMPTS = 5


class RecordWhenCrawled(Policy):
    """Claims requests when they are scheduled, and records them when they are crawled.

    Args:
        spider: the spider.
        settings: the crawl's settings.
        queue: the crawl's queue.
        engine: Scrapy's engine.
        failover: whether the server is up.
        report: counts and warns.
        take: records a fingerprint in this process for this run.
        forget: removes a key from the local cache.
        in_main: schedules a function in the crawl's thread.
        runtime: chance.
    """

    follows_outputs = True
    clears_claims_only = True

    def __init__(
        self,
        spider: Spider,
        settings: BloomSettings,
        queue: Queue,
        *,
        engine: EngineAdapter,
        failover: Failover,
        report: Report,
        take: Callable[[bytes], bool],
        forget: Callable[[Key], None],
        in_main: InMain,
        runtime: Runtime,
    ) -> None:
        self._spider, self._settings, self._queue = spider, settings, queue
        self._engine, self._report = engine, report
        self._take, self._forget = take, forget
        self._token = runtime.token
        self._open = OpenClaims()
        self._max_length = settings.pending_memory // 4
        me = _worker(spider, settings, queue)
        self._owner = me.shared_queue or me.id
        retry = RetryPolicy(workers.failed_id(spider.name), settings.retry_after, MAX_ATTEMPTS)
        self.claims = ClaimOwner(self._owner, me.id, retry)
        self.task = self._reclaimer = Reclaimer(
            me,
            spider.name,
            found=lambda found: in_main(partial(self._restorer.found, found)),
            dropped=lambda *what: in_main(partial(self._restorer.dropped, *what)),
            wanted=lambda: in_main(self._restorer.wanted),
            looked=lambda status: in_main(partial(self._restorer.looked, status)),
            runtime=runtime,
        )
        self._restorer = Restorer(
            spider, self._reclaimer, engine=engine, failover=failover, report=report
        )
        # A queue's claims may be ended by other workers at any time. MINE may be about to end.
        own = (Verdict.NEW, Verdict.UNKEPT) if not queue.is_shared else ()
        self.certain = frozenset((Verdict.SEEN, *own))
        # What scrapy-redis's spiders start with is gone from its list then.
        self._pops_start_urls = any(
            base.__module__.startswith("scrapy_redis.") for base in type(spider).__mro__
        )
        #: One for each claim: another sighting by this process is "seen".
        self._nonces = map("{}.{:x}".format, repeat(runtime.token(4)), count())

    def start(self, filters: Filters, write_behind: WriteBehind, opening: Opening) -> None:
        """See ``Policy``."""
        self._put, self._write_behind = write_behind.put, write_behind
        self._ledger = ClaimLedger(
            is_queues=self._queue.is_shared,
            put=self._put,
            take=self._take,
            forget=self._forget,
            claims=self._open,
            report=self._report,
        )
        self._tracker = ClaimTracker(
            self._spider,
            self._ledger,
            windows=tuple(filters.by_window),
            crawled_statuses=self._settings.crawled_statuses,
            may_be_others=bool(self._queue.name),
            put=self._put,
            keep_once=self.let_pass,
            handed_out=self._restorer.resume,
            report=self._report,
        )
        # Before anything is claimed: a restart from now on may lose it.
        write_behind.server.identify(opening.run(filters.server_id))
        # Before anything is claimed: claims of an unknown owner are left alone for a while.
        opening.run(partial(self._reclaimer.begin, filters))
        self._restorer.start(self._tracker, self._ledger, write_behind)
        self._engine.listen(self._tracker)
        write_behind.wake()

    # -- claiming --

    def look_up_one(self, bloom: BloomFilter, key: Key, request: Request) -> Verdict:
        """See ``Policy``."""
        item, text = key[1], self._mark(request, key)
        owner, nonce, memory = self._owner, next(self._nonces), self._settings.pending_memory
        claim_of_it, header = (field_of(item), text), bloom.session.header
        room = memory // header.blocks if header else 0
        verdict = bloom.run_one(
            item,
            lambda held, packed: held.claim(packed, owner, nonce, claim_of_it, room=room),
            lambda session: claim_protocol.claim(
                session, [item], [text], owner, nonce, memory=memory
            ),
        )
        if verdict is Verdict.UNKEPT:
            self._tracker.attach_claim(request, key, 0)
            text, self._tracker.not_kept_reason = "", NO_ROOM
        if verdict in (Verdict.NEW, Verdict.UNKEPT):
            self._count(1, len(text))
        return verdict

    def look_up(self, lookups: Sequence[Lookup]) -> LookUp:
        """See ``Policy``."""
        texts = [self._mark(lookup.request, lookup.key) for lookup in lookups]
        for lookup, text in zip(lookups, texts, strict=True):
            lookup.length = len(text)
        items, nonce = [lookup.key[1] for lookup in lookups], next(self._nonces)
        memory = self._settings.pending_memory
        return lambda session: claim_protocol.claim(
            session, items, texts, self._owner, nonce, memory=memory
        )

    def answered(self, lookups: Sequence[Lookup]) -> None:
        """See ``Policy``."""
        claimed = [one for one in lookups if one.verdict in (Verdict.NEW, Verdict.UNKEPT)]
        for lookup in lookups:
            lookup.length *= lookup.verdict is Verdict.NEW
        self._count(len(claimed), sum(lookup.length for lookup in claimed))

    def record_later(self, key: Key, request: Request) -> None:
        """See ``Policy``."""
        self._put_claim(JobKind.CLAIM, key, self._mark(request, key), request)

    def take_claimed(self, key: Key, request: Request) -> bool | None:
        """See ``Policy``."""
        tracker, to_repeat = self._tracker, self._ledger.to_repeat
        inherited = tracker.offer.inherited
        is_restored = request is tracker.restored
        if not is_restored and key not in inherited:
            return None
        if key[0] != RUN:
            return True
        # What was stored in another run may have been taken in this one; not what failed in it.
        repeated = to_repeat.intersection(inherited)
        to_repeat -= repeated
        return (is_restored and bool(repeated)) or self._take(key[1])

    def decided(self, key: Key, verdict: Verdict) -> None:
        """See ``Policy``."""
        offer = self._tracker.offer
        offer.is_seen = not verdict.is_new
        if verdict is Verdict.MINE_UNKEPT:
            offer.unkept = key

    def attach_claim(self, request: Request, key: Key, length: int) -> None:
        """See ``Policy``."""
        self._tracker.attach_claim(request, key, length)

    def give_back(self, key: Key, verdict: Verdict, length: int) -> None:
        """See ``Policy``."""
        if verdict in (Verdict.NEW, Verdict.UNKEPT, Verdict.UNKNOWN):
            self._count(verdict is Verdict.UNKNOWN, 0)  # it may be claimed
            self._ledger.settle({key: length}, JobKind.RELEASE)

    def let_pass(self, request: Request) -> None:
        """Store a request that is neither tested nor recorded, so that a crash does not lose it.

        Not what has claims already, and not start requests, which the next run makes again.
        """
        if self._tracker.offer.inherited or (is_start(request) and not self._pops_start_urls):
            return
        key = LASTING, KEPT + bytes.fromhex(self._token(8))
        text = self._mark(request, key)
        if text:
            self._put_claim(JobKind.KEEP, key, text, request)
        else:
            self._count(1, 0)

    def _count(self, claims: int, length: int) -> None:
        """Count new claims, and the length of their requests together."""
        if not self._queue.is_shared:
            self._open.count += claims
            self._open.length += length

    def _put_claim(self, kind: JobKind, key: Key, text: str, request: Request) -> None:
        self._put(Job(kind, *key, text))
        self._count(1, len(text))
        self._tracker.claim_later(request)

    def _mark(self, request: Request, key: Key) -> str:
        """Give a request its claims; return it as JSON, "" if it cannot be stored."""
        name = name_of(key)
        if self._tracker.offer.inherited:
            self._tracker.attach_claim(request, key, 0)
        else:
            request.meta[META] = {name: 0}
        try:
            text = request_codec.dump(request, self._spider)
        except request_codec.NotKeepableError as error:
            self._tracker.not_kept_reason = f"{request} cannot be written as JSON: {error}"
            return ""
        # Of a shared queue, other workers settle what this one has claimed.
        length = self._write_behind.queue.length if self._queue.is_shared else self._open.length
        if self._max_length and length + len(text) > self._max_length:
            self._tracker.not_kept_reason = NO_ROOM
            return ""
        request.meta[META][name] = len(text)
        return text

    # -- pages --

    def yields(self, page: Request) -> Callable[[Request], None] | None:
        """See ``Policy``."""
        return self._tracker.yields(page)

    def raised(self, page: Request, error: BaseException) -> None:
        """See ``Policy``."""
        self._tracker.raised(page, error)

    def forget(self, key: Key) -> None:
        """See ``Policy``."""
        self._ledger.to_repeat.add(key)

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
        is_shared = self._queue.is_shared
        in_jobdir = bool(self._queue.name) and not is_shared
        has_claims = self._ledger.has_open_claims or (is_shared and self._tracker.has_requests)
        self._restorer.finish(leaves_claims=in_jobdir or has_claims)


def _worker(spider: Spider, settings: BloomSettings, queue: Queue) -> Worker:
    return Worker(
        workers.worker_id(spider.name),
        until=0,
        heartbeat=settings.heartbeat,
        process=Process.own(),
        queue=workers.queue_id(spider.name, queue.name) if queue.is_shared else queue.name,
    )
