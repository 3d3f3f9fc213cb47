"""A crawl with kills and outages at random moments, compared with one by plain Scrapy."""

import json
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from support.polling import until
from support.serving import serving

from chaos.crew import Crew, retry_failed
from chaos.site import PAGES, START, Site
from chaos.stand import STANDS, Stand

#: Requests that a worker has under way, and items of a file of a feed.
CONCURRENCY, BATCH = 4, 5
#: Seconds between heartbeats: a worker that is silent for twice as long counts as dead.
HEARTBEAT = 2
#: Pages that a kill leaves to be fetched again at most: those under way, and what is crawled in the
#: last 2 ms, which may be a quarter of a second on a busy machine.
PER_KILL = CONCURRENCY + 8
#: Pages whose items wait for a file, and for one that is being stored.
PER_FEED = 2 * BATCH
#: Pages that are fetched before the schedule begins.
FIRST = 10
#: Runs after the schedule, of which the last one has to find nothing to do.
RERUNS = 5
#: What happens to workers. One that gets SIGINT twice doesn't finish what is under way.
SIGNALS = {
    "SIGKILL": [signal.SIGKILL],
    "SIGINT": [signal.SIGINT],
    "SIGINT twice": [signal.SIGINT, signal.SIGINT],
}
MENDED = "mended"
#: Settings of each kind of queue.
QUEUES: dict[str, dict[str, object]] = {
    "memory": {},
    "JOBDIR": {"JOBDIR": "job-{worker}"},
    "scrapy-redis": {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
    },
}
PLAIN = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
#: What is delivered: items to a pipeline, or to feeds that are stored in parts.
PIPELINE = {"ITEM_PIPELINES": {"chaos.spider.NotingPipeline": 1}}
FEED = "items/%(batch_time)s-%(batch_id)05d.jsonl"
CRAWLED, DELIVERED = "crawled", "delivered"


@dataclass(frozen=True)
class Schedule:
    """What happens in a crawl: a function of a kind of stand and a number.

    Args:
        stand: the kind.
        seed: the number.
        remember: `BLOOM_REMEMBER`.
        queue: the kind of queue.
        workers: how many there are.
        events: what happens, with the seconds since the beginning.
    """

    stand: str
    seed: int
    remember: str
    queue: str
    workers: int
    events: list[tuple[float, str]]

    @classmethod
    def random(cls, stand: str, seed: int) -> "Schedule":
        """Return the schedule of a number."""
        rng, kind = Random(f"{stand}:{seed}"), STANDS[stand]
        remember, queue = rng.choice([CRAWLED, DELIVERED]), rng.choice([*QUEUES])
        times = [rng.uniform(0, kind.SECONDS) for _ in range(rng.randint(1, 4))]
        events = [(time, rng.choice([*SIGNALS, "SIGKILL"])) for time in times]
        # Outages don't overlap. While one server is away, no other one fails.
        moments = sorted(rng.uniform(0, kind.SECONDS) for _ in range(2 * rng.randint(0, 2)))
        for begin, end in zip(moments[::2], moments[1::2], strict=True):
            events += [(begin, rng.choice(kind.OUTAGES)), (end, MENDED)]
        return cls(stand, seed, remember, queue, rng.randint(2, 4), sorted(events))


@dataclass(frozen=True)
class Harvest:
    """What crawls have got: pages whose callbacks are done, and items that are stored."""

    pages: frozenset[str]
    items: frozenset[tuple[str, int, str]]

    @classmethod
    def read(cls, directory: Path) -> "Harvest":
        """Return what is noted in a directory, and stored in its feeds."""
        notes = [json.loads(line) for line in (directory / "notes").read_text().splitlines()]
        items = [note["item"] for note in notes if "item" in note]
        for feed in (directory / "items").glob("*.jsonl"):
            items += map(json.loads, feed.read_text().splitlines())
        return cls(
            frozenset(note["page"] for note in notes if "page" in note),
            frozenset((item["page"], item["number"], item["text"]) for item in items),
        )


@dataclass
class Outcome:
    """What became of a trial.

    Attributes:
        missing_pages: that plain Scrapy gets.
        missing_items: that plain Scrapy gets.
        again: how often pages were fetched again.
        struck: the events that came while the crawl was running.
        wrong: what else isn't as it should be.
    """

    schedule: Schedule
    missing_pages: list[str] = field(default_factory=list)
    missing_items: list[tuple[str, int, str]] = field(default_factory=list)
    again: int = 0
    struck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def compare(self, plain: Harvest, found: Harvest) -> None:
        """Note what is missing of what plain Scrapy gets."""
        self.missing_pages = sorted(plain.pages - found.pages)
        self.missing_items = sorted(plain.items - found.items)
        if found.pages - plain.pages or found.items - plain.items:
            self.wrong.append("plain Scrapy gets less")

    def count_again(self, fetches: Sequence[str]) -> None:
        """Note how many pages were fetched again, and whether these are too many."""
        self.again, most = len(fetches) - len(set(fetches)), self.most_again
        if most is not None and self.again > most:
            self.wrong.append(f"at most {most} may be fetched again")

    @property
    def most_again(self) -> int | None:
        """How many pages may be fetched again; None where there is no such bound.

        There is none after an outage. Nor is there one after a worker with a queue on disk was
        stopped, because the others pick up its requests, and it crawls them again when it resumes.
        """
        is_resumed = self.schedule.queue == "JOBDIR" and "SIGINT" in self.struck
        if set(self.struck) - SIGNALS.keys() or is_resumed:
            return None
        kills = sum(event != "SIGINT" for event in self.struck)
        return kills * (PER_KILL + PER_FEED * (self.schedule.remember == DELIVERED))

    @property
    def has_failed(self) -> bool:
        """Whether a promise is broken."""
        return bool(self.missing_pages or self.missing_items or self.wrong)

    def __str__(self) -> str:
        one = self.schedule
        return (
            f"{one.stand} {one.seed}: {one.workers} workers, {one.queue}, {one.remember}; "
            f"{', '.join(self.struck) or 'nothing happens'}: {len(self.missing_pages)} pages and "
            f"{len(self.missing_items)} items missing, {self.again} fetched again "
            f"{' '.join(['FAILED:', *self.wrong]) if self.has_failed else ''}".rstrip()
        )


