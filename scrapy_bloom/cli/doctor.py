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
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from scrapy_bloom.bloom.errors import BloomError, StorageError
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.scripts import Call
from scrapy_bloom.cli.output import plural, report, size
from scrapy_bloom.cli.plan import SPARE, needed
from scrapy_bloom.cli.project import Target, crawlers
from scrapy_bloom.crawl.feeds import check_feeds, why_disabled
from scrapy_bloom.crawl.owners import outlives_process
from scrapy_bloom.crawl.server import check_loop
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.settings import DELIVERED, in_settings

HELP = "check settings, project and server, and suggest fixes"
EXAMPLES = """\
scrapy bloom doctor
scrapy bloom doctor --spider shop --json"""
FINE, PROBLEM, UNKNOWN = "ok", "PROBLEM", "?"
#: Seconds by which clocks may differ.
CLOCKS = 60
#: The commands of crawls, which docs/how-to/redis-server.md lists, too.
COMMANDS = (
    "bitfield bitfield_ro del exists expire expireat getbit hdel hget hgetall hincrby hlen hmget "
    "hscan hset info llen lpop persist rpush setbit strlen time unlink zadd zrem "
    "zremrangebyscore zrevrange"
)
#: Returns those commands that the user may not run, and runs none. Redis 8 wants to see as many
#: arguments as a command has: the key stands for each.
FIND_FORBIDDEN = """#!lua flags=no-writes
local key, forbidden = KEYS[1], {}
for _, name in ipairs(redis.acl_check_cmd and ARGV or {}) do
    for _, arguments in ipairs({{key}, {key, key}, {key, key, key}, {}}) do
        local is_answered, may = pcall(redis.acl_check_cmd, name, unpack(arguments))
        if is_answered then
            if not may then table.insert(forbidden, name) end
            break
        end
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
        error: why the settings, the stored filter or the server can't be used.
        label: the server's address without a password.
        nodes: what INFO says, of a cluster each primary.
        clock: the time here when INFO was read.
        evicts: policies by which the server may evict keys of the filter.
        forbidden: commands that the server forbids.
    """

    crawler: Crawler
    target: Target | None = None
    error: BloomError | None = None
    label: str = ""
    nodes: Sequence[dict[str, Any]] = ()
    clock: float = 0
    evicts: str = ""
    forbidden: Sequence[str] = ()

    @property
    def hidden(self) -> str:
        """Why nothing is known of the server; "" if it has answered."""
        if self.target is None:
            return "the settings are wrong"
        return "the server can't be used" if isinstance(self.error, StorageError) else ""

    @property
    def own(self) -> Target:
        """The spider with our settings."""
        if self.target is None:
            raise UnknownError(self.hidden)
        return self.target

    def every(self, name: str) -> list[Any]:
        """Return a field of the INFO of all nodes."""
        values = [node[name] for node in self.nodes if name in node]
        if not values:
            raise UnknownError(self.hidden or "the server doesn't tell it")
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
            row = {"state": state, "check": check.__name__, "spider": who, "finding": text}
            rows.append(row)
    problems = sum(row["state"] == PROBLEM for row in rows)
    report(opts, {"problems": problems}, rows, f"{plural(problems, 'problem')} found")
    return not problems


def look(name: str, crawler: Crawler) -> Facts:
    """Read the settings of a spider, and what its server says."""
    facts = Facts(crawler)
    try:
        facts.target = own = Target(name, crawler)
        with own.server() as server:
            bloom, facts.label = server.bloom, server.label
            before = time.time()
            facts.nodes = bloom.transport.infos("default")
            facts.clock = (before + time.time()) / 2
            facts.evicts, facts.forbidden = server.eviction_policy(), bloom.run(forbidden(own))
            if bloom.run(bloom.session.find()) is not None:
                bloom.info()
    except BloomError as error:
        facts.error = error
    return facts


