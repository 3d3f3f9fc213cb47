"""``python -m tools.upstream``: run the tests of Scrapy and scrapy-redis with ``BloomDupeFilter``.

Their sources are installed into separate environments, with the filter in Scrapy's default
settings. Tests that fail run again, then without the filter. A test that passes there is a
difference. ``upstream_differences.toml`` has the known ones with their reasons. The exit code is 1
if there are others, or if a known one no longer occurs. Logs are in build/upstream.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from configparser import ConfigParser
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tools import upstream_plugin

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import SERVERS, Server

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "upstream"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
SCRAPY, SCRAPY_REDIS = "scrapy", "scrapy-redis"
DIFFERENCES = tomllib.loads(Path(__file__).with_name("upstream_differences.toml").read_text())
#: Times that tests run again which fail. Many expect something within fractions of a second.
REPEATS = 3
#: Exit codes of pytest: all tests have passed, some have failed, none was left to run.
RUN_TO_THE_END = (0, 1, 5)
#: Files in which tests give a command 15 seconds, which are too few while others use the machine.
HASTY = ("tests/utils/cmdline.py", "tests/test_commands.py", "tests/test_engine.py")
#: How the test of scrapy-redis's scheduler chooses scrapy-redis's own filter.
THEIRS = '"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",'


@dataclass(frozen=True)
class Suite:
    """A version of a project, and how its tests run.

    Args:
        project: ``scrapy`` or ``scrapy-redis``.
        version: as on the package index, or ``newest``.
        pins: further requirements.
        remember: the value of ``BLOOM_REMEMBER``.
        reactor: Scrapy's option of that name.
    """

    project: str
    version: str
    pins: tuple[str, ...] = ()
    remember: str = "crawled"
    reactor: str = "asyncio"

    @property
    def name(self) -> str:
        """Project, version and settings."""
        return f"{self.project}-{self.version}-{self.remember}-{self.reactor}"

    @property
    def directory(self) -> Path:
        """Where its source, its environment and its logs are."""
        return WORK / self.name

    def requirements(self) -> list[str]:
        """Return what the tests need, as the project pins it."""
        source = self.directory / "source"
        tools = ["pytest-timeout", "pytest-xdist", *self.pins]
        if self.project == SCRAPY_REDIS:
            lines = (source / "requirements-tests.txt").read_text().splitlines()
            return [line for line in lines if line.startswith(("pytest", "mock"))] + tools
        tox = ConfigParser(interpolation=None)
        tox.read(source / "tox.ini")
        lines = tox["test-requirements"]["deps"].splitlines()
        return [line.partition(" #")[0].strip() for line in lines if line.strip()] + tools

    def options(self) -> list[str]:
        """Return the options of pytest with which the project's ``tox.ini`` runs its tests."""
        if self.project == SCRAPY_REDIS:
            return ["tests"]  # one by one: some of them empty the server
        options = ["--doctest-modules", "-m", "not requires_internet", f"--reactor={self.reactor}"]
        no_twisted = ("-p", "no:twisted") if self.reactor == "none" else ()
        return [*options, *no_twisted, "--numprocesses=2", "scrapy", "tests"]


#: Scrapy's suites make errors of warnings: of those that newer versions of pytest added as well.
NEWEST = ("pytest<9.2", "pytest-asyncio")
#: The oldest versions of what scrapy-bloom needs, and of other packages those of that time.
LOWEST = (
    *("redis==6.4.0", "mmh3==5.0.0", "twisted<25.6"),
    *("pytest<9", "lxml<6", "pyopenssl<25.2", "service-identity<25"),
)
SUITES: tuple[Suite, ...] = (
    Suite(SCRAPY, "newest", NEWEST),
    Suite(SCRAPY, "2.13.0", LOWEST),
    Suite(SCRAPY_REDIS, "0.9.1"),
    Suite(SCRAPY_REDIS, "0.9.1", remember="scheduled"),
)


