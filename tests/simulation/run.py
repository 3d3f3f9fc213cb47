"""One simulated run finds faults that need a kill, a lost reply and a second worker to meet.

Scrapy's own engine runs on a simulated clock and network, against a real server whose clock stands
still. A seed chooses each step, so a run that fails repeats. Plain reruns follow, until one of them
finds nothing to do. Then no page and no item may be missing that a crawl with Scrapy's own filter
gets, no request may be pending, and each key of a filter with a window has an expiry.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from support.clock import MovedServer

from scrapy_bloom import BloomFilter
from simulation.kinds import JOBDIR, PERIOD, REDIS, SETTINGS, TRANSIENT, WINDOW, Kind
from simulation.process import Process, owner_of, simulated
from simulation.site import DOMAINS, short
from simulation.special import make_site
from simulation.watch import Watch
from simulation.world import World

#: Hashes keep the order in which their fields were written: a run repeats on another server.
IN_ORDER = ("--hash-max-listpack-entries", "100000", "--hash-max-listpack-value", "1000000")
#: Settings that each process draws a value of.
CHOICES: dict[str, list[Any]] = {
    "CONCURRENT_REQUESTS": [1, 4, 8],
    "RETRY_TIMES": [0, 1, 2],
    "DOWNLOAD_DELAY": [0, 0, 0.3],
    "DEPTH_PRIORITY": [0, 1],
}
#: The same while faults happen: settings that end a crawl.
ENDS = ("CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_ERRORCOUNT")
#: Steps of the part with faults, and crawls after it, at most.
STEPS = 800
LAST_CRAWLS = 12
#: Steps between two looks at all keys.
LOOK_STEPS = 40
#: Seconds after which a worker that waits to close has noticed that another one is dead, by the
#: place of both: only on one machine at once.
NOTICED_SECONDS = {"machine": 2.0, "-": 13.0}


@dataclass
class Result:
    """What became of a run.

    Attributes:
        seed: of the run.
        violations: what does not hold, a line each.
        story: what led to the first of these, a line each, if it breaks the rule.
        struck: what happened, as in the world.
        trace: what happened, a line each.
    """

    seed: int
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def simulate(server: MovedServer, seed: int, kind: Kind) -> Result:
    """Simulate crawls of one site; return what does not hold.

    Args:
        server: is emptied.
        seed: of all choices.
        kind: of the run.
    """
    world = World(server, seed, kind.faults)
    result = Result(seed, struck=world.struck, trace=world.trace)
    try:
        with tempfile.TemporaryDirectory() as directory, simulated(world):
            result.violations += Run(world, kind, Path(directory)).violations()
    except AssertionError as error:
        what = f"{type(error).__name__}: {error}"
        result.violations += [*world.found, *(world.broken[:1] or [what])]
        result.story = world.story()
    finally:
        world.close()
    return result


class Run:
    """A run.

    Args:
        world: the world.
        kind: of the run.
        directory: for queues on a disk.
    """

    def __init__(self, world: World, kind: Kind, directory: Path) -> None:
        rng, self._world = world.rng, world
        self._directory, self._queue = directory / "job", rng.choice(kind.queues)
        if self._queue in (REDIS, TRANSIENT) or (self._queue == JOBDIR and not kind.repeats):
            # Another worker, or run, may lose what is not stored: see "Not" in docs/guarantees.md.
            kind = replace(kind, stored=1.0)
        if self._queue == JOBDIR:
            kind = replace(kind, workers=1)
        if kind.stored < 1 and kind.faults.get("lost_request"):  # or, the same, if it was cut off
            kind = replace(kind, stored=1.0) if rng.random() < 0.5 else replace(kind, workers=1)
        if kind.objects and rng.random() < 0.5:  # without faults they are filtered
            kind = replace(kind, faults={}, fails=False)
        world.faults = kind.faults
        self._kind, self._site = kind, make_site(rng, world.log, kind)
        self._domains: Sequence[str | None] = DOMAINS if kind.domains else (None,)
        watch = Watch(world, self._site, kind)
        world.begins, world.looks, world.hands_out = watch.begin, watch.look, watch.hand_out
        world.names = {field: short(url) for field, url in self._site.fields.items()}
        # Of all crawls: a link to the start page may record it, and hide it from a later one.
        self._settings = {"SIMULATED_DONT_FILTER": rng.random() < 0.7}
        self._processes: list[Process] = []
        self._last_started: Process | None = None
        self._started, self._is_ending = 0, False
        #: Choices of all processes when no faults happen any more.
        self._last = {name: rng.choice(values) for name, values in kind.choices.items()}
        #: Processes that have ended with a claim on each page.
        self._left_behind: dict[str, set[str]] = defaultdict(set)
        #: Owner of claims -> when it ended.
        self._ended: dict[str, float] = {}
        self._found: list[str] = []
        world.log(f"QUEUE {self._queue}, {self._settings}, place {world.place}")

    def violations(self) -> list[str]:
        """Crawl with faults, then until a crawl finds nothing left; return what does not hold."""
        self._crawl_with_faults()
        self._is_ending, self._world.faults = True, {}
        self._world.run(lambda: not self._processes, self._note_ended)
        self._crawl_until_quiet()
        self._check("")
        if self._kind.items < 1:
            self._world.log("EACH LISTING LINKS A NEW PAGE")
            self._site.publish()
            self._crawl_until_quiet()
            self._check("")
        if self._kind.passes:
            self._world.log("ALL URLS ARE FORGOTTEN")
            self._world.now += WINDOW + 2 * PERIOD
            self._site.forget()
            self._crawl_until_quiet()
            self._check(" after the window")
        return [*self._world.found, *self._found]

    # -- crawls --

    def _crawl_with_faults(self) -> None:
        world, kind, steps = self._world, self._kind, 0

        def between() -> None:
            nonlocal steps
            steps += 1
            if len(self._processes) < kind.workers and world.rng.random() < kind.starts:
                self._start(world.rng.choice(self._domains))
            self._strike()
            self._note_ended()
            if steps % LOOK_STEPS == 0:
                self._found += self._lasting()

        self._start(world.rng.choice(self._domains))
        world.run(lambda: steps >= STEPS, between)
        for process in self._processes:
            if self._kind.faults.get("kill") and world.rng.random() < 0.5:
                process.kill()
        self._note_ended()

    def _strike(self) -> None:
        world = self._world
        for process in {*world.doomed} & {*self._processes}:
            process.kill()
        world.doomed.clear()
        if self._processes and world.strikes("kill"):
            world.rng.choice(self._processes).kill()
        if self._processes and world.strikes("stop"):
            world.rng.choice(self._processes).stop()
        if world.faults.get("forget") and world.rng.random() < 0.05:
            world.replicate()
        for fault in ("forget", "restart", "fill", "evict", "flush", "empty"):
            if world.strikes(fault):
                getattr(world, fault)()
        if world.strikes("evict_claims"):
            self._evict_claims()
        if world.strikes("jump"):
            longest = PERIOD / 2 if self._kind.passes else 300.0
            world.now += world.rng.choice([5.0, 20.0, longest])
        for process in self._processes:
            if process.again <= world.now:
                process.stop()

    def _evict_claims(self) -> None:
        """Evict the claims of a block, unless nobody has the request of one of them in memory."""
        living = {one.owner for one in self._processes if self._world.lives(one.name)}
        for key in self._keys(b":claims:"):
            owners = {owner_of(claim) for claim in self._claims_in(key).values()}
            if owners and all(owner in living or owner[0] == "q" for owner in owners):
                self._world.evict_claims(key)
                return

    def _note_ended(self) -> None:
        """Note the pages that processes have left which are over."""
        over = {one.owner: one for one in self._processes if self._is_over(one)}
        if not over:
            return
        # Others may pick up its claims before it has ended.
        ended = {owner: one for owner, one in over.items() if not one.is_running}
        self._processes = [one for one in self._processes if one.is_running]
        has_finished = not all(one.must_stop for one in ended.values())
        self._ended |= dict.fromkeys(ended, self._world.now)
        for key in self._keys(b":claims:"):
            for name, claim in self._claims_in(key).items():
                url, owner = self._site.fields.get(name.decode(), name.decode()), owner_of(claim)
                process = self._left_by(owner, url, over)
                if process is not None:
                    self._left_behind[url].add(process.name)
                    if not (process.must_stop or self._kind.repeats or self._may_stay(url)):
                        self._found.append(f"{process.name} ended by itself, left {short(url)}")
                    if not self._kind.repeats and self._is_unused(url, process):
                        self._found.append(f"{process.name} left {short(url)}, never scheduled")
                died = self._ended.get(owner, self._world.now)
                is_over = died + NOTICED_SECONDS[self._world.place] < self._world.now
                if is_over and has_finished and not self._kind.repeats:
                    self._found.append(f"a dead worker's page was not picked up: {short(url)}")

    def _is_unused(self, url: str, process: Process) -> bool:
        """Whether a process has left a claim for a request of its list that was never scheduled."""
        # While it was closing, it may have received or picked it up.
        parts = [line[11:].partition(": ") for line in self._world.trace]
        has_taken = any(name == process.name and "take " in what for name, _, what in parts)
        is_listed = url in {*self._site.listed} - process.scheduled
        return is_listed and process.is_clean and not has_taken

    def _may_stay(self, url: str) -> bool:
        """Whether a page may lead to one that can't be stored, and that another process has."""
        site = self._site
        return url in site.redirects or not all(is_ok for _, is_ok in site.links.get(url, ()))

    def _is_over(self, process: Process) -> bool:
        """Whether a process has left its claims: it has ended, or has said so while it stops."""
        if not (process.must_stop and self._world.lives(process.name)):
            return not self._world.lives(process.name)
        workers = self._world.execute("ZRANGE", "{k:0}:workers:pages", 0, -1)
        return not any(process.owner.encode() in worker for worker in workers)

    def _left_by(self, owner: str, url: str, over: dict[str, Process]) -> Process | None:
        """Return which of the processes that are over has left a claim."""
        if owner in over or not owner.startswith("q"):
            return over.get(owner)
        # A moment after it has got a request from a shared queue, the claim is not its own yet. It
        # may even have crawled the page by then.
        crawled = self._site.crawled_by.keys()
        for one in over.values():
            if not one.is_clean and (url in one.pages or (one.name, url) in crawled):
                return one
        return None

    def _crawl_until_quiet(self) -> None:
        quiet = 0
        for number in range(LAST_CRAWLS * len(self._domains)):
            before, was_quiet = self._lasting_fetches(), not self._left()
            self._world.now += 120.0  # failed pages are ready to be retried
            process = self._start(self._domains[number % len(self._domains)])
            self._finish(process)
            self._note_ended()
            is_quiet = was_quiet and self._lasting_fetches() == before and not self._left()
            quiet = quiet + 1 if is_quiet else 0
            if quiet == len(self._domains):
                return

    def _finish(self, process: Process) -> None:
        self._world.run(lambda: not process.is_running)

    def _lasting_fetches(self) -> int:
        """Return how often pages were fetched that are not read in each run."""
        site = self._site
        times = sum(count for url, count in site.fetched.items() if url not in site.each_run)
        # A page that is read in each run is crawled by a later one if it fails in this one.
        return times - site.left()

    def _start(self, domain: str | None) -> Process:
        self._started += 1
        name, rng, kind = f"p{self._started}", self._world.rng, self._kind
        drawn = {name: rng.choice(values) for name, values in {**CHOICES, **kind.choices}.items()}
        drawn |= self._last if self._is_ending else {}
        if kind.faults.get("stop") and not self._is_ending and rng.random() < 0.3:
            drawn[rng.choice(ENDS)] = rng.randint(1, 4)
        self._world.log(f"{name}: STARTS {domain or ''} {drawn}")
        own = {**SETTINGS, **kind.settings, **drawn, **self._queue_settings()}
        self._last_started = process = self._make(name, own, domain)
        self._processes.append(process)
        return process

    def _make(self, name: str, own: dict[str, Any], domain: str | None) -> Process:
        settings = {**self._settings, **self._kind.middlewares, **own}
        return Process(self._world, self._site, name, settings, domain)

    def _queue_settings(self) -> dict[str, Any]:
        if self._queue == JOBDIR:
            if self._last_started is not None and not self._last_started.is_clean:
                # Scrapy's queue on a disk does not survive a kill, and would stop the next crawl.
                self._world.log("JOBDIR is removed")
                rmtree(self._directory, ignore_errors=True)
            return {"JOBDIR": str(self._directory)}
        if self._queue in (REDIS, TRANSIENT):
            scheduler = "scrapy_redis.scheduler.Scheduler"
            return {"SCHEDULER": scheduler, "SCHEDULER_PERSIST": self._queue == REDIS}
        return {}

    def _crawl_plainly(self) -> tuple[set[str], set[str]]:
        """Crawl with Scrapy's own filter in memory; return the pages and items that it gets."""
        self._site.is_plain = True
        own = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
        pages, items = set[str](), set[str]()
        for domain in self._domains:
            process = self._make("plain", own, domain)
            self._finish(process)
            pages |= process.pages
            items |= process.items
        self._site.is_plain = False
        return pages, items

    # -- what must hold --

    def _check(self, when: str) -> None:
        (pages, items), crawled = self._crawl_plainly(), self._site.crawled_pages.keys()
        self._found += [f"missing{when}: {short(url)}" for url in sorted(pages - crawled)]
        more = sorted(crawled - pages)
        self._found += [f"Scrapy does not get it: {short(url)}" for url in more]
        lost = items - self._site.stored
        self._found += [f"its item is lost: {short(url)}" for url in sorted(lost)]
        self._found += [*self._left(), *self._lasting()]
        if not self._kind.repeats:
            self._check_repeats()

    def _check_repeats(self) -> None:
        """Find pages that were crawled again, though no process left them behind."""
        site = self._site
        pages = [(url, "", times) for url, times in site.crawled_pages.items()]
        pages += [(url, f" by {by}", times) for (by, url), times in site.crawled_by.items()]
        for url, by, times in pages:
            left = len(self._left_behind[url]) + self._may_stay(url)
            if url not in site.each_run and times > 1 + left:
                self._found.append(f"crawled {times} times{by}: {short(url)}")
        bloom = BloomFilter(self._world.client, "k", window=SETTINGS["BLOOM_RECRAWL_AFTER"])
        items = {url: bytes.fromhex(name) for name, url in site.fields.items()}
        lasting = sorted(site.crawled_pages.keys() - site.each_run)
        self._found += [f"forgotten: {short(url)}" for url in lasting if items[url] not in bloom]

    def _claims_in(self, key: bytes) -> dict[bytes, bytes]:
        return self._world.client.hgetall(key)  # type: ignore[return-value]

    def _keys(self, part: bytes) -> list[bytes]:
        return sorted(key for key in self._world.execute("KEYS", "{*") if part in key)

    def _left(self) -> list[str]:
        """Return the claims that there are, but those of pages that each run drops."""
        nowhere = {self._site.field(url).encode() for url in self._site.leads_nowhere}
        claims = {key: self._claims_in(key) for key in self._keys(b":claims:")}
        return [f"left: {key!r} {own}" for key, own in claims.items() if own.keys() - nowhere]

    def _lasting(self) -> list[str]:
        keys = self._keys(b"")
        return [f"no expiry: {key!r}" for key in keys if self._world.execute("PTTL", key) < 0]
