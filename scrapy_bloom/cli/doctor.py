"""``scrapy bloom doctor``: checks a project and its server, and suggests fixes.

It changes nothing. If the server hides something, as managed services do, the check shows a "?".
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import Settings
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import may_evict
from scrapy_bloom.bloom.model.spec import Options
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.scripts import Call
from scrapy_bloom.cli.info import window_info
from scrapy_bloom.cli.output import plural, report, size
from scrapy_bloom.cli.plan import SPARE, needed
from scrapy_bloom.cli.project import Target, crawlers
from scrapy_bloom.crawl.delivery import check_feeds, why_disabled
from scrapy_bloom.crawl.workers import outlives_process
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.settings import DELIVERED, in_settings

HELP = "check settings, project and server, and suggest fixes"
EXAMPLES = """\
scrapy bloom doctor
scrapy bloom doctor --spider shop --json"""
FINE, PROBLEM, UNKNOWN = "ok", "PROBLEM", "?"
#: Seconds by which clocks may differ.
CLOCKS = 60
#: The effects of middlewares that are off.
OFF = {
    "REDIRECT_ENABLED": "a page that redirects counts as crawled",
    "RETRY_ENABLED": "a page that fails waits for BLOOM_RETRY_AFTER",
}
#: The oldest version of Redis. Valkey names one, too.
OLDEST = 7
#: A generation with this many times the URLs that were planned is a problem.
OVERFULL = 2
#: The commands of crawls, which docs/how-to/redis-server.md lists, too.
COMMANDS = (
    *("bitfield", "bitfield_ro", "del", "exists", "expire", "expireat", "getbit", "hdel", "hget"),
    *("hgetall", "hincrby", "hlen", "hmget", "hscan", "hset", "hsetnx", "info", "llen", "lpop"),
    *("persist", "rpush", "setbit", "strlen", "time", "unlink", "zadd", "zrem"),
    *("zremrangebyscore", "zrevrange"),
)
#: Returns those commands that the user may not run, and runs none.
FIND_FORBIDDEN = """#!lua flags=no-writes
local forbidden = {}
for _, name in ipairs(redis.acl_check_cmd and ARGV or {}) do
    if not redis.acl_check_cmd(name, KEYS[1]) then
        table.insert(forbidden, name)
    end
end
return forbidden
"""


class Problem(str):
    """A problem, and its fix."""

    __slots__ = ()


class UnknownError(Exception):
    """Why something can't be checked."""