def main() -> int:
    """Run the suites that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.upstream", description=__doc__)
    parser.add_argument("--scrapy", metavar="VERSION", help="only this one, for example newest")
    parser.add_argument("--remember", choices=("crawled", "scheduled"), help="BLOOM_REMEMBER")
    parser.add_argument("--reactor", choices=("asyncio", "default", "none"), help="of Scrapy")
    options = parser.parse_args()
    suites = SUITES
    if options.scrapy:
        known = [one for one in SUITES if (one.project, one.version) == (SCRAPY, options.scrapy)]
        suites = (known[0] if known else replace(SUITES[0], version=options.scrapy),)
    given = {name: value for name in ("remember", "reactor") if (value := getattr(options, name))}
    suites = tuple(replace(suite, **given) for suite in suites)
    found = {suite: check(suite) for suite in suites}
    is_as_known = not [suite for suite, tests in found.items() if not report(suite, tests)]
    if not any(vars(options).values()):
        for entry in DIFFERENCES["difference"]:
            about = [tests for suite, tests in found.items() if is_about(entry, suite)]
            if about and not any(covers(entry, test) for test in set().union(*about)):
                print(f"NO LONGER OCCURS: {entry['tests'][0]}, ...: {entry['why']}")
                is_as_known = False
    return 0 if is_as_known else 1


def report(suite: Suite, found: set[str]) -> bool:
    """Print the differences of a suite; return whether all are known."""
    entries = [entry for entry in DIFFERENCES["difference"] if is_about(entry, suite)]
    unknown = sorted(test for test in found if not any(covers(one, test) for one in entries))
    print(f"{suite.name}: {len(found) - len(unknown)} known differences, {len(unknown)} unknown")
    for test in unknown:
        print(f"  UNKNOWN: {test}")
    return not unknown


def is_about(entry: dict[str, Any], suite: Suite) -> bool:
    """Whether the known differences of an entry occur in a suite."""
    remember = entry.get("remember", suite.remember)
    return (entry["project"], remember) == (suite.project, suite.remember)


def covers(entry: dict[str, Any], test: str) -> bool:
    """Whether an entry of the known differences names a test."""
    return any(fnmatchcase(test, name.replace("[", "[[]")) for name in entry["tests"])


def check(suite: Suite) -> set[str]:
    """Run a suite; return the tests that fail with the filter only.

    Raises:
        SystemExit: it can't be run, or no test has made a filter.
    """
    build(suite)
    # The filters' server is another one than that of the tests, because filters are counted.
    binary = next(iter(SERVERS.values()))
    with Server(binary) as server, Server(binary) as theirs:
        os.environ |= {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(theirs.port)}
        unpack(suite)
        put_in(suite, server.url)
        failed = test(suite, "with-filter")
        for number in range(REPEATS):
            if failed:
                failed = test(suite, f"with-filter-again-{number}", "--last-failed")
        with server.client() as client:
            if next(client.scan_iter("*:0}:ring", count=1000), None) is None:
                raise SystemExit(f"{suite.name}: no test has made a filter")
        unpack(suite)
        return failed - test(suite, "without", "--last-failed") if failed else failed


def build(suite: Suite) -> None:
    """Fetch the source, and install it, what its tests need, and scrapy-bloom."""
    print(f"{suite.name}: making its environment", flush=True)
    shutil.rmtree(suite.directory, ignore_errors=True)
    suite.directory.mkdir(parents=True)
    requirement = suite.project + ("" if suite.version == "newest" else f"=={suite.version}")
    options = (f"--no-binary={suite.project}", "--no-deps", f"--dest={suite.directory}")
    run(sys.executable, *PIP, "download", *options, requirement)
    unpack(suite)
    run(sys.executable, "-m", "venv", suite.directory / "env")
    python = suite.directory / "env/bin/python"
    packages = ("-e", suite.directory / "source", *suite.requirements(), "-e", ROOT)
    run(python, *PIP, "install", *packages)
    found = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    shutil.copy(upstream_plugin.__file__, found.strip())


def unpack(suite: Suite) -> None:
    """Make the source what it was, except for the time that tests wait for commands."""
    source = suite.directory / "source"
    shutil.rmtree(source, ignore_errors=True)
    (archive,) = suite.directory.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(suite.directory, filter="data")
        top = tar.getnames()[0].partition("/")[0]
    (suite.directory / top).rename(source)
    for path in filter(Path.exists, map(source.joinpath, HASTY)):
        path.write_text(re.sub(r"(timeout=|Timer\()15\b", r"\g<1>110", path.read_text()))


def put_in(suite: Suite, url: str) -> None:
    """Make ``BloomDupeFilter`` the dupefilter of crawls that don't choose one."""
    settings = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_REDIS_URL": url}
    settings["BLOOM_REMEMBER"] = suite.remember
    source = suite.directory / "source"
    if suite.project == SCRAPY:
        path = source / "scrapy/settings/default_settings.py"
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        lines += ["import upstream_plugin", "BLOOM_KEY = upstream_plugin.key()"]
        path.write_text(path.read_text() + "\n\n" + "\n".join(lines) + "\n")
        return
    path = source / "tests/test_scrapy_redis.py"
    text = path.read_text()
    if text.count(THEIRS) != 1:
        raise SystemExit(f"{path} doesn't contain {THEIRS} once")
    ours = "".join(f"{name!r}: {value!r},\n" for name, value in settings.items())
    ours += '"BLOOM_KEY": __import__("upstream_plugin").key(),'
    path.write_text(text.replace(THEIRS, ours))


def test(suite: Suite, name: str, *options: str) -> set[str]:
    """Run the tests of a suite; return those that fail, as pytest's cache has them.

    Raises:
        SystemExit: pytest has not run to the end.
    """
    cache, log = suite.directory / "cache", suite.directory / f"{name}.log"
    command = (suite.directory / "env/bin/python", "-m", "pytest", "-p", "upstream_plugin", "-q")
    variables = {"UPSTREAM_RUN": name}
    if suite.project == SCRAPY_REDIS:  # its tests of the scheduler have no engine
        variables["UPSTREAM_LOOP"] = "1"
    with log.open("wb") as output:
        done = subprocess.run(
            [*command, "--timeout=120", "-o", f"cache_dir={cache}", *suite.options(), *options],
            cwd=suite.directory / "source",
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    last = log.read_text("utf-8", "replace").rstrip().rpartition("\n")[2]
    print(f"{suite.name}, {name}: {last}", flush=True)
    if done.returncode not in RUN_TO_THE_END:
        raise SystemExit(f"pytest has not run to the end: see {log}")
    failed = cache / "v/cache/lastfailed"
    return set(json.loads(failed.read_text())) if failed.exists() else set()


def run(*command: object) -> str:
    """Run a command; return its standard output.

    Raises:
        SystemExit: it fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
