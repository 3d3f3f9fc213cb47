"""The example project: its site tells the truth, and crawls of it fetch what they should."""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from support.clock import MovedServer
from support.crawling import (
    CRAWL_TIMEOUT,
    PLAIN_SCRAPY,
    PROJECT,
    crawl,
    options,
    run,
)
from support.polling import until

from scrapy_bloom.crawl.local_state import FRESH_SECONDS


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine that is large enough to have all kinds of pages."""
    return Site.build(tmp_path / "site", count=128)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


# -- the site --


def test_site_is_the_same_in_every_process(site: Site, tmp_path: Path) -> None:
    """Neither the hash seed nor the process changes a byte."""
    other = tmp_path / "other"
    command = ("-m", "example_site", "build", str(other), "--stories", str(site.count))
    done = run(*command, PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    assert files(other) == files(site.directory)


# -- the project, with Scrapy's own filter --


def test_truth_is_what_scrapy_fetches(site: Site, web: SiteServer, tmp_path: Path) -> None:
    """A crawl without scrapy-bloom fetches each URL of the truth once, and nothing else."""
    truth = site.truth()
    stats = crawl("links", web, tmp_path, **PLAIN_SCRAPY)
    assert web.hits() == Counter(truth.crawl())
    assert stats["item_scraped_count"] == stats["pages/stories"] == len(truth.stories)
    assert stats["pages/listings"] == len(truth.hubs)
    assert stats["robotstxt/forbidden"] == len(truth.forbidden)
    assert stats["offsite/filtered"] == len(truth.stories)  # one link on each
    links = stats["dupefilter/filtered"] + stats["scheduler/enqueued"]
    assert stats["dupefilter/filtered"] / links > 0.96


def test_only_distributed_settings_need_scrapy_redis(tmp_path: Path) -> None:
    """The project works where scrapy-redis is not installed."""
    (tmp_path / "scrapy_redis.py").write_text("raise ImportError('not installed')\n")
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = run("-m", "scrapy", "list", PYTHONPATH=os.pathsep.join(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["bulk", "links", "nightly", "sitemap"]


# -- the project, with scrapy-bloom --


def test_second_sitemap_crawl_fetches_sitemaps_and_new_stories(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    """Sitemaps are looked at in each run, although a lasting filter remembers the stories."""
    known = site.truth()
    crawl("sitemap", web, tmp_path, BLOOM_REDIS_URL=redis_url)
    first = web.hits()
    assert first == Counter(known.stories | known.sitemaps | {"/robots.txt"})

    truth = site.publish(3).truth()
    crawl("sitemap", web, tmp_path, BLOOM_REDIS_URL=redis_url)
    new = truth.stories - known.stories
    assert web.hits() - first == Counter(new | truth.sitemaps | {"/robots.txt"})


def test_nightly_crawls_write_what_is_new(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    """Each night's files have what is new; the second night reads the listings and that."""
    known = site.truth()
    start("nightly", web, redis_url, tmp_path).wait(CRAWL_TIMEOUT)
    first, items = web.hits(), written(tmp_path)
    assert items == Counter(known.stories)
    assert len([*tmp_path.glob("items/*.jsonl")]) == 2  # 100 items a file

    truth = site.publish(3).truth()
    start("nightly", web, redis_url, tmp_path).wait(CRAWL_TIMEOUT)
    assert written(tmp_path) - items == Counter(truth.stories - known.stories)
    assert web.hits() - first == Counter(truth.crawl(known))


