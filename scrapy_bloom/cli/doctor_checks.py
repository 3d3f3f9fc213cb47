"""What ``scrapy bloom doctor`` checks of a project and of a server: functions of facts.

Each returns what is wrong, or in words what is fine; None if it does not concern these facts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.bloom.errors import StorageError, short, shown
from scrapy_bloom.bloom.model.schedule import NEVER
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.cli.output import size
from scrapy_bloom.cli.session import fingerprinter_of
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.identity import KNOWN
from scrapy_bloom.crawl.workers import Queue
from scrapy_bloom.dupefilter import is_ours
from scrapy_bloom.fingerprinter import bounded
from scrapy_bloom.settings import BloomSettings

#: Requests that a fingerprinter is tried with, and how often: the fastest round counts.
TRIED, ROUNDS = 100, 3
#: A fingerprinter is slow that takes so many times as long as Scrapy's, and so many seconds.
SLOW, SLOW_SECONDS = 5, 1e-4
#: The oldest version of Redis; Valkey's first was made of a later one.
OLDEST = (7, 0)

Facts = TypeVar("Facts")


class Unknown(str):
    """Why something could not be checked."""

    __slots__ = ()


NO_INFO = Unknown("not known: the user may not run INFO")
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
    """A spider's settings: Scrapy's in its crawler, and ours; and whether there is a project."""

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
    """Yield what functions find, by name."""
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


# -- a project --


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


def _reactor(project: Project) -> Result:
    path = str(project.scrapy.get("TWISTED_REACTOR"))
    # Without a reactor, Scrapy runs in asyncio's loop.
    has_none = not project.scrapy.getbool("TWISTED_REACTOR_ENABLED", True)
    if has_none or path.rpartition(".")[2] == "AsyncioSelectorReactor":
        return "asyncio"
    refused = f'BLOOM_REMEMBER = "{project.settings.remember}" needs one: the crawl does not begin'
    waits = "the whole crawl waits for the server at each lookup"
    return Finding(
        f"TWISTED_REACTOR = {path!r:.100} runs no asyncio loop",
        refused if project.settings.makes_claims else waits,
        'Set TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"',
    )


def _fingerprinter(project: Project) -> Result:
    try:
        fingerprinters = [fingerprinter_of(project.crawler) for _ in range(2)]
        name = global_object_name(type(fingerprinters[0]))
        seconds, found = _try(fingerprinters[0])
        _, again = _try(fingerprinters[1])
        if isinstance(fingerprinters[0], KNOWN):
            return name
    except Exception as error:  # of a class of the project's
        return _not_loaded("REQUEST_FINGERPRINTER_CLASS", project.scrapy, error)
    own, _ = _try(RequestFingerprinter(project.crawler))
    return judge(name, seconds, own, is_same=found == again) or name


def judge(name: str, seconds: float, own: float, *, is_same: bool) -> Finding | None:
    """Return what is wrong with a fingerprinter, by the seconds that it and Scrapy's own take."""
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


#: The checks of a spider's settings.
OF_PROJECT: Mapping[str, Callable[[Project], Result | None]] = {
    "dupefilter": _dupefilter,
    "queue": _queue,
    "flush": _flush,
    "HTTP cache": lambda project: (
        advice.on_http_cache(project.scrapy, project.settings.schedule)
        or ("on" if project.scrapy.getbool("HTTPCACHE_ENABLED") else "off")
    ),
    "reactor": _reactor,
    "fingerprinter": _fingerprinter,
    "window": lambda project: (
        advice.on_short_window(project.settings.schedule) or str(project.settings.schedule or NEVER)
    ),
    "seeds": lambda project: (
        advice.on_seeds(project.settings.options.seeds) or "drawn at random, or as stored"
    ),
}