class Trial:
    """A site, a stand, and what a schedule does to crawls of the one that remember in the other.

    Args:
        schedule: what happens.
        stand: of the schedule's kind.
        directory: for logs, notes and feeds.
    """

    def __init__(self, schedule: Schedule, stand: Stand, directory: Path) -> None:
        self._schedule, self._stand, self._directory = schedule, stand, directory
        self._rng = Random(f"trial {schedule.stand}:{schedule.seed}")
        self._outcome = Outcome(schedule)

    def run(self) -> Outcome:
        """Crawl by plain Scrapy, with the filter while things happen, and until all is quiet."""
        self._stand.clear()
        with serving(Site(self._rng)) as site:
            plain = self._directory / "plain"
            self._crew(site, plain, {**PLAIN, **PIPELINE}, 1).end()
            site.fetches.clear()
            bloom = self._directory / "bloom"
            settings = self._settings(bloom)
            self._crawl_in_trouble(site, bloom, settings)
            settings["BLOOM_TIMEOUT"] = 30
            if settings.pop("JOBDIR", None):
                # Scrapy can't read the queue of a worker that was killed at the wrong moment.
                retry_failed(settings, bloom)
            self._crawl_until_quiet(site, bloom, settings)
        self._outcome.compare(Harvest.read(plain), Harvest.read(bloom))
        self._outcome.count_again([one.path for one in site.fetches if one.path != START])
        return self._outcome

    def _settings(self, directory: Path) -> dict[str, object]:
        schedule = self._schedule
        settings: dict[str, object] = {
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
            "BLOOM_REDIS_URL": self._stand.url,
            "BLOOM_HEARTBEAT": HEARTBEAT,
            "BLOOM_REMEMBER": schedule.remember,
            "REDIS_URL": self._stand.queue.url,
            **self._stand.SETTINGS,
            **QUEUES[schedule.queue],
        }
        if schedule.remember != DELIVERED:
            return settings | PIPELINE
        return settings | {
            "FEED_STORAGES": {"staged": "chaos.spider.StagedStorage"},
            "FEEDS": {f"staged://{directory}/{FEED}": {"format": "jsonlines"}},
            "FEED_EXPORT_BATCH_ITEM_COUNT": BATCH,
            "FEED_TEMPDIR": directory / "items",
        }

    def _crew(self, site: Site, directory: Path, settings: Mapping[str, object], size: int) -> Crew:
        (directory / "items").mkdir(parents=True, exist_ok=True)
        common = {
            "START_URL": site.url + START,
            "NOTES": directory / "notes",
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "TELNETCONSOLE_ENABLED": False,
        }
        return Crew({**common, **settings}, size, directory, self._rng)

    def _crawl_in_trouble(
        self, site: Site, directory: Path, settings: Mapping[str, object]
    ) -> None:
        workers = self._schedule.workers
        # All together take a second longer than the outages.
        site.delay = (self._stand.SECONDS + 1) * workers * CONCURRENCY / PAGES
        crew = self._crew(site, directory, settings, workers)
        until(lambda: len(site.fetches) > FIRST or not crew.running, "the crawl gets under way")
        begin = time.monotonic()
        with ExitStack() as outage:
            for at, name in self._schedule.events:
                if not crew.tend(begin + at):
                    break
                self._strike(crew, name, outage)
        site.delay = 0.0
        crew.end()
        self._outcome.wrong += crew.wrong

    def _strike(self, crew: Crew, name: str, outage: ExitStack) -> None:
        if name == MENDED:
            outage.close()
        elif name not in SIGNALS:
            outage.enter_context(self._stand.outage(name, self._rng))
            self._outcome.struck.append(name)
        elif running := crew.running:
            crew.hurt(self._rng.choice(running), SIGNALS[name])
            self._outcome.struck.append(name)

    def _crawl_until_quiet(
        self, site: Site, directory: Path, settings: Mapping[str, object]
    ) -> None:
        for _ in range(RERUNS):
            before = len(site.fetches)
            crew = self._crew(site, directory, settings, 1)
            crew.end()
            self._outcome.wrong += crew.wrong
            is_quiet = {one.path for one in site.fetches[before:]} <= {START}
            if is_quiet and not self._stand.count_claims():
                return
        self._outcome.wrong.append(f"{self._stand.count_claims()} pages are still pending")
