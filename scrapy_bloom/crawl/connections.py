"""The filters that a crawl uses, and what looks requests up in them: replaced after an outage."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.model.generations import forgotten_before
from scrapy_bloom.bloom.options import EXTEND, KEEP
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.claims.ledger_rules import LedgerRules
from scrapy_bloom.crawl.claims.policy import Lookup, Policy
from scrapy_bloom.crawl.filters import Filters, Notify, connect_filters, newest_rings
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.lookups import LookupBatcher
from scrapy_bloom.crawl.opening import (
    Opening,
    count_claims,
    find_left,
    open_filters,
)
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import InMain, Runtime, has_asyncio
from scrapy_bloom.settings import BloomSettings


class Connections:
    """Connects filters, and counts their round trips.

    Args:
        settings: the crawl's settings.
        scrapy_settings: Scrapy's.
        fingerprinter: import path of the class that makes the fingerprints.
        report: counts and warns.
        local: where verdicts are cached.
        runtime: time.
    """

    def __init__(
        self,
        settings: BloomSettings,
        scrapy_settings: BaseSettings,
        fingerprinter: str,
        *,
        report: Report,
        local: LocalState,
        runtime: Runtime,
    ) -> None:
        self._settings, self._scrapy_settings = settings, scrapy_settings
        self._fingerprinter = fingerprinter
        self._report, self._local, self._runtime = report, local, runtime
        #: None before they are opened, and after they are closed.
        self.filters: Filters | None = None
        self.lookups: LookupBatcher | None = None
        #: Windows that the settings no longer have, and in which there is something to crawl.
        self._left: Collection[str] = ()
        #: Round trips of those that were replaced.
        self._round_trips = self._async_round_trips = 0

    def open(self, opening: Opening, ledger_rules: LedgerRules | None = None) -> Filters:
        """Connect, and read or create the filters.

        Args:
            opening: repeats what may be repeated.
            ledger_rules: of the spider; None if it has no ledger.

        Raises:
            BloomError: a setting cannot work, or the server cannot be used.
        """
        if finding := advice.on_short_window(self._settings.schedule):
            self._report.warn_once("short-window", f"Bloom filter: {finding}")
        # Clients for clusters connect at once.
        filters = open_filters(opening.run(self._connect), opening)
        left = find_left(
            filters,
            lambda windows: opening.run(partial(self._connect, left=windows)),
            opening,
            ledger_rules,
        )
        if not self._settings.makes_claims:
            claims = {**count_claims(filters), **left.claims}
            self._report.claims_ignored(sum(claims.values()))
        elif left.claims or left.ledgers:
            self._report.windows_left(left.claims)
            filters.close()
            self._left = left.claims.keys() | left.ledgers
            connect = partial(self._connect, left=self._left)
            filters = open_filters(opening.run(connect), opening)
        self.filters = filters
        return filters

    def use(
        self,
        filters: Filters,
        policy: Policy,
        answered: Callable[[Sequence[Lookup]], None],
        *,
        serves: Callable[[Key], bool],
        failed: Callable[[Exception, Iterable[Key]], object],
    ) -> None:
        """Look requests up in these filters from now on.

        Args:
            filters: are connected.
            policy: what a lookup records or claims.
            answered: as of ``LookupBatcher``.
            serves: as of ``LookupBatcher``.
            failed: as of ``LookupBatcher``.
        """
        if self.filters is not None and self.filters is not filters:
            self._round_trips += self.filters.round_trips
            self.filters.close()
        filters.stay_quick()
        for window, bloom in filters.by_window.items():
            self._local.connected(window, bloom.session.now)
        before, self.filters = self.lookups, filters

        def failed_now(error: Exception, unanswered: Iterable[Key]) -> None:
            if lookups is self.lookups:  # else the server has been found again since
                failed(error, unanswered)

        self.lookups = lookups = LookupBatcher(
            filters,
            self._local,
            policy,
            self._settings.timeout,
            answered=answered,
            serves=serves,
            failed=failed_now,
            runtime=self._runtime,
        )
        if before is not None:
            self._async_round_trips += before.round_trips
            if has_asyncio():
                self._closing = asyncio.ensure_future(before.close())

    def forgotten(self) -> str | None:
        """Return how often each filter's blocks have forgotten something, since it was created.

        None if that may have changed: the period of a block is over, and it was not used since.
        """
        counts = []
        for window, bloom in self.filters.by_window.items() if self.filters else ():
            lookups = self.lookups.sessions[window] if self.lookups else bloom.session
            rings = newest_rings(bloom.session, lookups)
            if not rings or any(self._local.has_ended(window, ring.ends) for ring in rings):
                return None
            counts.append(f"{window}:{sum(forgotten_before(ring.generations) for ring in rings)}")
        return ",".join(counts) or None

    def connector(self, in_main: InMain) -> Callable[[], Filters]:
        """Return what connects filters for another thread; their events are reported in this one.

        Args:
            in_main: schedules a function in this thread.
        """
        notify: Notify = lambda *what: in_main(partial(self._report.happened, *what))  # noqa: E731
        # The settings of a run count when it begins: they do not undo what was changed since.
        return lambda: self._connect(notify, left=self._left, on_difference=KEEP)

    async def close_lookups(self) -> None:
        """Wait for the round that is under way, and close the connections that do not block."""
        while self.lookups is not None:  # one that is replaced here is not used any more
            lookups, self.lookups = self.lookups, None
            await lookups.close()
            self._async_round_trips += lookups.round_trips

    def close(self, *, is_up: bool) -> None:
        """Log the last lines, and close the connections that block; the filters stay."""
        filters, self.filters = self.filters, None
        if filters is None:
            return
        try:
            self._report.closing(filters, is_up=is_up)
        finally:
            self._round_trips += filters.round_trips
            filters.close()

    @property
    def round_trips(self) -> int:
        """Times that the crawl sent commands and waited for the replies."""
        filters = self.filters  # another thread may ask
        return self._round_trips + (filters.round_trips if filters else 0)

    @property
    def async_round_trips(self) -> int:
        """Times that the crawl sent commands and went on while the replies were on their way."""
        lookups = self.lookups
        return self._async_round_trips + (lookups.round_trips if lookups else 0)

    def _connect(
        self,
        notify: Notify | None = None,
        *,
        left: Collection[str] = (),
        on_difference: str = EXTEND,
    ) -> Filters:
        return connect_filters(
            self._settings,
            self._scrapy_settings,
            on_difference=on_difference,
            left=left,
            fingerprinter=self._fingerprinter,
            notify=notify or self._report.happened,
        )
