"""Two crawls of a small site: the first fetches all of it, the second only what is new.

    python example_project/demo.py

Exits with 0 when both crawls did what is promised, 1 when not, 2 when they could not be run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent
sys.path.insert(0, str(PROJECT))

try:
    from example_site.build import Site, Truth
    from example_site.serve import SiteServer, serve
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from scrapy_bloom import BloomError, BloomFilter, FilterInfo
    from scrapy_bloom.connection import connect
except ImportError as error:
    print(f"{error}. The demo needs: pip install 'scrapy-bloom[cli,embedded]'", file=sys.stderr)
    sys.exit(2)

#: Stories that are published between the two crawls.
NEW_STORIES = 3
#: Seconds a crawl may take; it takes about three.
CRAWL_TIMEOUT = 120
#: The filter's key, so that `--redis-url` does not touch anybody's crawl.
KEY = "scrapy-bloom-demo"


class DemoError(Exception):
    """The demo cannot be run; the message says why."""


@dataclass(frozen=True)
class Crawl:
    """One finished `scrapy crawl`.

    Attributes:
        title: What the table calls it.
        truth: The site as it was.
        expected: The URLs it should have fetched, each once.
        hits: What the site's server counted.
        stats: What Scrapy counted.
        filter: The filter afterwards.
    """

    title: str
    truth: Truth
    expected: frozenset[str]
    hits: Counter[str]
    stats: dict[str, int]
    filter: FilterInfo

    @property
    def stories(self) -> int:
        return sum(self.hits[url] for url in self.truth.stories)

    @property
    def listings(self) -> int:
        return sum(self.hits[url] for url in self.truth.hubs)

    def problems(self) -> list[str]:
        """What differs from the promise, by the access counts of the site's own server."""
        groups = {
            "not fetched": self.expected - self.hits.keys(),
            "fetched without need": self.hits.keys() - self.expected,
            "fetched more than once": {url for url, count in self.hits.items() if count > 1},
        }
        problems = [
            f"{len(urls)} URLs {what}, such as {min(urls)}" for what, urls in groups.items() if urls
        ]
        scrapy = self.stats.get("pages/stories", 0), self.stats.get("pages/listings", 0)
        server = self.stories, self.listings
        if scrapy != server:
            problems.append(f"Scrapy counted {scrapy} stories and listings, the server {server}")
        return [f"{self.title}: {problem}" for problem in problems]


