"""``python -m benchmarks``: run all benchmarks, print their tables, write docs/performance.md."""

import argparse
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Protocol

from benchmarks import (
    crawl,
    items,
    latency,
    library,
    memory,
    size,
)
from benchmarks.page import PAGE, Kept, Results, write
from benchmarks.report import Outcome, console

ROOT = Path(__file__).parents[1]
#: Where results are kept between runs; git ignores it.
WORK = ROOT / ".scrapy" / "benchmarks"


class Benchmark(Protocol):
    """Measures, and returns what was found."""

    def __call__(self, *, quick: bool, full: bool) -> Outcome:
        """Measure less than usual, or more."""


#: Run only if they are named, or with --full: they take as long as five other benchmarks.
RARE = ("documentation",)


def benchmarks(charts: Path) -> dict[str, Benchmark]:
    """Return all benchmarks by name, in the order of the page.

    Args:
        charts: the directory that charts are written to.
    """
    return {
        "crawl": partial(crawl.run, plot=charts / "crawl.svg"),
        "documentation": crawl.run_documentation,
        "items": items.run,
        "size": partial(size.run, plot=charts / "size.svg"),
        "library": library.run,
        "latency": latency.run,
        "memory": memory.run,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick",
        action="store_true",
        help=f"less exact; the page is written to {WORK.name}/quick",
    )
    extent.add_argument(
        "--full", action="store_true", help="100 million URLs, all peers (two hours)"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        default=[],
        help="run these; the page has the others from earlier runs",
    )
    options = parser.parse_args()
    directory = WORK / "quick" if options.quick else ROOT / "docs"
    results = Results(directory if options.quick else WORK / "results")
    known = benchmarks(directory)
    if unknown := set(options.only) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: --only takes some of {', '.join(known)}")
    wanted = options.only or [name for name in known if options.full or name not in RARE]
    for name in wanted:
        results.forget(name)
    failures: list[str] = []
    for name in wanted:
        run = partial(known[name], quick=options.quick, full=options.full)
        failures += attempt(name, run, results)
        write(directory, results.of(known))
    console.print(f"Written: {directory / PAGE}", markup=False)
    if failures:
        sys.exit("\n".join(failures))


def attempt(name: str, run: partial[Outcome], results: Results) -> list[str]:
    """Run a benchmark, print and keep what it finds; return what must not be."""
    start = perf_counter()
    try:
        outcome = run()
    except Exception as error:
        console.print_exception()  # the others are to be run
        return [f"{name}: {error!r}"]
    minutes = (perf_counter() - start) / 60
    results.keep(Kept.of(name, outcome))
    for table in outcome.tables:
        console.print(table.to_rich())
    for target in outcome.targets:
        console.print(f"{target.what}: {target.here}; {target.judged}", markup=False)
    if outcome.headline:
        console.print(outcome.headline, markup=False)
    console.print(f"{name} took {minutes:.1f} minutes.", markup=False)
    return [f"{name}: {failure}" for failure in outcome.failures]


if __name__ == "__main__":
    main()
