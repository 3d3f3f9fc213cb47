"""Run schedules of a stand and print what became of them: `python -m chaos --help`, in `tests`."""

import argparse
import shutil
import sys
import tempfile
from contextlib import closing
from itertools import product
from pathlib import Path

from support.nursery import close_shared_nursery
from support.servers import SERVERS

from chaos.stand import STANDS
from chaos.trial import Outcome, Schedule, Trial

#: Where the logs of schedules that failed are.
FAILURES = Path(__file__).parents[2] / "chaos-failures"


def run(schedule: Schedule) -> Outcome:
    """Run a schedule on servers of its own; keep its logs if it fails."""
    binaries = sorted(SERVERS.values())
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as name,
        closing(STANDS[schedule.stand](binaries[schedule.seed % len(binaries)])) as stand,
    ):
        outcome = Trial(schedule, stand, Path(name)).run()
        if outcome.has_failed:
            logs = FAILURES / f"{schedule.stand}-{schedule.seed}"
            shutil.rmtree(logs, ignore_errors=True)
            shutil.copytree(name, logs)
        return outcome


def main() -> int:
    """Run what the command line asks for; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument(
        "--stand", choices=[*STANDS], help="where the filter is; each in turn by default"
    )
    parser.add_argument("--schedules", type=int, default=10, help="how many of a stand")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first of them")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.schedules)
    outcomes = []
    try:
        for stand, seed in product([options.stand] if options.stand else STANDS, seeds):
            outcomes.append(run(Schedule.random(stand, seed)))
            sys.stdout.write(f"{outcomes[-1]}\n")
            sys.stdout.flush()
    finally:
        close_shared_nursery()
    failed = sum(outcome.has_failed for outcome in outcomes)
    pages = sum(len(outcome.missing_pages) for outcome in outcomes)
    items = sum(len(outcome.missing_items) for outcome in outcomes)
    again = sum(outcome.again for outcome in outcomes)
    sys.stdout.write(
        f"{len(outcomes)} schedules, {failed} failed, {pages} pages and {items} items missing, "
        f"{again} pages fetched again\n"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
