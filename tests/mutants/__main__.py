"""Says which test finds each mistake of the table: ``python -m mutants --help``, from ``tests``."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from rich.console import Console

from mutants.search import find, find_anew
from mutants.table import MUTANTS, Mutant, of_day


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="mutants", description="Says which test finds each mistake that is put in on purpose."
    )
    add = parser.add_argument
    add("--only", metavar="TEXT", default="", help="mistakes with this in their name or file")
    add("--today", metavar="N", type=int, help="N mistakes with fast finders, others each day")
    text = "search all tests, those about the file first, as if the finder weren't known"
    add("--without-finder", action="store_true", help=text)
    text = "mistakes that are put in at the same time (default: 1 for each core)"
    add("--jobs", type=int, default=os.cpu_count(), metavar="N", help=text)
    return parser.parse_args()


def search(find_it: Callable[[Mutant], str], mutant: Mutant) -> tuple[bool, str]:
    """Return whether a mistake is found, and a line that says by what and after how long."""
    began = time.monotonic()
    try:
        found = find_it(mutant)
    except RuntimeError as error:
        found, text = "", f"FAILED TO RUN: {error}"
    else:
        text = f"found by {found}" if found else "NOT FOUND"
    return bool(found), f"{time.monotonic() - began:4.0f} s  {mutant.what} ({mutant.file}): {text}"


def main() -> int:
    """Print what finds each mistake, and how fast; return 1 if one isn't found."""
    options = read_options()
    mutants = of_day(datetime.now(UTC).date(), options.today) if options.today else MUTANTS
    chosen = [one for one in mutants if options.only in f"{one.what} {one.file}"]
    say = partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    find_it, jobs = (find_anew, 1) if options.without_finder else (find, options.jobs)
    missed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for is_found, line in pool.map(partial(search, find_it), chosen):
            say(line)
            missed += not is_found
    say(f"{len(chosen) - missed} of {len(chosen)} mistakes found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