@dataclass
class Facts:
    """The facts about a spider's project and server.

    Args:
        crawler: with Scrapy's settings.
        target: the spider with our settings; None if one is wrong.
        error: why settings, or the stored filter, can't be used.
        planned, newest: URLs that a generation of the filter is for, and those of the newest one.
        forbidden: commands that the server forbids.
        nodes: what INFO says, of a cluster each primary; None if the server can't be used.
        down: why it can't.
        label: the server's address without a password.
    """

    crawler: Crawler
    target: Target | None = None
    error: str = ""
    planned: int = 0
    newest: int = 0
    forbidden: Sequence[str] = ()
    nodes: list[dict[str, Any]] | None = None
    down: str = ""
    label: str = ""

    @property
    def own(self) -> Target:
        """The spider with our settings."""
        if self.target is None:
            raise UnknownError("the settings are wrong")
        return self.target

    def every(self, name: str) -> list[Any]:
        """Return a field of the INFO of all nodes."""
        if self.nodes is None:
            raise UnknownError("the server can't be used")
        values = [node[name] for node in self.nodes if name in node]
        if not values:
            raise UnknownError("the server doesn't tell it")
        return values


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Print all checks; return whether there is no problem."""
    spiders = {name: look(name, crawler) for name, crawler in crawlers(settings, opts)}
    rows = []
    for check in CHECKS:
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name, facts in spiders.items():
            if check not in OF_PROJECT or facts.target is None or facts.target.is_known:
                found[examine(check, facts)].append(name)
        for (state, text), names in found.items():
            who = None if len(names) == len(spiders) else ", ".join(names)
            head = {"state": state, "check": check.__name__, "spider": who}
            rows.append({**head, "finding": text})
    problems = sum(row["state"] == PROBLEM for row in rows)
    report(opts, {"problems": problems}, rows, f"{plural(problems, 'problem')} found")
    return not problems


def look(name: str, crawler: Crawler) -> Facts:
    """Read the settings of a spider, and what its server says."""
    facts = Facts(crawler)
    try:
        facts.target = own = Target.of(name, crawler)
        with own.server() as server:
            bloom, facts.label = server.bloom, server.label
            facts.nodes = bloom.transport.infos("default")
            spec = bloom.run(bloom.session.find())
            if spec is not None:
                spec = Options(**own.settings.options()).applied_to(spec, own.settings.key)
                stored = own.filter(server)
                windows = [window_info(stored, name) for name in stored.windows]
                newest = [one.generations[0].count for one in windows if one.generations]
                facts.planned, facts.newest = spec.capacity, max(newest, default=0)
            facts.forbidden = bloom.run(find_forbidden(own))
    except StorageError as error:
        facts.nodes, facts.down = None, in_settings(str(error))
    except BloomError as error:
        facts.error = in_settings(str(error))
    return facts


def find_forbidden(own: Target) -> Operation[list[str]]:
    """Return the commands that crawls need, and that the server forbids."""
    key = Keys(own.settings.key).ring(0)
    commands = (*COMMANDS, "set", "wait") if own.settings.wait_replicas else COMMANDS
    (reply,) = yield [Call(key, ("EVAL", FIND_FORBIDDEN, 1, key, *commands))]
    return [name.decode() for name in reply.data]


def examine(check: Callable[[Facts], str], facts: Facts) -> tuple[str, str]:
    """Return how a check ended, and its text."""
    try:
        text = check(facts)
    except UnknownError as unknown:
        return UNKNOWN, f"not checked, because {unknown}"
    except Exception as error:  # for example, of a module of the project
        return PROBLEM, f"{type(error).__name__}: {error}. Correct the setting"
    return (PROBLEM if isinstance(text, Problem) else FINE), " ".join(text.split())


# -- the project --


def settings(facts: Facts) -> str:
    """Check that all settings can be read, and suit the stored filter."""
    return Problem(facts.error) if facts.error else f"BLOOM_KEY = {facts.own.settings.key!r}"


def dupefilter(facts: Facts) -> str:
    """Check that the spider uses the filter."""
    value = facts.crawler.settings["DUPEFILTER_CLASS"]
    if not issubclass(load_object(value), BloomDupeFilter):
        return Problem(
            f"DUPEFILTER_CLASS is {value!r}, so the filter isn't used. "
            'Set it to "scrapy_bloom.BloomDupeFilter"'
        )
    if facts.target and not facts.target.settings.enabled:
        return Problem("BLOOM_ENABLED = False turns the filter off. Remove it to use the filter")
    return "BloomDupeFilter"


def scheduler(facts: Facts) -> str:
    """Check that the queue suits BLOOM_REMEMBER."""
    is_lasting, own = outlives_process(facts.crawler.settings), facts.own.settings
    if facts.crawler.settings.getbool("SCHEDULER_FLUSH_ON_START"):
        return Problem("SCHEDULER_FLUSH_ON_START forgets all when a worker starts. Remove it")
    if not is_lasting and not own.makes_claims:
        return Problem(
            'BLOOM_REMEMBER = "scheduled" with a queue in memory misses the pages that a '
            'crash leaves in the queue. Set it to "crawled", or use JOBDIR or scrapy-redis'
        )
    kind = "that outlives the process" if is_lasting else "in memory"
    return f'a queue {kind}, BLOOM_REMEMBER = "{own.remember}"'


def reactor(facts: Facts) -> str:
    """Check that asyncio runs."""
    settings = facts.crawler.settings
    path = str(settings["TWISTED_REACTOR"])
    if not settings.getbool("TWISTED_REACTOR_ENABLED", True) or "AsyncioSelector" in path:
        return "asyncio"
    effect = "can't work without asyncio" if facts.own.settings.makes_claims else "blocks the crawl"
    return Problem(
        f"TWISTED_REACTOR is {path!r}, with which BLOOM_REMEMBER = "
        f'"{facts.own.settings.remember}" {effect}. '
        "Remove the setting, because Scrapy's default is the asyncio reactor"
    )


def middlewares(facts: Facts) -> str:
    """Check that redirects are followed, and failed pages retried."""
    settings = facts.crawler.settings
    base = settings.getwithbase("DOWNLOADER_MIDDLEWARES")
    classes = [load_object(one) for one in build_component_list(base)]
    for kind, flag in (
        (RedirectMiddleware, "REDIRECT_ENABLED"),
        (RetryMiddleware, "RETRY_ENABLED"),
    ):
        is_there = any(isinstance(one, type) and issubclass(one, kind) for one in classes)
        if not (is_there and settings.getbool(flag)):
            return Problem(f"{kind.__name__} is off, so {OFF[flag]}. Enable it, with {flag} = True")
    return "redirects are followed, failed pages are retried"


def feeds(facts: Facts) -> str:
    """Check that no feed loses items, if pages wait for them."""
    crawler = facts.crawler
    if facts.own.settings.remember != DELIVERED:
        return f'not waited for, as BLOOM_REMEMBER isn\'t "{DELIVERED}"'
    if not (crawler.settings["FEEDS"] or crawler.settings["FEED_URI"]):
        return "none, so pages wait only for pipelines that use hold"
    warnings = list[str]()
    try:
        check_feeds(FeedExporter(crawler), lambda _, text: warnings.append(text))
    except NotConfigured:
        warnings = [f"Scrapy has disabled FEEDS ({why_disabled(crawler)}). Correct them"]
    except ConfigurationError as error:
        warnings = [str(error)]
    return Problem(warnings[0]) if warnings else "stored in batches"


# -- the server --


def server(facts: Facts) -> str:
    """Check that the server answers, and takes writes."""
    if facts.down:
        return Problem(facts.down)
    if "slave" in [node.get("role") for node in facts.nodes or ()]:
        return Problem("the server is a read-only replica. Use the address of its primary")
    return f"{facts.label} answers within {facts.own.settings.timeout:g} seconds"


def version(facts: Facts) -> str:
    """Check that the server has what the scripts need."""
    oldest = min(facts.every("redis_version"), key=lambda text: int(text.partition(".")[0]))
    if int(oldest.partition(".")[0]) < OLDEST:
        return Problem(f"Redis {oldest} is too old. Use Redis 7.0 or Valkey 8, or later")
    valkey = next(node.get("valkey_version") for node in facts.nodes or ())
    return f"Valkey {valkey}" if valkey else f"Redis {oldest}"


def permissions(facts: Facts) -> str:
    """Check that the server forbids no command."""
    if facts.nodes is None:
        raise UnknownError("the server can't be used")
    if facts.forbidden:
        names = " ".join(f"+{name}" for name in facts.forbidden)
        return Problem(f"the server forbids commands to this user. Use ACL SETUSER to add {names}")
    return "all commands that it needs"


def persistence(facts: Facts) -> str:
    """Check that a restart forgets nothing."""
    if "err" in facts.every("rdb_last_bgsave_status") + facts.every("aof_last_write_status"):
        return Problem("the server can't write to its disk. Free the disk, and read its log")
    if 0 in facts.every("aof_enabled"):
        effect = "a restart forgets what was crawled since the last snapshot"
        return Problem(f"appendonly is off, so {effect}. Set appendonly yes")
    return "appendonly is on"


def eviction(facts: Facts) -> str:
    """Check that the server evicts nothing of the filter."""
    policies = sorted({str(policy) for policy in facts.every("maxmemory_policy")})
    names, schedules = ", ".join(policies), facts.own.settings.rules().schedules.values()
    if not any(may_evict(policy, schedules) for policy in policies):
        return names
    effect = "so a full server forgets what was crawled. Set it to noeviction"
    return Problem(f"maxmemory-policy is {names}, {effect}")


def clock(facts: Facts) -> str:
    """Check that all clocks agree, because URLs are forgotten by the server's."""
    times = [int(time_) / 1e6 for time_ in facts.every("server_time_usec")]
    wrong = max(abs(one - other) for one in times for other in (*times, time.time()))
    text = f"the clocks of server and crawler differ by {wrong:,.1f} seconds"
    if wrong > CLOCKS:
        return Problem(f"{text}, and URLs are forgotten by the server's. Set both with NTP")
    return text