class Demo:
    """A site, its server and a filter; `crawl` is one run of the spider.

    Args:
        directory: For stats and logs.
        server: Serves the site.
        redis_url: Where the filter is.
        progress: Shows how far a crawl is.
    """

    def __init__(
        self, directory: Path, server: SiteServer, redis_url: str, progress: Progress
    ) -> None:
        self.directory = directory
        self.server = server
        self.redis_url = redis_url
        self.progress = progress

    def crawl(self, title: str, truth: Truth, known: Truth | None = None) -> Crawl:
        """Run `scrapy crawl links`; `known` is what earlier crawls have seen of the site."""
        expected = truth.crawl(known)
        before = self.server.hits()
        stats = self._run_scrapy(title, len(expected))
        hits = self.server.hits() - before
        return Crawl(title, truth, expected, hits, stats, read_filter(self.redis_url))

    def _run_scrapy(self, title: str, total: int) -> dict[str, int]:
        stats, log = self.directory / "stats.json", self.directory / "crawl.log"
        settings = {
            "SITE_URL": self.server.url,
            "BLOOM_REDIS_URL": self.redis_url,
            "BLOOM_KEY": KEY,
            "STATS_FILE": stats,
        }
        command = [sys.executable, "-m", "scrapy", "crawl", "links"]
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        with log.open("wb") as output:
            crawler = subprocess.Popen(
                command, cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                self._watch(crawler, title, total)
            finally:
                crawler.kill()
                crawler.wait()
        if crawler.returncode or not stats.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise DemoError(f"scrapy crawl ended with code {crawler.returncode}:\n{tail}")
        counts: dict[str, int] = json.loads(stats.read_text())
        return counts

    def _watch(self, crawler: subprocess.Popen[bytes], title: str, total: int) -> None:
        """Move the progress bar until the crawl is over."""
        before = self.server.hits().total()
        task = self.progress.add_task(title, total=total)
        deadline = time.monotonic() + CRAWL_TIMEOUT
        while crawler.poll() is None:
            if time.monotonic() > deadline:
                raise DemoError(f"the crawl did not end within {CRAWL_TIMEOUT} s")
            self.progress.update(task, completed=self.server.hits().total() - before)
            time.sleep(0.05)
        self.progress.update(task, completed=self.server.hits().total() - before)


def read_filter(redis_url: str) -> FilterInfo:
    """What the filter holds and takes."""
    with closing(connect(redis_url)) as connection:
        return BloomFilter(connection.client, KEY, label=connection.label).info()


def remove_filter(redis_url: str) -> None:
    """Leave nothing of the demo on a server; also shows whether there is one."""
    with closing(connect(redis_url)) as connection:
        BloomFilter(connection.client, KEY, label=connection.label).open()
        for key in connection.client.scan_iter(f"{{{KEY}:*", count=1000):
            connection.client.delete(key)


def run(console: Console, port: int, redis_url: str | None) -> list[Crawl]:
    """Build the site and crawl it twice, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-demo-") as name:
        directory = Path(name)
        url = redis_url or f"embedded:{directory / 'valkey'}"
        remove_filter(url)
        site = Site.build(directory / "site")
        try:
            with serve(site.directory, port) as server, progress_bar(console) as progress:
                demo = Demo(directory, server, url, progress)
                known = site.truth()
                first = demo.crawl("Run 1", known)
                site.publish(NEW_STORIES)
                truth = Site.open(site.directory).truth()
                return [first, demo.crawl("Run 2", truth, known)]
        finally:
            remove_filter(url)


def progress_bar(console: Console) -> Progress:
    """Title, bar, URLs fetched of those expected, and the time it takes."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), console=console)


def report(console: Console, crawls: list[Crawl]) -> None:
    """A table of the crawls and what it means."""
    table = Table(title="scrapy crawl links, twice", title_justify="left")
    for heading in ("", "Pages fetched", "Stories", "Listings"):
        table.add_column(heading, justify="right")
    for heading in ("Duplicates\ndropped", "URLs\nremembered", "Bits per\nURL"):
        table.add_column(heading, justify="right")
    for crawl in crawls:
        pages, dropped = crawl.stories + crawl.listings, crawl.stats.get("dupefilter/filtered", 0)
        numbers = pages, crawl.stories, crawl.listings, dropped, crawl.filter.count
        bits = f"{crawl.filter.bits_per_url:.1f}"
        table.add_row(crawl.title, *(f"{number:,}" for number in numbers), bits)
    console.print(table)
    first, second = crawls
    console.print(
        f"Run 1 found {first.stories} stories and read each of them once. Then {NEW_STORIES} more "
        f"were published, and run 2 read the {second.stories} new ones and the listings, which "
        "it needs to find what is new."
    )
    console.print(
        "What both runs know is in Redis: the stories, and the moved and dead addresses that they "
        f"link. The filter has room for {second.filter.capacity:,} URLs in "
        f"{second.filter.memory / 1e6:.1f} MB."
    )


def main() -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="the site's; default: any free one")
    parser.add_argument("--redis-url", help="default: a server of the demo's own (embedded:)")
    options = parser.parse_args()
    console = Console()
    try:
        crawls = run(console, options.port, options.redis_url)
    except (DemoError, BloomError) as error:
        console.print(f"The demo cannot run: {error}", style="red", markup=False)
        return 2
    except (OSError, OverflowError) as error:
        hint = f" (the site's port: {options.port})" if options.port else ""
        console.print(f"The demo cannot run: {error}{hint}", style="red", markup=False)
        return 2
    report(console, crawls)
    problems = [problem for crawl in crawls for problem in crawl.problems()]
    for problem in problems:
        console.print(f"Not as promised: {problem}", style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
