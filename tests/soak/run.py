"""Crawl for a while, with faults: `python -m soak.run --help`, from `tests`."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from soak.curves import draw
from soak.stand import End, Options, Stand
from soak.verdict import MEASURES, Growth, failures, growth, read_samples
from soak.worker import LEAKS

SAMPLES, CURVES = "samples.csv", "soak.svg"


def soak(options: Options) -> tuple[list[Growth], End]:
    """Run; write the samples and the curves into the directory."""
    options.directory.mkdir(parents=True, exist_ok=True)
    path = options.directory / SAMPLES
    with ExitStack() as stack:
        end = Stand(options, stack).run(path)
    (options.directory / "end.json").write_text(json.dumps(asdict(end)))
    samples = read_samples(path)
    draw(samples, options.directory / CURVES)
    return [growth(samples, measure) for measure in MEASURES], end


def growth_table(growths: Sequence[Growth]) -> Table:
    """Return a table of what has changed after the warm-up."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("measure", no_wrap=True)
    for name in ("start", "end", "largest", "per million", "at most", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for one in growths:
        numbers = (one.first, one.last, one.most)
        table.add_row(
            one.measure.meaning,
            *(f"{number:,.1f}" for number in numbers),
            f"{one.per_million:+,.2f}",
            f"{one.measure.per_million:,.1f}",
            "grows" if one.has_grown else "flat",
        )
    return table


def facts(options: Options, end: End) -> Table:
    """Return a table of what has happened."""
    last = read_samples(options.directory / SAMPLES)[-1]
    gaps = sorted(end.gaps)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    rows: dict[str, float | str] = {
        "requests looked up by the measured crawler": last["requests"],
        "responses that it got": last["pages"],
        "crawls of pages, by both crawlers": end.crawled,
        "rotations that the measured crawler has done": last["rotations"],
        "faults": end.faults,
        "outages that the measured crawler has noticed": last["outages"],
        "crawlers killed and started again": end.kills,
        "requests that it has taken over from killed ones": last["taken_over"],
        "requests that could not be stored": last["not_kept"],
        "claims left of failed pages": end.failed_claims,
        "claims left of crawlers": end.claims,
        "pages never crawled": end.never,
        "longest seconds between two crawls of a page": round(gaps[-1]),
        "allowed": round(options.longest_gap),
    }
    for name, number in rows.items():
        table.add_row(name, f"{int(number):,}")
    return table


def largest(options: Options) -> str:
    """Return the containers of scrapy-bloom that have most entries at the end."""
    last = json.loads((options.directory / "crawler-1.jsonl").read_text().splitlines()[-1])
    sizes = sorted(last["sizes"].items(), key=lambda pair: -pair[1])[:6]
    return ", ".join(f"{name} {size:,}" for name, size in sizes)


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="soak.run", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=60, help="how long the crawl goes on")
    add("--directory", type=Path, help="for samples, curves and logs; a temporary one by default")
    add("--requests", type=int, default=0, help="look up so many at least")
    add("--pages", type=int, default=Options.pages, help="of the site")
    add("--period", type=int, default=Options.period, help="BLOOM_ROTATE_EVERY in seconds")
    add("--fault-every", type=float, default=Options.fault_every, help="seconds; 0 for no faults")
    add("--sample-every", type=float, default=Options.sample_every, help="seconds")
    add("--patience", type=float, default=Options.patience, help="seconds that a page may wait")
    add("--leak", choices=LEAKS, default="", help="put in a leak on purpose")
    add("--seed", type=int, default=Options.seed, help="of the faults")
    given = vars(parser.parse_args(arguments))
    directory = given.pop("directory") or Path(tempfile.mkdtemp(prefix="soak-"))
    return Options(directory.absolute(), given.pop("minutes") * 60, **given)


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; return 1 if something grows or is lost."""
    options = parse(arguments)
    console = Console(width=110)
    console.print(f"samples, curves and logs: {options.directory}", highlight=False)
    growths, end = soak(options)
    console.print(facts(options, end), growth_table(growths))
    console.print(f"Most entries: {largest(options)}", highlight=False)
    found = failures(growths, end, options)
    for failure in found:
        console.print(f"FAILED: {failure}", highlight=False, markup=False)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
