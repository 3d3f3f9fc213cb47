"""Log lines and warnings about the filters of a crawl, each warning once; and its last lines."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from scrapy import Request
from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.errors import BloomError, short, shown, tagged
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.ring_store import FILLING, FULL, GROWN, LOST, ROTATED
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import day
from scrapy_bloom.crawl.server import Filters
from scrapy_bloom.crawl.stats import Stats, Tally
from scrapy_bloom.crawl.workers import Queue
from scrapy_bloom.settings import BloomSettings

#: Topics of rings that are remembered: of 16 blocks in dozens of windows.
MAX_TOPICS = 1_000

logger = logging.getLogger(__name__)


class Report:
    """Logs and counts for one crawl.

    Args:
        stats: the crawl's.
    """

    def __init__(self, stats: Stats) -> None:
        self.stats, self.count = stats, stats.count
        self._said: set[object] = set()
        #: The last logged reason why the server cannot be used.
        self._trouble = ""
        self.happened = RingEvents(self).happened

    def warn_once(self, code: str, message: str, *about: object) -> None:
        """Log a warning, unless there was one with that code about the same."""
        topic = code, *about
        if topic not in self._said:
            self._said.add(topic)
            logger.warning(tagged(code, "%s"), message)

    def not_identified(self, fingerprinter: str, request: Request, error: Exception) -> None:
        """Count and log that a request has no fingerprint; with a traceback, the first time."""
        self.count("not_identified")
        topic = "not-identified", type(error)
        if topic not in self._said:
            self._said.add(topic)
            line = (
                "Bloom filter: REQUEST_FINGERPRINTER_CLASS %s fails for %s (%s: %s). Such requests "
                "are not crawled until this is fixed (bloom/not_identified counts them)"
            )
            text, kind = short(error), type(error).__name__
            trace = error if text == str(error) else None
            args = fingerprinter, shown(request), kind, text
            logger.error(tagged("not-identified", line), *args, exc_info=trace)

    def failed(self, request: Request, error: Exception) -> None:
        """Count and log that the filter failed for a request."""
        self.count("unknown")
        self.warn_once(
            "request-failed",
            f"{type(error).__name__}: {short(error)}. Requests like {shown(request)} are "
            "remembered by this process for this run only until this is fixed (bloom/unknown "
            "counts them)",
            type(error).__name__,
        )

    def opened(
        self,
        filters: Filters,
        scrapy_settings: BaseSettings,
        fingerprinter: str,
        settings: BloomSettings,
        read: Callable[[Callable[[], Any]], Any],
    ) -> None:
        """Log what each filter holds, so that a second run does not look broken.

        ``read`` calls what reads a filter.
        """
        for window, bloom in filters.by_window.items():
            info: FilterInfo = read(bloom.info)
            schedule = bloom.config.schedule if bloom.config else None
            logger.info("%r %s", bloom, _describe(info, schedule))
            before = bloom.replaced_config
            if before is not None:
                level = logging.WARNING if advice.changes_times(before, info) else logging.INFO
                since = day(info.generations[-1].opened)
                change = advice.on_change(before, info, since)
                logger.log(level, tagged("settings-changed", "%r: %s"), bloom, change)
            self._set(window, info)
            stored = bloom.header.fingerprinter if bloom.header else ""
            self._advise("filling", bloom, advice.on_capacity(info))
            self._advise("fingerprinter", bloom, advice.on_fingerprinter(stored, fingerprinter))
        has_window = bool(filters.forgetting)
        if settings.ledger and not has_window:
            self._advise("ledger-unused", filters.default, advice.LEDGER_UNUSED)
        policy = read(filters.default.eviction_policy)
        default, eviction = filters.default, advice.on_eviction(policy, has_window=has_window)
        self._advise("eviction", default, eviction)
        schedule = default.config.schedule if default.config else None
        self._advise("http-cache", default, advice.on_http_cache(scrapy_settings, schedule))
        self._advise("seeds", default, advice.on_seeds(settings.options.seeds))
        if not settings.makes_claims:
            self._advise("queue-lost", default, advice.on_queue(Queue.of(scrapy_settings)))

    def closing(
        self,
        filters: Filters,
        *,
        is_up: bool,
        names_pages: bool,
        only_items: bool,
        has_versions: bool,
    ) -> None:
        """Log what the crawl did, and what the filters hold at the end if the server says it."""
        trouble = "" if is_up else self._trouble
        for window, bloom in filters.by_window.items():
            info = None
            try:
                info = None if trouble else bloom.info()
            except BloomError as error:
                trouble = str(error)
            self._set(window, info)
            tally = Tally(*(self.stats.counted(name, window) for name in Tally._fields))
            done = summary(tally, info, has_versions=has_versions)
            logger.info("Bloom filter %r: %s", bloom.key, done)
            if info and (reason := advice.nothing_new(tally, info, names_pages=names_pages)):
                logger.info("Bloom filter %r: %s", bloom.key, reason)
            if only_items and tally.seen > tally.new and not tally.without_item:
                logger.info("Bloom filter %r: %s", bloom.key, advice.NO_LISTING_READ)
        if trouble:
            text = "Bloom filter: what it holds at the end is not known: %s"
            logger.warning(tagged("no-last-look", text), trouble)

    def server_failed(self, error: Exception, policy: str) -> None:
        """Log that a call of the server failed."""
        self.count("outages")
        self._trouble = str(error)
        text = tagged("outage", "Bloom filter: %s. %s (bloom/outages counts on)")
        logger.warning(text, error, policy)

    def server_missing(self, error: Exception) -> None:
        """Log why the server cannot be used, unless that was the last reason logged."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            logger.warning(tagged("outage", "Bloom filter: %s"), error)

    def server_back(self, server: object, replayed: int) -> None:
        """Log that a server can be used again."""
        logger.info(
            "Bloom filter: reconnected to %s; %s pending writes replayed", server, f"{replayed:,}"
        )

    def windows_left(self, claims: Mapping[str, int]) -> None:
        """Log that requests of windows that are no longer set are crawled now."""
        text = (
            "Bloom filter: %s requests of the window %r were claimed and not crawled, and no rule "
            "has it any more: they are crawled now, and remembered as before"
        )
        for window, count in claims.items():
            logger.warning(tagged("window-removed", text), f"{count:,}", window)

    def claims_ignored(self, count: int) -> None:
        """Log that there are claims, and that this crawl does not take them over."""
        if finding := advice.on_claims_ignored(count):
            logger.warning(tagged("claims-ignored", "Bloom filter: %s"), finding)

    def dropped(self, count: int) -> None:
        """Log that claims of workers that are gone were ended without being crawled."""
        self.count("dropped", count=count)
        logger.info(
            "Bloom filter: %s requests of crawls that have ended were not kept; the pages that "
            "yielded them are crawled again",
            f"{count:,}",
        )

    def repeated(self, count: int) -> None:
        """Log that pages are crawled again, because the server may have lost claims."""
        self.count("repeated", count=count)
        self.warn_once(
            "repeated",
            "Bloom filter: the server was restarted or replaced while pages were crawled, and may "
            "have lost what was claimed last: these pages are crawled again (bloom/repeated counts "
            "them)",
        )

    def restarts_unnoticed(self, problem: str) -> None:
        """Warn that the server's restarts are not noticed."""
        self.warn_once(
            "restarts-unnoticed",
            f"Bloom filter: the server {problem}, so a restart is not noticed. If one loses the "
            "last writes, a page may be recorded while claims on its links are lost",
        )

    def unreplicated(self, pages: int, acknowledged: Acknowledged) -> None:
        """Count pages that were recorded without enough replicas, and warn."""
        if pages:
            self.count("unreplicated", count=pages)
        message = advice.on_replicas(acknowledged)
        self.warn_once("replicas", f"Bloom filter: {message}", bool(acknowledged.refusal))

    def paused(self, count: int) -> None:
        """Log that the crawl waits for the server."""
        text = (
            "Bloom filter: the crawl waits for the server: this process remembers %s requests by "
            "itself, and has room for no more"
        )
        logger.warning(tagged("paused", text), f"{count:,}")

    def cleared(self, bloom: BloomFilter) -> None:
        """Log that a filter was cleared."""
        text = "%r cleared: all URLs are new (SCHEDULER_FLUSH_ON_START is set in this project)"
        logger.warning(tagged("cleared", text), bloom)

    def closed(self, left: int) -> None:
        """Log how many queued writes were not applied."""
        text = (
            "Bloom filter: %s records could not be written, because the server did not answer: "
            "their pages may be crawled again, and none is hidden"
        )
        if left:
            logger.warning(tagged("unwritten", text), f"{left:,}")

    def _set(self, window: str, info: FilterInfo | None) -> None:
        """Set the gauges of a filter; to None if they are not known."""
        generations = info.generations if info else ()
        values = {
            "generations": len(generations),
            "layers": sum(generation.layers for generation in generations),
            "fill_ratio": generations[0].fill_ratio if generations else None,
            "estimated_error_rate": float(f"{info.estimated_error_rate:.2g}") if info else None,
        }
        for name, value in values.items():
            self.stats.set(name, value if info else None, window)

    def _advise(self, code: str, bloom: BloomFilter, finding: advice.Finding | None) -> None:
        if finding:
            logger.warning(tagged(code, "Bloom filter %r: %s"), bloom.key, finding)


