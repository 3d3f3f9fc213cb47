"""Shows what scrapy-bloom does, on a site and on servers that it starts, and checks each step.

    python demo.py

The exit code is 1 if a crawl didn't do what is promised.
"""

import contextlib
import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from example_site import STORIES, Magazine, serve

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connect import Connection, connect

PROJECT = Path(__file__).resolve().parent
MONTHS = ("January", "February", "March", "April", "May", "June", "July")
YEAR = 2027
#: Pages are crawled again so many months after they were first seen.
WINDOW = 5
#: Length of a month where the server's clock can't be moved.
SECONDS = 20
#: Seconds that a crawl, or the clock, may take. They take three, and less than one.
CRAWL_TIMEOUT, CLOCK_TIMEOUT = 120, 10
#: Fetched pages after which a worker is killed.
ENOUGH = 80


class DemoError(Exception):
    """A crawl hasn't done what is promised."""


def expect(is_so: bool, promise: str) -> None:
    """Check a promise."""
    if not is_so:
        raise DemoError(promise)


class Clock:
    """The clock of the demo's server: libfaketime adds what is in a file to the real time."""

    def __init__(self, directory: Path) -> None:
        found = importlib.util.find_spec("libfaketime") if sys.platform == "linux" else None
        self.file = directory / "clock"
        self.file.write_text("+0")
        vendored = "vendor/libfaketime/src/libfaketime.so.1"
        self.library = Path(str(found.origin)).parent / vendored if found else None

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a server that goes by this clock."""
        if self.library is None:
            return {}
        return {
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            # Only the date moves. Otherwise, the server's timers would jump, too.
            "DONT_FAKE_MONOTONIC": "1",
        }

    def settings(self) -> dict[str, str]:
        """Return the settings that make pages new again after some months."""
        if self.library:
            return {"BLOOM_RECRAWL_AFTER": f"{WINDOW} months"}
        window, interval = f"{WINDOW * SECONDS} seconds", f"{SECONDS} seconds"
        return {"BLOOM_RECRAWL_AFTER": window, "BLOOM_ROTATE_EVERY": interval}

    def begin(self, month: int, connection: Connection) -> None:
        """Move the clock to the middle of a month, or wait for the next one."""
        if self.library is None:
            time.sleep(SECONDS - time.time() % SECONDS)
            return
        moment = datetime(YEAR, month + 1, 15, tzinfo=UTC).timestamp()
        new = self.file.with_suffix(".new")
        new.write_text(f"{moment - time.time():+.0f}")
        new.replace(self.file)
        deadline = time.monotonic() + CLOCK_TIMEOUT
        while abs(connection.client.time()[0] - moment) > CLOCK_TIMEOUT:
            expect(time.monotonic() < deadline, "the server goes by libfaketime's clock")
            time.sleep(0.01)


class Stand:
    """A magazine, and a directory in which spiders crawl it.

    Args:
        magazine: the site.
        url: where it is served.
        directory: of the crawls; an embedded server has its data there.
    """

    def __init__(self, magazine: Magazine, url: str, directory: Path) -> None:
        self.magazine, self.url, self.directory = magazine, url, directory
        self.server = f"embedded:{directory / 'valkey'}"

    def start(
        self, spider: str, project: str = "settings", **settings: str
    ) -> subprocess.Popen[str]:
        """Start `scrapy crawl`."""
        settings = {"SITE_URL": f"{self.url}/", "BLOOM_REDIS_URL": self.server, **settings}
        options = [text for name, value in settings.items() for text in ("-s", f"{name}={value}")]
        return subprocess.Popen(
            [sys.executable, "-m", "scrapy", "crawl", spider, *options],
            cwd=self.directory,
            env=os.environ
            | {"PYTHONPATH": str(PROJECT), "SCRAPY_SETTINGS_MODULE": f"magazine.{project}"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, crawl: subprocess.Popen[str]) -> str:
        """Wait until a crawl has ended; return its log."""
        log = crawl.communicate(timeout=CRAWL_TIMEOUT)[1]
        expect(crawl.returncode == 0 and "ERROR" not in log, f"a crawl has no errors:\n{log}")
        return log

    def kill(self, crawl: subprocess.Popen[str]) -> None:
        """Kill a crawl once some pages were fetched."""
        deadline = time.monotonic() + CRAWL_TIMEOUT
        while self.magazine.hits.total() < ENOUGH:
            expect(time.monotonic() < deadline, "a crawl fetches pages")
            time.sleep(0.01)
        crawl.kill()
        crawl.communicate()

    def again(self) -> int:
        """Return how many fetches of stories were not the first of the story."""
        return sum(self.magazine.hits[story] - 1 for story in self.magazine.stories)


@contextlib.contextmanager
def stand() -> Iterator[Stand]:
    """Make a new magazine and an empty directory."""
    magazine = Magazine()
    # A server may write its files while they are deleted.
    directory = tempfile.TemporaryDirectory(prefix="bloom-demo-", ignore_cleanup_errors=True)
    with directory as name, serve(magazine) as url:
        yield Stand(magazine, url, Path(name))


@contextlib.contextmanager
def running(url: str, environment: Mapping[str, str] = {}) -> Iterator[Connection]:
    """Keep an embedded server running. It's started with further environment variables."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        connection = connect(url)
    finally:
        os.environ.clear()
        os.environ.update(before)
    with contextlib.closing(connection):
        yield connection


