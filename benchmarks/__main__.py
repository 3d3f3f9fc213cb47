"""``python -m benchmarks``: run the benchmarks, and write docs/performance.md.

What each benchmark finds is kept in .scrapy/benchmarks, so that the page can be made of several
runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks import crawl, library, lists, size
from benchmarks.contestants import server_name, started
from benchmarks.found import Found, Size
from benchmarks.page import write

ROOT = Path(__file__).parents[1]
#: git ignores it.
WORK = ROOT / ".scrapy" / "benchmarks"
#: In the order of the page.
BENCHMARKS: dict[str, Callable[[Size], Found]] = {
    "crawl": crawl.run,
    "list": lists.run,
    "kill": crawl.run_kills,
    "size": size.run,
    "throughput": library.run_throughput,
    "single": library.run_single,
    "heartbeats": library.run_heartbeats,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=BENCHMARKS, default=[*BENCHMARKS]
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"measure little; the page is in {WORK.name}/quick"
    )
    options = parser.parse_args()
    size = Size(1, 0.05) if options.quick else Size()
    results = WORK / "quick" if options.quick else WORK
    results.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        start = time.monotonic()
        found = BENCHMARKS[name](size)
        (results / f"{name}.json").write_text(json.dumps(asdict(found)), "utf-8")
        for row in found.rows:
            print(" | ".join(row))
        print(f"{name} took {time.monotonic() - start:.0f} s", flush=True)
    files = [results / f"{name}.json" for name in BENCHMARKS]
    everything = {
        file.stem: Found(**json.loads(file.read_text("utf-8"))) for file in files if file.exists()
    }
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    directory = results if options.quick else ROOT / "docs"
    print(f"Written: {write(directory, everything, command, _servers())}")


def _servers() -> str:
    """Return the servers of the crawls and of the library in words."""
    names = []
    for for_crawls in (True, False):
        with started(for_crawls=for_crawls) as server, server.client() as client:
            names.append(server_name(client))
    return f"{names[0]} for the crawls, {names[1]} for the rest"


if __name__ == "__main__":
    main()
