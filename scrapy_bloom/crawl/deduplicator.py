"""What one crawl remembers: in the filters, and on its own while the server does not answer."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.python import global_object_name

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, shown
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.claims import MINE_UNKEPT, UNKEPT, RetryPolicy
from scrapy_bloom.bloom.protocol.membership import NEW, SEEN, UNRECORDED
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.in_flight import ClaimKey
from scrapy_bloom.crawl.claims.queues import Queue
from scrapy_bloom.crawl.claims.reclaimer import Reclaimed, Reclaimer
from scrapy_bloom.crawl.claims.tracker import MAX_ATTEMPTS, ClaimTracker
from scrapy_bloom.crawl.claims.workers import Process, Worker
from scrapy_bloom.crawl.engine import EngineAdapter
from scrapy_bloom.crawl.filters import (
    OPENING_TIMEOUT,
    Filters,
    Notify,
    Opening,
    connect_filters,
    count_claims,
)
from scrapy_bloom.crawl.local_state import Known
from scrapy_bloom.crawl.lookups import TO_SCHEDULER, UNKNOWN, Lookup, LookupBatcher
from scrapy_bloom.crawl.outputs import Outputs
from scrapy_bloom.crawl.recent import Recent
from scrapy_bloom.crawl.stats import Report
from scrapy_bloom.crawl.threads import has_asyncio, in_main
from scrapy_bloom.crawl.write_behind import DONE, RECORD, Job, WriteBehind
from scrapy_bloom.settings import CLOSE, CRAWLED, LASTING, RUN, BloomSettings, need_run

#: Reason with which the spider is closed under BLOOM_ON_REDIS_ERROR = "close".
CLOSED_WITHOUT_SERVER = "bloom_redis_unavailable"
#: Requests that were found new and not scheduled: handlers of ``request_scheduled`` drop them.
MAX_UNUSED = 100_000
#: Requests that are remembered while there is no server; beyond, the crawl waits for it.
MAX_OFFLINE = 500_000

_POLICIES = {
    True: "The spider is closed, unless the server is back at once (BLOOM_ON_REDIS_ERROR)",
    False: "Until it is back, this process remembers by itself what it has seen",
}


class Memory:
    """What one crawl remembers.

    Args:
        crawler: the running crawler.
        settings: its settings.
        report: counts and warns.
        outputs: looks up what callbacks yield, from when the filters are open.
        spider: the spider; None for the crawler's, when the filters are opened.
    """

    def __init__(
        self,
        crawler: Crawler,
        settings: BloomSettings,
        report: Report,
        outputs: Outputs,
        spider: Spider | None = None,
    ) -> None:
        self._crawler, self._settings, self._report = crawler, settings, report
        self._outputs, self._spider = outputs, spider
        #: The filters; None until they are opened, and after they are closed.
        self.filters: Filters | None = None
        #: What is remembered here: under the window "run", and what could not be recorded.
        self._taken: set[bytes] = set()
        self._writer: WriteBehind | None = None
        self._crawled: ClaimTracker | None = None
        self._takeover: Reclaimer | None = None
        self._queue = Queue.of(crawler.settings)
        self._engine = EngineAdapter(crawler)
        #: Windows that the settings no longer have, and in which there are claims.
        self._left: Collection[str] = ()
        #: Round trips of filters that were replaced by others.
        self._round_trips = self._async_round_trips = 0
        #: What the filters have said, forgotten when others may have taken over what is claimed.
        self._known = Known(settings.cache_size, forget_after=2 * settings.heartbeat)
        self._recent = Recent()
        self._asking: LookupBatcher | None = None
        #: Verdicts on requests that the scheduler has not been offered yet, and their lengths if
        #: they are kept.
        self._unused: dict[ClaimKey, tuple[str, int]] = {}
        #: Whether the filters can be asked; else the writer looks for the server.
        self._is_up = True
        #: What was taken here, and is recorded in the filters by now.
        self._recorded: set[bytes] = set()
        self._is_paused = self._is_closing = False
        #: Whether the idle spider waits for the result of a look at the claims.
        self._is_awaited = False
        #: Whether the crawl has ended: nothing is put back into its queue any more.
        self._is_over = False

    def open(self, patience: float = OPENING_TIMEOUT) -> Filters:
        """Connect, read or create the filters, and begin to watch over them.

        Args:
            patience: seconds to wait for a server that is slow or loading its data.

        Raises:
            BloomError: a setting cannot work, or the server cannot be used.
        """
        opening = Opening(patience)
        self.filters = filters = self._open_all(self._connect(), opening)
        left = opening.run(partial(self._find_left_windows, filters))
        self._in_main = in_main()
        if self._settings.remember == CRAWLED:
            if left:
                self._report.windows_left(left)
                filters.close()
                self._left = left.keys()
                self.filters = filters = self._open_all(self._connect(left=self._left), opening)
            self._open_crawled(filters, opening)
        else:
            claims = count_claims(filters) | left
            self._report.claims_ignored(sum(claims.values()))
            self._writer = WriteBehind(self._connect_beside, self._in_main, self)
        if self._settings.batch or self._crawled is not None:
            self._engine.pass_outputs_to(self._outputs)
        self._use(filters)
        return filters

    def is_new(self, item: bytes, window: str, request: Request) -> bool:
        """Take a request's fingerprint; return whether nobody has taken it before.

        If the server does not answer, it is new, and from then on taken by this process.
        """
        if self._crawled is not None and self._crawled.is_claimed((window, item), request):
            # What was kept in another run may have been taken in this one; not what failed in it.
            return window != RUN or self._crawled.is_repeated(request) or self._take_once(item)
        new = self._is_new(item, window, request)
        if self._crawled is not None and not new:
            self._crawled.is_seen = True
        return new

    def question(self, item: bytes, window: str, request: Request) -> Lookup | None:
        """Return what the filters have to be asked about a request; None if nothing.

        The verdict is there already if it is known to be seen.
        """
        claim = window, item
        if claim in self._unused:
            return None
        if item in self._taken:
            return Lookup(RUN, item, request, SEEN)
        if window == RUN or self._asking is None or not self._is_up:
            return None
        return Lookup(window, item, request, SEEN if self._asking.is_seen(claim) else "")

    async def ask(self, questions: Sequence[Lookup]) -> None:
        """Ask about many requests at once; ``is_new`` will know the answers. Never raises."""
        asking = self._asking
        try:
            if asking is not None:
                await asking.look_up(questions)
        except Exception as error:
            if asking is self._asking:  # else the server has been found again meanwhile
                self._fail(_as_bloom_error(error))

    def count_seen(self, window: str) -> None:
        """Count a request that the filters were asked about and that is not new."""
        self._report.count("seen", window)

    def take_here(self, item: bytes, request: Request) -> bool:
        """Take a request by this process alone, because ``is_new`` failed; return if it is new."""
        new = self._take_once(item)
        with suppress(Exception):  # the same may be wrong with it
            self.let_pass(request)
        return new

    def page_failed(self, page: Request, error: Exception) -> None:
        """Take note that not all links of a page can be scheduled."""
        if self._crawled is not None:
            self._crawled.raised(page, error)

    def yields(self, page: Request) -> Callable[[Request], None] | None:
        """Return what takes note of the requests that a page yields; None for nothing."""
        return None if self._crawled is None else self._crawled.yields(page)

    def let_pass(self, request: Request) -> None:
        """Take note of a request that is neither tested nor remembered."""
        if self._crawled is not None:
            self._crawled.keep_once(request)

    @property
    def is_asking(self) -> bool:
        """Whether a round of questions is under way, without blocking."""
        return self._asking is not None and self._asking.is_busy

    async def aclose(self) -> None:
        """Close after the round that is under way, so that what it claims is given back."""
        self._is_over = True
        while self._asking is not None:  # one that is replaced here is not used any more
            asking, self._asking = self._asking, None
            await asking.close()
            self._async_round_trips += asking.round_trips
        self.close()

    def close(self) -> None:
        """Write what is left to be written, and close the connections that block."""
        filters, writer = self.filters, self._writer
        self.filters = self._writer = None
        if writer is not None:
            self._give_back(len(self._unused))
            self._end_crawled()
            left = writer.stop(self._settings.timeout)
            self._report.closed(writer, left)
        if filters is None:
            return
        self._round_trips += filters.round_trips
        try:
            if self._is_up:
                self._report.closing(filters)
        finally:
            filters.close()

    @property
    def round_trips(self) -> int:
        """Times that the crawl sent commands and waited for the replies."""
        now = 0 if self.filters is None else self.filters.round_trips
        return self._round_trips + now

    @property
    def async_round_trips(self) -> int:
        """Times that the crawl sent commands and went on while the replies were on their way."""
        now = 0 if self._asking is None else self._asking.round_trips
        return self._async_round_trips + now

    def clear(self) -> None:
        """Forget everything; under "crawled" only what is claimed, as scrapy-redis's queue goes."""
        for bloom in self.filters.by_window.values() if self.filters else ():
            bloom.clear(claims_only=self._crawled is not None)
            self._report.cleared(bloom)
        self._known.clear()

    # -- taking --

    def _is_new(self, item: bytes, window: str, request: Request) -> bool:
        answered = self._unused.pop((window, item), None)
        if answered is not None:
            return self._take_answered(*answered, (window, item), request)
        if item in self._taken:
            self._report.count("seen", RUN)
            return False
        if window == RUN:
            return self._take_for_run(item, request)
        if self._writer is None or self.filters is None:
            self.open(patience=0)  # the scheduler has not done it, and the crawl is under way
        return self._take(item, window, request)

    def _take_once(self, item: bytes) -> bool:
        new = item not in self._taken
        self._taken.add(item)
        return new

    def _take_for_run(self, item: bytes, request: Request) -> bool:
        self._taken.add(item)
        self.let_pass(request)
        self._report.count("new", RUN)
        return True

    def _take(self, item: bytes, window: str, request: Request) -> bool:
        assert self._asking is not None  # noqa: S101 - it is open
        if not self._is_up:
            return self._take_unasked("offline", (window, item), request)
        if self._asking.is_seen((window, item)):
            self._report.count("seen", window)
            return False
        try:
            verdict = self._asking.look_up_one(item, window, request)
        except BloomError as error:
            # Final: asked again, the one who has it now might be told "seen".
            self._fail(error)
            return self._take_unasked("unknown", (window, item), request)
        if verdict == UNRECORDED:
            self._not_recorded(item, window)
        if verdict == MINE_UNKEPT:
            self._note_unkept_claim((window, item))
        new = verdict in (NEW, UNKEPT, UNRECORDED)
        self._report.count("new" if new else "seen", window)
        return new

    def _take_unasked(self, stat: str, claim: ClaimKey, request: Request) -> bool:
        """Take what the filters could not be asked about; ``stat`` says why."""
        if self._asking is not None and self._asking.remembers(claim):
            self._report.count("seen", claim[0])
            return False
        self._take_alone(stat, claim, request)
        return True

    def _take_alone(self, stat: str, claim: ClaimKey, request: Request) -> None:
        window, item = claim
        self._report.count(stat, window)
        self._taken.add(item)
        self._take_later(item, window, request)

    # -- many at once --

    def _keep(self, questions: Sequence[Lookup]) -> None:
        """Keep what is new, or may be, until the scheduler is offered it."""
        for question in questions:
            claim = question.window, question.item
            if question.item in self._taken:  # meanwhile
                question.verdict = SEEN
            elif question.verdict == UNKNOWN:
                # Final: asked again, the one who has it now might be told "seen".
                is_seen = self._asking is not None and self._asking.remembers(claim)
                question.verdict = SEEN if is_seen else UNKNOWN
            if question.verdict == MINE_UNKEPT and claim in self._unused:
                continue  # of another page, whose request is about to be scheduled
            if question.verdict in TO_SCHEDULER:
                self._unused[claim] = question.verdict, question.length
        self._give_back(len(self._unused) - MAX_UNUSED)

    def _take_answered(self, verdict: str, length: int, claim: ClaimKey, request: Request) -> bool:
        """Take what the filters were asked about before."""
        window, item = claim
        if item in self._taken:  # by a request that was asked about at the same time
            self._report.count("seen", RUN)
            return False
        if verdict == UNKNOWN:
            self._take_alone("unknown", claim, request)
            return True
        if verdict == MINE_UNKEPT:
            self._note_unkept_claim(claim)
            self._report.count("seen", window)
            return False
        if verdict == UNRECORDED:
            self._not_recorded(item, window)
        if self._crawled is not None:
            self._crawled.hand_over(request, claim, length)
        self._report.count("new", window)
        return True

    def _note_unkept_claim(self, claim: ClaimKey) -> None:
        if self._crawled is not None:
            self._crawled.unkept_claim = claim

    def _give_back(self, count: int) -> None:
        """Give up the oldest that are new and were not scheduled."""
        for _ in range(count):
            claim = next(iter(self._unused))
            verdict, length = self._unused.pop(claim)
            if self._crawled is not None and verdict in (NEW, UNKEPT, UNKNOWN):
                self._crawled.took(verdict == UNKNOWN, 0)  # it may be
                self._crawled.give_back(claim, length)

    def _take_later(self, item: bytes, window: str, request: Request) -> None:
        assert self._writer is not None  # noqa: S101 - it is open
        if self._crawled is not None:
            self._crawled.take_later((window, item), request)
        else:
            self._writer.put(Job(RECORD, window, item))
        if self._writer.backlog >= MAX_OFFLINE and not self._is_paused:
            self._is_paused = True
            self._report.paused(MAX_OFFLINE)
            self._engine.pause()

    def _not_recorded(self, item: bytes, window: str) -> None:
        # Else pages that link each other would be fetched for ever.
        self._taken.add(item)
        self._report.count("unrecorded", window)

    def _fail(self, error: BloomError) -> None:
        if self._writer is not None:  # else the crawl is over
            self.server_failed(error, self._writer.fail())

    # -- the server: see ``writer.Events`` --

    def server_failed(self, error: BloomError, epoch: int) -> None:
        """Say so; what is taken from now on is remembered here."""
        self._begin_epoch(epoch)
        if self._is_up:
            self._is_up = False
            self._report.server_failed(error, _POLICIES[self._settings.on_redis_error == CLOSE])

    def server_missing(self, error: BloomError) -> None:
        """Say why, and close the spider if that is what is wanted."""
        self._report.server_missing(error)
        if self._settings.on_redis_error == CLOSE and not self._is_closing and self.filters:
            self._is_closing = True
            self._engine.close_spider(CLOSED_WITHOUT_SERVER)

    def server_back(self, filters: Filters) -> None:
        """Go on with filters that are connected."""
        if self.filters is None:
            filters.close()  # the crawl is over
            return
        self._round_trips += self.filters.round_trips
        self.filters.close()
        self.filters = filters
        self._use(filters)
        self._is_up = True
        self._taken -= self._recorded
        self._recorded.clear()
        self._report.server_back()
        if self._is_paused:
            self._is_paused = False
            self._engine.unpause()

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        """From now on the filter knows them; save what it has no room for."""
        self._report.count("recorded_late", count=len(jobs))
        # Not before the filters can be asked.
        for job in jobs:
            self._recorded.add(job.item)
            if self._asking is not None:
                self._asking.remember((job.window, job.item))
        if self._is_up:
            self._taken -= self._recorded
            self._recorded.clear()
        for item in unrecorded:
            self._recorded.discard(item)  # it stays taken here
            self._not_recorded(item, jobs[0].window)

    def server_restarted(self, epoch: int) -> None:
        """Ask again about what it may have lost."""
        self._known.clear()
        self._begin_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        if self._crawled is not None:
            self._crawled.epoch = max(epoch, self._crawled.epoch)

    def repeated(self, jobs: Sequence[Job]) -> None:
        """Crawl pages again, of whose links the server may have lost the claims."""
        self._report.repeated(len(jobs))
        for job in jobs:
            self._forget((job.window, job.item))
            if self._crawled is not None and job.kind == DONE:
                self._crawled.to_repeat.add((job.window, job.item))

    # -- claims --

    def _open_crawled(self, filters: Filters, opening: Opening) -> None:
        settings, queue = self._settings, self._queue
        spider = self._spider or self._crawler.spider
        if spider is None:
            raise ConfigurationError(
                'BLOOM_REMEMBER = "crawled" needs the spider when the filter is opened, and the '
                "crawler has none: set crawler.spider, or build the filter with from_spider"
            )
        shared = workers.queue_id(spider.name, queue.name) if queue.is_shared else ""
        me = Worker(
            workers.worker_id(spider.name),
            until=0,
            heartbeat=settings.heartbeat,
            process=Process.own(),
            queue=shared or queue.name,
        )
        owner = shared or me.id
        self._takeover = Reclaimer(
            me,
            spider.name,
            found=lambda found: self._in_main(partial(self._restore, found)),
            dropped=lambda *what: self._in_main(partial(self._note_dropped, *what)),
            wanted=lambda: self._in_main(self._look_for_room),
            looked=lambda: self._in_main(self._looked),
        )
        failure = RetryPolicy(workers.failed_id(spider.name), settings.retry_after, MAX_ATTEMPTS)
        self._writer = WriteBehind(
            self._connect_beside,
            self._in_main,
            self,
            owner=owner,
            worker=me.id,
            failure=failure,
            chore=self._takeover,
        )
        self._crawled = ClaimTracker(
            spider,
            owner,
            queue=queue,
            windows=tuple(filters.by_window),
            crawled_statuses=settings.crawled_statuses,
            put=self._writer.put,
            backlog=lambda: self._writer.backlog_length if self._writer else 0,
            ignored=self._taken.add,
            forget=self._forget,
            busy=self._takeover.be_busy,
            memory=settings.pending_memory,
            report=self._report,
        )
        # Before anything is claimed: claims of an unknown owner are left alone for a while.
        opening.run(partial(self._takeover.begin, filters))
        self._engine.tell(self._crawled)
        self._writer.wake()

    def is_busy(self) -> bool:
        """Whether a crawl with nothing to do waits for requests that may have been left behind."""
        if self._crawled is None or self._takeover is None or self._writer is None:
            return False
        self._crawled.sweep()
        if not self._is_up or self._is_closing:
            return False
        if self._takeover.has_looked and not self._takeover.is_looking:
            if not self._takeover.has_peers:
                return False
            if self._takeover.may_end:
                self._takeover.may_end = False
                return False
            self._takeover.is_idle = True
            self._writer.wake()
        self._is_awaited = True
        return True

    def _looked(self) -> None:
        # Not unless the crawl waits for it: each look of the engine is one more ``spider_idle``.
        if self._is_awaited:
            self._is_awaited = False
            self._engine.look()

    def _restore(self, found: Reclaimed) -> None:
        if self._crawled is None or self._takeover is None or self._writer is None:
            return
        if self._is_over:
            self._takeover.is_leaving_claims = True
            return
        self._takeover.be_busy()
        self._crawled.restore(found, self._engine.crawl)
        self._look_for_room()

    def _note_dropped(self, window: str, fields: Collection[str]) -> None:
        self._report.dropped(len(fields))
        if self._crawled is not None:
            self._crawled.dropped(window, fields)

    def _look_for_room(self) -> None:
        if self._takeover is not None and self._writer is not None and self._engine.has_room():
            self._takeover.wants_more = True
            self._writer.wake()

    def _end_crawled(self) -> None:
        if self._crawled is not None and self._takeover is not None:
            self._crawled.sweep()
            in_jobdir = bool(self._queue.name) and not self._queue.is_shared
            self._takeover.is_leaving_claims |= (
                in_jobdir or self._crawled.is_leaving_claims or self._takeover.is_looking
            )

    def _forget(self, claim: ClaimKey) -> None:
        if self._asking is not None:
            self._asking.forget(claim)

    # -- connecting --

    def _use(self, filters: Filters) -> None:
        """From now on, ask these filters."""
        filters.stay_quick()
        before = self._asking
        self._asking = LookupBatcher(
            filters,
            self._known,
            self._recent,
            self._crawled,
            self._settings.timeout,
            answered=self._keep,
        )
        if before is not None:
            self._async_round_trips += before.round_trips
            if has_asyncio():
                self._closing = asyncio.ensure_future(before.close())

    def _find_left_windows(self, filters: Filters) -> dict[str, int]:
        """Return the windows that the settings no longer have, with their claims."""
        names = [name for name in filters.by_window if name != LASTING]
        left = filters.noted_windows(names) - filters.by_window.keys()
        if not left:
            return {}
        others = self._connect(left=left)
        try:
            claims = count_claims(others)
        finally:
            others.close()
        return {window: claims[window] for window in left if claims[window]}

    def _open_all(self, filters: Filters, opening: Opening) -> Filters:
        try:
            for bloom in filters.by_window.values():
                opening.run(bloom.open)
                self._check_run(bloom)
        except BaseException:
            filters.close()
            raise
        return filters

    def _connect_beside(self) -> Filters:
        """Connect in another thread: what is noticed there is reported in this one."""
        notify: Notify = lambda *what: self._in_main(partial(self._report.happened, *what))  # noqa: E731
        return self._connect(notify, left=self._left)

    def _connect(self, notify: Notify | None = None, *, left: Collection[str] = ()) -> Filters:
        return connect_filters(
            self._settings,
            self._crawler.settings,
            left=left,
            fingerprinter=global_object_name(type(self._crawler.request_fingerprinter)),
            notify=notify or self._report.happened,
        )

    def _check_run(self, bloom: BloomFilter) -> None:
        """Refuse a stored window in runs if this run has no id."""
        schedule = bloom.config.schedule if bloom.config else None
        if schedule is not None and schedule.counts_runs and self._settings.run is None:
            raise need_run(f"the stored window of {bloom!r}, {schedule.window},")


def _as_bloom_error(error: Exception) -> BloomError:
    return error if isinstance(error, BloomError) else BloomError(shown(error))
