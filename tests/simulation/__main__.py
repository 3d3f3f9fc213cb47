"""Simulates runs on all cores: ``PYTHONHASHSEED=0 python -m simulation --help``, from ``tests``."""

import argparse
import gc
import logging
import os
import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from multiprocessing import Pool, util

from rich.console import Console
from support.clock import FrozenServer
from support.servers import SERVERS
from twisted.logger import globalLogBeginner

from simulation.failing import FAILING, first_seed, note
from simulation.kinds import KINDS
from simulation.run import IN_ORDER, Result, shrink, simulate

#: Prints texts as they are.
say = partial(Console().print, sep="\n", markup=False, highlight=False, soft_wrap=True)
#: The server of this process.
servers: list[FrozenServer] = []


def begin() -> None:
    """Start a server for this process."""
    logging.disable(logging.INFO)  # what nobody looks at takes time
    logging.lastResort = None
    # Of kills that end a Deferred's callback.
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    gc.freeze()  # what is imported is there to stay
    server = FrozenServer(next(iter(SERVERS.values())), *IN_ORDER)
    servers.append(server)
    util.Finalize(None, server.stop, exitpriority=1)


def simulate_one(seed: int, name: str, *, is_brief: bool) -> Result:
    """Simulate a run; if something does not hold, make it shorter."""
    result = simulate(servers[0], seed, KINDS[name])
    if not result.violations or is_brief:
        return result
    return shrink(servers[0], result, KINDS[name])


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="simulation", description="Simulates crawls whose steps a seed chooses."
    )
    add = parser.add_argument
    add("--kind", choices=KINDS, action="append", help="default: all")
    add("--first", metavar="SEED", help='a number, or "random"; default: another one each day')
    add("--runs", type=int, default=2_000, metavar="N", help="of all kinds together")
    add("--jobs", type=int, default=os.cpu_count(), metavar="N")
    add("--trace", action="store_true", help="print what happened in all runs")
    add("--note", action="store_true", help=f"add runs that fail to {FAILING.name}")
    add("--brief", action="store_true", help="count runs that fail, no more")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0: otherwise a run does not repeat")
    today = first_seed(datetime.now(UTC).date())
    is_random = options.first == "random"
    options.first = random.SystemRandom().randrange(10**9) if is_random else options.first or today
    options.kind = options.kind or [*KINDS]
    return options


def report(name: str, result: Result, options: argparse.Namespace) -> None:
    """Print what is to be said of a run."""
    if result.violations and options.note:
        note(name, result.seed, result.violations)
    if options.trace or (result.violations and not options.brief):
        say(*result.trace, f"{name} {result.seed}: {result.violations}")
    elif result.violations:
        say(f"{name} {result.seed}: {result.violations[0]}")


def main() -> int:
    """Simulate runs; return 1 if something does not hold."""
    options, failed = read_options(), 0
    first, began = int(options.first), time.monotonic()
    say(f"first seed {first}: --first {first} repeats these runs")
    with Pool(options.jobs, begin) as pool:
        for place, name in enumerate(options.kind):
            run = partial(simulate_one, name=name, is_brief=options.brief)
            runs = len(range(place, options.runs, len(options.kind)))
            struck: Counter[str] = Counter()
            shared = 0
            for result in pool.imap(run, range(first, first + runs), chunksize=2):
                struck.update(result.struck)
                shared += bool(result.shared_count)
                failed += bool(result.violations)
                report(name, result, options)
            faults = ", ".join(f"{number} {fault}" for fault, number in sorted(struck.items()))
            say(f"{name}: {runs} runs from seed {first}; {faults or 'no faults'}; {shared} shared work")
        pool.close()
        pool.join()
    say(f"{failed} runs in which something does not hold, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
