"""``python -m benchmarks.ledger``: pages that lose their links, or vanish, with BLOOM_LEDGER.

Years of a site, two runs a month. The clock of the server moves; nothing else is simulated: each
run is a crawl in a process of its own, of a site on this machine.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count as count_from
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from benchmarks.contestants import servers
from benchmarks.report import Table, console, progress

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.clock import MovedServer
from support.odd_site import Lab, Reply, serve
from support.polling import until

#: Days of a month on which the site is crawled.
DAYS = (3, 18)
#: The window, in months; its period is a month.
WINDOW = 6
#: Months in which pages are published, half of them before each run.
PUBLISHING = 2
LISTINGS = 3
KEY = "odd:bloom"
#: Share of the runs that begin with a crawl that is killed, for policies with kills.
KILLS = 0.5
#: Of a policy, not of Scrapy: whether crawls are killed.
WITH_KILLS = "WITH_KILLS"
#: As people write it: an item a page, and nothing about what is fetched again.
SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class ArchiveSpider(CrawlSpider):
    name = "odd"
    rules = [
        Rule(LinkExtractor(allow=r"/page/"), callback="parse_page", follow=True),
        Rule(LinkExtractor(allow=r"/listing/")),
    ]

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.start_urls = [crawler.settings["SITE_URL"] + "/"]
        return spider

    def parse_page(self, response):
        yield {"url": response.url}
"""
CRAWLED = {"BLOOM_RECRAWL_RULES": r'[["/listing/", "run"]]'}
ITEMS = {"BLOOM_REMEMBER": "items"}
LEDGER = {"BLOOM_LEDGER": "True"}
#: Policy -> settings; all have the window.
POLICIES: Mapping[str, Mapping[str, str]] = {
    '"crawled", listings marked': CRAWLED,
    '"crawled", BLOOM_LEDGER': {**CRAWLED, **LEDGER},
    '"crawled", BLOOM_LEDGER, kill -9': {**CRAWLED, **LEDGER, WITH_KILLS: "True"},
    '"items"': ITEMS,
    '"items", BLOOM_LEDGER': {**ITEMS, **LEDGER},
    '"items", BLOOM_LEDGER, kill -9': {**ITEMS, **LEDGER, WITH_KILLS: "True"},
}


