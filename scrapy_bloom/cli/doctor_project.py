"""What ``scrapy bloom doctor`` finds in a project's settings, without a server."""

import time
from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.bloom.errors import short, shown
from scrapy_bloom.bloom.model.schedule import NEVER
from scrapy_bloom.cli.doctor_checks import Check, check
from scrapy_bloom.cli.session import fingerprinter_of
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.claims.workers import Queue
from scrapy_bloom.crawl.identity import KNOWN
from scrapy_bloom.dupefilter import is_ours
from scrapy_bloom.fingerprinter import bounded
from scrapy_bloom.settings import BloomSettings

#: Requests that a fingerprinter is tried with, and how often: the fastest round counts.
TRIED, ROUNDS = 100, 3
#: A fingerprinter is slow that takes so many times as long as Scrapy's, and so many seconds.
SLOW, SLOW_SECONDS = 5, 1e-4


def check_project(
    crawler: Crawler, settings: BloomSettings, *, is_in_project: bool
) -> Iterator[Check]:
    """Yield the checks of a spider's settings.

    Args:
        crawler: has Scrapy's settings.
        settings: ours.
        is_in_project: whether there is a project.
    """
    yield _check_dupefilter(crawler.settings, settings, is_in_project=is_in_project)
    yield _check_queue(crawler.settings, settings)
    if "scrapy_redis" in str(crawler.settings.get("SCHEDULER")):
        yield _check_flush(crawler.settings)
    finding = advice.on_http_cache(crawler.settings, settings.schedule)
    on = "on" if crawler.settings.getbool("HTTPCACHE_ENABLED") else "off"
    yield check("HTTP cache", finding, on)
    yield _check_reactor(crawler.settings)
    yield _check_fingerprinter(crawler)
    too_short = advice.on_short_window(settings.schedule)
    yield check("window", too_short, str(settings.schedule or NEVER))
    yield check("seeds", advice.on_seeds(settings.options.seeds), "drawn at random, or as stored")


def _check_dupefilter(
    scrapy_settings: BaseSettings, settings: BloomSettings, *, is_in_project: bool
) -> Check:
    value = scrapy_settings.get("DUPEFILTER_CLASS")
    is_default = scrapy_settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["default"]
    if is_default and not is_in_project:
        return Check("dupefilter", unknown="there is no project")
    if not is_ours(value):
        extra = ""
        if scrapy_settings.get("SCHEDULER_DUPEFILTER_CLASS"):
            extra = "; nothing reads SCHEDULER_DUPEFILTER_CLASS, scrapy-redis's scheduler neither"
        return Check(
            "dupefilter",
            finding=Finding(
                f"DUPEFILTER_CLASS is {shown(value)}, which is not BloomDupeFilter",
                "requests are deduplicated without the filter",
                f'Set DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"{extra}',
            ),
        )
    if not settings.enabled:
        return Check("dupefilter", "BloomDupeFilter, in this process only: BLOOM_ENABLED is False")
    return Check("dupefilter", "BloomDupeFilter")


def _check_queue(scrapy_settings: BaseSettings, settings: BloomSettings) -> Check:
    try:
        queue = Queue.of(scrapy_settings)
    except Exception as error:  # of a module of the project's
        return _not_loaded("queue", "SCHEDULER", scrapy_settings, error)
    finding = None if settings.makes_claims else advice.on_queue(queue)
    return check("queue", finding, f'{queue.kind}, BLOOM_REMEMBER = "{settings.remember}"')


def _check_flush(scrapy_settings: BaseSettings) -> Check:
    if not scrapy_settings.getbool("SCHEDULER_FLUSH_ON_START"):
        return Check("flush", "SCHEDULER_FLUSH_ON_START is off")
    return Check(
        "flush",
        finding=Finding(
            "SCHEDULER_FLUSH_ON_START = True clears the filter whenever a worker starts",
            "all URLs are new again, also for the workers that run already",
            "Remove it; scrapy bloom clear forgets everything once",
        ),
    )


def _check_reactor(scrapy_settings: BaseSettings) -> Check:
    path = str(scrapy_settings.get("TWISTED_REACTOR"))
    # Without a reactor, Scrapy runs in asyncio's loop.
    has_none = not scrapy_settings.getbool("TWISTED_REACTOR_ENABLED", True)
    if has_none or path.rpartition(".")[2] == "AsyncioSelectorReactor":
        return Check("reactor", "asyncio")
    return Check(
        "reactor",
        finding=Finding(
            f"TWISTED_REACTOR = {path!r:.100} runs no asyncio loop",
            "the whole crawl waits for the server at each lookup",
            'Set TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"',
        ),
    )


def _check_fingerprinter(crawler: Crawler) -> Check:
    try:
        fingerprinters = [fingerprinter_of(crawler) for _ in range(2)]
        name = f"{type(fingerprinters[0]).__module__}.{type(fingerprinters[0]).__qualname__}"
        seconds, found = _try(fingerprinters[0])
        _, again = _try(fingerprinters[1])
        if isinstance(fingerprinters[0], KNOWN):
            return Check("fingerprinter", name)
    except Exception as error:  # of a class of the project's
        return _not_loaded("fingerprinter", "REQUEST_FINGERPRINTER_CLASS", crawler.settings, error)
    own, _ = _try(RequestFingerprinter(crawler))
    return check("fingerprinter", judge(name, seconds, own, is_same=found == again), name)


def judge(name: str, seconds: float, own: float, *, is_same: bool) -> Finding | None:
    """Return what is wrong with a fingerprinter.

    Args:
        name: its import path.
        seconds: that a fingerprint takes.
        own: that one of Scrapy's takes.
        is_same: whether two of them return the same.
    """
    if not is_same:
        return Finding(
            f"{name} (REQUEST_FINGERPRINTER_CLASS) returns another fingerprint for the same URL",
            "what one process has crawled is new to all others, and after each restart",
            "Make fingerprints of the request alone, without hash(), the time or random numbers",
        )
    if seconds <= max(SLOW * own, SLOW_SECONDS):
        return None
    return Finding(
        f"{name} (REQUEST_FINGERPRINTER_CLASS) takes {seconds * 1e6:,.0f} us a request, and "
        f"Scrapy's {own * 1e6:,.0f} us",
        "each link of each page costs that much of the crawl's time",
        "Make it faster, or use Scrapy's own",
    )


def _try(fingerprinter: Any) -> tuple[float, list[bytes]]:
    """Return the seconds that a fingerprint takes, and fingerprints."""
    seconds = []
    for _ in range(ROUNDS):
        # New ones: fingerprinters keep what they have made of a request.
        requests = [Request(f"https://example.com/{n}?b={n}&a=1") for n in range(TRIED)]
        begin = time.perf_counter()
        found = [fingerprinter.fingerprint(request) for request in requests]
        seconds.append((time.perf_counter() - begin) / TRIED)
    return min(seconds), [bounded(fingerprint) for fingerprint in found]


def _not_loaded(name: str, setting: str, scrapy_settings: BaseSettings, error: Exception) -> Check:
    return Check(
        name,
        finding=Finding(
            f"{setting} = {shown(scrapy_settings.get(setting))} cannot be used "
            f"({type(error).__name__}: {short(error)})",
            "a crawl does not start, or crawls nothing",
            f"Correct the class, or {setting}",
        ),
    )
