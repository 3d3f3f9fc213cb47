"""Simulates runs on all cores: ``PYTHONHASHSEED=0 python -m simulation --help``, from ``tests``."""

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from multiprocessing import Pool, util

from rich.console import Console
from support.clock import MovedServer
from support.servers import SERVERS
from twisted.logger import globalLogBeginner

from simulation.kinds import KINDS
from simulation.run import IN_ORDER, Result, simulate

#: Prints texts as they are.
say = partial(Console().print, sep="\n", markup=False, highlight=False, soft_wrap=True)
#: The server of this process.
servers: list[MovedServer] = []


def begin() -> None:
    """Start a server for this process."""
    logging.disable(logging.INFO)  # what nobody looks at takes time
    logging.lastResort = None
    # Of kills that end a Deferred's callback.
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    gc.freeze()  # what is imported is there to stay
    server = MovedServer(next(iter(SERVERS.values())), *IN_ORDER)
    servers.append(server)
    util.Finalize(None, server.stop, exitpriority=1)


def simulate_one(seed: int, name: str) -> Result:
    """Simulate a run."""
    return simulate(servers[0], seed, KINDS[name])


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="simulation", description="Simulates crawls whose steps a seed chooses."
    )
    add, today = parser.add_argument, int(f"{datetime.now(UTC):%Y%m%d}") * 10_000
    add("--kind", choices=KINDS, action="append", help="default: all")
    add("--first", metavar="SEED", type=int, default=today, help="default: another one each day")
    add("--runs", type=int, default=1_500, metavar="N", help="of all kinds together")
    add("--jobs", type=int, default=os.cpu_count(), metavar="N")
    add("--trace", action="store_true", help="print what happened in all runs")
    add("--brief", action="store_true", help="print one line of a run that fails, no more")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0: otherwise a run does not repeat")
    options.kind = options.kind or [*KINDS]
    return options


def main() -> int:
    """Simulate runs; return 1 if something does not hold."""
    options, failed, began = read_options(), 0, time.monotonic()
    first = options.first
    say(f"first seed {first}: --first {first} repeats these runs")
    # What was killed leaves some memory behind, so each process simulates 50 runs.
    with Pool(options.jobs, begin, maxtasksperchild=25) as pool:
        for place, name in enumerate(options.kind):
            seeds = range(first, first + len(range(place, options.runs, len(options.kind))))
            struck: Counter[str] = Counter()
            shared = 0
            for result in pool.imap(partial(simulate_one, name=name), seeds, chunksize=2):
                struck.update(result.struck)
                shared += "share" in result.struck
                failed += bool(result.violations)
                is_shown = options.trace or (result.violations and not options.brief)
                if is_shown or result.violations:
                    shown = (result.trace, result.story) if is_shown else ((), ())
                    violations = f"{name} {result.seed}: {', '.join(result.violations)}"
                    say(*shown[0], violations, *shown[1])
            faults = ", ".join(f"{number} {fault}" for fault, number in sorted(struck.items()))
            say(f"{name}: {len(seeds)} runs from seed {first}, {shared} shared work; {faults}")
        pool.close()
        pool.join()
    say(f"{failed} runs in which something does not hold, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
