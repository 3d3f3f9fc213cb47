"""How long ``request_seen`` blocks the crawl, beside a PING of the same client.

For each way to reach a server, all contestants take turns in small chunks, so that noise of the
machine hits all of them alike; each call is timed on its own. A new URL is a
Request object nobody has seen; a seen one is another object with a URL that was new before. The
time includes the fingerprint, which has a row of its own and, for scrapy-bloom, a row without it
(Scrapy keeps the fingerprint of a Request object; there it was asked for before). Round trips and
commands are counted in a run of their own at the client.

Our new URL is measured under both values of ``BLOOM_REMEMBER``: a test-and-set, and a claim that is
stored with its request. scrapy-redis's new URL is its SADD.

Where the server runs decides much: on the client's core a PING has no other processor to wake and
takes less than half the time, and everything else counts double beside it. So both are pinned: to
two cores, as with a server that has work to do, and to one, as the harder test.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from unittest import mock

from scrapy import Request

from benchmarks.contestants import (
    CLASSES,
    BenchSpider,
    Contestant,
    Server,
    Traffic,
    build,
    request,
    servers,
)
from benchmarks.report import Outcome, Table, Target, progress, server_name

#: Largest median of a new URL that is accepted, in PINGs of the same client, with client and server
#: on two cores, by BLOOM_REMEMBER.
TARGETS = {"scheduled": 1.6, "crawled": 1.8}
NEW = "A new URL looked up by itself, in PINGs of the same client, server on another core"
CHUNK = 10
WARM_UP = 500
COUNTED = 200

COLUMNS = ("", "median µs", "p95 µs", "PINGs", "round trips", "commands")
NOTES = (
    (
        "`PINGs` is the median, in PINGs of the same client in the same run. `fingerprint` is a "
        "part of the rows above it. Client and server are pinned to two cores or to one."
    ),
)


@dataclass
class Operation:
    """Something that is timed, call by call.

    Args:
        name: how it is called in the table.
        run: the call.
        arguments: what it is called with, made outside the measured time.
        seconds: one entry per call.
    """

    name: str
    run: Callable[[Request], object]
    arguments: Iterator[Request]
    seconds: list[float] = field(default_factory=list)

    def take(self, calls: int) -> list[Request]:
        """Make the next arguments."""
        return [next(self.arguments) for _ in range(calls)]

    def measure(self, calls: int) -> None:
        """Time some calls."""
        run, clock = self.run, time.perf_counter
        for argument in self.take(calls):
            begin = clock()
            run(argument)
            self.seconds.append(clock() - begin)

    def traffic(self) -> Traffic:
        """Count what some calls send."""
        arguments = self.take(COUNTED)
        with Traffic.counted() as traffic:
            for argument in arguments:
                self.run(argument)
        return traffic

    @property
    def median(self) -> float:
        """Median of one call in microseconds."""
        return statistics.median(self.seconds) * 1e6

    @property
    def p95(self) -> float:
        """95th percentile in microseconds."""
        return statistics.quantiles(self.seconds, n=20)[-1] * 1e6


def operations(contestant: Contestant, url: str, *, hiredis: bool) -> list[Operation]:
    """Return what is timed of a contestant, PING first."""
    client = contestant.client
    listed = [Operation("PING", lambda _: client.ping(), map(request, count()))]
    modes = {"": contestant}
    if contestant.is_ours:
        modes = {f", {mode}": _ours(url, mode, hiredis=hiredis) for mode in TARGETS}
    for mode, each in modes.items():
        seen = each.dupefilter.request_seen
        listed.append(Operation(f"new URL{mode}", seen, map(request, count())))
        if each.is_ours:
            prepared = (_with_fingerprint(each, number) for number in count(1_000_000_000))
            listed.append(Operation(f"new URL without fingerprint{mode}", seen, prepared))
        listed.append(Operation(f"seen URL{mode}", seen, map(request, count())))
    # The last: it leaves the server asleep, and what comes next finds it so.
    listed.append(Operation("fingerprint", contestant.fingerprint, map(request, count())))
    return listed


def _ours(url: str, remember: str, *, hiredis: bool) -> Contestant:
    """Return our dupefilter under one value of ``BLOOM_REMEMBER``, with a filter of its own."""
    settings = {"BLOOM_REMEMBER": remember, "BLOOM_KEY": f"bench:{remember}"}
    with mock.patch.object(BenchSpider, "custom_settings", settings):
        return build("scrapy-bloom", url, hiredis=hiredis)


def _with_fingerprint(contestant: Contestant, number: int) -> Request:
    made = request(number)
    contestant.fingerprint(made)
    return made


@dataclass(frozen=True)
class Way:
    """A way to reach a server: what it is called, its URL, with hiredis, on the client's core."""

    name: str
    url: str
    hiredis: bool = True
    same_core: bool = False


