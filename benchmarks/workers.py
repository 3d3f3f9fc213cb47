"""``python -m benchmarks.workers``: what many idle workers of one filter cost the server.

It runs ``Recovery`` of so many workers in one event loop, with a filter session for each, on a real
server and by the real clock. All are idle on a shared queue, as spiders of scrapy-redis are: every
5 seconds, the engine asks again whether the spider may close. In the end one worker falls silent,
and its claims are taken over.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import redis
import redis.asyncio
from scrapy import Spider
from scrapy.settings import Settings

from benchmarks.contestants import Server as Binary
from benchmarks.contestants import servers
from benchmarks.report import Table, console, server_name
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context, Runtime
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.recovery import Recovery
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.server import Filters, Server
from scrapy_bloom.crawl.stats import Stats
from scrapy_bloom.crawl.workers import Process, Queue
from scrapy_bloom.settings import DEFAULT, BloomSettings

KEY, BLOCKS = "workers", 16
QUEUE = Queue("redis shop:requests", True, True, True, "a queue that workers share")
#: Seconds between the looks of an idle engine.
ENGINE_SECONDS = 5.0
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
    """A worker whose queue is empty: its recovery, and an engine that asks whether it may close."""

    def __init__(self, connection: Connection, number: int, heartbeat: float) -> None:
        scrapy_settings = Settings({"BLOOM_HEARTBEAT": heartbeat, "BLOOM_KEY": KEY})
        settings = BloomSettings.from_scrapy(scrapy_settings, "shop")
        report = Report(Stats(SimpleNamespace(set_value=print, inc_value=lambda *_: None)))
        engine: Any = SimpleNamespace(
            has_room=lambda: True, look=int, crawl=lambda *_: None, spider=Spider("shop")
        )
        bloom = BloomFilter(connection.client, KEY, blocks=BLOCKS)
        bloom.open()
        self.server = Server(Filters({DEFAULT: bloom}, connection))
        local, identity = LocalState(0, 2 * heartbeat), cast("Identity", SimpleNamespace(key=None))
        context = Context(settings, engine, report, Runtime(), self.server, local)
        claims = Claims(context, identity, QUEUE)
        process = Process(f"machine{number}.example.com", 4711, f"boot{number:030}", 123_456)
        self.me = claims.me = replace(claims.me, process=process)
        self.recovery = Recovery(context, claims)
        self.recovery._restorer = self  # type: ignore[assignment] # noqa: SLF001
        self.taken = 0
        self._releasing: set[asyncio.Task[Any]] = set()
        complete(self.recovery.begin())
        self.server.use_asyncio()
        self.tasks = [self._start(self.recovery.run()), self._start(self._ask())]

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.ensure_future(coroutine)

    async def _ask(self) -> None:
        """Ask as an engine does that has nothing to do: the spider may close, and does not."""
        await asyncio.sleep(random.uniform(0, ENGINE_SECONDS))
        while True:
            self.recovery.may_close()
            await asyncio.sleep(ENGINE_SECONDS)

    def put_back(self, window: str, block: int, requests: Mapping[str, str]) -> None:
        """Crawl pages in no time."""
        self.taken += len(requests)
        release = partial(claim_protocol.release_fields, fields={block: [*requests]})
        task = self._start(self.server.run(window, release))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    def stop(self) -> None:
        """Fall silent."""
        for task in self.tasks:
            task.cancel()


class Fleet:
    """So many workers in one event loop."""

    def __init__(self, url: str, count: int, heartbeat: float) -> None:
        self._client = redis.asyncio.Redis.from_url(url)
        self._connection = Connection(
            redis.Redis.from_url(url), "", False, _make_async=lambda: self._client
        )
        self._count, self._heartbeat = count, heartbeat
        self.crawls: list[IdleCrawl] = []

    @property
    def taken(self) -> int:
        """Claims that were taken over."""
        return sum(crawl.taken for crawl in self.crawls)

    async def open(self) -> None:
        """Let all of them open the filter."""
        for number in range(self._count):
            self.crawls.append(IdleCrawl(self._connection, number, self._heartbeat))
            await asyncio.sleep(0)

    async def run(self, seconds: float, *, until_taken: int = 0) -> None:
        """Let them run for some time, or until so many claims are taken over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until_taken and self.taken >= until_taken):
            await asyncio.sleep(0.1)

    async def kill_one(self) -> None:
        """Let a worker fall silent that has claims and has just sent a heartbeat."""
        victim = self.crawls.pop(0)
        items = [number.to_bytes(20, "big") for number in range(CLAIMS)]
        claim = partial(claim_protocol.claim, owner=victim.me.id, nonce="n")
        requests = ["{}"] * CLAIMS
        await victim.server.run(DEFAULT, partial(claim, items=items, requests=requests))
        beat = partial(worker_protocol.heartbeat, member=victim.me.member, life=victim.me.life)
        await victim.server.run(DEFAULT, partial(beat, known=worker_protocol.ONLY_DEAD))
        victim.stop()

    async def end(self) -> None:
        """Let all that live end."""
        for crawl in self.crawls:
            crawl.stop()
            await crawl.recovery.end()
        await self._client.aclose()


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


async def measure_all(options: argparse.Namespace, url: str, client: redis.Redis) -> None:
    """Measure, and print a table."""
    table = Table(f"{options.workers:,} idle workers, {server_name(client)}", COLUMNS)
    fleet = Fleet(url, options.workers, options.heartbeat)
    life = 2 * options.heartbeat + 1

    async def measure(name: str, act: Coroutine[Any, Any, None]) -> None:
        first = Sample.take(client)
        await act
        _row(table, name, first, Sample.take(client))

    await measure("they open the filter", fleet.open())
    await measure("two heartbeats", fleet.run(life))
    await measure("the next", fleet.run(options.settle))
    await measure("at rest", fleet.run(options.seconds))
    await fleet.kill_one()
    begin = time.monotonic()
    await measure("one falls silent", fleet.run(10 * life, until_taken=CLAIMS))
    found = time.monotonic() - begin
    await measure("they end", fleet.end())
    console.print(table.to_rich())
    print(f"{fleet.taken} of {CLAIMS} claims of the silent worker taken over after {found:.1f} s")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.workers", description=__doc__)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--heartbeat", type=float, default=30.0, help="seconds")
    parser.add_argument("--settle", type=float, default=240.0, help="seconds before the rest")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the part at rest")
    options = parser.parse_args()
    with Binary(servers(full=False)[0]) as server, server.client() as client:
        asyncio.run(measure_all(options, server.url, client))


if __name__ == "__main__":
    main()
