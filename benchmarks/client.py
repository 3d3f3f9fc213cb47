"""What a dupefilter takes of the crawling process's memory: its imports, and what it keeps."""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.contestants import Server, servers
from benchmarks.footprint import START, met_urls
from benchmarks.report import Outcome, Table, met, progress

ROOT = Path(__file__).parents[1]
#: MB that a process may take beyond one with Scrapy's own filter when that is empty.
TARGET = 60.0
SIZES, QUICK_SIZES = (100_000, 400_000, 1_000_000), (10_000, 20_000)
MB = 1e6

COLUMNS = ("", "MB", "more", "above Scrapy's, empty")
NOTES = (
    (
        "Resident memory of a process with Scrapy, a crawler and a dupefilter that is asked about "
        "so many different URLs; nothing is crawled. `more` is what a row adds to the one before. "
        "scrapy-bloom keeps a cache of fixed size (`BLOOM_CACHE_SIZE`); Scrapy's own filter keeps "
        "all fingerprints."
    ),
)


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure Scrapy's own filter and ours."""
    sizes = QUICK_SIZES if quick else (*SIZES, 3_000_000) if full else SIZES
    table = Table("Memory of the client", COLUMNS, notes=NOTES)
    with Server(*servers(full=False)) as server, progress() as bar:
        scrapys, ours = bar.track(
            (_steps(url, sizes) for url in ("", server.url)), total=2, description="client"
        )
    empty = scrapys[START]
    for name, steps in (("Scrapy, in memory", scrapys), ("scrapy-bloom", ours)):
        table.add(f"**{name}**", *[""] * (len(COLUMNS) - 1))
        _add_rows(table, steps, empty)
    above = (ours[met_urls(sizes[-1])] - empty) / MB
    return Outcome([table], _verdict(above, scrapys, ours, sizes))


def _steps(url: str, sizes: Sequence[int]) -> dict[str, int]:
    """Measure a process; return the bytes it takes after each step."""
    command = [sys.executable, "-m", "benchmarks.footprint", url, *map(str, sizes)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    steps: dict[str, int] = json.loads(done.stdout)
    return steps


def _add_rows(table: Table, steps: dict[str, int], empty: int) -> None:
    table.add(START, f"{steps[START] / MB:.1f}", "", "")
    for (_, before), (name, now) in pairwise(steps.items()):
        table.add(name, *(f"{value / MB:.1f}" for value in (now, now - before, now - empty)))


def _verdict(
    above: float, scrapys: dict[str, int], ours: dict[str, int], sizes: Sequence[int]
) -> str:
    first, last = met_urls(sizes[-2]), met_urls(sizes[-1])
    grown = [(steps[last] - steps[first]) / MB for steps in (ours, scrapys)]
    return (
        f"A crawling process takes at most {TARGET:g} MB more than one with Scrapy's own filter "
        f"when that is empty. Here, after {last}: {above:.0f} MB, {met(above <= TARGET)}. From "
        f"{first} to {last} it grows by {grown[0]:.0f} MB, and with Scrapy's own filter by "
        f"{grown[1]:.0f} MB."
    )
