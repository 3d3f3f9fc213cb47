"""What it costs to remember a page when it is crawled instead of when it is scheduled.

The magazine of the example project is crawled in processes of their own, in turns, with Scrapy's
own dupefilter and with both values of BLOOM_REMEMBER, each time into an empty filter.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from scrapy import Request, Spider

from benchmarks.contestants import Server, servers
from benchmarks.report import Outcome, Table, met, progress, server_name
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl.claims import request_codec
from scrapy_bloom.crawl.claims.tracker import META

PROJECT = Path(__file__).parents[1] / "example_project"
#: Wall time that "crawled" may take beyond "scheduled".
TARGET = 0.15
#: Stories of the site, and crawls of each kind; fewer with ``quick``.
STORIES, ROUNDS = 600, 3
QUICK_STORIES, QUICK_ROUNDS = 128, 1
#: Claims whose memory is measured.
PENDING = 20_000
COLUMNS = ("", "seconds", "of scheduled", "pages", "links", "commands", "server ms", "calls a link")
PENDING_COLUMNS = ("server", "request", "claim")
PLAIN = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
MODES = {
    "Scrapy's own, in memory": PLAIN,
    "scheduled": {"BLOOM_REMEMBER": "scheduled"},
    "crawled": {"BLOOM_REMEMBER": "crawled"},
}
NOTES = (
    (
        "`seconds` are Scrapy's `elapsed_time_seconds` (opening to closing), medians of crawls in "
        "turns; `of scheduled` is the median ratio to the crawl with `scheduled` of the same turn. "
        "`commands` are the scripts that the server was sent, `server ms` the time it spent in "
        "them (`INFO commandstats`). The site's server runs on the same two cores."
    ),
)
PENDING_NOTES = (
    (
        "Bytes of a pending request: its text, and what the server takes for the claim as a whole "
        "(`MEMORY USAGE`). A typical link: a URL of 51 characters, callback, depth, Referer."
    ),
)


@dataclass(frozen=True)
class Crawl:
    """What one crawl took.

    Args:
        seconds: from its opening to its closing.
        pages: pages fetched.
        links: requests that the scheduler was offered.
        commands: commands that the server was sent.
        server: seconds the server spent in them.
    """

    seconds: float
    pages: int
    links: int
    commands: int
    server: float


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure on the first server, with ``full`` on all there are."""
    stories, rounds = (QUICK_STORIES, QUICK_ROUNDS) if quick else (STORIES, ROUNDS)
    table, memory = Table("Remembering what is crawled", COLUMNS, notes=NOTES), _pending_table()
    worst = 0.0
    binaries = servers(full=full)
    with tempfile.TemporaryDirectory() as name, progress() as bar:
        directory = Path(name)
        build = ["-m", "example_site", "build", str(directory / "site"), "--stories", str(stories)]
        subprocess.run([sys.executable, *build], cwd=PROJECT, check=True, capture_output=True)
        task = bar.add_task("remember", total=rounds * len(MODES) * len(binaries))
        for binary in binaries:
            with Server(binary) as server:
                crawls: dict[str, list[Crawl]] = {mode: [] for mode in MODES}
                for _ in range(rounds):
                    for mode, settings in MODES.items():
                        crawls[mode].append(_crawl(server, directory, settings))
                        bar.advance(task)
                worst = max(worst, _add_rows(table, server, crawls))
                _add_pending(memory, server)
    verdict = (
        f'A crawl with BLOOM_REMEMBER = "crawled" takes at most {TARGET:.0%} longer than with '
        f'"scheduled". The worst here: {worst - 1:.1%}, {met(worst <= 1 + TARGET)}.'
    )
    return Outcome([table, memory], verdict)


def _add_rows(table: Table, server: Server, crawls: dict[str, list[Crawl]]) -> float:
    """Add a group of rows; return the ratio of "crawled" to "scheduled"."""
    with server.client() as client:
        table.add(f"**{server_name(client)}**", *[""] * (len(COLUMNS) - 1))
    ratios = {}
    for mode, some in crawls.items():
        pairs = zip(some, crawls["scheduled"], strict=True)
        ratios[mode] = statistics.median(a.seconds / b.seconds for a, b in pairs)
        one = sorted(some, key=lambda crawl: crawl.seconds)[len(some) // 2]
        table.add(
            mode,
            f"{one.seconds:.2f}",
            f"{ratios[mode]:.3f}",
            f"{one.pages:,}",
            f"{one.links:,}",
            f"{one.commands:,}",
            f"{one.server * 1e3:.0f}",
            f"{one.commands / one.links:.2f}",
        )
    return ratios["crawled"]


def _crawl(server: Server, directory: Path, settings: dict[str, str]) -> Crawl:
    with server.client() as client:
        client.flushall()
        client.config_resetstat()
        stats = _run_spider(server, directory, settings)
        used = client.info("commandstats")
    # Scripts count as one command, and what they call as others.
    commands = [v for k, v in used.items() if k in ("cmdstat_evalsha", "cmdstat_eval")]
    return Crawl(
        stats["elapsed_time_seconds"],
        stats["response_received_count"],
        stats["scheduler/enqueued"] + stats["dupefilter/filtered"],
        sum(command["calls"] for command in commands),
        sum(command["usec"] for command in commands) / 1e6,
    )


def _run_spider(server: Server, directory: Path, settings: dict[str, str]) -> dict[str, Any]:
    with subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "example_site",
            "serve",
            str(directory / "site"),
            "--port",
            "0",
        ],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    ) as site:
        try:
            assert site.stdout is not None
            url = site.stdout.readline().split()[-1]
            file = directory / "stats.json"
            given = {"SITE_URL": url, "BLOOM_REDIS_URL": server.url, "STATS_FILE": str(file)}
            given |= {"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": "False", **settings}
            options = [text for pair in given.items() for text in ("-s", "=".join(pair))]
            subprocess.run(
                [sys.executable, "-m", "scrapy", "crawl", "links", *options],
                cwd=PROJECT,
                check=True,
            )
            stats: dict[str, Any] = json.loads(file.read_text())
            return stats
        finally:
            site.terminate()


class _Pages(Spider):
    name = "pages"


def _pending_table() -> Table:
    return Table("A pending request", PENDING_COLUMNS, notes=PENDING_NOTES)


def _add_pending(table: Table, server: Server) -> None:
    spider = _Pages()
    with server.client() as client:
        client.flushall()
        bloom = BloomFilter(client, "pending")
        items = [number.to_bytes(20, "big") for number in range(PENDING)]
        texts = [_text(spider, number, item) for number, item in enumerate(items)]
        owner = "w" + "0" * 24
        bloom.run(lambda session: claim_protocol.claim(session, items, texts, owner, "0.0"))
        used = sum(_memory(client, key) for key in client.keys("*:claims"))
        mean = sum(map(len, texts)) / PENDING
        table.add(server_name(client), f"{mean:.0f}", f"{used / PENDING:.0f}")


def _memory(client: redis.Redis, key: bytes) -> int:
    return int(client.memory_usage(key, samples=0) or 0)


def _text(spider: Spider, number: int, item: bytes) -> str:
    request = Request(
        f"https://www.example.com/stories/2027/story-{number:06}",
        callback=spider.parse,
        headers={"Referer": "https://www.example.com/stories/2027/"},
        meta={"depth": 3, META: [f"lasting:{item.hex()}"]},
    )
    return request_codec.dump(request, spider)