@dataclass
class Archive:
    """A site: a home page, listings, and pages that link their neighbours.

    Attributes:
        count: pages that are published.
        is_old: whether a fifth of them has lost all links, and a tenth has vanished.
    """

    count: int = 0
    is_old: bool = False

    def has_vanished(self, number: int) -> bool:
        """Whether a page is answered with 404: each tenth, later."""
        return self.is_old and number % 10 == 9

    def is_lost(self, number: int) -> bool:
        """Whether a page answers, and no page links it: two of ten, later."""
        return self.is_old and number % 10 in (3, 6)

    def is_linked(self, number: int) -> bool:
        """Whether pages link it: also half of those that have vanished."""
        return not (self.is_lost(number) or (self.has_vanished(number) and number % 20 == 9))

    def reply(self, path: str) -> Reply:
        """Return the page at a path."""
        if path == "/":
            return Reply([f"/listing/{number}" for number in range(LISTINGS)])
        kind, number = path.split("/")[1], int(path.rpartition("/")[2])
        if kind == "listing":
            return Reply(self._links(range(number, self.count, LISTINGS)))
        if number >= self.count or self.has_vanished(number):
            return Reply(status=404)
        near = range(max(0, number - 2), min(self.count, number + 3))
        return Reply(["/", *self._links(near)], text="page")

    def _links(self, numbers: range) -> list[str]:
        return [f"/page/{number}" for number in numbers if self.is_linked(number)]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A page was fetched.

    Args:
        month: in which.
        run: the number of the run: crawls that are killed belong to the one that ends.
        is_recorded: whether the page was recorded; a crawl that is killed may have no time for it.
    """

    month: int
    run: int
    is_recorded: bool


@dataclass
class Found:
    """What was fetched, of pages that are no listings, and what was found.

    Args:
        window: in months.
        fetched: pages in all.
        overdue: times that a run did not fetch a page that was forgotten before it.
        never: pages without links that were overdue and not fetched by the last run either.
        twice: times that a page was fetched again that was recorded, and not forgotten.
        repeated: times that a page was fetched again because the crawl before was killed.
        kills: crawls that were killed.
        wrong: pages that were listed as gone, and are not.
        unlisted: pages that were missing in two windows, and were not listed as gone.
        gone: pages that were listed as gone in the end.
        due: stat: requests of the ledger that were looked at.
        proposed: stat: requests of the ledger that were fetched.
        bytes_a_url: of the ledger in the end, on the server; 0 without one.
    """

    window: int
    fetched: int = 0
    overdue: int = 0
    never: int = 0
    twice: int = 0
    repeated: int = 0
    kills: int = 0
    wrong: int = 0
    unlisted: int = 0
    gone: int = 0
    due: int = 0
    proposed: int = 0
    bytes_a_url: float = 0.0
    fetches: dict[int, list[Fetch]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def add(self, hits: Counter[str], month: int, run: int, recorded: set[str] | None) -> None:
        """Count what a crawl has fetched.

        Args:
            hits: how often it fetched each path.
            month: in which month.
            run: the number of the run.
            recorded: paths that are recorded; None if the crawl has come to its end.
        """
        for path, times in hits.items():
            if path.startswith("/page/"):
                fetch = Fetch(month, run, recorded is None or path in recorded)
                self.fetches[int(path.rpartition("/")[2])] += [fetch] * times
                self.fetched += times

    def check(self, archive: Archive, month: int, gone: set[int]) -> None:
        """Count what is overdue, and what is listed, after a run that was not killed."""
        late = [
            number
            for number in range(archive.count)
            if self._last(number) <= month - self.window
            and (archive.is_linked(number) or number not in gone)
        ]
        self.overdue += len(late)
        self.never = sum(archive.is_lost(number) for number in late)
        self.wrong += sum(not archive.has_vanished(number) for number in gone)
        self.unlisted += sum(
            number not in gone
            for number in range(archive.count)
            if archive.has_vanished(number) and self._windows_missing(number) >= 2
        )
        self.gone = len(gone)

    def end(self) -> None:
        """Count what was fetched before its time."""
        for fetches in self.fetches.values():
            for earlier, later in pairwise(fetches):
                if not earlier.is_recorded and later.run == earlier.run:
                    self.repeated += 1
                else:
                    self.twice += later.month - earlier.month < self.window

    def _last(self, number: int) -> float:
        """Return the month in which a page was fetched last; before all of them if never."""
        fetches = self.fetches.get(number)
        return fetches[-1].month if fetches else float("-inf")

    def _windows_missing(self, number: int) -> int:
        """Return in how many windows a page was fetched that is missing since the first ones."""
        return len({fetch.month for fetch in self.fetches[number] if fetch.month >= PUBLISHING})


@contextmanager
def lab(archive: Archive, moved: MovedServer) -> Iterator[Lab]:
    """Serve the site, and crawl it with the server whose clock moves."""
    with TemporaryDirectory() as directory, serve({}) as site:
        site.rest = archive.reply
        with Lab(site, moved.url, Path(directory)) as made:
            yield made


def years(
    moved: MovedServer,
    settings: Mapping[str, str],
    count: int,
    *,
    window: int = WINDOW,
    seed: int = 1,
) -> Found:
    """Crawl for two windows after the first runs, and a month.

    Args:
        moved: the server; its data is deleted.
        settings: of the policy.
        count: pages.
        window: in months.
        seed: of the moments at which crawls are killed.
    """
    found, archive, rng = Found(window), Archive(), random.Random(seed)
    given = {"BLOOM_RECRAWL_AFTER": f"{window} months", **settings}
    with_kills = given.pop(WITH_KILLS, "") == "True"
    runs, longest = count_from(0), 0.0
    with lab(archive, moved) as crawls:
        crawls.client.flushall()
        for month in range(2 * window + PUBLISHING + 1):
            archive.is_old = month >= PUBLISHING
            for day in DAYS:
                moved.set_time(datetime(2027 + month // 12, 1 + month % 12, day, tzinfo=UTC))
                if not archive.is_old:
                    archive.count += count // (PUBLISHING * len(DAYS))
                run = next(runs)
                while with_kills and longest and rng.random() < KILLS:
                    hits, was_killed = _kill(crawls, rng.uniform(0, longest), given)
                    found.add(hits, month, run, crawls.recorded() if was_killed else None)
                    found.kills += was_killed
                done = crawls.crawl(SPIDER, **given)
                assert done.stats["finish_reason"] == "finished", done.log
                assert "Traceback" not in done.log, done.log
                longest = max(longest, done.stats["elapsed_time_seconds"])
                found.due += done.stats.get("bloom/ledger_due", 0)
                found.proposed += done.stats.get("bloom/proposed", 0)
                found.add(done.hits, month, run, None)
                found.check(archive, month, gone(crawls))
        found.bytes_a_url = bytes_a_url(crawls.client, archive.count - found.gone)
    found.end()
    return found


def _kill(crawls: Lab, seconds: float, settings: Mapping[str, str]) -> tuple[Counter[str], bool]:
    """Kill a crawl so long after its spider was opened; return what it fetched, and if it was."""
    before = crawls.site.hits()
    with crawls.start(SPIDER, **settings) as crawl:
        until(lambda: "Spider opened" in crawl.log or crawl.is_over, "the spider is opened")
        time.sleep(seconds)
        was_killed = not crawl.is_over
        crawl.kill()
    return crawls.site.hits() - before, was_killed


def gone(crawls: Lab) -> set[int]:
    """Return the pages that ``scrapy bloom gone`` lists."""
    command = (
        "bloom",
        "gone",
        "--json",
        "--limit",
        "0",
        "-s",
        f"BLOOM_REDIS_URL={crawls.redis_url}",
    )
    out, errors = crawls.directory / "gone.json", crawls.directory / "gone.log"
    out.unlink(missing_ok=True)
    pid = crawls.nursery.start([*command, "--key", KEY], out, crawls.directory, errors=errors)
    assert crawls.nursery.wait(pid) == 0, errors.read_text()
    pages = json.loads(out.read_text())["pages"]
    return {int(page["url"].rpartition("/")[2]) for page in pages}


def bytes_a_url(client: redis.Redis, count: int) -> float:
    """Return the bytes that a ledger takes on the server, of so many pages."""
    keys = client.scan_iter(f"{{{KEY}:*}}:ledger*", count=1_000)
    return sum(client.memory_usage(key, samples=0) or 0 for key in keys) / count


COLUMNS = (
    *("policy", "fetched", "overdue", "never", "twice in a window", "kills", "after a kill"),
    *("vanished", "listed as gone", "wrong", "bytes a URL"),
)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.ledger", description=__doc__)
    parser.add_argument("--pages", type=int, default=600, help="of the site")
    parser.add_argument("--window", type=int, default=WINDOW, help="in months")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    options = parser.parse_args()
    count, window = options.pages, options.window
    table = Table(f"{count} pages, two windows of {window} months, two runs a month", COLUMNS)
    moved = MovedServer(servers(full=False)[0])
    with moved, progress() as bar:
        for name, settings in bar.track(POLICIES.items(), description="Years"):
            one = {**settings, "BLOOM_BLOCKS": "1"}  # as full as blocks of a large filter
            found = years(moved, one, count, window=window, seed=options.seed)
            numbers = (found.fetched, found.overdue, found.never, found.twice, found.kills)
            listed = (found.repeated, count // 10, found.gone, found.wrong)
            table.add(name, *(f"{n:,}" for n in (*numbers, *listed)), f"{found.bytes_a_url:.0f}")
    console.print(table.to_rich())


if __name__ == "__main__":
    main()
