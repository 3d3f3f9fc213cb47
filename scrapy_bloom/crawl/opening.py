"""Opening the filters of a crawl, on a server that may be slow or loading its data."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from scrapy_bloom.bloom.errors import NotReadyError, tagged
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.claims.ledger_rules import LedgerRules
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import Runtime
from scrapy_bloom.recrawl_rules import WINDOW_NAME
from scrapy_bloom.settings import DEFAULT

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that a server may take until the filters of a crawl are open, in all.
OPENING_SECONDS = 30.0
#: Seconds after which the log says that the crawl waits for them, and between two attempts.
LOGGED_AFTER_SECONDS, ATTEMPT_SECONDS = 1.0, 0.1
#: Windows that are looked for although the settings do not have them.
MAX_WINDOWS_LEFT = 500


class Opening:
    """Repeats calls while the server does not answer in time, or is loading its data.

    Opening and reading may be repeated: they do the same again. It waits for a server that is slow
    at the start of a crawl, and not for one that refuses.

    Args:
        patience: seconds that all calls may take together before the last attempt.
        is_over: whether there is no further attempt.
        runtime: time.
    """

    def __init__(
        self,
        patience: float = OPENING_SECONDS,
        is_over: Callable[[], bool] = bool,
        *,
        runtime: Runtime | None = None,
    ) -> None:
        self._runtime = runtime or Runtime()
        self._begun = self._runtime.monotonic()
        self._patience, self._is_over = patience, is_over
        self._is_logged = False

    def run(self, call: Callable[[], T]) -> T:
        """Return what a call returns.

        Raises:
            StorageError: the call has raised it, and it is too late for another attempt.
        """
        while True:
            try:
                return call()
            except NotReadyError as error:
                waited = self._runtime.monotonic() - self._begun
                if waited >= self._patience or self._is_over():
                    raise
                if waited >= LOGGED_AFTER_SECONDS and not self._is_logged:
                    self._is_logged = True
                    text = tagged("waiting", "Bloom filter: %s. Waiting for it, up to %g s")
                    logger.warning(text, error, self._patience)
            self._runtime.sleep(ATTEMPT_SECONDS)


def open_filters(filters: Filters, opening: Opening) -> Filters:
    """Open all filters, or close their connection.

    Args:
        filters: not opened yet.
        opening: repeats what may be repeated.

    Raises:
        BloomError: a setting cannot work, or the server cannot be used.
    """
    try:
        for bloom in filters.by_window.values():
            opening.run(bloom.open)
    except BaseException:
        filters.close()
        raise
    return filters


def count_claims(filters: Filters) -> dict[str, int]:
    """Return how many claims there are in each window; no filter is created.

    Raises:
        StorageError: the server does not answer, or a filter cannot be read.
    """
    counts = {}
    for window, bloom in filters.by_window.items():
        snapshot = bloom.run(FilterSession.look)
        counts[window] = sum(snapshot.claims.values()) if snapshot else 0
    return counts


@dataclass(frozen=True, slots=True)
class Left:
    """What there is in windows that the settings no longer have.

    Args:
        claims: number of claims, of the windows that have any.
        ledgers: windows with requests in their ledgers that were not looked up by these rules.
    """

    claims: Mapping[str, int] = field(default_factory=dict)
    ledgers: frozenset[str] = frozenset()


def find_left(
    filters: Filters,
    connect: Callable[[set[str]], Filters],
    opening: Opening,
    ledger_rules: LedgerRules | None,
) -> Left:
    """Return what there is in windows that the settings no longer have.

    Args:
        filters: open.
        connect: connects the filters of further windows.
        opening: repeats what may be repeated.
        ledger_rules: of the spider; None if it has no ledger.
    """
    names = [name for name in filters.by_window if name != DEFAULT]
    noted = filter(WINDOW_NAME.fullmatch, opening.run(partial(filters.noted_windows, names)))
    left = {*sorted({*noted} - filters.by_window.keys())[:MAX_WINDOWS_LEFT]}
    if not left:
        return Left()
    others = connect(left)
    try:
        claims = opening.run(partial(count_claims, others))
        ledgers = frozenset[str]()
        if ledger_rules is not None:
            ledgers = opening.run(partial(ledger_rules.unread, filters.default, others, left))
    finally:
        others.close()
    return Left({window: claims[window] for window in left if claims[window]}, ledgers)
