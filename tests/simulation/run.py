"""One simulated run: crawls with faults, then crawls without, then what must hold."""

from dataclasses import dataclass, field
from typing import Any

from support.clock import FrozenServer

from simulation.process import Crawl, simulated
from simulation.site import Site
from simulation.world import Faults, World

SETTINGS: dict[str, Any] = {
    "BLOOM_REMEMBER": "crawled",
    "BLOOM_RECRAWL_AFTER": "1 year",
    "BLOOM_CAPACITY": 1_000,
    "BLOOM_ERROR_RATE": 1e-6,
    "BLOOM_BLOCKS": 2,
    "BLOOM_HEARTBEAT": 5,
    "BLOOM_RETRY_AFTER": 60,
}
#: Steps of the part with faults, and runs without faults after it, at most.
STEPS, LAST_RUNS = 400, 8


@dataclass
class Result:
    """What became of a run.

    Attributes:
        seed: of the run.
        violations: what does not hold, a line each.
        struck: faults that happened.
        trace: what happened, a line each.
        fetched: pages fetched, in all, and pages there are.
    """

    seed: int
    violations: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    fetched: tuple[int, int] = (0, 0)


def run(server: FrozenServer, seed: int, faults: Faults, processes: int = 2) -> Result:
    """Simulate crawls of one site; return what does not hold."""
    world = World(server, seed, faults)
    result = Result(seed, struck=world.struck, trace=world.trace)
    try:
        with simulated(world):
            _Run(world, processes).check(result)
    except AssertionError as error:
        result.violations.append(f"{type(error).__name__}: {error}")
    finally:
        world.close()
    return result


class _Run:
    def __init__(self, world: World, processes: int) -> None:
        self._world, self._processes = world, processes
        self._site = Site(world.rng, world.rng.randint(3, 14), world.log)
        self._crawls: list[Crawl] = []
        self._started = 0

    def check(self, result: Result) -> None:
        """Crawl, and note what does not hold."""
        self._with_faults()
        self._without_faults()
        site, world = self._site, self._world
        for url in sorted(site.reachable - site.crawled_pages.keys()):
            result.violations.append(f"hidden: {url}")
        result.fetched = site.fetched.total(), len(site.reachable)
        if not world.struck and not site.has_failed:
            for url, times in site.crawled_pages.items():
                # The start page is crawled by each process.
                if times > 1 and url not in site.starts:
                    result.violations.append(f"crawled {times} times without a fault: {url}")
        for key in world.client.scan_iter():
            if world.client.ttl(key) < 0:
                result.violations.append(f"no expiry: {key!r}")
            if key.endswith((b":claims", b":workers")):
                result.violations.append(f"left: {key!r} {world.client.hgetall(key)}")

    def _with_faults(self) -> None:
        world, steps = self._world, 0

        def between() -> None:
            nonlocal steps
            steps += 1
            self._crawls = [crawl for crawl in self._crawls if crawl.is_running]
            if len(self._crawls) < self._processes and world.rng.random() < 0.3:
                self._start()
            if self._crawls and world.strikes("kill"):
                world.rng.choice(self._crawls).kill()
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

    def _without_faults(self) -> None:
        """Crawl until a run has found nothing left to do."""
        world = self._world
        world.faults = Faults()
        world.run(lambda: not any(crawl.is_running for crawl in self._crawls))
        for _ in range(LAST_RUNS):
            world.advance(120.0)  # failed pages are due again
            before = self._site.fetched.total()
            crawl = self._start()
            world.run(lambda: not crawl.is_running)
            if self._site.fetched.total() - before <= len(self._site.starts):
                return

    def _start(self) -> Crawl:
        self._started += 1
        name = f"p{self._started}"
        self._world.log(f"{name}: starts")
        crawl = Crawl(self._world, self._site, name, SETTINGS)
        self._crawls.append(crawl)
        return crawl
