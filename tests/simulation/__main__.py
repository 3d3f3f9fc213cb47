"""Simulates runs on all cores: ``PYTHONHASHSEED=0 python -m simulation --help``, from ``tests``."""

import argparse
import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from multiprocessing import Pool, util

from rich.console import Console
from support.clock import FrozenServer
from support.servers import SERVERS
from twisted.logger import globalLogBeginner

from simulation.failing import FAILING, first_seed, note
from simulation.kinds import KINDS as SMALL_KINDS
from simulation.kinds import scrapy_kinds, why_no_scrapy
from simulation.run import IN_ORDER, Result, simulate
from simulation.shrink import shrink

console = Console()
KINDS = {**SMALL_KINDS, **scrapy_kinds()}
#: The kinds that an engine runs.
ENGINES = {"small": SMALL_KINDS, "scrapy": scrapy_kinds()}
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


def say(lines: Iterable[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    """Simulate runs; return 1 if something does not hold."""
    parser = argparse.ArgumentParser(
        prog="simulation", description="Simulates crawls whose steps a seed chooses."
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="small", help="Scrapy's own, or a small one (default)"
    )
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all of the engine")
    parser.add_argument(
        "--first", metavar="SEED", help='a number, or "random"; default: another one each day'
    )
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--trace", action="store_true", help="print what happened in all runs")
    parser.add_argument("--note", action="store_true", help=f"add runs that fail to {FAILING.name}")
    parser.add_argument("--brief", action="store_true", help="count runs that fail, no more")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0: otherwise a run does not repeat")
    kinds = options.kind or [*ENGINES[options.engine]]
    if not kinds:
        parser.error(str(why_no_scrapy()))
    today = first_seed(datetime.now(UTC).date())
    is_random = options.first == "random"
    first = random.SystemRandom().randrange(10**9) if is_random else int(options.first or today)
    say([f"first seed {first}: --first {first} repeats these runs"])
    failed = 0
    with Pool(options.jobs, begin) as pool:
        for name in kinds:
            run = partial(simulate_one, name=name, is_brief=options.brief)
            seeds = range(first, first + options.runs)
            results = pool.imap(run, seeds, chunksize=4)
            struck: Counter[str] = Counter()
            for result in results:
                struck.update(result.struck)
                failed += bool(result.violations)
                if result.violations and options.note:
                    note(name, result.seed, result.violations)
                if (result.violations and not options.brief) or options.trace:
                    say([*result.trace, f"{name} {result.seed}: {result.violations}"])
                elif result.violations:
                    say([f"{name} {result.seed}: {result.violations[0]}"])
            faults = ", ".join(f"{number} {fault}" for fault, number in sorted(struck.items()))
            say([f"{name}: {len(seeds)} runs from seed {first}; {faults or 'no faults'}"])
        pool.close()
        pool.join()
    say([f"{failed} runs in which something does not hold"])
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
