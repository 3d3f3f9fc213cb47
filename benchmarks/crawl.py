"""Whole crawls: what the dupefilter adds to them, with the server on loopback and further away.

Each crawl is a process of its own, and so are the site, the server and what delays it. The
dupefilters take turns, each with an empty server.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

from benchmarks.contestants import (
    BITS,
    CRAWLED,
    MEMORY,
    SCHEDULED,
    SET,
    Server,
    cpu,
    settings_of,
    started,
)
from benchmarks.delay import delayed
from benchmarks.found import Found, Size, ratio
from benchmarks.site import HITS, served

ROOT = Path(__file__).parents[1]
PAGES, LINKS = 400, 30
#: Milliseconds of a round trip to the server, besides what loopback takes.
DISTANCES = (0, 1, 5, 30, 100)
#: Others that take part at each distance, and in how many turns, because they wait for the server
#: with each link, so that a crawl takes a minute.
OTHERS: Mapping[int, Mapping[str, int]] = {
    0: {SET: 2, BITS: 2},
    1: {SET: 2},
    5: {SET: 1},
    30: {},
    100: {},
}
#: Seconds after which a crawl hangs.
TIMEOUT = 600

Crawl = dict[str, Any]
#: The crawls of a distance: those of each dupefilter, in the order of the turns.
Crawls = dict[str, list[Crawl]]


def run(size: Size) -> Found:
    """Crawl at all distances.

    Raises:
        RuntimeError: a crawl failed, or has fetched other pages.
    """
    pages = size.of(PAGES)
    with started(for_crawls=True) as server, served(*site_of(pages)) as site:
        by_distance = {one: _crawls(server, site, one, size) for one in DISTANCES}
    rows = [_row(distance, crawls) for distance, crawls in by_distance.items()]
    rows.append(
        _each("Most memory of the crawling process, MB", by_distance[0], "memory", 1e6, MEMORY)
    )
    title = f"Server's µs for a page with {LINKS} links, of a crawl on loopback"
    rows.append(_each(title, by_distance[0], "server", pages))
    times = {where(one): _ratios(crawls, "seconds") for one, crawls in by_distance.items()}
    text = (
        f"These crawls take their pages from memory, {pages} with {LINKS} links each, and almost "
        "all links are duplicates. What is measured is the work of the CPU and the way to the "
        "server. A polite crawl, which waits for its site, is as fast with any dupefilter. The "
        "unit is the time with Scrapy's own filter. scrapy-redis waits for the server with each "
        "link."
    )
    return Found(rows, text, times)


def site_of(pages: int) -> list[str]:
    """Return the options of a site with so many pages."""
    return ["--pages", str(pages), "--links", str(LINKS)]


def where(distance: int) -> str:
    """Return a distance in words."""
    return f"{distance} ms away" if distance else "on loopback"


def _crawls(server: Server, site: str, distance: int, size: Size) -> Crawls:
    found: Crawls = defaultdict(list)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(delayed(server.port, distance)) if distance else server.port
        url = f"redis://127.0.0.1:{port}/0"
        for turn in range(size.rounds):
            others = [name for name, turns in OTHERS[distance].items() if turn < turns]
            for name in (MEMORY, SCHEDULED, CRAWLED, *others):
                with server.client() as client:
                    client.flushall()
                    before = cpu(client)
                    crawl = run_crawler(site, json.dumps(settings_of(name, url)))
                    found[name].append(crawl | {"server": cpu(client) - before})
                same = [
                    found[name][-1][what] == found[MEMORY][0][what] for what in ("pages", "items")
                ]
                if not all(same):
                    raise RuntimeError(f"{name} has crawled other pages than {MEMORY}")
    return found


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.crawler", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def run_crawler(*arguments: str) -> Crawl:
    """Crawl in a separate process, with the arguments of ``benchmarks.crawler``; return its costs.

    Raises:
        RuntimeError: the crawl failed, or logged an error.
    """
    with _start(*arguments) as process:
        output, log = process.communicate(timeout=TIMEOUT)
    lines = output.splitlines()  # one of the dupefilters prints its settings
    crawl: Crawl = json.loads(lines[-1]) if process.returncode == 0 else {"errors": 1}
    if crawl["errors"]:
        raise RuntimeError(f"a crawl with {arguments} failed:\n{log[-5000:]}")
    return crawl


def _ratios(crawls: Crawls, what: str) -> dict[str, float]:
    """Return the medians of pairs with Scrapy's own filter."""
    values = {name: [crawl[what] for crawl in some] for name, some in crawls.items()}
    return {name: ratio(some, values[MEMORY]) for name, some in values.items()}


def _row(distance: int, crawls: Crawls) -> Sequence[str]:
    found = _ratios(crawls, "seconds")
    ours = f"{found[CRAWLED]:.2f} crawled, {found[SCHEDULED]:.2f} scheduled"
    others = ", ".join(f"{found[name]:.2f} {name}" for name in OTHERS[distance] if name in found)
    return f"Time of a crawl, of that with Scrapy's filter, {where(distance)}", ours, others


def _each(title: str, crawls: Crawls, what: str, unit: float, *others: str) -> Sequence[str]:
    values = {
        name: f"{median(crawl[what] for crawl in some) / unit:.0f}" for name, some in crawls.items()
    }
    ours = f"{values[CRAWLED]} crawled, {values[SCHEDULED]} scheduled"
    return title, ours, ", ".join(f"{values[name]} {name}" for name in (*others, *OTHERS[0]))


def run_kills(size: Size) -> Found:
    """Kill crawls in their middle, run them again, and count the pages that were fetched twice."""
    pages, again = size.of(PAGES), []
    with started(for_crawls=True) as server:
        settings = json.dumps(settings_of(CRAWLED, server.url))
        for _ in range(size.rounds):
            with server.client() as client, served(*site_of(pages)) as site:
                client.flushall()
                with _start(site, settings) as process:
                    while sum(_hits(site).values()) < pages // 2 and process.poll() is None:
                        time.sleep(0.02)
                    process.kill()
                run_crawler(site, settings)
                hits = _hits(site)
            if len(hits) != pages:
                raise RuntimeError(f"{pages - len(hits)} pages were missed after kill -9")
            again.append(
                sum(hits.values()) - pages - 2
            )  # both fetch the start page, and a link to it
    title = f"Pages fetched again after kill -9 in the middle of {pages} pages, 16 at a time"
    return Found([(title, f"{median(again):.0f} ({min(again)} to {max(again)})", "")])


def _hits(site: str) -> dict[str, int]:
    with urlopen(site.rstrip("/") + HITS) as response:
        hits: dict[str, int] = json.load(response)
    return hits
