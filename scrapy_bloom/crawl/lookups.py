"""Asks the filters about requests, one or many at a time, and keeps what they say for a while."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from scrapy import Request

from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.deadline import within
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.claims import MINE_UNKEPT, UNKEPT
from scrapy_bloom.bloom.protocol.membership import NEW, SEEN, UNRECORDED, add
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl.claims.in_flight import ClaimKey
from scrapy_bloom.crawl.claims.tracker import ClaimTracker
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.local_state import Known, Place
from scrapy_bloom.crawl.recent import Recent
from scrapy_bloom.crawl.threads import has_asyncio

#: The verdict where the server did not answer.
UNKNOWN = "?"
#: Verdicts with which a request goes on to the scheduler: all others are duplicates.
TO_SCHEDULER = frozenset((NEW, UNKEPT, UNRECORDED, UNKNOWN, MINE_UNKEPT))


@dataclass(slots=True)
class Lookup:
    """A request that the filters are to be asked about.

    Args:
        window: its window.
        item: its fingerprint.
        request: the request.
        verdict: what they say: NEW, UNKEPT, SEEN, UNRECORDED, MINE, OTHERS or UNKNOWN; "" until
            they do.
        length: characters of the request that is kept with its claim.
    """

    window: str
    item: bytes
    request: Request
    verdict: str = ""
    length: int = 0


class LookupBatcher:
    """Asks the filters of a crawl about requests, and claims the new ones.

    Args:
        filters: open filters.
        known: where answers are kept.
        recent: what was answered, for when nobody can be asked.
        crawled: claims until requests are crawled; None to record them at once.
        timeout: seconds that an answer may take.
        answered: is called with the questions of ``ask_all`` once they have verdicts, also those
            whose caller was cancelled while they were under way.
    """

    def __init__(
        self,
        filters: Filters,
        known: Known,
        recent: Recent,
        crawled: ClaimTracker | None,
        timeout: float,
        *,
        answered: Callable[[Sequence[Lookup]], None],
    ) -> None:
        self._known, self._recent = known, recent
        self._answered = answered
        self._crawled, self._timeout = crawled, timeout
        self._blooms = filters.by_window
        self._sessions = {window: bloom.new_session() for window, bloom in self._blooms.items()}
        client = filters.connection.open_async() if has_asyncio() else None
        #: None where nothing but blocking is possible.
        self._driver = client and AsyncDriver(client, filters.connection.label, timeout)
        #: What is to be asked about next, and the round that asks about what came before.
        self._waiting: list[Lookup] = []
        self._round: asyncio.Task[None] | None = None
        #: What is being claimed without blocking.
        self._in_flight: set[ClaimKey] = set()
        now = time.monotonic()
        #: What the local clock shows at the server's time 0, up to a second earlier.
        self._epochs = {
            window: now - bloom.session.now - 1 for window, bloom in self._blooms.items()
        }

    # -- the cache --

    def is_seen(self, claim: ClaimKey) -> bool:
        """Whether it is known to be seen."""
        return self._known.is_seen(self._place(claim), claim[1])

    def remembers(self, claim: ClaimKey) -> bool:
        """Whether it was answered some time, for when nobody can be asked."""
        return claim[1] in self._recent

    def remember(self, claim: ClaimKey) -> None:
        """Take note that it was taken some time."""
        self._recent.add(claim[1])

    def forget(self, claim: ClaimKey) -> None:
        """Ask again about it."""
        self._known.discard(self._place(claim), claim[1])

    def _place(self, claim: ClaimKey) -> Place:
        window, item = claim
        return window, self._blooms[window].session.hasher.block(item)

    # -- asking --

    def look_up_one(self, item: bytes, window: str, request: Request) -> str:
        """Ask about a request, and return the verdict.

        Raises:
            BloomError: it is unknown.
        """
        bloom, asked = self._blooms[window], time.monotonic()
        with within(self._timeout):  # it may be more than one operation
            if self._crawled is not None:
                verdict = self._crawled.claim(bloom, (window, item), request)
            else:
                verdict = _claim(bloom, item)
        if (window, item) not in self._in_flight:
            # Else it may be "seen" because of that claim, whose outcome may turn out unknown.
            self._note(bloom.session, [Lookup(window, item, request, verdict)], asked)
        return verdict

    async def look_up(self, questions: Sequence[Lookup]) -> None:
        """Ask about requests: one round at a time, for all that have come together.

        It blocks where there is no asyncio client.

        Raises:
            BloomError: those that have no verdict are unknown.
        """
        if self._driver is None:
            self._ask_all_now(questions)
            return
        self._waiting += questions
        try:
            while not all(question.verdict for question in questions):
                if self._round is None:
                    self._round = asyncio.ensure_future(self._ask_waiting(self._driver))
                # If this caller is cancelled, the others still get their answers.
                await asyncio.shield(self._round)
        except asyncio.CancelledError:
            # What is not under way yet is not sent: no caller would schedule the requests.
            withdrawn = set(map(id, questions))
            self._waiting = [one for one in self._waiting if id(one) not in withdrawn]
            raise

    def _ask_all_now(self, questions: Sequence[Lookup]) -> None:
        try:
            for window, those in _by_window(questions).items():
                bloom, asked = self._blooms[window], time.monotonic()
                self._answer(bloom.session, those, bloom.run(self._operation(those)), asked)
        finally:
            self._finish(questions)

    async def _ask_waiting(self, driver: AsyncDriver) -> None:
        questions, self._waiting = self._waiting, []
        self._in_flight = {(question.window, question.item) for question in questions}
        try:
            for window, those in _by_window(questions).items():
                session, asked = self._sessions[window], time.monotonic()
                verdicts = await driver.run(self._operation(those)(session))
                self._answer(session, those, verdicts, asked)
        except Exception:
            # Those who wait are not to be told "seen" of what has perhaps been claimed here.
            questions += self._waiting
            self._waiting = []
            raise
        finally:
            self._round = None
            self._in_flight.clear()
            self._finish(questions)

    def _finish(self, questions: Sequence[Lookup]) -> None:
        for question in questions:
            question.verdict = question.verdict or UNKNOWN
        self._answered(questions)

    @property
    def round_trips(self) -> int:
        """Times that commands were sent and their replies awaited without blocking."""
        return 0 if self._driver is None else self._driver.round_trips

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way, or callers wait for the next one."""
        return self._round is not None or bool(self._waiting)

    async def close(self) -> None:
        """Close the connection that does not block, after the rounds that callers wait for."""
        while self.is_busy:
            if self._round is not None:
                await asyncio.wait({self._round})  # as long as an operation may take
            await asyncio.sleep(0)  # a caller that waits for the next round begins it now
        if self._driver is not None:
            with suppress(Exception):  # nobody needs it any more
                await self._driver.close()

    def _operation(
        self, questions: Sequence[Lookup]
    ) -> Callable[[FilterSession], Operation[list[Verdict]]]:
        items = [question.item for question in questions]
        if self._crawled is None:
            return lambda session: add(session, items)
        texts = [self._crawled.mark(q.request, (q.window, q.item)) for q in questions]
        for question, text in zip(questions, texts, strict=True):
            question.length = len(text)
        return self._crawled.taking(items, texts)

    def _answer(
        self,
        session: FilterSession,
        questions: Sequence[Lookup],
        verdicts: Sequence[Verdict],
        asked: float,
    ) -> None:
        for question, verdict in zip(questions, verdicts, strict=True):
            question.verdict = verdict
            if verdict != NEW:
                question.length = 0
        self._note(session, questions, asked)
        if self._crawled is not None:
            count = verdicts.count(NEW) + verdicts.count(UNKEPT)
            self._crawled.took(count, sum(question.length for question in questions))

    def _note(self, session: FilterSession, questions: Sequence[Lookup], asked: float) -> None:
        """Keep verdicts; in the cache, only those that nobody else may change soon."""
        is_own = self._crawled is None or self._crawled.are_claims_own
        # Not MINE: it may be about to be ended.
        certain = {SEEN, NEW, UNKEPT} if is_own else {SEEN}
        for question in questions:
            block = session.hasher.block(question.item)
            held = session.held.get(block)
            self._recent.add(question.item)
            if held is None or question.verdict == UNRECORDED:
                continue
            ends = held.ring.ends
            local = self._epochs[question.window] + ends if ends else float("inf")
            place = question.window, block
            self._known.answered(place, held.version, local, asked)
            if question.verdict in certain:
                self._known.add(place, question.item)


def _claim(bloom: BloomFilter, item: bytes) -> str:
    unrecorded = bloom.unrecorded
    is_new = bloom.add(item, if_absent=True)
    if bloom.unrecorded > unrecorded:
        return UNRECORDED
    return NEW if is_new else SEEN


def _by_window(questions: Sequence[Lookup]) -> dict[str, list[Lookup]]:
    grouped: dict[str, list[Lookup]] = defaultdict(list)
    for question in questions:
        grouped[question.window].append(question)
    return grouped
