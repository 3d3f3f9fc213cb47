"""Run many trials and print what became of them: `python -m chaos.run --help`, from `tests`."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from itertools import islice
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from example_site.build import Site
from rich.console import Console
from support.nursery import close_shared_nursery

from chaos.outcome import Outcome
from chaos.schedule import SINGLE, Schedule, kinds_on
from chaos.site import STORIES
from chaos.stands import STANDS
from chaos.trial import Trial
from scrapy_bloom.settings import CRAWLED, DELIVERED, SCHEDULED

console = Console(width=110)
#: Values of BLOOM_REMEMBER.
REMEMBERED = CRAWLED, DELIVERED, SCHEDULED
#: A trial: its schedule, BLOOM_REMEMBER, other settings, and where its logs go if it fails.
Task = tuple[Schedule, str, dict[str, str], Path]

# -- in the processes that run the trials --

_sites: list[Site] = []


def begin() -> None:
    """Prepare this process for trials."""
    directory = tempfile.TemporaryDirectory(prefix="chaos-site-")
    _sites.append(Site.build(Path(directory.name), STORIES))
    Finalize(None, close_shared_nursery, exitpriority=10)
    Finalize(None, directory.cleanup, exitpriority=5)


def run_task(task: Task) -> Outcome:
    """Run a trial; keep its logs if it fails."""
    schedule, remember, settings, failures = task
    with tempfile.TemporaryDirectory(prefix="chaos-trial-") as directory:
        logs = Path(directory)
        trial = Trial(_sites[0], schedule, remember, logs, settings)
        try:
            outcome = trial.run()
        except Exception:
            outcome = trial.outcome
            outcome.broken = traceback.format_exc()
        if outcome.failed:
            keep(logs, schedule, outcome, failures)
        return outcome


def keep(logs: Path, schedule: Schedule, outcome: Outcome, failures: Path) -> None:
    """Copy what is needed to understand a failure."""
    name = f"{outcome.remember}-{schedule.stand}-{schedule.kind}-{schedule.seed}"
    dump = failures / name
    shutil.rmtree(dump, ignore_errors=True)
    shutil.copytree(logs, dump)
    report = {"schedule": asdict(schedule), "outcome": asdict(outcome)}
    (dump / "outcome.json").write_text(json.dumps(report, indent=1))


# -- in the process that has them run --


def run_all(tasks: list[Task], jobs: int, deadline: float) -> Iterator[Outcome]:
    """Run tasks in several processes; begin none after the deadline."""
    waiting = iter(tasks)
    with ProcessPoolExecutor(jobs, get_context("spawn"), begin) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            if time.monotonic() < deadline:
                free = jobs - len(running)
                running |= {pool.submit(run_task, task) for task in islice(waiting, free)}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def summary(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield a line for each kind, and one for all."""
    for kind in (*sorted({outcome.kind for outcome in outcomes}), "all"):
        ours = [outcome for outcome in outcomes if kind in (outcome.kind, "all")]
        yield (
            f"{kind}: {len(ours)} trials, {sum(len(one.struck) for one in ours)} faults, "
            f"{sum(one.failed for one in ours)} failed, {sum(len(one.hidden) for one in ours)} "
            f"pages hidden, {sum(len(one.excused) for one in ours)} of them excused, "
            f"{sum(one.twice for one in ours)} fetched twice (at most "
            f"{sum(one.most for one in ours)})"
        )


def describe(one: Outcome) -> str:
    """Return one line about a failure."""
    where = f"{one.kind} --seed {one.seed} --stand {one.stand} on {one.server}"
    wrong = (one.broken.strip().splitlines() or ["it is not quiet" if not one.quiet else ""])[-1]
    return (
        f"{where}: {wrong} {len(one.hidden)} hidden, {len(one.endless)} keys do not expire, "
        f"{one.twice} of {one.most} fetched twice, {one.alone} of {one.most_alone} by one process"
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos.run", description=__doc__)
    add = parser.add_argument
    add("--stand", choices=list(STANDS), default=SINGLE, help="what the filter is on")
    add("--kinds", help="of faults, with commas; all that the stand has by default")
    add("--schedules", type=int, default=5, help="how many of each kind")
    add("--seed", type=int, default=1, help="number of the first schedule of each kind")
    add("--remember", choices=REMEMBERED, default=CRAWLED, help="BLOOM_REMEMBER")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting")
    add("--minutes", type=float, default=1e6, help="begin no schedule after so many")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="schedules at once")
    add("--failures", type=Path, default=Path("chaos-failures"), help="directory for their logs")
    options = parser.parse_args(arguments)
    kinds = kinds_on(options.stand)
    options.kinds = options.kinds.split(",") if options.kinds else kinds
    if unknown := set(options.kinds) - set(kinds):
        parser.error(f"no such kinds: {', '.join(unknown)}; there are {', '.join(kinds)}")
    return options


def main() -> int:
    """Run what the command line asks for; return 1 if the claim is broken."""
    options = parse(sys.argv[1:])
    settings = dict(pair.split("=", 1) for pair in options.set)
    given = (options.remember, settings, options.failures.absolute())
    tasks = [
        (Schedule.random(kind, seed, options.stand), *given)
        for seed in range(options.seed, options.seed + options.schedules)
        for kind in options.kinds
    ]
    outcomes: list[Outcome] = []
    for outcome in run_all(tasks, options.jobs, time.monotonic() + 60 * options.minutes):
        outcomes.append(outcome)
        if outcome.failed:
            console.print(describe(outcome), highlight=False, markup=False)
    for line in summary(outcomes):
        console.print(line, highlight=False, markup=False)
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
