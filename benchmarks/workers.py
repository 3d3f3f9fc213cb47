"""``python -m benchmarks.workers``: what many idle workers of one filter cost the server.

It runs the reclaimers of so many workers in one process, with a filter session for each, on a real
server and by the real clock. All are idle on a shared queue, as spiders of scrapy-redis are: every
5 seconds, the engine asks again whether the spider may close. In the end one worker falls silent,
and its claims are taken over.
"""

import argparse
import heapq
import itertools
import random
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import redis

from benchmarks.contestants import Server, servers
from benchmarks.report import Table, console, server_name
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.claim_sweep import Reclaimed
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer, ReclaimerStatus
from scrapy_bloom.crawl.claims.workers import Process, Worker
from scrapy_bloom.crawl.filters import Filters

KEY, SPIDER, BLOCKS = "workers", "shop", 16
QUEUE = workers.queue_id(SPIDER, "redis shop:requests")
#: Seconds between the looks of an idle engine.
ENGINE_SECONDS = 5.0
#: Threads that run the workers.
THREADS = 16
#: Claims of the worker that falls silent.
CLAIMS = 200
COLUMNS = (
    "",
    "seconds",
    "calls/s",
    "commands/s",
    "MiB/s",
    "server CPU %",
    "this process's CPU %",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the server and this process have done so far."""

    time: float
    calls: int
    commands: int
    size: int
    server_cpu: float
    own_cpu: float

    @classmethod
    def take(cls, client: redis.Redis) -> "Sample":
        """Ask the server."""
        info = client.info("everything")
        commands = {name: one["calls"] for name, one in info.items() if name.startswith("cmdstat_")}
        calls = sum(commands.get(f"cmdstat_{name}", 0) for name in ("evalsha", "eval"))
        size = info["total_net_input_bytes"] + info["total_net_output_bytes"]
        server = info["used_cpu_sys"] + info["used_cpu_user"]
        own = time.process_time()
        return cls(time.monotonic(), calls, sum(commands.values()), size, server, own)


class IdleCrawl:
    """A worker whose queue is empty: the crawl's side of its reclaimer."""

    def __init__(self, client: redis.Redis, number: int, heartbeat: float) -> None:
        process = Process(f"machine{number}.example.com", 4711, f"boot{number:030}", 123_456)
        self.me = Worker(workers.worker_id(SPIDER), 0, heartbeat, process, QUEUE)
        self.bloom = BloomFilter(client, KEY, blocks=BLOCKS)
        self.filters = Filters({"default": self.bloom}, Connection(client, ""))
        self.reclaimer = Reclaimer(self.me, SPIDER, self, lambda event: event())
        self.taken = 0
        self._has_message = False
        self._number, self._is_asked = 0, False
        self._next_engine = time.monotonic() + random.uniform(0, ENGINE_SECONDS)

    def found(self, found: Reclaimed) -> None:
        """Crawl pages in no time."""
        self.taken += len(found.requests)
        fields = {found.block: [*found.requests]}
        self.bloom.run(partial(claim_protocol.release_fields, fields=fields))
        self.reclaimer.resume()
        self._is_asked = False
        self.wanted()

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        """Called with claims that were ended."""

    def wanted(self) -> None:
        """Take more, at once."""
        self.reclaimer.go_on()
        self._has_message = True

    def looked(self, status: ReclaimerStatus) -> None:
        """See ``Restorer``: the spider may close, and does not want to."""
        if self._is_asked and status.may_end == self._number:
            self._is_asked = False

    def run(self) -> float:
        """Run what is due; return when to run again."""
        now = time.monotonic()
        if now >= self._next_engine:
            self._next_engine = now + ENGINE_SECONDS
            if not self._is_asked and not self.reclaimer.status.is_looking:
                self._is_asked = True
                self._number += 1
                self.reclaimer.idle(self._number)
        self._has_message = False
        wait = self.reclaimer.run(self.filters)
        return now if self._has_message else min(time.monotonic() + wait, self._next_engine)


class Turns:
    """Workers that one thread runs in turns."""

    def __init__(self, client: redis.Redis, numbers: range, heartbeat: float) -> None:
        self.crawls = [IdleCrawl(client, number, heartbeat) for number in numbers]
        self._order = itertools.count()
        #: Sorted by when they run.
        self._queue: list[tuple[float, int, IdleCrawl]] = []
        #: How late one of them ran: this process may not keep up.
        self.longest_delay = 0.0

    def open(self) -> None:
        """Let each of them open the filter, one after the other."""
        for crawl in self.crawls:
            crawl.bloom.open()
            crawl.reclaimer.begin(crawl.filters)
            heapq.heappush(self._queue, (time.monotonic(), next(self._order), crawl))

    def run(self, seconds: float, until: Callable[[], bool]) -> None:
        """Let them run for some time, or until a condition holds."""
        end, self.longest_delay = time.monotonic() + seconds, 0.0
        while time.monotonic() < end and not until():
            due, _, crawl = self._queue[0]
            now = time.monotonic()
            if due > now:
                time.sleep(min(due, end, now + 0.1) - now)
                continue
            self.longest_delay = max(self.longest_delay, now - due)
            heapq.heapreplace(self._queue, (crawl.run(), next(self._order), crawl))

    def stop(self, crawl: IdleCrawl) -> None:
        """Run one of them no more."""
        self.crawls.remove(crawl)
        self._queue = [entry for entry in self._queue if entry[2] is not crawl]
        heapq.heapify(self._queue)

    def end(self) -> None:
        """Let them end, one after the other."""
        for crawl in self.crawls:
            crawl.reclaimer.end(crawl.filters)


class Fleet:
    """So many workers, which some threads run in turns."""

    def __init__(self, server: Server, count: int, heartbeat: float) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
        self._turns = [
            Turns(server.client(), range(count)[first::THREADS], heartbeat)
            for first in range(min(count, THREADS))
        ]

    @property
    def taken(self) -> int:
        """Claims that were taken over."""
        return sum(crawl.taken for turns in self._turns for crawl in turns.crawls)

    @property
    def longest_delay(self) -> float:
        """How late a worker ran."""
        return max(turns.longest_delay for turns in self._turns)

    def open(self) -> None:
        """Let all of them open the filter."""
        self._in_threads(Turns.open)

    def run(self, seconds: float, *, until_taken: int = 0) -> None:
        """Let them run for some time, or until so many claims are taken over."""

        def is_over() -> bool:
            return bool(until_taken) and self.taken >= until_taken

        self._in_threads(lambda turns: turns.run(seconds, is_over))

    def kill_one(self) -> None:
        """Let a worker fall silent that has claims and has just sent a heartbeat."""
        victim = self._turns[0].crawls[0]
        items = [number.to_bytes(20, "big") for number in range(CLAIMS)]
        claim = partial(claim_protocol.claim, owner=victim.me.id, nonce="n")
        victim.bloom.run(partial(claim, items=items, requests=["{}"] * CLAIMS))
        beat = partial(worker_protocol.heartbeat, member=victim.me.member, life=victim.me.life)
        victim.bloom.run(partial(beat, known=worker_protocol.ONLY_DEAD))
        self._turns[0].stop(victim)

    def end(self) -> None:
        """Let all that live end."""
        self._in_threads(Turns.end)
        self._pool.shutdown()

    def _in_threads(self, act: Callable[[Turns], None]) -> None:
        for _ in self._pool.map(act, self._turns):
            pass


def _row(table: Table, name: str, first: Sample, last: Sample) -> None:
    seconds = last.time - first.time
    table.add(
        name,
        f"{seconds:.1f}",
        f"{(last.calls - first.calls) / seconds:.0f}",
        f"{(last.commands - first.commands) / seconds:.0f}",
        f"{(last.size - first.size) / seconds / (1 << 20):.3f}",
        f"{100 * (last.server_cpu - first.server_cpu) / seconds:.1f}",
        f"{100 * (last.own_cpu - first.own_cpu) / seconds:.0f}",
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.workers", description=__doc__)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--heartbeat", type=float, default=30.0, help="seconds")
    parser.add_argument("--settle", type=float, default=240.0, help="seconds before the rest")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the part at rest")
    options = parser.parse_args()
    with Server(servers(full=False)[0]) as server, server.client() as client:
        title = f"{options.workers:,} idle workers, {server_name(client)}"
        table = Table(title, COLUMNS)
        fleet = Fleet(server, options.workers, options.heartbeat)
        life = 2 * options.heartbeat + 1

        def measure(name: str, act: partial[None]) -> None:
            first = Sample.take(client)
            act()
            _row(table, name, first, Sample.take(client))

        measure("they open the filter", partial(fleet.open))
        measure("two heartbeats", partial(fleet.run, life))
        measure("the next", partial(fleet.run, options.settle))
        measure("at rest", partial(fleet.run, options.seconds))
        delay = fleet.longest_delay
        fleet.kill_one()
        begin = time.monotonic()
        take_over = partial(fleet.run, 10 * life, until_taken=CLAIMS)
        measure("one falls silent", take_over)
        found = time.monotonic() - begin
        delay_then = fleet.longest_delay
        measure("they end", partial(fleet.end))
        console.print(table.to_rich())
        print(
            f"{fleet.taken} of {CLAIMS} claims of the silent worker taken over after {found:.1f} s"
        )
        print(f"workers ran up to {delay:.2f} s late at rest, {delay_then:.2f} s then")


if __name__ == "__main__":
    main()
