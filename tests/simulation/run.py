"""One simulated run: crawls with faults, then crawls without, then what must hold."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.clock import FrozenServer

from scrapy_bloom import BloomFilter
from simulation.kinds import PERIOD, SETTINGS, WINDOW, Kind
from simulation.process import Crawl, simulated
from simulation.site import Site, short
from simulation.world import Faults, World

#: Hashes keep the order in which their fields were written: a run repeats on another server.
IN_ORDER = ("--hash-max-listpack-entries", "100000", "--hash-max-listpack-value", "1000000")
#: Crawls after the part with faults, at most.
LAST_CRAWLS = 12
#: Steps between two looks at all keys.
LOOK_STEPS = 40
#: Crawls at the same time.
PROCESSES = 2
#: Returns the keys that never expire.
LASTING = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '{*')) do
  if redis.call('PTTL', key) < 0 then found[#found + 1] = key end
end
return found
"""


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


def simulate(
    server: FrozenServer,
    seed: int,
    kind: Kind,
    *,
    without: Collection[int] = (),
    steps: int = 0,
) -> Result:
    """Simulate crawls of one site; return what does not hold.

    Args:
        server: is emptied.
        seed: of all choices.
        kind: of the run.
        without: numbers of the faults that do not happen, although they would.
        steps: of the part with faults; 0 for as many as the kind has.
    """
    world = World(server, seed, kind.faults, without, kind.nodes)
    result = Result(seed, struck=world.struck, trace=world.trace)
    try:
        with simulated(world):
            run = kind.run or Run
            result.violations += run(world, kind, steps or kind.steps).violations()
    except AssertionError as error:
        result.violations += [*world.found, f"{type(error).__name__}: {error}"]
    finally:
        world.close()
    return result