def test_a_killed_bulk_crawl_loses_no_story(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    """It dies before its first transaction; all its stories are in those of the next run."""
    crawler = start("bulk", web, redis_url, tmp_path)
    until(lambda: web.hits().total() > 60, "it has begun")
    crawler.kill()
    crawler.wait()
    start("bulk", web, redis_url, tmp_path).wait(CRAWL_TIMEOUT)
    with closing(sqlite3.connect(tmp_path / "stories.db")) as database:
        rows = database.execute("SELECT url FROM stories").fetchall()
    assert Counter(urlsplit(url).path for (url,) in rows) == Counter(site.truth().stories)


def start(spider: str, web: SiteServer, redis_url: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start a crawl whose files belong into a directory."""
    environment = {"SCRAPY_SETTINGS_MODULE": "magazine.settings", "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "scrapy", "crawl", spider),
            *options(web, {"BLOOM_REDIS_URL": redis_url}),
        ],
        cwd=directory,
        env=os.environ | environment,
        stderr=subprocess.DEVNULL,
    )


def written(directory: Path) -> Counter[str]:
    """Count the stories in all files of items, by path."""
    lines = [
        line for path in directory.glob("items/*.jsonl") for line in path.read_text().splitlines()
    ]
    return Counter(urlsplit(json.loads(line)["url"]).path for line in lines)


def test_a_worker_looks_at_the_listings_again_after_an_hour(
    site: Site, web: SiteServer, moved: MovedServer
) -> None:
    """A queue spider never restarts: a rule lets it find what is new."""
    known = site.truth()
    # From the start list, and from links.
    pages = Counter(known.lasting | known.hubs | {"/robots.txt"}) + Counter(["/"])
    with worker(web, moved.url), moved.client() as client:
        start = json.dumps({"url": f"{web.url}/"})
        client.rpush("queue:start_urls", start)
        wait_for(web, pages)
        # What is crawled is recorded a moment later; in the next hour, it would count as of that.
        until(lambda: not client.keys("*:claims"), "the pages are recorded")

        truth = site.publish(3).truth()
        moved.move(3600)
        time.sleep(FRESH_SECONDS)  # what the worker was told counts for so long, by its own clock
        client.rpush("queue:start_urls", start)
        pages += Counter(truth.hubs | truth.lasting - known.lasting) + Counter(["/"])
        wait_for(web, pages)
    assert web.hits() == pages


@contextmanager
def worker(web: SiteServer, redis_url: str) -> Iterator[None]:
    """Run a queue spider; at the end, ask it to stop, and wait until it has."""
    settings = {"MAX_IDLE_TIME_BEFORE_CLOSE": 600}
    process = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "crawl", "queue", *options(web, settings)],
        cwd=PROJECT,
        env=os.environ | {"SCRAPY_PROJECT": "distributed", "REDIS_URL": redis_url},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        process.terminate()
        assert process.wait(CRAWL_TIMEOUT) == 0
    finally:
        process.kill()
        process.wait()


def wait_for(web: SiteServer, pages: Counter[str]) -> None:
    """Wait until the site has served these pages."""
    until(lambda: pages <= web.hits(), "the pages are served")
    assert web.hits() == pages


# -- the demo --

#: The size of the demo's site; the demo by itself crawls the whole.
DEMO_STORIES = ("--stories", "40")


@pytest.mark.skipif(
    importlib.util.find_spec("libfaketime") is None, reason="no libfaketime to move a clock with"
)
def test_demo_keeps_its_promise() -> None:
    done = run("demo.py", *DEMO_STORIES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Not as promised" not in done.stdout
    assert '"5 months"' in done.stdout
    assert numbers_of("January", done.stdout) == ["31", "40", "0"]
    assert numbers_of("February", done.stdout) == ["31", "3", "0"]
    assert numbers_of("May", done.stdout) == ["31", "0", "0"]
    assert numbers_of("June", done.stdout) == ["31", "0", "40"]
    assert numbers_of("July", done.stdout) == ["31", "0", "3"]


def numbers_of(month: str, output: str) -> list[str]:
    """The first numbers in the table's row of a month: listings, new stories, stories again."""
    row = next(line for line in output.splitlines() if line.startswith(f"│ {month}"))
    return [cell.strip() for cell in row.split("│")[2:5]]


@pytest.mark.slow
def test_demo_leaves_nothing_on_a_server(redis_url: str) -> None:
    """On a server that is not its own, it neither moves the clock nor touches other keys."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("mine", "1")
        done = run("demo.py", *DEMO_STORIES, "--redis-url", redis_url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert '"5 runs"' in done.stdout
        assert client.keys() == [b"mine"]


def test_demo_notices_what_is_not_as_promised(site: Site) -> None:
    """A missing, a needless and a repeated fetch are named, and so are Scrapy's other counts."""
    from demo import Crawl  # noqa: PLC0415

    truth = site.truth()
    hits = Counter(truth.crawl())
    del hits["/jobs"]
    hits["/gear/"] += 1
    hits["/strange"] += 1
    stats = {"pages/stories": len(truth.stories), "pages/listings": len(truth.hubs)}
    crawl = Crawl("May", truth, truth.crawl(), hits, stats)
    assert crawl.problems() == [
        "May: 1 URLs not fetched, such as /jobs",
        "May: 1 URLs fetched without need, such as /strange",
        "May: 1 URLs fetched more than once, such as /gear/",
        "May: Scrapy counted (128, 45) stories and listings, the server (128, 46)",
    ]
