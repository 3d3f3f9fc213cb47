"""What ``scrapy bloom doctor`` checks in a project: functions of facts, which return a result."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.bloom.errors import StorageError, short, shown
from scrapy_bloom.bloom.model.schedule import NEVER
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

Facts = TypeVar("Facts")


class Unknown(str):
    """Why something could not be checked."""

    __slots__ = ()


#: What a check finds: what is wrong, why that is not known, or in words what is fine.
Result = Finding | Unknown | str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    result: Result

    @property
    def state(self) -> str:
        """One of ``problem``, ``unknown`` and ``fine``."""
        if isinstance(self.result, Finding):
            return "problem"
        return "unknown" if isinstance(self.result, Unknown) else "fine"

    def document(self) -> dict[str, object]:
        """Return it for JSON."""
        head = {"check": self.name, "state": self.state}
        if isinstance(self.result, Finding):
            return {**head, **asdict(self.result)}
        return {**head, "text": self.result}


@dataclass(frozen=True, slots=True)
class Project:
    """A spider's settings.

    Args:
        crawler: has Scrapy's.
        settings: ours.
        is_there: whether there is a project.
    """

    crawler: Crawler
    settings: BloomSettings
    is_there: bool

    @property
    def scrapy(self) -> BaseSettings:
        """Scrapy's settings."""
        return self.crawler.settings


def check(
    functions: Mapping[str, Callable[[Facts], Result | None]], facts: Facts
) -> Iterator[Check]:
    """Yield what functions find, by name; None is for facts that do not concern one."""
    for name, function in functions.items():
        result = function(facts)
        if result is not None:
            yield Check(name, result)


def of_error(error: Exception) -> Finding:
    """Return the finding of something that cannot be used."""
    problem, _, remedy = str(error).partition(": ")
    if isinstance(error, StorageError):
        why = "a crawl does not start, or goes on without it"
        return Finding(problem, why, remedy or "See the server's log")
    remedy = (
        "Correct it in settings.py, the spider's custom_settings, an add-on or the command line"
    )
    return Finding(str(error), "a crawl does not start with it", remedy)


def _dupefilter(project: Project) -> Result:
    value = project.scrapy.get("DUPEFILTER_CLASS")
    priority = project.scrapy.getpriority("DUPEFILTER_CLASS")
    if priority == SETTINGS_PRIORITIES["default"] and not project.is_there:
        return Unknown("there is no project")
    if is_ours(value):
        off = ", in this process only: BLOOM_ENABLED is False"
        return f"BloomDupeFilter{'' if project.settings.enabled else off}"
    extra = ""
    if project.scrapy.get("SCHEDULER_DUPEFILTER_CLASS"):
        extra = "; nothing reads SCHEDULER_DUPEFILTER_CLASS, scrapy-redis's scheduler neither"
    return Finding(
        f"DUPEFILTER_CLASS is {shown(value)}, which is not BloomDupeFilter",
        "requests are deduplicated without the filter",
        f'Set DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"{extra}',
    )


def _queue(project: Project) -> Result:
    try:
        queue = Queue.of(project.scrapy)
    except Exception as error:  # of a module of the project's
        return _not_loaded("SCHEDULER", project.scrapy, error)
    finding = None if project.settings.makes_claims else advice.on_queue(queue)
    return finding or f'{queue.kind}, BLOOM_REMEMBER = "{project.settings.remember}"'


def _flush(project: Project) -> Result | None:
    if "scrapy_redis" not in str(project.scrapy.get("SCHEDULER")):
        return None
    if not project.scrapy.getbool("SCHEDULER_FLUSH_ON_START"):
        return "SCHEDULER_FLUSH_ON_START is off"
    return Finding(
        "SCHEDULER_FLUSH_ON_START = True clears the filter whenever a worker starts",
        "all URLs are new again, also for the workers that run already",
        "Remove it; scrapy bloom clear forgets everything once",
    )


def _http_cache(project: Project) -> Result:
    on = "on" if project.scrapy.getbool("HTTPCACHE_ENABLED") else "off"
    return advice.on_http_cache(project.scrapy, project.settings.schedule) or on


def _reactor(project: Project) -> Result:
    path = str(project.scrapy.get("TWISTED_REACTOR"))
    # Without a reactor, Scrapy runs in asyncio's loop.
    has_none = not project.scrapy.getbool("TWISTED_REACTOR_ENABLED", True)
    if has_none or path.rpartition(".")[2] == "AsyncioSelectorReactor":
        return "asyncio"
    return Finding(
        f"TWISTED_REACTOR = {path!r:.100} runs no asyncio loop",
        "the whole crawl waits for the server at each lookup",
        'Set TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"',
    )


def _fingerprinter(project: Project) -> Result:
    try:
        fingerprinters = [fingerprinter_of(project.crawler) for _ in range(2)]
        name = f"{type(fingerprinters[0]).__module__}.{type(fingerprinters[0]).__qualname__}"
        seconds, found = _try(fingerprinters[0])
        _, again = _try(fingerprinters[1])
        if isinstance(fingerprinters[0], KNOWN):
            return name
    except Exception as error:  # of a class of the project's
        return _not_loaded("REQUEST_FINGERPRINTER_CLASS", project.scrapy, error)
    own, _ = _try(RequestFingerprinter(project.crawler))
    return judge(name, seconds, own, is_same=found == again) or name


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


def _not_loaded(setting: str, scrapy_settings: BaseSettings, error: Exception) -> Finding:
    return Finding(
        f"{setting} = {shown(scrapy_settings.get(setting))} cannot be used "
        f"({type(error).__name__}: {short(error)})",
        "a crawl does not start, or crawls nothing",
        f"Correct the class, or {setting}",
    )


def _window(project: Project) -> Result:
    schedule = project.settings.schedule
    return advice.on_short_window(schedule) or str(schedule or NEVER)


def _seeds(project: Project) -> Result:
    return advice.on_seeds(project.settings.options.seeds) or "drawn at random, or as stored"


#: The checks of a spider's settings.
OF_PROJECT: Mapping[str, Callable[[Project], Result | None]] = {
    "dupefilter": _dupefilter,
    "queue": _queue,
    "flush": _flush,
    "HTTP cache": _http_cache,
    "reactor": _reactor,
    "fingerprinter": _fingerprinter,
    "window": _window,
    "seeds": _seeds,
}
