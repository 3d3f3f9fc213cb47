"""Lists of URLs: what the dupefilter adds to their first crawl, and to one that finds nothing new.

``python -m benchmarks.lists --directory DIR`` crawls HTML files instead of the site of the others.
"""

import argparse
import contextlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contestants import CRAWLED, MEMORY, SCHEDULED, Server, settings_of, started
from benchmarks.crawl import DISTANCES, run_crawler, site_of, where
from benchmarks.delay import delayed
from benchmarks.found import Found, Size, ratio
from benchmarks.site import paths, served

URLS = 2_000
RULES: dict[str, Any] = {"BLOOM_RECRAWL_RULES": [["", "default"]]}


def run(size: Size, directory: str = "") -> Found:
    """Crawl a list twice, at all distances: at first, all of it is new, and then nothing."""
    rows: list[Sequence[str]] = []
    site = ["--directory", directory] if directory else site_of(size.of(URLS))
    with started(for_crawls=True) as server, served(*site) as url, TemporaryDirectory() as work:
        urls = [f"{url}{path[1:]}" for path in paths(url)[: size.of(URLS)]]
        for distance in DISTANCES[:3]:
            first, known = _times(server, distance, urls, Path(work), size.rounds)
            title = f"of {len(urls):,} start requests, {where(distance)}"
            ours = [f"{ratio(first[one], first[MEMORY]):.2f}" for one in known]
            rows.append((f"Time of a crawl {title}, of that with Scrapy's filter", _said(ours), ""))
            ours = [f"{median(one) / len(urls) * 1e6:.0f}" for one in known.values()]
            rows.append((f"µs for each {title}, if all are known", _said(ours), ""))
    return Found(rows)


def _times(
    server: Server, distance: int, urls: Sequence[str], work: Path, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of first runs, and how many more second ones take than runs of no URL."""
    first, known = defaultdict(list), defaultdict(list)
    full, empty = work / "urls", work / "none"
    full.write_text("\n".join(urls), "utf-8")
    empty.write_text("", "utf-8")
    with contextlib.ExitStack() as stack, server.client() as client:
        port = stack.enter_context(delayed(server.port, distance)) if distance else server.port
        for _ in range(rounds):
            for name in (MEMORY, CRAWLED, SCHEDULED):
                client.flushall()
                settings = settings_of(name, f"redis://127.0.0.1:{port}/0") | RULES
                first[name].append(_seconds(settings, full))
                if name != MEMORY:
                    known[name].append(_seconds(settings, full) - _seconds(settings, empty))
    return first, known


def _seconds(settings: dict[str, Any], urls: Path) -> float:
    return float(run_crawler("", json.dumps(settings), str(urls))["seconds"])


def _said(ours: Sequence[str]) -> str:
    return f"{ours[0]} crawled, {ours[1]} scheduled"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lists", description=__doc__)
    parser.add_argument("--directory", required=True, help="of HTML files")
    parser.add_argument("--rounds", type=int, default=Size.rounds)
    options = parser.parse_args()
    for row in run(Size(options.rounds), options.directory).rows:
        print(" | ".join(row), flush=True)
