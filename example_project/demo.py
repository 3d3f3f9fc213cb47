"""Half a year of a small site: what is crawled once, what in each run, and what again, and when.

    python example_project/demo.py

Exits with 0 when all crawls did what is promised, 1 when not, 2 when they could not be run.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

PROJECT = Path(__file__).resolve().parent
sys.path.insert(0, str(PROJECT))

try:
    from example_site.build import STORIES, Site, Truth
    from example_site.serve import SiteServer, serve
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from scrapy_bloom import BloomFilter
    from scrapy_bloom.bloom.client.connect import Connection, connect
    from scrapy_bloom.bloom.errors import BloomError
except ImportError as error:
    print(f"{error}. The demo needs: pip install 'scrapy-bloom[cli,embedded]'", file=sys.stderr)
    sys.exit(2)

#: Months of a year in which the site is crawled, one after the other.
MONTHS = ("January", "February", "March", "April", "May", "June", "July")
YEAR = 2027
#: Pages are crawled again so many months after they were first seen.
WINDOW = 5
#: Length of a month where the server's clock cannot be moved.
SECONDS = 20
#: Stories that are published before a month's crawl.
PUBLISHED = {"February": 3}
#: Seconds a crawl may take; it takes about three.
CRAWL_TIMEOUT = 120
#: Seconds the server gets to show the time it was set to.
MOVE_TIMEOUT = 5
KEY = "demo"


class DemoError(Exception):
    """The demo cannot be run; the message says why."""


class ClockError(Exception):
    """The server's clock cannot be moved; the message says why."""


# -- the server, and its clock --


@dataclass(frozen=True)
class Clock:
    """The clock of the demo's own server: libfaketime adds what is in a file to the real time.

    Attributes:
        file: Holds the seconds to add.
        preload: libfaketime's library.
    """

    file: Path
    preload: Path

    @classmethod
    def make(cls, directory: Path) -> "Clock":
        """A clock that is right so far."""
        found = importlib.util.find_spec("libfaketime")
        if sys.platform != "linux" or not found or not found.origin:
            raise ClockError("that takes Linux and pip install libfaketime")
        library = Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
        if not library.is_file():
            raise ClockError(f"there is no {library.name}")
        clock = cls(directory / "clock", library)
        clock.file.write_text("+0")
        return clock

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """A server that is started in this context goes by this clock."""
        before = dict(os.environ)
        os.environ |= {
            "LD_PRELOAD": str(self.preload),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            # Only the date moves: with this clock jumping, the server's timers would.
            "DONT_FAKE_MONOTONIC": "1",
        }
        try:
            yield
        finally:
            os.environ.clear()
            os.environ |= before

    def set(self, moment: datetime, connection: Connection) -> None:
        """Set it, and wait until the server goes by it."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{moment.timestamp() - time.time():+.0f}")
        new.replace(self.file)
        deadline = time.monotonic() + MOVE_TIMEOUT
        while abs(connection.client.time()[0] - moment.timestamp()) > MOVE_TIMEOUT + 1:
            if time.monotonic() > deadline:
                raise ClockError("the server does not go by libfaketime")
            time.sleep(0.01)


@dataclass(frozen=True)
class Storage:
    """The demo's own server, with the filter.

    Attributes:
        url: The server's address.
        connection: Keeps the server running as long as it is open.
        clock: The server's clock; None where it cannot be moved.
        why_not: Why it cannot.
    """

    url: str
    connection: Connection
    clock: Clock | None = None
    why_not: str = ""

    @property
    def window(self) -> str:
        return f"{WINDOW} months" if self.clock else f"{WINDOW * SECONDS} seconds"

    def begin(self, month: str) -> dict[str, str]:
        """Begin a month; return Scrapy's settings for its crawl."""
        settings = {
            "BLOOM_REDIS_URL": self.url,
            "BLOOM_KEY": KEY,
            "BLOOM_RECRAWL_AFTER": self.window,
        }
        if self.clock is None:
            time.sleep(SECONDS - time.time() % SECONDS)
            return settings | {"BLOOM_ROTATE_EVERY": f"{SECONDS} seconds"}
        self.clock.set(middle_of(month), self.connection)
        return settings

    def count(self) -> int:
        """How many URLs the filter remembers."""
        return BloomFilter(self.connection.client, KEY, label=self.connection.label).info().count


def middle_of(month: str) -> datetime:
    return datetime(YEAR, MONTHS.index(month) + 1, 15, 12, tzinfo=UTC)


def start_server(directory: Path) -> Storage:
    """A server of the demo's own, with a clock that can be moved if that is possible here."""
    url = f"embedded:{directory / 'valkey'}"
    try:
        clock = Clock.make(directory)
        return Storage(url, connect_moved(url, clock), clock)
    except ClockError as error:
        return Storage(url, connect(url), why_not=str(error))


def connect_moved(url: str, clock: Clock) -> Connection:
    """Start a server that goes by a clock, and make sure that it does."""
    try:
        with clock.preloaded():
            connection = connect(url)
    except BloomError as error:
        raise ClockError("the server does not start with libfaketime") from error
    try:
        clock.set(middle_of(MONTHS[0]), connection)
    except ClockError:
        connection.close()
        raise
    return connection


# -- the crawls --


