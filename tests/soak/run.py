"""Crawl for a while, with faults: `python -m soak.run --help`, from `tests`."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from support.nursery import close_shared_nursery

from soak.curves import draw
from soak.stand import End, Options, Stand
from soak.verdict import MEASURES, Growth, failures, growth, read_samples

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


def report(options: Options, growths: Sequence[Growth], end: End) -> Iterator[str]:
    """Yield lines about what has happened, and what has grown after the warm-up."""
    last = read_samples(options.directory / SAMPLES)[-1]
    yield "last sample: " + ", ".join(f"{name} {value}" for name, value in last.items())
    numbers = {name: value for name, value in asdict(end).items() if name != "gaps"}
    yield "end: " + ", ".join(f"{name} {value}" for name, value in numbers.items())
    yield f"longest seconds between two crawls of a page: {max(end.gaps):.0f}"
    for one in growths:
        yield (
            f"{one.measure.meaning}: {one.first:,.1f} to {one.last:,.1f} ({one.most:,.1f} at most),"
            f" {one.per_million:+,.2f} per million requests"
        )


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
    close_shared_nursery()
    found = failures(growths, end, options)
    for line in (*report(options, growths, end), *(f"FAILED: {failure}" for failure in found)):
        console.print(line, highlight=False, markup=False)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