# -- a server --


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What was read of a server, of a cluster of each primary; empty what the user may not read.

    Args:
        nodes: what INFO says.
        save: the option ``save``.
        replicas: BLOOM_WAIT_REPLICAS.
        need: bytes that the filters will take, beyond what they take now; None if not known.
    """

    address: str
    seconds: float
    is_cluster: bool
    nodes: Sequence[Mapping[str, str]]
    save: Sequence[str]
    has_window: bool = False
    replicas: int = 0
    need: int | None = None

    @property
    def is_old(self) -> bool:
        """Whether a crawl refuses it for its version."""
        return any(_version(node) < OLDEST for node in self.nodes)


def _of_version(server: ServerFacts) -> Result:
    if not server.nodes:
        return NO_INFO
    versions = {
        f"Valkey {node['valkey_version']}"
        if "valkey_version" in node
        else f"Redis {node.get('redis_version', 'of an unknown version')}"
        for node in server.nodes
    }
    names = ", ".join(sorted(versions))
    if not server.is_old:
        return names
    remedy = "Use Redis 7.0 or later, or Valkey 8 or later"
    return Finding(f"the server is {names}", "a crawl refuses it: it is too old", remedy)


def _kind(server: ServerFacts) -> Result:
    # Valkey has another name for it.
    modes = {node.get("redis_mode") or node.get("server_mode", "") for node in server.nodes}
    if "sentinel" in modes:
        return Finding(
            f"{server.address} is a sentinel, and no server",
            "nothing can be recorded on it",
            "Write redis+sentinel://host:port/service with the name of the service",
        )
    if "cluster" in modes and not server.is_cluster:
        return Finding(
            f"{server.address} is a node of a cluster, and the address is one of a single server",
            "it refuses the blocks of the filter that other nodes have",
            "Write redis+cluster://host:port",
        )
    if any(node.get("role") == "slave" for node in server.nodes):
        return Finding(
            f"{server.address} is a read-only replica",
            "nothing can be recorded on it",
            "Use the address of its primary, or redis+sentinel:// which finds it",
        )
    if not modes - {""}:
        return NO_INFO
    return f"a cluster of {len(server.nodes)} primaries" if server.is_cluster else ", ".join(modes)


def _eviction(server: ServerFacts) -> Result:
    policies = sorted({node.get("maxmemory_policy", "") for node in server.nodes} - {""})
    found = [advice.on_eviction(policy, has_window=server.has_window) for policy in policies]
    return next(filter(None, found), None) or ", ".join(policies) or NO_INFO


def _persistence(server: ServerFacts) -> Result:
    if not server.nodes:
        return NO_INFO
    failed = [
        name
        for node in server.nodes
        for name in ("aof_last_write_status", "rdb_last_bgsave_status")
        if node.get(name, "ok") != "ok"
    ]
    if failed:
        return Finding(
            f"the server could not write to its disk ({failed[0]})",
            "what it holds may be lost when it restarts, and it may refuse to record more",
            "See its log, then free the disk",
        )
    if all(node.get("aof_enabled") == "1" for node in server.nodes):
        return "AOF"
    if not server.save:
        return Unknown(
            "AOF is off, and whether there are snapshots is not known: the user may not run "
            "CONFIG GET"
        )
    if all(server.save):
        return f"snapshots (save {server.save[0]})"
    return Finding(
        "the server keeps nothing on its disk: neither AOF nor snapshots are on",
        "when it restarts, the filter is lost with all that is pending, and everything is "
        "crawled again",
        "Set appendonly yes (CONFIG SET appendonly yes, then CONFIG REWRITE)",
    )


def _replicas(server: ServerFacts) -> Result | None:
    if not server.replicas:
        return None
    fewest = min((_int(node, "connected_slaves") for node in server.nodes), default=0)
    if fewest < server.replicas:
        return advice.on_replicas(Acknowledged(fewest))
    return f"{fewest} of each primary"


def _memory(server: ServerFacts) -> Result | None:
    if server.need is None:
        return None
    limits = [_int(node, "maxmemory") or _int(node, "total_system_memory") for node in server.nodes]
    if not limits or not all(limits):
        return Unknown("not known: the server does not say how much it has")
    used = sum(_int(node, "used_memory") for node in server.nodes)
    room = max(0, sum(limits) - used)
    text = f"the filters take {size(server.need)} more at full capacity"
    limited = any(_int(node, "maxmemory") for node in server.nodes)
    source = "maxmemory" if limited else "the memory of its machine"
    if server.need <= room:
        return f"{text}; there is room for {size(room)} ({source})"
    return Finding(
        f"{text}, and {source} leaves the server {size(room)}",
        "a server without memory records nothing, or evicts a part of the filter",
        "Raise maxmemory, use a larger server, or set a smaller BLOOM_CAPACITY; "
        "BLOOM_MAX_MEMORY bounds growth beyond it",
    )


def _version(node: Mapping[str, str]) -> tuple[int, ...]:
    parts = node.get("redis_version", "").split(".")[:2]
    # A server that does not say it is not refused by crawls either.
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else OLDEST


def _int(node: Mapping[str, str], name: str) -> int:
    return int(text) if (text := node.get(name, "")).isdecimal() and len(text) < 20 else 0


#: The checks of a server.
OF_SERVER: Mapping[str, Callable[[ServerFacts], Result | None]] = {
    "server": lambda one: f"{one.address} answers in {one.seconds * 1_000:.1f} ms",
    "version": _of_version,
    "kind": _kind,
    "eviction": _eviction,
    "persistence": _persistence,
    "replicas": _replicas,
    "memory": _memory,
}