@dataclass(frozen=True)
class Crawl:
    """One finished `scrapy crawl`.

    Attributes:
        title: What the table calls it.
        truth: The site as it was.
        expected: The URLs it should have fetched, each once.
        hits: What the site's server counted.
        stats: What Scrapy counted.
        new: Stories among the expected that no crawl has fetched before.
        remembered: URLs in the filter afterwards.
    """

    title: str
    truth: Truth
    expected: frozenset[str]
    hits: Counter[str]
    stats: dict[str, int]
    new: int = 0
    remembered: int = 0

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


@dataclass
class Promise:
    """What scrapy-bloom should remember, by its definition: when each URL was first seen.

    Being seen again changes nothing; after `WINDOW` months, a URL is new again.
    """

    first_seen: dict[str, int] = field(default_factory=dict)

    def crawl(self, truth: Truth, month: int) -> frozenset[str]:
        """Every URL that the crawl of a month should fetch, each of them once."""
        due = {
            url
            for url in truth.lasting
            if url not in self.first_seen or self.first_seen[url] + WINDOW <= month
        }
        self.first_seen |= dict.fromkeys(due, month)
        return frozenset(due | truth.hubs | {"/robots.txt"})


class Demo:
    """A site, its server and a filter; `crawl` is one run of the spider.

    Args:
        directory: For stats and logs.
        server: Serves the site.
        storage: Where the filter is.
        progress: Shows how far a crawl is.
    """

    def __init__(
        self, directory: Path, server: SiteServer, storage: Storage, progress: Progress
    ) -> None:
        self.directory = directory
        self.server = server
        self.storage = storage
        self.progress = progress
        self.promise = Promise()

    def crawl(self, month: str, truth: Truth) -> Crawl:
        """Run `scrapy crawl links` in the middle of a month."""
        known = frozenset(self.promise.first_seen)
        expected = self.promise.crawl(truth, MONTHS.index(month))
        before = self.server.hits()
        stats = self._run_scrapy(month, len(expected))
        return Crawl(
            title=month,
            truth=truth,
            expected=expected,
            hits=self.server.hits() - before,
            stats=stats,
            new=len((expected & truth.stories) - known),
            remembered=self.storage.count(),
        )

    def _run_scrapy(self, month: str, total: int) -> dict[str, int]:
        stats, log = self.directory / "stats.json", self.directory / "crawl.log"
        settings = {"SITE_URL": self.server.url, "STATS_FILE": str(stats)}
        stats.unlink(missing_ok=True)
        with log.open("wb") as output:
            crawler = subprocess.Popen(
                scrapy_crawl(settings | self.storage.begin(month)),
                cwd=PROJECT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                self._watch(crawler, month, total)
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


def scrapy_crawl(settings: Mapping[str, str]) -> list[str]:
    """The command line."""
    options = [text for name, value in settings.items() for text in ("-s", f"{name}={value}")]
    return [sys.executable, "-m", "scrapy", "crawl", "links", *options]


def run(console: Console) -> tuple[list[Crawl], Storage]:
    """Build the site and crawl it month by month, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-demo-") as name:
        directory = Path(name)
        site = Site.build(directory / "site", STORIES)
        storage = start_server(directory)
        with (
            closing(storage.connection),
            serve(site.directory) as server,
            progress_bar(console) as progress,
        ):
            demo = Demo(directory, server, storage, progress)
            crawls = []
            for month in MONTHS:
                if month in PUBLISHED:
                    site = site.publish(PUBLISHED[month])
                crawls.append(demo.crawl(month, site.truth()))
            return crawls, storage


# -- what is printed --


def progress_bar(console: Console) -> Progress:
    """Title, bar, URLs fetched of those expected, and the time it takes."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), console=console)


def report(console: Console, crawls: list[Crawl], storage: Storage) -> None:
    """A table of the crawls and what it means."""
    title = f'scrapy crawl links, with BLOOM_RECRAWL_AFTER = "{storage.window}"'
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("Listings\nread", "Stories\nnew", "Stories\nagain"):
        table.add_column(heading, justify="right")
    for heading in ("Duplicates\ndropped", "URLs\nremembered"):
        table.add_column(heading, justify="right")
    for crawl in crawls:
        dropped = crawl.stats.get("dupefilter/filtered", 0)
        stories = crawl.new, crawl.stories - crawl.new
        numbers = crawl.listings, *stories, dropped, crawl.remembered
        table.add_row(crawl.title, *(f"{number:,}" for number in numbers))
    console.print(table)
    console.print(EXPLANATION)
    console.print(
        "The months passed on the clock of the demo's own server, which it moved."
        if storage.clock
        else f"The server's clock could not be moved ({storage.why_not}), so each month took "
        f"{SECONDS} seconds."
    )


EXPLANATION = """\
Every crawl reads the listings, to find what is new, and each new story once.
In June the stories of January are due: they are read again, although all crawls
have met their links. In July those that were published in February follow."""


def main() -> int:
    """Run the demo; return its exit code."""
    # Being told to end is like Ctrl-C: the crawl and the server end first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    try:
        crawls, storage = run(console)
    except (ClockError, DemoError, BloomError, OSError) as error:
        console.print(f"The demo cannot run: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 2
    report(console, crawls, storage)
    problems = [problem for crawl in crawls for problem in crawl.problems()]
    for problem in problems:
        console.print(f"Not as promised: {problem}", style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
