"""Lookups of many pages together: one round trip for all requests that wait."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol.cached_ring import UNCACHED, UNKEPT_ELSEWHERE, Verdict
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.claims.policy import Lookup, Policy
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.runtime import Runtime, has_asyncio
from scrapy_bloom.settings import WORDS

#: Verdicts that the page which yielded the request first gets another one in the place of.
DEPEND_ON_PAGE = UNKEPT_ELSEWHERE | {Verdict.OTHERS_UNKEPT}


class LookupBatcher:
    """Looks requests up in the filters of a crawl.

    Args:
        filters: open filters.
        local: where verdicts are cached.
        policy: what a lookup records or claims.
        timeout: seconds that a reply may take.
        answered: is called with the lookups of ``look_up`` once they have verdicts, also those
            whose caller was cancelled while they were under way.
        serves: whether the lookup of a URL uses the filters; the others are unknown.
        failed: is called when a part of a cluster has failed, with the error and the URLs that have
            no verdict because of it.
        runtime: time.
    """

    def __init__(
        self,
        filters: Filters,
        local: LocalState,
        policy: Policy,
        timeout: float,
        *,
        answered: Callable[[Sequence[Lookup]], None],
        serves: Callable[[Key], bool],
        failed: Callable[[Exception, Iterable[Key]], object],
        runtime: Runtime,
    ) -> None:
        self._local, self._policy = local, policy
        self._answered, self._serves, self._failed = answered, serves, failed
        self._clock = runtime.monotonic
        self._blooms = filters.by_window
        #: By window; the rings that they hold are as of the last lookup.
        self.sessions = {window: bloom.new_session() for window, bloom in self._blooms.items()}
        client = filters.connection.open_async() if has_asyncio() else None
        #: None where nothing but blocking is possible.
        self.driver = client and AsyncDriver(client, filters.connection.address, timeout, WORDS)
        #: Lookups of the next round, and the round under way.
        self._waiting: list[Lookup] = []
        self._round: asyncio.Task[None] | None = None
        #: Lookups that are sent in this round, and those of other pages with the same links.
        self.in_flight: dict[Key, Lookup] = {}
        self._repeats: list[Lookup] = []

    async def look_up(self, lookups: Sequence[Lookup]) -> None:
        """Look requests up: one round at a time, for all that have come together.

        It blocks where there is no asyncio client.

        Raises:
            BloomError: those that have no verdict are unknown.
        """
        if self.driver is None:
            self._look_up_blocking(lookups)
            return
        self._waiting += [lookup for lookup in lookups if not self._joins(lookup)]
        try:
            while any(lookup.verdict is None for lookup in lookups):
                if self._round is None:
                    self._round = asyncio.ensure_future(self._run_round(self.driver))
                # If this caller is cancelled, the others still get their verdicts.
                await asyncio.shield(self._round)
        except asyncio.CancelledError:
            # Lookups that are not under way are not sent: no caller would schedule the requests.
            withdrawn = set(map(id, lookups))
            self._waiting = [one for one in self._waiting if id(one) not in withdrawn]
            self._repeats = [one for one in self._repeats if id(one) not in withdrawn]
            raise

    def _look_up_blocking(self, lookups: Sequence[Lookup]) -> None:
        try:
            for window, same in self._by_window(lookups):
                bloom, sent = self._blooms[window], self._clock()
                try:
                    verdicts = bloom.run(self._policy.look_up(same))
                except StorageError as error:
                    verdicts = self._partial(error, same)
                self._answer(bloom.session, same, verdicts, sent)
        finally:
            self._finish(lookups)

    async def _run_round(self, driver: AsyncDriver) -> None:
        waiting, self._waiting = self._waiting, []
        for lookup in waiting:
            if not self._joins(lookup):
                self.in_flight[lookup.key] = lookup
        lookups = list(self.in_flight.values())
        try:
            for window, same in self._by_window(lookups):
                session, sent = self.sessions[window], self._clock()
                try:
                    verdicts = await driver.run(self._policy.look_up(same)(session))
                except StorageError as error:
                    verdicts = self._partial(error, same)
                self._answer(session, same, verdicts, sent)
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
            self._finish(lookups)

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
            if served := [lookup for lookup in same if self._serves(lookup.key)]:
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
        self._failed(error, [one.key for one, verdict in pairs if verdict is Verdict.UNKNOWN])
        return verdicts

    def _answer(
        self,
        session: FilterSession,
        lookups: Sequence[Lookup],
        verdicts: Sequence[Verdict],
        sent: float,
    ) -> None:
        for lookup, verdict in zip(lookups, verdicts, strict=True):
            if verdict is Verdict.UNKNOWN:
                continue
            lookup.verdict = verdict
            if verdict not in UNCACHED:
                held = session.held.get(session.hasher.block(lookup.key[1]))
                is_certain = verdict in self._policy.certain
                self._local.put(lookup.key, held, sent, is_certain=is_certain)
        self._policy.answered(lookups)

    def _finish(self, lookups: Sequence[Lookup]) -> None:
        for lookup in lookups:
            lookup.verdict = lookup.verdict or Verdict.UNKNOWN
        self._answered(lookups)

    @property
    def round_trips(self) -> int:
        """Times that commands were sent and their replies awaited without blocking."""
        return 0 if self.driver is None else self.driver.round_trips

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
        if self.driver is not None:
            with suppress(Exception):  # it is not used any more
                await self.driver.close()
