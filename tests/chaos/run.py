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
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from support.servers import find_servers

from chaos.outcome import Outcome
from chaos.schedule import SINGLE, Schedule, kinds_on
from chaos.stands import STANDS
from chaos.trial import REMEMBER, Lab, Trial

console = Console(width=110)


@dataclass(frozen=True)
class Task:
    """One trial to be run, in whatever process."""

    kind: str
    seed: int
    stand: str
    remember: str
    settings: dict[str, str]
    failures: Path


# -- in the processes that run the trials --

_labs: list[Lab] = []


def open_lab() -> None:
    """Prepare this process for trials."""
    lab = Lab({name: binary for name, binary in find_servers().items() if binary})
    _labs.append(lab)
    Finalize(lab, lab.__exit__, exitpriority=10)


def run_task(task: Task) -> Outcome:
    """Run a trial; keep its logs if it fails."""
    schedule = Schedule.random(task.kind, task.seed, task.stand)
    with tempfile.TemporaryDirectory(prefix="chaos-trial-") as directory:
        logs = Path(directory)
        trial = Trial(_labs[0], schedule, task.remember, logs, task.settings)
        try:
            outcome = trial.run()
        except Exception:
            outcome = trial.outcome
            outcome.broken = traceback.format_exc()
        if outcome.failed:
            keep(logs, schedule, outcome, task.failures)
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
    with ProcessPoolExecutor(jobs, get_context("spawn"), open_lab) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            if time.monotonic() < deadline:
                free = jobs - len(running)
                running |= {pool.submit(run_task, task) for task in islice(waiting, free)}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def summary(outcomes: list[Outcome]) -> Table:
    """Return the table: a line for each kind."""
    title = f"{outcomes[0].stand}, BLOOM_REMEMBER = {outcomes[0].remember!r}" if outcomes else None
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("fault", no_wrap=True)
    counted = ("trials", "struck", "failed", "hidden", "excused")
    for name in (*counted, "twice", "max", "of", "runs", "max", "errors"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind in dict.fromkeys(sorted(outcome.kind for outcome in outcomes)):
        ours = [outcome for outcome in outcomes if outcome.kind == kind]
        if ours:
            table.add_row(kind, *_columns(ours))
    if outcomes:
        table.add_section()
        table.add_row("all", *_columns(outcomes))
    return table


def _columns(outcomes: list[Outcome]) -> list[str]:
    count = len(outcomes)
    twice = [outcome.twice for outcome in outcomes]
    runs = [outcome.runs for outcome in outcomes]
    errors = sum(sum([*o.tracebacks.values(), *o.later.values()]) for o in outcomes)
    return [
        str(count),
        str(sum(len(outcome.struck) for outcome in outcomes)),
        str(sum(outcome.failed for outcome in outcomes)),
        str(sum(len(outcome.hidden) for outcome in outcomes)),
        str(sum(len(outcome.excused) for outcome in outcomes)),
        f"{sum(twice) / count:.1f}",
        str(max(twice)),
        f"{sum(outcome.most for outcome in outcomes) / count:.1f}",
        f"{sum(runs) / count:.1f}",
        str(max(runs)),
        str(errors),
    ]


def describe(outcome: Outcome) -> str:
    """Return one line about a failure."""
    wrong = f"{len(outcome.hidden)} hidden" if outcome.hidden else ""
    if outcome.broken:
        wrong = outcome.broken.strip().splitlines()[-1]
    elif not outcome.quiet:
        wrong += f" not quiet after {outcome.runs} runs"
    elif outcome.endless:
        wrong += f" {len(outcome.endless)} keys do not expire"
    elif outcome.twice > outcome.most:
        wrong += f" {outcome.twice} fetched twice, more than {outcome.most}"
    elif outcome.alone > outcome.most_alone:
        wrong += f" {outcome.alone} fetched twice by the same process"
    where = f"{outcome.kind} --seed {outcome.seed} --stand {outcome.stand} on {outcome.server}"
    return f"{where}: {wrong.strip()}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos.run", description=__doc__)
    add = parser.add_argument
    add("--stand", choices=list(STANDS), default=SINGLE, help="what the filter is on")
    add("--kinds", help="of faults, with commas; all that the stand has by default")
    add("--schedules", type=int, default=5, help="how many of each kind")
    add("--seed", type=int, default=1, help="number of the first schedule of each kind")
    add("--remember", choices=list(REMEMBER), default="crawled", help="BLOOM_REMEMBER")
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
    given = (options.stand, options.remember, settings, options.failures.absolute())
    tasks = [
        Task(kind, seed, *given)
        for seed in range(options.seed, options.seed + options.schedules)
        for kind in options.kinds
    ]
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("schedules", total=len(tasks))
        for outcome in run_all(tasks, options.jobs, time.monotonic() + 60 * options.minutes):
            outcomes.append(outcome)
            progress.advance(bar)
            if outcome.failed:
                console.print(describe(outcome), highlight=False, markup=False)
    console.print(summary(outcomes))
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
