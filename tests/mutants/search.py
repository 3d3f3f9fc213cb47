"""Runs tests and simulated runs on a copy of the package that has a mistake."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from simulation.kinds import KINDS
from support.paths import TESTS

from mutants.table import PACKAGE, Mutant, mutated

#: Simulated runs that look for a mistake, from seed 1 on, until one finds it.
RUNS = (8, 40, 200)
#: Folders of tests, the fastest first.
FOLDERS = ("unit", "server", "crawl", "simulation", "chaos")
#: Runs tests in their order, but for a few that run at the same time.
PYTEST = (
    *("pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed", "0"),
    *("--maxschedchunk", "1", "-n"),
)


def find(mutant: Mutant, runs: Sequence[int] = RUNS) -> str:
    """Return what finds a mistake, if its finder does; else "".

    Raises:
        RuntimeError: the finder can't be run.
    """
    with _copied(mutant) as copy:
        if mutant.finder not in KINDS:
            return _run(copy, [*PYTEST, "0", mutant.finder])
        command = ["simulation", "--brief", "--kind", mutant.finder, "--first", "1", "--runs"]
        tries = (_run(copy, [*command, str(number)]) for number in runs)
        return next(filter(None, tries), "")


def find_anew(mutant: Mutant) -> str:
    """Return the first test of all that finds a mistake, whatever the table says; else "".

    Raises:
        RuntimeError: the tests can't be run.
    """
    with _copied(mutant) as copy:
        return _run(copy, [*PYTEST, str(os.cpu_count()), *files_for(mutant)])


def files_for(mutant: Mutant) -> list[str]:
    """Return all files of tests, first those that mention the file or are named after it."""
    name = re.compile(rf"\b{Path(mutant.file).stem}\b|/test_{Path(mutant.file).stem}")
    found = [path for folder in FOLDERS for path in sorted((TESTS / folder).glob("test_*.py"))]
    found.sort(key=lambda path: name.search(f"{path}{path.read_text('utf-8')}") is None)
    return [str(path.relative_to(TESTS)) for path in found]


@contextmanager
def _copied(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder with a copy of the package that has a mistake."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(mutated(mutant), "utf-8")
        yield Path(directory)


def _run(copy: Path, command: Sequence[str]) -> str:
    """Run tests, or simulate, with a copy of the package; return the first that fails."""
    path = os.pathsep.join((str(copy), str(TESTS)))
    own = {
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": path,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "examples"),  # no other run gets its examples
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", *command],
        cwd=TESTS,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = r"^(?:(?:FAILED|ERROR) (\S+::\w+)|(\w+ \d+): )"
    found = re.search(failed, done.stdout, re.MULTILINE)
    if not found and done.returncode:
        raise RuntimeError(f"{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return (found[1] or found[2]) if found else ""
