"""Connects a crawl to its filters, with those of windows that the settings no longer have."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl import advice, workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.filters import Filters, connect_filters
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.ledger_rules import LedgerRules
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import Runtime, finish_now, has_asyncio
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.sitemaps import SitemapVersions
from scrapy_bloom.crawl.workers import Queue
from scrapy_bloom.recrawl_rules import WINDOW_NAME
from scrapy_bloom.settings import DEFAULT, BloomSettings

#: Windows that are looked for although the settings do not have them.
MAX_WINDOWS_LEFT = 500


def open_crawl(
    crawler: Crawler,
    settings: BloomSettings,
    identity: Identity,
    report: Report,
    patience: float,
) -> Crawl:
    """Open the filters of a crawl, and begin it.

    Args:
        crawler: the running crawler.
        settings: its settings.
        identity: identifies requests.
        report: counts and warns.
        patience: seconds to wait for a server that is slow or loading its data.

    Raises:
        BloomError: a setting cannot work, or the server cannot be used.
    """
    spider, runtime = crawler.spider, Runtime()
    _check_surroundings(crawler, settings)
    rules = None
    if spider is not None and settings.ledger:
        rules = LedgerRules(workers.tag(spider.name), settings.windows.digest)
    opening = Opening(patience, runtime=runtime)
    opener = FilterOpener(settings, crawler.settings, identity.fingerprinter, report, opening)
    filters, queue = opener.open(rules), Queue.of(crawler.settings)
    context = Context(settings, EngineAdapter(crawler), report, runtime, spider)
    crawl = Crawl(context, identity, filters, queue, rules)
    try:
        crawl.begin(opening)
    except BaseException:
        crawl.close_now()
        raise
    if isinstance(spider, SitemapVersions) and settings.may_skip_sitemaps:
        spider.bloom_forgotten = crawl.forgotten
    return crawl


def _check_surroundings(crawler: Crawler, settings: BloomSettings) -> None:
    """Refuse to claim requests where pages cannot be followed.

    Raises:
        ConfigurationError: says what is missing.
    """
    if not settings.makes_claims:
        return
    needs = f'BLOOM_REMEMBER = "{settings.remember}" needs'
    if crawler.spider is None:
        raise ConfigurationError(
            f"{needs} the spider when the filter is opened, and the crawler has none: set "
            "crawler.spider, or build the filter with from_spider"
        )
    if not has_asyncio():
        raise ConfigurationError(
            f"{needs} asyncio, and the crawl runs on another reactor: remove TWISTED_REACTOR from "
            "the settings (Scrapy's default is the asyncio reactor), or set BLOOM_REMEMBER = "
            '"scheduled"'
        )


class FilterOpener:
    """Opens the filters of a crawl, with those of windows that the settings no longer have.

    Args:
        settings: the crawl's settings.
        scrapy_settings: Scrapy's.
        fingerprinter: import path of the class that makes the fingerprints.
        report: logs what happens to the filters.
        opening: repeats what may be repeated.
    """

    def __init__(
        self,
        settings: BloomSettings,
        scrapy_settings: BaseSettings,
        fingerprinter: str,
        report: Report,
        opening: Opening,
    ) -> None:
        self._settings, self._report, self._opening = settings, report, opening
        self._connect = partial(
            connect_filters,
            settings,
            scrapy_settings,
            fingerprinter=fingerprinter,
            notify=report.happened,
        )

    def open(self, ledger_rules: LedgerRules | None = None) -> Filters:
        """Connect, and read or create the filters.

        Args:
            ledger_rules: of the spider; None if it has no ledger.

        Raises:
            BloomError: a setting cannot work, or the server cannot be used.
        """
        if finding := advice.on_short_window(self._settings.schedule):
            self._report.warn_once("short-window", f"Bloom filter: {finding}")
        filters = self._open()
        left = self._find_left(filters, ledger_rules)
        if not self._settings.makes_claims:
            claims = {**count_claims(filters), **left.claims}
            self._report.claims_ignored(sum(claims.values()))
        elif left.claims or left.ledgers:
            self._report.windows_left(left.claims)
            filters.close()
            filters = self._open(left.claims.keys() | left.ledgers)
        return filters

    def _open(self, left: Collection[str] = ()) -> Filters:
        # Clients for clusters connect at once.
        filters = self._opening.run(partial(self._connect, left=left))
        try:
            for bloom in filters.by_window.values():
                self._opening.run(bloom.open)
        except BaseException:
            filters.close()
            raise
        return filters

    def _find_left(self, filters: Filters, ledger_rules: LedgerRules | None) -> "Left":
        """Return what there is in windows that the settings no longer have."""
        run, names = self._opening.run, [name for name in filters.by_window if name != DEFAULT]
        noted = filter(WINDOW_NAME.fullmatch, run(partial(filters.noted_windows, names)))
        left = {*sorted({*noted} - filters.by_window.keys())[:MAX_WINDOWS_LEFT]}
        if not left:
            return Left()
        others = run(partial(self._connect, left=left))
        try:
            claims = run(partial(count_claims, others))
            ledgers = frozenset[str]()
            if ledger_rules is not None:
                servers = Server(filters), Server(others)
                ledgers = run(lambda: finish_now(ledger_rules.unread(*servers, left)))
        finally:
            others.close()
        return Left({window: claims[window] for window in left if claims[window]}, ledgers)


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
