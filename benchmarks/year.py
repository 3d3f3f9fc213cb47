"""``python -m benchmarks.year``: a year of a news site, two runs a month, for several dupefilters.

The clock of the server moves; nothing else is simulated: each run is a crawl in a process of its
own, of a site on this machine. DeltaFetch takes part where it starts, with Scrapy 2.13.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scrapy import version_info

from benchmarks.contestants import servers
from benchmarks.report import Table, console, progress

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.clock import MovedServer
from support.odd_site import Lab, Reply, serve

#: Days of a month on which the site is crawled; the window, in months, and its period.
DAYS = (3, 18)
MONTHS, WINDOW, PERIOD = 12, 6, 1
#: Stories on a page of a listing, and sections.
STORIES_A_PAGE, SECTIONS = 20, 3
#: As people write it: an item a story, and nothing about what is fetched again.
SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class NewsSpider(CrawlSpider):
    name = "odd"
    rules = [
        Rule(LinkExtractor(allow=r"/story/"), callback="parse_story"),
        Rule(LinkExtractor(allow=r"/section/")),
    ]

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.start_urls = [crawler.settings["SITE_URL"] + "/"]
        return spider

    def parse_story(self, response):
        yield {"url": response.url}
"""
WINDOWED = {"BLOOM_RECRAWL_AFTER": f"{WINDOW} months"}
#: Policy -> settings; {redis} and {directory} are replaced.
POLICIES: Mapping[str, Mapping[str, str]] = {
    '"items"': {**WINDOWED, "BLOOM_REMEMBER": "items"},
    '"crawled", listings marked': {
        **WINDOWED,
        "BLOOM_RECRAWL_RULES": r'[["/section/", "run"]]',
    },
    '"crawled", listings not marked': WINDOWED,
    "a SET kept for ever (scrapy-redis)": {
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": "True",
        "REDIS_URL": "{redis}",
    },
    "DeltaFetch": {
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
        "SPIDER_MIDDLEWARES": '{{"scrapy_deltafetch.DeltaFetch": 100}}',
        "DELTAFETCH_ENABLED": "True",
        "DELTAFETCH_DIR": "{directory}",
    },
}


class News:
    """A site: a home page, sections with paginated listings, newest first, and stories.

    Attributes:
        count: stories that are published.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def reply(self, path: str) -> Reply:
        """Return the page at a path."""
        sections = [f"/section/{number}" for number in range(SECTIONS)]
        if path == "/":
            return Reply([*sections, *(f"/story/{n}" for n in range(self.count)[-10:])])
        _, kind, rest = path.split("/")
        if kind == "section":
            return self._listing(*map(int, f"{rest}?page=0".split("?page=")[:2]))
        number = int(rest)
        if number >= self.count:
            return Reply(status=404)
        related = [n for n in (number - SECTIONS, number + SECTIONS) if 0 <= n < self.count]
        return Reply(["/", *sections, *(f"/story/{n}" for n in related)], text="story")

    def _listing(self, section: int, page: int) -> Reply:
        stories = range(section, self.count, SECTIONS)[::-1]
        shown = stories[page * STORIES_A_PAGE : (page + 1) * STORIES_A_PAGE]
        links = [f"/story/{number}" for number in shown]
        if (page + 1) * STORIES_A_PAGE < len(stories):
            links.append(f"/section/{section}?page={page + 1}")
        return Reply(links)


@dataclass
class Year:
    """What was fetched in a year.

    Args:
        fetched: pages in all.
        listings: those of them that are no stories.
        missed: stories that a run should have found new, and did not fetch.
        twice: times that a story was fetched again before its time, or twice in a run.
        overdue: times that a run did not fetch a story that was last fetched longer ago than the
            window, and that is still linked.
    """

    fetched: int = 0
    listings: int = 0
    missed: int = 0
    twice: int = 0
    overdue: int = 0
    times: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def add(self, hits: Counter[str], month: int, count: int) -> None:
        """Count a run in a month, when so many stories are published."""
        self.fetched += hits.total()
        stories = {path: times for path, times in hits.items() if path.startswith("/story/")}
        self.listings += hits.total() - sum(stories.values())
        for path, times in stories.items():
            self.twice += times - 1
            self.times[path].append(month)
        for number in range(count):
            fetched = self.times.get(f"/story/{number}", [])
            self.missed += not fetched
            self.overdue += bool(fetched) and month - fetched[-1] >= WINDOW

    def end(self) -> None:
        """Count what was fetched before its time."""
        for months in self.times.values():
            self.twice += sum(
                later - earlier < WINDOW - PERIOD for earlier, later in pairwise(months)
            )


@contextmanager
def lab(news: News, moved: MovedServer) -> Iterator[Lab]:
    """Serve the site, and crawl it with the server whose clock moves."""
    with TemporaryDirectory() as directory, serve({}) as site:
        site.rest = news.reply
        with Lab(site, moved.url, Path(directory)) as made:
            yield made


def year(
    moved: MovedServer, settings: Mapping[str, Any], new: int, *, months: int = MONTHS
) -> Year:
    """Crawl for a year.

    Args:
        moved: the server; its data is deleted.
        settings: of the policy.
        new: stories that are published each month, half of them before each run.
        months: how many.
    """
    found, news = Year(), News(new)
    with lab(news, moved) as crawls:
        crawls.client.flushall()
        places = {"redis": moved.url, "directory": crawls.directory / "state"}
        given = {name: value.format(**places) for name, value in settings.items()}
        for month in range(months):
            for day in DAYS:
                moved.set_time(datetime(2027 + month // 12, 1 + month % 12, day, tzinfo=UTC))
                news.count += new // len(DAYS)
                done = crawls.crawl(SPIDER, **given)
                assert done.stats["finish_reason"] == "finished", done.log
                found.add(done.hits, month, news.count)
    found.end()
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.year", description=__doc__)
    parser.add_argument("--new", type=int, default=300, help="new stories a month")
    new = parser.parse_args().new
    policies = dict(POLICIES)
    if version_info >= (2, 14):
        del policies["DeltaFetch"]
    columns = ("policy", "fetched", "listings", "missed", "twice in a window", "overdue")
    table = Table(f"A year, {new} new stories a month", columns)
    with MovedServer(servers(full=False)[0]) as moved, progress() as bar:
        for name, settings in bar.track(policies.items(), description="A year"):
            found = year(moved, settings, new)
            numbers = (found.fetched, found.listings, found.missed, found.twice, found.overdue)
            table.add(name, *(f"{number:,}" for number in numbers))
    console.print(table.to_rich())


if __name__ == "__main__":
    main()