@dataclass(frozen=True)
class Result:
    """Medians of a new URL in PINGs.

    Args:
        way: to the server.
        whole: ours, by BLOOM_REMEMBER.
        bare: the same without the fingerprint.
        sadd: scrapy-redis's.
    """

    way: Way
    whole: dict[str, float]
    bare: dict[str, float]
    sadd: float


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure on the first server, with ``full`` on all, and in more ways to reach them."""
    return asyncio.run(_run(quick=quick, full=full))


async def _run(*, quick: bool, full: bool) -> Outcome:
    """Measure in an event loop, without which "crawled" is refused; no other task runs."""
    table = Table("Latency of request_seen", COLUMNS, notes=NOTES)
    results = []
    for binary in servers(full=full):
        with Server(binary) as server:
            for way in _ways(server, full=full):
                with _pinned(server, same_core=way.same_core):
                    results.append(_group(table, way, 500 if quick else 2_000))
                server.client().flushall()
    return Outcome([table], [*_targets(results)], summary=[*_summary(results)])


def _ways(server: Server, *, full: bool) -> list[Way]:
    usual = [
        Way("TCP, hiredis", server.url),
        Way("TCP, hiredis, same core", server.url, same_core=True),
    ]
    more = [
        Way("TCP, Python", server.url, hiredis=False),
        Way("unix socket, hiredis", server.unix_url),
    ]
    return usual + more if full else usual


@contextmanager
def _pinned(server: Server, *, same_core: bool) -> Iterator[None]:
    """Keep this process and the server on two cores or on one, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    ours, *others = sorted(cores)
    os.sched_setaffinity(0, {ours})
    os.sched_setaffinity(server.process.pid, {ours if same_core or not others else others[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.sched_setaffinity(server.process.pid, cores)


def _targets(results: list[Result]) -> Iterator[Target]:
    for mode, most in TARGETS.items():
        worst = max(r.whole[mode] for r in results if not r.way.same_core)
        yield Target.at_most(f"{NEW}, {mode}", most, worst)


def _summary(results: list[Result]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each target, with the first of the results that it is for."""
    first = next(r for r in results if not r.way.same_core)
    for target, mode in zip(_targets(results), TARGETS, strict=True):
        ours = f"{first.whole[mode]:.2f} ({first.bare[mode]:.2f} without the fingerprint)"
        yield target.what, ours, f"{first.sadd:.2f} scrapy-redis (`SADD`)", target.judged


def _group(table: Table, way: Way, calls: int) -> Result:
    """Measure one way to reach a server."""
    with ExitStack() as stack:
        contestants = [build(name, way.url, hiredis=way.hiredis) for name in CLASSES]
        for contestant in contestants:
            stack.callback(contestant.client.close)
        timed = [(one, operations(one, way.url, hiredis=way.hiredis)) for one in contestants]
        title = f"{server_name(contestants[0].client)}, {way.name}"
        _measure(title, [op for _, listed in timed for op in listed], calls)
        table.add(f"**{title}**", *[""] * 5)
        for contestant, listed in timed:
            _report(table, contestant, listed)
    pings = {contestant.name: _pings(listed) for contestant, listed in timed}
    ours, theirs = pings["scrapy-bloom"], pings["scrapy-redis"]
    return Result(
        way,
        {mode: ours[f"new URL, {mode}"] for mode in TARGETS},
        {mode: ours[f"new URL without fingerprint, {mode}"] for mode in TARGETS},
        theirs["new URL"],
    )


def _pings(listed: list[Operation]) -> dict[str, float]:
    """Return the median of each operation in PINGs."""
    ping = listed[0].median
    return {op.name: op.median / ping for op in listed}


def _measure(title: str, listed: list[Operation], calls: int) -> None:
    for op in listed:
        op.measure(WARM_UP)
        op.seconds.clear()
    with progress() as bar:
        for _ in bar.track(range(calls // CHUNK), description=title):
            for op in listed:
                op.measure(CHUNK)


def _report(table: Table, contestant: Contestant, listed: list[Operation]) -> None:
    pings = _pings(listed)
    for op in listed:
        traffic = op.traffic()
        table.add(
            f"{contestant.title}: {op.name}",
            f"{op.median:.1f}",
            f"{op.p95:.1f}",
            f"{pings[op.name]:.2f}",
            f"{traffic.round_trips / COUNTED:g}",
            # Those that are written out already are not counted: each round trip has one.
            f"{max(traffic.commands, traffic.round_trips) / COUNTED:g}",
        )