class Run:
    """A run.

    Args:
        world: the world.
        kind: of the run.
        steps: of the part with faults.
    """

    #: How often another process starts, and what makes the site.
    starts = 0.3
    site_class: Callable[..., Site] = Site

    def __init__(self, world: World, kind: Kind, steps: int) -> None:
        self._world, self._kind, self._steps = world, kind, steps
        self._site = self.site_class(
            world.rng,
            world.rng.randint(3, 14),
            kind.stored,
            world.log,
            fails=kind.fails,
            items=kind.items,
            raises=kind.raises,
            starts=kind.spiders,
        )
        world.names = {field: short(url) for field, url in self._site.fields.items()}
        self._crawls: list[Crawl] = []
        self._started = 0
        #: Of each spider.
        self._queues: list[list[dict[str, Any]] | None] = [
            [] if kind.shared_queue else None for _ in range(kind.spiders)
        ]
        #: How often a process has ended with a claim on each page.
        self._left_behind: Counter[str] = Counter()
        self._found: list[str] = []
        self._is_ending = False
        #: Processes that differ, in their spiders or otherwise: in the end, each has its turn.
        self._slots = kind.spiders

    def violations(self) -> list[str]:
        """Crawl; return what does not hold."""
        self._crawl_with_faults()
        self._is_ending = True
        self._crawl_without_faults()
        self._check("")
        if self._kind.items < 1:
            self._world.log("EACH LISTING LINKS A NEW PAGE")
            self._site.publish()
            self._crawl_until_quiet()
            self._check("")
        if self._kind.passes:
            self._world.log("ALL URLS ARE FORGOTTEN")
            self._world.advance((WINDOW + 2 * PERIOD) * 60)
            self._site.crawled_pages.clear()
            expected = self._reachable()
            if self._kind.unlinks:
                self._site.unlink()
            self._crawl_until_quiet()
            self._check(" after the window", expected)
            self._check_once(" after the window")
        return [*self._world.found, *self._found]

    # -- crawls --

    def _crawl_with_faults(self) -> None:
        world, steps = self._world, 0

        def between() -> None:
            nonlocal steps
            steps += 1
            if len(self._crawls) < PROCESSES and world.rng.random() < self.starts:
                self._start()
            self._strike()
            self._note_ended()
            if steps % LOOK_STEPS == 0:
                self._found += self._lasting()

        self._start()
        world.run(lambda: steps >= self._steps, between)
        for crawl in self._crawls:
            if self._kind.faults.kill and world.rng.random() < 0.5:
                crawl.kill()
        self._note_ended()

    def _strike(self) -> None:
        world = self._world
        if self._crawls and world.strikes("kill"):
            world.rng.choice(self._crawls).kill()
        if self._crawls and world.strikes("stop"):
            world.rng.choice(self._crawls).stop()
        if world.faults.forget and world.rng.random() < 0.05:
            world.replicate()
        if world.strikes("forget"):
            world.forget()
        if world.faults.down and world.strikes("down"):
            world.fail_node()
        if world.strikes("restart"):
            world.restart()
        if world.strikes("full"):
            world.fill()
        if world.strikes("evict"):
            world.evict()
        if world.strikes("jump"):
            longest = PERIOD * 60.0 if self._kind.passes else 300.0
            world.advance(world.rng.choice([5.0, 20.0, longest]))

    def _note_ended(self) -> None:
        """Note the pages that processes have left which are over."""
        ended = {crawl.owner: crawl for crawl in self._crawls if not crawl.is_running}
        if not ended:
            return
        self._crawls = [crawl for crawl in self._crawls if crawl.is_running]
        for key in self._world.execute("KEYS", "{*:claims"):
            for name, claim in self._world.client.hgetall(key).items():
                url = self._site.fields.get(name.decode(), name.decode())
                crawl = self._left_by(claim.split()[0].decode(), url, ended)
                if crawl is None:
                    continue
                self._left_behind[url] += 1
                has_written = self._kind.writes_all and not crawl.has_unwritten
                may_leave = self._kind.repeats and not has_written
                if not (crawl.must_stop or may_leave):
                    self._found.append(f"{crawl.name} ended by itself and left {short(url)}")

    def _left_by(self, owner: str, url: str, ended: Mapping[str, Crawl]) -> Crawl | None:
        """Return which of the processes that are over has left a claim."""
        return ended.get(owner)

    def _crawl_without_faults(self) -> None:
        """Crawl until a crawl has found nothing left to do."""
        world = self._world
        world.faults = Faults()
        world.run(lambda: not self._crawls, self._note_ended)
        if self._kind.spiders > 1:
            self._world.log("ONLY SPIDER 0 RUNS")
            for _ in range(LAST_CRAWLS):
                self._crawl_once(0)
            self._note_hidden(self._reachable_by_first(), " from spider 0")
        self._crawl_until_quiet()

    def _crawl_until_quiet(self) -> None:
        quiet = 0
        for number in range(LAST_CRAWLS * self._slots):
            before, was_quiet = self._lasting_fetches(), not self._left()
            self._crawl_once(number % self._slots)
            is_quiet = was_quiet and self._lasting_fetches() == before and not self._left()
            quiet = quiet + 1 if is_quiet else 0
            if quiet == self._slots:
                return

    def _crawl_once(self, slot: int) -> None:
        self._world.advance(2 * SETTINGS["BLOOM_RETRY_AFTER"])  # failed pages are due again
        crawl = self._start(slot)
        self._world.run(lambda: not crawl.is_running)
        self._note_ended()

    def _lasting_fetches(self) -> int:
        """Return how often pages were fetched that are not read in each run."""
        site, has_listings = self._site, self._kind.items < 1
        # A redirect to a page that is known may lead to a listing: it is fetched in each run, too.
        each_run = {*site.starts, *(site.listings | site.redirects.keys() if has_listings else ())}
        each_run |= site.circles
        return sum(times for url, times in site.fetched.items() if url not in each_run)

    def _start(self, slot: int | None = None) -> Crawl:
        self._started += 1
        name, rng = f"p{self._started}", self._world.rng
        if slot is None:
            slot = self._free_slot()
        drawn = {name: rng.choice(values) for name, values in self._kind.choices.items()}
        if self._is_ending and "BLOOM_ROTATE_EVERY" in drawn:
            # What would forget earlier than is stored is refused: in the end the user obeys.
            drawn["BLOOM_ROTATE_EVERY"] = self._kind.choices["BLOOM_ROTATE_EVERY"][0]
        if self._is_ending and self._kind.windows:
            drawn["BLOOM_RECRAWL_RULES"] = self._last_rules()
        self._world.log(f"{name}: STARTS {drawn or ''}{slot or ''}")
        settings = {**SETTINGS, **self._kind.settings, **drawn}
        crawl = self._make_crawl(name, settings, slot)
        self._crawls.append(crawl)
        return crawl

    def _last_rules(self) -> Any:
        """Return the rules of the next process when no faults happen any more."""
        # A filter that no crawl uses keeps its dead workers until it expires: each is used.
        rules = self._kind.choices["BLOOM_RECRAWL_RULES"]
        return rules[self._started % len(rules)]

    def _free_slot(self) -> int:
        return self._world.rng.randrange(self._slots) if self._slots > 1 else 0

    def _make_crawl(self, name: str, settings: dict[str, Any], slot: int) -> Crawl:
        return Crawl(
            self._world,
            self._site,
            name,
            settings,
            spider=slot,
            shared_queue=self._queues[slot],
        )

    # -- what must hold --

    def _reachable(self) -> set[str]:
        """Return the pages that a crawl has to get."""
        return self._site.reachable

    def _with_items(self) -> set[str]:
        """Return the pages whose items have to be delivered."""
        return self._site.reachable - {*self._site.starts}

    def _reachable_by_first(self) -> set[str]:
        """Return those that spider 0 has to get, although the others do not come back."""
        return self._site.reachable_by(0)

    def _check(self, when: str, expected: Collection[str] = ()) -> None:
        self._note_hidden(expected or self._reachable(), when)
        self._found += [*self._left(), *self._lasting()]
        if self._kind.raises:
            lost = self._with_items() - self._site.stored
            self._found += [f"its item is lost: {short(url)}" for url in sorted(lost)]
        if when or not self._kind.repeats:
            self._found += self._forgotten()
        self._found += self._recorded_listings()
        if not self._kind.repeats:
            self._check_once("")

    def _note_hidden(self, expected: Collection[str], when: str) -> None:
        missing = {*expected} - self._site.crawled_pages.keys()
        self._found += [f"hidden{when}: {short(url)}" for url in sorted(missing)]

    def _check_once(self, when: str) -> None:
        """Find pages that were crawled again, though no process left them behind."""
        if self._kind.windows:
            return
        for url, times in self._site.crawled_pages.items():
            # Start pages and listings are crawled by each process.
            if not self._is_listing(url) and times > 1 + self._left_behind[url]:
                self._found.append(f"crawled {times} times{when}: {short(url)}")
        for (process, url), times in () if when else self._site.crawled_by.items():
            if not self._is_listing(url) and times > 1 + self._left_behind[url]:
                self._found.append(f"crawled {times} times by {process}: {short(url)}")

    def _is_listing(self, url: str) -> bool:
        return url in self._site.starts or (self._kind.items < 1 and url in self._site.listings)

    def _left(self) -> list[str]:
        """Find claims and workers."""
        keys = sorted(self._world.execute("KEYS", "{*"))
        claims = [(key, "HGETALL", ()) for key in keys if key.endswith(b":claims")]
        workers = [(key, "ZRANGE", (0, -1)) for key in keys if key.endswith(b":heartbeats")]
        return [
            f"left: {key!r} {self._world.execute(command, key, *rest)}"
            for key, command, rest in (*claims, *workers)
        ]

    def _lasting(self) -> list[str]:
        return [f"no expiry: {key!r}" for key in self._world.execute("EVAL", LASTING, 0)]

    def _forgotten(self) -> list[str]:
        """Find crawled pages that the filter does not know, or does not count."""
        keys = ["k", *(f"k:{window}" for window in self._kind.windows)]
        blooms = [BloomFilter(self._world.client, key) for key in keys]
        pages = sorted(url for url in self._site.crawled_pages if not self._is_listing(url))
        items = {url: bytes.fromhex(name) for name, url in self._site.fields.items()}
        found = [
            f"forgotten: {short(url)}"
            for url in pages
            if not any(items[url] in bloom for bloom in blooms)
        ]
        if (count := sum(map(len, blooms))) < len(pages) - len(found):
            found.append(f"it counts {count} URLs of {len(pages)}")
        return found

    def _recorded_listings(self) -> list[str]:
        """Find pages that the filter should not know."""
        if self._kind.items == 1:
            return []
        bloom = BloomFilter(self._world.client, "k")
        items = {url: bytes.fromhex(name) for name, url in self._site.fields.items()}
        return [
            f"recorded: {short(url)}" for url in sorted(self._site.listings) if items[url] in bloom
        ]