class RingEvents:
    """Counts and logs what happens to rings.

    Args:
        report: counts and warns.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        #: Rotations this process has done, per window and block.
        self._rotations: Counter[tuple[str, int]] = Counter()
        #: The last topics: each generation has others.
        self._said: deque[object] = deque(maxlen=MAX_TOPICS)

    def happened(self, key: str, window: str, event: str, ring: Ring) -> None:
        """Count and log an event of a ring of the filter ``key``."""
        generation = window, ring.active.number
        if event == LOST:
            self._report.count("lost_blocks", window)
            message = (
                "a part of it was gone: its URLs are crawled again. Was it evicted, flushed or "
                "deleted? (bloom/lost_blocks counts on)"
            )
            self._report.warn_once("lost-block", f"Bloom filter {key!r}: {message}", window)
        elif event == ROTATED:
            self._rotated(key, window, ring)
        elif event == GROWN:
            # Within the error rate: no reason to warn.
            self._log_once("grown", logging.INFO, generation, key, advice.on_growth(ring))
        elif event == FULL:
            self._log_once("full", logging.WARNING, generation, key, advice.on_full(ring))
        elif event == FILLING and len(ring.active.layers) == 1:
            level = logging.INFO if ring.config.growth else logging.WARNING
            self._log_once("filling", level, generation, key, advice.on_filling(ring))

    def _log_once(self, code: str, level: int, about: object, key: str, message: str) -> None:
        if (code, about) not in self._said:
            self._said.append((code, about))
            logger.log(level, tagged(code, "Bloom filter %r: %s"), key, message)

    def _rotated(self, key: str, window: str, ring: Ring) -> None:
        self._rotations[window, ring.block] += 1
        times = max(count for (name, _), count in self._rotations.items() if name == window)
        self._report.stats.set("rotations", times, window)
        period = ring.period(ring.active)
        if any(ring.period(generation) == period for generation in ring.generations[1:]):
            message, about = advice.on_early_rotation(ring), (window, period)
            self._log_once("rotated-early", logging.WARNING, about, key, message)
        else:
            since = day(ring.generations[-1].opened)
            message = f"it has rotated and remembers what was seen since {since}"
            self._log_once("rotated", logging.INFO, (window, period), key, message)


def _describe(info: FilterInfo, schedule: Schedule | None) -> str:
    size = f"{info.memory / (1 << 20):.1f} MiB in {plural(info.blocks, 'block')}"
    urls = plural(info.count, "URL, which is", "URLs, which are")
    pending = ""
    if info.claims:
        pending = f", and {info.claims:,} are pending: this run crawls what is due and nobody has"
    made_for = f"made for {info.capacity:,}"
    if not info.has_configured_sizes:
        made_for = f"room for {info.generations[0].capacity:,} before the next"
        made_for += " generation" if schedule else " layer"
    elif schedule:
        made_for = (
            f"made for {info.capacity_in_all:,} URLs in all, {info.capacity:,} a period of "
            f"{info.period}"
        )
    if not info.count:
        return f"remembers nothing yet{pending} ({size}, {made_for})"
    if schedule is None:
        return f"remembers {urls} not crawled again{pending} ({size}, {made_for})"
    due = info.generations[-1].forgotten
    since = f", the oldest from {day(due)} on" if due else ""
    return f"remembers {urls} crawled again {schedule.age}{since}{pending} ({size}, {made_for})"


# -- the last log lines --


def summary(tally: Tally, info: FilterInfo | None, *, has_versions: bool = False) -> str:
    """Return what a crawl did with a filter, and what the filter holds now, if that is known.

    A page that has a version is recorded with and without it, and both are counted.
    """
    listings = f", {tally.without_item:,} without an item" if tally.without_item else ""
    # A page that was pending may be one without an item, and is not new.
    new = f"{max(0, tally.new - tally.without_item):,} new{listings}"
    if tally.taken_over:
        new += f", {tally.taken_over:,} that were pending"
    if tally.without_server:
        new += f", {tally.without_server:,} crawled without the server's answer"
    done = f"{new}, {tally.seen:,} seen, {tally.failed:,} failed in this process"
    if info is None:
        return f"{done}; how many URLs are remembered is not known"
    urls = plural(info.count, "URL is", "URLs are")
    if has_versions:
        urls = f"{info.count:,} URLs and versions of URLs are"
    text = f"{done}; {urls} remembered"
    if info.claims:
        command = "failed" if tally.failed else "pending"
        text += f", {info.claims:,} pending: later runs go on with them (scrapy bloom {command})"
    closes = info.generations[0].closes
    return f"{text}; the next rotation is on {day(closes)}" if closes else text
