"""Simulated runs: crawls with faults, then crawls without, then what must hold.

``PYTHONHASHSEED=0 python -m simulation.run --help``, from ``tests``.
"""

import argparse
import logging
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import track
from support.clock import FrozenServer
from support.servers import SERVERS

from simulation.process import Crawl, simulated
from simulation.site import Site, short
from simulation.world import Faults, World

console = Console()
SETTINGS: dict[str, Any] = {
    "BLOOM_REMEMBER": "crawled",
    "BLOOM_RECRAWL_AFTER": "1 year",
    "BLOOM_CAPACITY": 1_000,
    "BLOOM_ERROR_RATE": 1e-6,
    "BLOOM_BLOCKS": 2,
    "BLOOM_HEARTBEAT": 5,
    "BLOOM_RETRY_AFTER": 60,
}
#: Hashes keep the order in which their fields were written: a run repeats on another server.
IN_ORDER = ("--hash-max-listpack-entries", "100000", "--hash-max-listpack-value", "1000000")
#: Steps of the part with faults, and crawls without faults after it, at most.
STEPS, LAST_CRAWLS = 400, 8
#: Crawls at the same time.
PROCESSES = 2


@dataclass(frozen=True)
class Kind:
    """A kind of runs.

    Attributes:
        faults: what goes wrong.
        stored: share of the requests that can be stored with their claims.
    """

    faults: Faults
    stored: float


_FAULTS = {
    "lost_request": 0.01,
    "lost_reply": 0.01,
    "late": 0.01,
    "partial": 0.005,
    "kill": 0.004,
    "stop": 0.002,
    "stall": 0.02,
    "jump": 0.003,
}
KINDS = {
    "calm": Kind(Faults(), stored=0.8),
    "faults": Kind(Faults(**_FAULTS), stored=0.8),
    "forgetful": Kind(Faults(**_FAULTS, forget=0.002), stored=0.8),
}


@dataclass
class Result:
    """What became of a run.

    Attributes:
        seed: of the run.
        violations: what does not hold, a line each.
        struck: faults that happened.
        trace: what happened, a line each.
    """

    seed: int
    violations: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def simulate(server: FrozenServer, seed: int, kind: Kind) -> Result:
    """Simulate crawls of one site; return what does not hold."""
    world = World(server, seed, kind.faults)
    result = Result(seed, struck=world.struck, trace=world.trace)
    try:
        with simulated(world):
            result.violations += _Run(world, kind).violations()
    except AssertionError as error:
        result.violations.append(f"{type(error).__name__}: {error}")
    finally:
        world.close()
    return result


class _Run:
    def __init__(self, world: World, kind: Kind) -> None:
        self._world = world
        self._site = Site(world.rng, world.rng.randint(3, 14), kind.stored, world.log)
        self._crawls: list[Crawl] = []
        self._started = 0

    def violations(self) -> list[str]:
        """Crawl; return what does not hold."""
        self._crawl_with_faults()
        self._crawl_without_faults()
        return [*self._hidden(), *self._repeated(), *self._left()]

    def _hidden(self) -> list[str]:
        missing = self._site.reachable - self._site.crawled_pages.keys()
        return [f"hidden: {short(url)}" for url in sorted(missing)]

    def _repeated(self) -> list[str]:
        if self._world.struck or self._site.has_failed:
            return []  # a page may be crawled again then
        crawled = self._site.crawled_pages.items()
        # Start pages are crawled by each process.
        twice = [url for url, times in crawled if times > 1 and url not in self._site.starts]
        return [f"crawled twice without a fault: {short(url)}" for url in twice]

    def _left(self) -> list[str]:
        found, client = [], self._world.client
        for key in client.scan_iter():
            if client.ttl(key) < 0:
                found.append(f"no expiry: {key!r}")
            if key.endswith((b":claims", b":workers")):
                found.append(f"left: {key!r} {client.hgetall(key)}")
        return found

    def _crawl_with_faults(self) -> None:
        world, steps = self._world, 0

        def between() -> None:
            nonlocal steps
            steps += 1
            self._crawls = [crawl for crawl in self._crawls if crawl.is_running]
            if len(self._crawls) < PROCESSES and world.rng.random() < 0.3:
                self._start()
            if self._crawls and world.strikes("kill"):
                world.rng.choice(self._crawls).kill()
            if self._crawls and world.strikes("stop"):
                world.rng.choice(self._crawls).must_stop = True
            if world.rng.random() < 0.05:
                world.replicate()
            if world.strikes("forget"):
                world.forget()
            if world.strikes("jump"):
                world.advance(world.rng.choice([5.0, 20.0, 300.0]))

        self._start()
        world.run(lambda: steps >= STEPS, between)
        for crawl in self._crawls:
            if crawl.is_running and world.rng.random() < 0.5:
                crawl.kill()

    def _crawl_without_faults(self) -> None:
        """Crawl until a crawl has found nothing left to do."""
        world = self._world
        world.faults = Faults()
        world.run(lambda: not any(crawl.is_running for crawl in self._crawls))
        for _ in range(LAST_CRAWLS):
            world.advance(2 * SETTINGS["BLOOM_RETRY_AFTER"])  # failed pages are due again
            before = self._site.fetched.total()
            self._start()
            world.run(lambda: not self._crawls[-1].is_running)
            if self._site.fetched.total() - before <= len(self._site.starts):
                return

    def _start(self) -> None:
        self._started += 1
        name = f"p{self._started}"
        self._world.log(f"{name}: STARTS")
        self._crawls.append(Crawl(self._world, self._site, name, SETTINGS))


def say(*lines: str) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    """Simulate runs; return 1 if something does not hold."""
    parser = argparse.ArgumentParser(description="Simulates crawls whose steps a seed chooses.")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all kinds")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="default: 0")
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="of each kind")
    parser.add_argument("--trace", action="store_true", help="print what happened in all runs")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0: otherwise a run does not repeat")
    logging.disable(logging.CRITICAL)  # the product's own: outages, and what is taken over
    failed = False
    server = FrozenServer(next(iter(SERVERS.values())), *IN_ORDER)
    with server:
        for name in options.kind or KINDS:
            seeds = range(options.first, options.first + options.runs)
            struck: Counter[str] = Counter()
            for seed in track(seeds, description=name, console=console):
                result = simulate(server, seed, KINDS[name])
                struck.update(result.struck)
                failed |= bool(result.violations)
                if result.violations or options.trace:
                    say(*result.trace, f"{name} {seed}: {result.violations}")
            say(f"{name}: {len(seeds)} runs, {dict(struck)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