def forbidden(own: Target) -> Operation[list[str]]:
    """Return the commands that crawls need, and that the server forbids."""
    key = Keys(own.settings.key).ring(0)
    commands = (COMMANDS + " set wait" * bool(own.settings.wait_replicas)).split()
    (reply,) = yield [Call(key, ("EVAL", FIND_FORBIDDEN, 1, key, *commands))]
    return [name.decode() for name in reply.data]


def examine(check: Callable[[Facts], str], facts: Facts) -> tuple[str, str]:
    """Return how a check ended, and its text."""
    try:
        text = check(facts)
        state = PROBLEM if isinstance(text, Problem) else FINE
    except UnknownError as unknown:
        state, text = UNKNOWN, f"not checked, because {unknown}"
    except BloomError as error:
        state, text = PROBLEM, str(error)
    except Exception as error:  # for example, of a module of the project
        state, text = PROBLEM, f"{type(error).__name__}: {error}. Correct the setting"
    return state, " ".join(in_settings(text).split())


# -- the project --


def settings(facts: Facts) -> str:
    """Check that all settings can be read, and suit the stored filter."""
    if facts.error and not isinstance(facts.error, StorageError):
        raise facts.error
    return f"BLOOM_KEY = {facts.own.settings.key!r}"


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
    """Check that asyncio runs, unless the crawl can do without."""
    settings = facts.crawler.settings
    is_off = not settings.getbool("TWISTED_REACTOR_ENABLED", True)
    has_loop = is_off or "AsyncioSelector" in str(settings["TWISTED_REACTOR"])
    check_loop(facts.own.settings, has_loop=has_loop)
    return "asyncio" if has_loop else "no asyncio, so the crawl stops while it looks URLs up"


def feeds(facts: Facts) -> str:
    """Check that no feed loses items, if pages wait for them."""
    crawler, warnings = facts.crawler, list[str]()
    if not (crawler.settings["FEEDS"] or crawler.settings["FEED_URI"]):
        return "none in the settings"
    if facts.own.settings.remember != DELIVERED:
        return (
            "not waited for, so a run that is killed may lose items that a feed hasn't stored yet. "
            f'With BLOOM_REMEMBER = "{DELIVERED}", the next run crawls their pages again'
        )
    try:
        check_feeds(FeedExporter(crawler), lambda _, text: warnings.append(text))
    except NotConfigured:
        warnings = [f"Scrapy has disabled FEEDS ({why_disabled(crawler)}). Correct them"]
    return Problem(warnings[0]) if warnings else "stored in batches"


# -- the server --


def server(facts: Facts) -> str:
    """Check that the server answers, and takes writes."""
    if isinstance(facts.error, StorageError):
        raise facts.error
    if "slave" in [node.get("role") for node in facts.nodes]:
        return Problem("the server is a read-only replica. Use the address of its primary")
    own, node = facts.own.settings, next(iter(facts.nodes), {})
    names = {"valkey_version": "Valkey", "redis_version": "Redis"}
    kind = next((f" ({name} {node[one]})" for one, name in names.items() if one in node), "")
    return f"{facts.label}{kind} answers within {own.timeout:g} seconds"


def permissions(facts: Facts) -> str:
    """Check that the server forbids no command."""
    if facts.hidden:
        raise UnknownError(facts.hidden)
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
    policies = sorted({*facts.every("maxmemory_policy")})
    if facts.evicts:
        effect = "so a full server forgets what was crawled. Set it to noeviction"
        return Problem(f"maxmemory-policy is {facts.evicts}, {effect}")
    return ", ".join(policies)


def clock(facts: Facts) -> str:
    """Check that all clocks agree, because URLs are forgotten by the server's."""
    times = [int(time_) / 1e6 for time_ in facts.every("server_time_usec")]
    wrong = max(abs(one - other) for one in times for other in (*times, facts.clock))
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


OF_PROJECT = (dupefilter, scheduler, reactor, feeds)
CHECKS = (settings, *OF_PROJECT, server, permissions, persistence, eviction, clock, memory)
