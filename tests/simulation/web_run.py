"""Simulated runs of Scrapy's own engine: which there are, and what must hold in them."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from simulation.kinds import WINDOW, Kind
from simulation.process import Crawl
from simulation.run import Run
from simulation.site import short
from simulation.web_process import WebCrawl, simulated_scrapy
from simulation.web_site import WebSite
from simulation.web_spiders import SPIDERS, Crawling, Plain
from simulation.world import Faults, World

MEMORY, JOBDIR, REDIS, TRANSIENT = "memory", "JOBDIR", "scrapy-redis", "scrapy-redis, not kept"
#: Settings that each process draws a value of.
CHOICES: dict[str, Sequence[Any]] = {
    "CONCURRENT_REQUESTS": [1, 4, 8],
    "RETRY_TIMES": [0, 1, 2],
    "DOWNLOAD_DELAY": [0, 0, 0.3],
    "DEPTH_PRIORITY": [0, 1],
}
#: The same while faults happen: settings that end a crawl.
ENDS = ("CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_ERRORCOUNT")


class WebRun(Run):
    """A run of Scrapy's own engine."""

    starts = 0.01
    _site: WebSite

    def __init__(self, world: World, kind: Kind, steps: int) -> None:
        rng = world.rng
        assert isinstance(kind, WebKind)
        self.site_class = partial(WebSite, gone=kind.gone, each_run=kind.each_run)
        self._queue = rng.choice(kind.queues)
        if self._queue != MEMORY and not kind.repeats:
            # Another worker may lose what is not stored: the page that yields it is crawled again.
            kind = replace(kind, stored=1.0)
        super().__init__(world, kind, steps)
        # All of one class: a page that one records has the same links for the others. And several
        # read their start pages in each run: all else that one has recorded hides its links.
        classes = SPIDERS if kind.spiders == 1 else (Plain, Crawling)
        self._classes = [rng.choice(classes)] * kind.spiders
        self._settings = {
            "ROBOTSTXT_OBEY": rng.random() < 0.7,
            # Else a spider that finds nothing new at the start leaves all to the other one.
            "BLOOM_START_RECRAWL_AFTER": rng.choice(["run", "default"][: 3 - kind.spiders]),
        }
        self._plain_items = set[str]()
        # Of all crawls: a link to the start page may record it, and hide it from a later one.
        self._dont_filter = rng.random() < 0.7
        rules = kind.choices.get("BLOOM_RECRAWL_RULES", [[]])
        self._rules = rng.choice(rules)
        self._in_slot: dict[int, WebCrawl] = {}
        if self._queue == JOBDIR:
            self._slots *= 2
        names = [spider.__name__ for spider in self._classes]
        world.log(f"SPIDERS {names} with the queue {self._queue}, {self._settings}")

    def violations(self) -> list[str]:
        """Crawl; return what does not hold."""
        with tempfile.TemporaryDirectory() as directory, simulated_scrapy(self._world):
            self._directory = Path(directory)
            found = super().violations()
            self._world.close()
            return found

    # -- crawls --

    def _free_slot(self) -> int:
        used = {crawl.slot for crawl in self._crawls if self._queue == JOBDIR}
        return self._world.rng.choice([n for n in range(self._slots) if n not in used])

    def _make_crawl(self, name: str, settings: dict[str, Any], slot: int) -> WebCrawl:
        rng, number = self._world.rng, slot % self._kind.spiders
        drawn = {name: rng.choice(values) for name, values in CHOICES.items()}
        if self._kind.faults.stop and not self._is_ending and rng.random() < 0.3:
            drawn[rng.choice(ENDS)] = rng.randint(1, 4)
        self._world.log(f"{name}: draws {drawn}")
        crawl = WebCrawl(
            self._world,
            self._site,
            name,
            {**self._settings, **drawn, **self._queue_settings(slot), **settings},
            spider=number,
            spidercls=self._classes[number],
        )
        crawl.dont_filter = self._dont_filter
        crawl.slot, self._in_slot[slot] = slot, crawl
        return crawl

    def _queue_settings(self, slot: int) -> dict[str, Any]:
        if self._queue == JOBDIR:
            directory = self._directory / str(slot)
            if slot in self._in_slot and not self._in_slot[slot].is_clean:
                # Scrapy's queue on a disk does not survive a kill, and would stop the next crawl.
                self._world.log(f"JOBDIR {slot} is removed")
                rmtree(directory, ignore_errors=True)
            return {"JOBDIR": str(directory)}
        if self._queue in (REDIS, TRANSIENT):
            scheduler = "scrapy_redis.scheduler.Scheduler"
            return {"SCHEDULER": scheduler, "SCHEDULER_PERSIST": self._queue == REDIS}
        return {}

    def _last_rules(self) -> Any:
        return self._rules  # all other windows are removed

    def _crawl_plainly(self, spider: int) -> WebCrawl:
        """Crawl with Scrapy's own filter in memory; nothing is noted but what it gets."""
        world, self._site.is_plain = self._world, True
        world.faults = Faults()
        crawl = WebCrawl(
            world,
            self._site,
            f"plain{spider}",
            {**self._settings, "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
            spider=spider,
            spidercls=self._classes[spider],
        )
        world.run(lambda: not crawl.is_running)
        self._site.is_plain = False
        return crawl

    def _strike(self) -> None:
        super()._strike()
        world = self._world
        for crawl in self._crawls:
            if isinstance(crawl, WebCrawl) and crawl.again <= world.now:
                crawl.stop()

    def _left_by(self, owner: str, url: str, ended: Mapping[str, Crawl]) -> Crawl | None:
        crawl = super()._left_by(owner, url, ended)
        if crawl is not None or not owner.startswith("q"):
            return crawl
        # A moment after it has got a request from a shared queue, the claim is not its own yet.
        webs = (crawl for crawl in ended.values() if isinstance(crawl, WebCrawl))
        return next((web for web in webs if not web.is_clean and url in web.pages), None)

    # -- what must hold --

    def _reachable(self) -> set[str]:
        crawls = [self._crawl_plainly(number) for number in range(self._kind.spiders)]
        self._plain_items = set().union(*(crawl.items for crawl in crawls))
        return set().union(*(crawl.pages for crawl in crawls))

    def _reachable_by_first(self) -> set[str]:
        return self._site.reachable_by(0) & self._crawl_plainly(0).pages

    def _with_items(self) -> set[str]:
        return self._plain_items

    def _is_listing(self, url: str) -> bool:
        return super()._is_listing(url) or url in self._site.unfiltered | self._site.each_run

    def _left(self) -> list[str]:
        # The dead workers of windows that no crawl has stay until these expire.
        used = {span.replace(" ", "-") for _, span in self._rules}
        unused = [f":{window}:0}}:heartbeats" for window in {*self._kind.windows} - used]
        return [left for left in super()._left() if not any(key in left for key in unused)]

    def _lasting_fetches(self) -> int:
        # A page that is read in each run is crawled by a later one if it fails in this one.
        site = self._site
        left = (*site.fails.values(), *site.stumbling.values(), *site.raises.values())
        return super()._lasting_fetches() - sum(left)

    def _check(self, when: str, expected: Collection[str] = ()) -> None:
        expected = {*(expected or self._reachable())}
        more = self._site.crawled_pages.keys() - expected
        if when and self._kind.unlinks:  # no ledger has what was never filtered
            expected -= self._site.unfiltered
        super()._check(when, expected)
        self._found += [f"Scrapy does not get it: {short(url)}" for url in sorted(more)]


@dataclass(frozen=True)
class WebKind(Kind):
    """A kind of runs of Scrapy's own engine.

    Attributes:
        gone: share of the pages that are missing.
        each_run: matches the URLs of pages that are remembered for a run only.
        queues: each run has one of them.
    """

    steps: int = 800
    run: Any = WebRun
    gone: float = 0.08
    each_run: str = ""
    queues: Sequence[str] = (MEMORY, MEMORY, JOBDIR, REDIS, TRANSIENT)


def _feed(items: int) -> dict[str, Any]:
    """Return a feed in files of so many items, or in one that is stored at the end."""
    return {"simulated:%(batch_id)d": {"format": "jsonlines", "batch_item_count": items}}


_NETWORK = {"lost_request": 0.01, "lost_reply": 0.01, "late": 0.01, "partial": 0.005, "stall": 0.01}
_ENDS = {"kill": 0.004, "stop": 0.003}
_FAULTS = {**_NETWORK, **_ENDS, "jump": 0.002, "block": 0.01}
_SERVER = {"forget": 0.001, "restart": 0.001, "full": 0.001}
_WINDOWS = {"BLOOM_RECRAWL_AFTER": f"{WINDOW} minutes"}
KINDS: dict[str, Kind] = {
    "scrapy-calm": WebKind(Faults(), fails=False, repeats=False),
    "scrapy-kills": WebKind(Faults(**_ENDS), fails=False, repeats=False),
    # Not with a shared queue: by a retry that goes through it, a page may be held by two workers.
    "scrapy-failing": WebKind(Faults(), stored=1.0, repeats=False, queues=(MEMORY, JOBDIR)),
    "scrapy-errbacks": WebKind(Faults(kill=0.01), fails=False, stored=0.3, gone=0.3),
    "scrapy-listings": WebKind(
        Faults(**_FAULTS),
        each_run="[3-7]$",
        settings={"BLOOM_RECRAWL_RULES": [("[3-7]$", "run")]},
    ),
    "scrapy-faults": WebKind(Faults(**_FAULTS), raises=True),
    "scrapy-server": WebKind(
        Faults(**_FAULTS, **_SERVER),
        raises=True,
        choices={"BLOOM_PENDING_MEMORY": [4_000, 0], "BLOOM_REMEMBER": ["crawled"]},
    ),
    "scrapy-spiders": WebKind(Faults(**{**_FAULTS, "kill": 0.01}), spiders=2),
    "scrapy-items": WebKind(
        Faults(**_FAULTS), items=0.5, raises=True, settings={"BLOOM_REMEMBER": "items"}
    ),
    "scrapy-feeds": WebKind(
        Faults(**_FAULTS),
        raises=True,
        settings={"BLOOM_CONFIRM": "delivered"},
        choices={"FEEDS": [_feed(1), _feed(3), _feed(0)]},
    ),
    "scrapy-windows": WebKind(
        Faults(**{**_FAULTS, "jump": 0.01}),
        stored=1.0,
        settings={**_WINDOWS, "BLOOM_LEDGER": True},
        choices={
            "BLOOM_RECRAWL_RULES": [[], [("[02468]$", "1 hour")], [("[0-4]$", "90 minutes")]],
        },
        passes=True,
        unlinks=True,
        windows=("1-hour", "90-minutes"),
    ),
    "scrapy-scheduled": WebKind(
        Faults(**_NETWORK),
        fails=False,
        settings={"BLOOM_REMEMBER": "scheduled"},
        queues=(MEMORY, REDIS),
    ),
}
