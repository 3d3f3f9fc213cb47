"""Lookups of many pages together: one round trip for all requests that wait."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scrapy import Request

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol.cached_ring import UNKEPT_ELSEWHERE, CachedRing, Verdict
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.fingerprinter import Key

#: Verdicts in whose place the page that yielded the request first gets another one.
DEPEND_ON_PAGE = UNKEPT_ELSEWHERE | {Verdict.OTHERS_UNKEPT}


@dataclass(slots=True)
class Lookup:
    """A request that is looked up before the scheduler is offered it.

    Args:
        key: its key.
        request: the request.
        verdict: of the filters or of this process; None until it is known.
        length: characters of the request stored with its claim.
    """

    key: Key
    request: Request
    verdict: Verdict | None = None
    length: int = 0

    @property
    def is_duplicate(self) -> bool:
        """Whether the request is dropped. UNKEPT_ELSEWHERE is not: the scheduler notes its page."""
        verdict = self.verdict
        return verdict is not None and not verdict.is_new and verdict not in UNKEPT_ELSEWHERE


#: Returns what looks up many requests of one window.
LookUp = Callable[[Sequence[Lookup]], Callable[[FilterSession], Operation[list[Verdict]]]]

Answered = Callable[[Sequence[Lookup], Sequence[Verdict], float, Mapping[int, CachedRing]], None]


class LookupBatcher:
    """Looks requests up in the filters of a crawl.

    Args:
        server: the server.
        look_up: returns the operation that looks requests of one window up.
        answered: is called with the verdicts of one window, when they were asked for, and of which
            rings of its blocks.
        finished: is called with the lookups once they have verdicts, also those whose caller was
            cancelled while they were under way.
        clock: returns seconds.

    Attributes:
        in_flight: lookups that are sent in this round.
    """

    def __init__(
        self,
        server: Server,
        look_up: LookUp,
        answered: Answered,
        finished: Callable[[Sequence[Lookup]], None],
        clock: Callable[[], float],
    ) -> None:
        self._server, self._look_up = server, look_up
        self._answered, self._finished, self._clock = answered, finished, clock
        #: Lookups of the next round, and the round under way.
        self._waiting: list[Lookup] = []
        self._round: asyncio.Task[None] | None = None
        self.in_flight: dict[Key, Lookup] = {}
        #: Lookups of other pages with the same links as those in flight.
        self._repeats: list[Lookup] = []

    async def look_up(self, lookups: Sequence[Lookup]) -> None:
        """Look requests up: one round at a time, for all that have come together.

        Raises:
            BloomError: those that have no verdict are unknown.
        """
        self._waiting += [lookup for lookup in lookups if not self._joins(lookup)]
        try:
            while any(lookup.verdict is None for lookup in lookups):
                if self._round is None:
                    self._round = asyncio.ensure_future(self._run_round())
                    self._round.add_done_callback(_retrieve)
                # If this caller is cancelled, the others still get their verdicts.
                await asyncio.shield(self._round)
        except asyncio.CancelledError:
            # Lookups that are not under way are not sent: no caller would schedule the requests.
            withdrawn = set(map(id, lookups))
            self._waiting = [one for one in self._waiting if id(one) not in withdrawn]
            self._repeats = [one for one in self._repeats if id(one) not in withdrawn]
            raise

    async def _run_round(self) -> None:
        waiting, self._waiting = self._waiting, []
        for lookup in waiting:
            if not self._joins(lookup):
                self.in_flight[lookup.key] = lookup
        lookups = list(self.in_flight.values())
        try:
            for window, same in self._by_window(lookups):
                sent, held = self._clock(), dict(self._server.session(window).held)
                try:
                    verdicts = await self._server.run(window, self._look_up(same))
                except StorageError as error:
                    verdicts = self._partial(error, same)
                self._answered(same, verdicts, sent, held)
            self._ask_again()
        except Exception:
            # This round may have claimed URLs: the next one would find them "seen".
            lookups += self._waiting
            self._waiting = []
            raise
        finally:
            self._round = None
            for repeat in self._repeats:
                verdict = self.in_flight[repeat.key].verdict
                repeat.verdict = verdict and verdict.repeated
            lookups += self._repeats
            self._repeats = []
            self.in_flight.clear()
            for lookup in lookups:
                lookup.verdict = lookup.verdict or Verdict.UNKNOWN
            self._finished(lookups)

    def _joins(self, lookup: Lookup) -> bool:
        """Let a lookup wait for one in flight of the same URL; return whether there is one."""
        is_in_flight = lookup.key in self.in_flight
        if is_in_flight:
            self._repeats.append(lookup)
        return is_in_flight

    def _ask_again(self) -> None:
        """Let the next round answer a page that may be the one that has to yield a request again.

        The answer that has come is another page's.
        """
        repeats, self._repeats = self._repeats, []
        for repeat in repeats:
            depends = self.in_flight[repeat.key].verdict in DEPEND_ON_PAGE
            (self._waiting if depends else self._repeats).append(repeat)

    def _by_window(self, lookups: Sequence[Lookup]) -> Iterator[tuple[str, list[Lookup]]]:
        """Yield the lookups of each window that use its filter, when it is their turn."""
        grouped: dict[str, list[Lookup]] = defaultdict(list)
        for lookup in lookups:
            if lookup.verdict is None:
                grouped[lookup.key[0]].append(lookup)
        for window, same in grouped.items():
            if served := [lookup for lookup in same if self._server.serves(lookup.key)]:
                yield window, served

    def _partial(self, error: StorageError, lookups: Sequence[Lookup]) -> list[Verdict]:
        """Return the verdicts on lookups of which some failed.

        Raises:
            StorageError: all may have failed.
        """
        if not error.slots:
            raise error
        verdicts = [*map(Verdict, error.verdicts)]
        pairs = zip(lookups, verdicts, strict=True)
        self._server.fail(error, [one.key for one, verdict in pairs if verdict is Verdict.UNKNOWN])
        return verdicts

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way, or callers wait for the next one."""
        return self._round is not None or bool(self._waiting)

    async def finish(self) -> None:
        """Wait for the rounds that callers wait for."""
        while self.is_busy:
            if self._round is not None:
                await asyncio.wait({self._round})  # as long as an operation may take
            await asyncio.sleep(0)  # a caller that waits for the next round begins it now


def _retrieve(round_: asyncio.Task[None]) -> None:
    """Retrieve an exception that no caller may wait for any more: all may be cancelled."""
    if not round_.cancelled():
        round_.exception()