def memory(facts: Facts) -> str:
    """Check that the server has room for the filter."""
    limits = zip(facts.every("maxmemory"), facts.every("total_system_memory"), strict=True)
    limit = sum(maximum or total for maximum, total in limits)
    wanted = round(SPARE * max(sum(needed(facts.own.settings)), sum(facts.every("used_memory"))))
    text = f"the server has {size(limit)} and needs {size(wanted)}"
    if wanted > limit:
        return Problem(f"{text}. Raise its maxmemory, or lower BLOOM_CAPACITY")
    return text


def capacity(facts: Facts) -> str:
    """Check that the filter is large enough."""
    if facts.nodes is None:
        raise UnknownError("the server can't be used")
    if not facts.planned:
        return "nothing is crawled yet"
    text = f"the newest generation has {plural(facts.newest, 'URL')} of {facts.planned:,}"
    if facts.newest > OVERFULL * facts.planned:
        return Problem(f"{text}, so it has grown. Set BLOOM_CAPACITY = {facts.newest:_} or more")
    return text


OF_PROJECT = (dupefilter, scheduler, reactor, middlewares, feeds)
OF_SERVER = (server, version, permissions, persistence, eviction, clock, memory, capacity)
CHECKS = (settings, *OF_PROJECT, *OF_SERVER)
