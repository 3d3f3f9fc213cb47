"""The library by itself: throughput of batches, single calls, and heartbeats."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import redis
from scrapy import Request

from benchmarks.contestants import (
    BITS,
    OURS,
    SCHEDULED,
    SET,
    Ask,
    askers,
    dupefilter,
    items,
    server_microseconds,
    started,
)
from benchmarks.found import Found, Size, counted, ratio
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.claims import Claims
from scrapy_bloom.bloom.protocol.workers import Workers
from scrapy_bloom.crawl.owners import Worker

#: Items in a batch. A page has some 30 links.
USUAL_BATCH = 30
#: Milliseconds for which new items are asked for, in each turn. The same ones are then seen.
MILLISECONDS = 300
#: Requests that are looked up one by one.
SINGLE = 3_000
#: Numbers of workers, and heartbeats of all of them.
WORKERS, BEATS = (1, 10, 100), 2_000
LIFE = 60

Rates = dict[str, list[float]]


def run_throughput(size: Size) -> Found:
    """Ask for new items, and for the same ones again, in batches."""
    new: Rates = defaultdict(list)
    seen: Rates = defaultdict(list)
    server_time: dict[str, list[float]] = defaultdict(list)
    seconds, first = size.of(MILLISECONDS) / 1e3, 0
    with started() as server, server.client() as client:
        contestants = askers(client)
        for ask in contestants.values():
            ask(items(10**9, 1_000))  # the first ones allocate
        for _ in range(size.rounds):
            for name, ask in contestants.items():
                client.config_resetstat()
                batches, taken = _ask_new(ask, first, USUAL_BATCH, seconds)
                count = len(batches) * USUAL_BATCH
                first += count
                new[name].append(count / taken)
                server_time[name].append(server_microseconds(client) / count)
                seen[name].append(count / sum(timed(ask, one) for one in batches))
    return Found(
        [
            _rate_row("New URLs a second", new),
            _rate_row("Seen URLs a second", seen),
            _server_row(server_time),
        ],
        _said(),
        {name: median(some) for name, some in new.items()},
    )


def _ask_new(
    ask: Ask, first: int, batch: int, seconds: float
) -> tuple[Sequence[Sequence[bytes]], float]:
    """Ask for so many seconds; return the batches, and the time that the calls took."""
    batches: list[list[bytes]] = []
    taken = 0.0
    while taken < seconds:
        batches.append(items(first + len(batches) * batch, batch))
        taken += timed(ask, batches[-1])
    return batches, taken


def timed(call: Callable[[Any], Any], argument: Any) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call(argument)
    return time.perf_counter() - start


def _rate_row(title: str, rates: Rates) -> Sequence[str]:
    others = ", ".join(f"{median(rates[name]):,.0f} {name}" for name in rates if name != OURS)
    title = f"{title}, in batches of {USUAL_BATCH:,}"
    return title, f"{median(rates[OURS]):,.0f}", others


def _server_row(times: dict[str, list[float]]) -> Sequence[str]:
    others = ", ".join(f"{median(times[name]):.1f} {name}" for name in times if name != OURS)
    title = f"Server's µs for a new URL, in batches of {USUAL_BATCH}"
    return title, f"{median(times[OURS]):.1f}", others


def _said() -> str:
    return (
        f"One client looks up new URLs in batches of {USUAL_BATCH}. The commands of {SET} are in a "
        f"pipeline here, which its dupefilter doesn't use. {BITS} sends up to twelve commands per "
        "URL, one after the other. RedisBloom is a module of Redis, written in C. The dupefilter "
        "doesn't use its BF.MADD, because that can't forget URLs on time, and can't record a page "
        "and end its claim in one step. A crawl would hardly be faster: it has some hundred new "
        "URLs a second."
    )


def run_single(size: Size) -> Found:
    """Look up requests one by one, each by all dupefilters in turn, and compare with PING."""
    taken: dict[str, list[float]] = defaultdict(list)
    with started() as server, redis.Redis.from_url(server.url) as client:
        filters = {name: dupefilter(name, server.url) for name in (SCHEDULED, SET, BITS)}
        calls: dict[str, Callable[[Any], Any]] = {"PING": lambda _: client.ping()}
        calls |= {name: one.request_seen for name, one in filters.items()}
        for number in range(size.of(SINGLE)):
            for name, call in calls.items():
                taken[name].append(timed(call, Request(f"https://example.com/product/{number}")))
    micros = {name: median(some) * 1e6 for name, some in taken.items()}
    pings = {name: ratio(some, taken["PING"]) for name, some in taken.items()}
    others = ", ".join(f"{pings[name]:.1f} ({micros[name]:.0f} µs) {name}" for name in (SET, BITS))
    ours = f"{pings[SCHEDULED]:.1f} ({micros[SCHEDULED]:.0f} µs)"
    return Found([("A new request looked up by itself, in PINGs", ours, others)])


def run_heartbeats(size: Size) -> Found:
    """Send heartbeats of several numbers of workers, and ask what they cost the server."""
    costs = []
    beats = size.of(BEATS)
    with started() as server, server.client() as client:
        for count in WORKERS:
            bloom = BloomFilter(client, f"workers-{count}")
            workers = Workers(Claims(bloom.session, "bench"))
            members = [Worker.own("-", "group").member for _ in range(count)]
            for member in members:
                bloom.run(workers.beat(member, LIFE))
            client.config_resetstat()
            for number in range(beats):
                bloom.run(workers.beat(members[number % count], LIFE))
            costs.append(counted(server_microseconds(client) / beats))
    title = f"Server's µs for a heartbeat, with {WORKERS[0]}, {WORKERS[1]} and {WORKERS[2]} workers"
    return Found([(title, ", ".join(costs), "")])
