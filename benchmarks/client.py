"""What a dupefilter takes of the crawling process's memory: its imports, and what it keeps."""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.contestants import Server, servers
from benchmarks.footprint import START, met_urls
from benchmarks.report import Outcome, Table, Target, progress

ROOT = Path(__file__).parents[1]
#: MB that a process may take beyond one with Scrapy's own filter when that is empty.
TARGET = 60.0
SIZES, QUICK_SIZES = (100_000, 400_000, 1_000_000), (10_000, 20_000)
MB = 1e6

COLUMNS = ("", "MB", "more", "above Scrapy's, empty")
NOTES = (
    (
        "Resident memory of a process with a dupefilter that is asked about so many different "
        "URLs; nothing is crawled. `more` is what a row adds to the one before."
    ),
)


def run(*, quick: bool = False, full: bool = False, plot: Path) -> Outcome:
    """Measure Scrapy's own filter and ours, and draw a chart.

    Args:
        quick: with fewer URLs.
        full: with more.
        plot: where the chart is written to.
    """
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
    draw(sizes, scrapys, ours, plot)
    last = met_urls(sizes[-1])
    above, beside = ((steps[last] - empty) / MB for steps in (ours, scrapys))
    what = f"Memory of the crawling process with {last}, MB more than with Scrapy's empty filter"
    target = Target.at_most(what, TARGET, above, ".0f")
    row = (what, target.here, f"{beside:.0f} in memory", target.judged)
    return Outcome([table], [target], summary=[row], plot=plot)


def draw(sizes: Sequence[int], scrapys: dict[str, int], ours: dict[str, int], path: Path) -> None:
    """Write a chart of the memory by the number of URLs."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    for steps, label in ((scrapys, "Scrapy, in memory"), (ours, "scrapy-bloom")):
        above = [(steps[met_urls(size)] - scrapys[START]) / MB for size in sizes]
        axes.plot(sizes, above, "o-", label=label)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("URLs")
    axes.set_ylabel("MB more than with\nScrapy's empty filter")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


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