def half_a_year() -> None:
    """Crawl every month: stories are read once, and again after five months."""
    with stand() as here:
        clock = Clock(here.directory)
        settings = clock.settings()
        print(f"Half a year, with BLOOM_RECRAWL_AFTER = {settings['BLOOM_RECRAWL_AFTER']!r}\n")
        print("           listings   stories  stories  duplicates        URLs")
        print("               read       new    again     dropped  remembered")
        first_seen: dict[str, int] = {}
        with running(here.server, clock.environment()) as connection:
            for month, name in enumerate(MONTHS):
                if name == "February":
                    here.magazine.publish(3)
                clock.begin(month, connection)
                before = here.magazine.hits.copy()
                log = here.finish(here.start("links", BLOOM_KEY="demo", **settings))
                hits = here.magazine.hits - before
                check_month(here.magazine, first_seen, month, hits)
                info = BloomFilter(connection.client, "demo").info()
                print(f"{name:10} {row(here.magazine, before, log, info.count)}", flush=True)
    print(
        "\nEvery crawl reads the listings, to find what is new, and each new story once. In June,\n"
        "the stories of January are read again, although each crawl has met their links. In July,\n"
        "those of February follow."
    )


def check_month(
    magazine: Magazine, first_seen: dict[str, int], month: int, hits: Counter[str]
) -> None:
    """Compare what was fetched with the promise: a page is new again after five months."""
    due = {
        path
        for path in magazine.lasting
        if path not in first_seen or first_seen[path] + WINDOW <= month
    }
    first_seen |= dict.fromkeys(due, month)
    expected = Counter({*due, *magazine.listings, "/robots.txt"})
    differs = (expected - hits) + (hits - expected)
    expect(
        not differs, f"in {MONTHS[month]}, exactly the pages that are due are fetched: {differs}"
    )


def row(magazine: Magazine, before: Counter[str], log: str, count: int) -> str:
    """Return a row of the table."""
    hits = magazine.hits - before
    stories = [story for story in magazine.stories if hits[story]]
    new = sum(not before[story] for story in stories)
    listings = sum(hits[path] for path in magazine.listings)
    dropped = stat(log, "dupefilter/filtered")
    return f"{listings:8,} {new:9,} {len(stories) - new:8,} {dropped:11,} {count:11,}"


def stat(log: str, name: str) -> int:
    """Return one of the stats at the end of a log."""
    found = re.search(rf"'{name}': (\d+)", log)
    return int(found[1]) if found else 0


def two_workers() -> None:
    """Two workers share the pages, one is killed, and the other reads what it had."""
    with stand() as here, running(here.server):
        settings = {"DOWNLOAD_DELAY": "0.02", "CONCURRENT_REQUESTS": "8"}
        one, two = (here.start("links", **settings) for _ in range(2))
        here.kill(one)
        log = here.finish(two)
        missing = sum(not here.magazine.hits[story] for story in here.magazine.stories)
        again = here.again()
        expect(missing == 0, f"the other worker reads what was left, not {missing} stories less")
        expect(again <= 16, f"few stories are read twice, not {again}")
    print(
        f"\nTwo workers, one is killed after {ENOUGH} pages: the other picks up "
        f"{stat(log, 'bloom/picked_up')} pages.\nAll {STORIES} stories are read, {again} of "
        "them twice."
    )


def bulk() -> None:
    """A crawl is killed before its first transaction, and the next one loses no story."""
    with stand() as here, running(here.server):
        here.kill(here.start("bulk"))
        here.finish(here.start("bulk"))
        with contextlib.closing(sqlite3.connect(here.directory / "stories.db")) as database:
            ((rows,),) = database.execute("SELECT count(*) FROM stories")
        expect(rows == STORIES, f"all {STORIES} stories are in the database, not {rows}")
    print(
        "\nA crawl writes stories to SQLite, 500 in a transaction, and is killed before the first\n"
        f"one. After the next crawl, all {rows} stories are in the database."
    )


def two_servers() -> None:
    """Two workers of scrapy-redis have their queue on one server, and the filter on another."""
    with (
        stand() as here,
        running(here.server),
        running(f"embedded:{here.directory / 'q'}") as queue,
    ):
        address = f"unix://{queue.client.connection_pool.connection_kwargs['path']}"
        settings = {"REDIS_URL": address, "MAX_IDLE_TIME_BEFORE_CLOSE": "2"}
        queue.client.rpush("queue:start_urls", json.dumps({"url": f"{here.url}/"}))
        workers = [here.start("queue", "settings_distributed", **settings) for _ in range(2)]
        logs = [here.finish(worker) for worker in workers]
        counts = [str(stat(log, "item_scraped_count")) for log in logs]
        again = here.again()
        expect(again == 0, f"each story is read once, not {again} twice")
        shares = " and ".join(counts)
    print(
        "\nTwo workers of scrapy-redis, with the queue on one server and the filter on another,\n"
        f"read {shares} stories, each of them once."
    )


def main() -> int:
    """Run the demo; return its exit code."""
    try:
        half_a_year()
        two_workers()
        bulk()
        if importlib.util.find_spec("scrapy_redis"):
            two_servers()
    except DemoError as error:
        print(f"Not as promised: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
