"""Sources of other projects, a virtual environment for each, and runs of their tests in it."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tools.upstream import plugin
from tools.upstream.outcomes import FAILED, Outcome, merge, read
from tools.upstream.projects import SCRAPY, Suite

ROOT = Path(__file__).parents[2]
#: Sources, environments and outcomes; git ignores it.
WORK = ROOT / "build" / "upstream"
REPOSITORY = "https://github.com/scrapy/scrapy"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
#: Seconds a test may take.
TIMEOUT = 120
#: Times that tests run again which fail.
REPEATS = 3
#: Exit codes of pytest: all tests have passed, or some have failed.
RUN_TO_THE_END = (0, 1)


class Environment:
    """The source of a suite, and a virtual environment that it is installed in.

    Args:
        suite: whose tests are run.
        workers: processes that run tests at a time.
    """

    def __init__(self, suite: Suite, workers: int) -> None:
        self.suite, self.workers = suite, workers
        self.directory = WORK / suite.name
        self.source = self.directory / "source"
        self.python = self.directory / "env/bin/python"

    def build(self) -> None:
        """Fetch the source, and install it, what its tests need, and scrapy-bloom.

        Raises:
            SystemExit: a command fails; its output says why.
        """
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._fetch()
        self.unpack()
        run(sys.executable, "-m", "venv", self.directory / "env")
        requirements = ["-e", self.source, *self.suite.requirements(self.source)]
        run(self.python, *PIP, "install", *requirements, "-e", ROOT)
        found = run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        shutil.copy(plugin.__file__, Path(found.strip()) / "upstream_plugin.py")

    def _fetch(self) -> None:
        version = self.suite.version
        if self.suite.project == SCRAPY and not version[0].isdigit() and version != "newest":
            clone = self.directory / "clone"
            branch = f"--branch={version}"
            run("git", "clone", "--quiet", "--depth=1", branch, REPOSITORY, clone)
            run("git", "-C", clone, "archive", "--prefix=s/", "--output=../s.tar.gz", "HEAD")
            return
        requirement = self.suite.project + ("" if version == "newest" else f"=={version}")
        options = (f"--no-binary={self.suite.project}", "--no-deps")
        run(sys.executable, *PIP, "download", *options, f"--dest={self.directory}", requirement)

    def unpack(self) -> None:
        """Make the source again what it was, but for the time that tests wait for commands."""
        shutil.rmtree(self.source, ignore_errors=True)
        (archive,) = self.directory.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(self.directory, filter="data")
            top = tar.getnames()[0].partition("/")[0]
        (self.directory / top).rename(self.source)
        self.suite.wait_longer(self.source)

    def test(
        self, name: str, files: Sequence[str] = (), only: Sequence[str] = ()
    ) -> dict[str, Outcome]:
        """Run tests, and those that fail again by themselves.

        Many of them expect that something takes at most, or at least, so many fractions of a
        second, which is not so while other tests run.

        Args:
            name: of the run; its logs are kept.
            files: with tests; none for all.
            only: ids of the tests that are run; none for all.

        Returns:
            Tests and outcomes.
        """
        outcomes = self._test(name, files, only)
        for number in range(REPEATS):
            failed = [test for test, outcome in outcomes.items() if outcome.outcome == FAILED]
            if failed:
                outcomes = merge(outcomes, self._test(f"{name}-again-{number}", files, failed))
        return outcomes

    def _test(self, name: str, files: Sequence[str], only: Sequence[str]) -> dict[str, Outcome]:
        outcomes, log = self.directory / f"{name}.jsonl", self.directory / f"{name}.log"
        outcomes.unlink(missing_ok=True)
        chosen = self.directory / f"{name}.txt"
        chosen.write_text("\n".join(only))
        command = [
            *(str(self.python), "-m", "pytest", "-p", "upstream_plugin", "-p", "no:cacheprovider"),
            *("-q", f"--timeout={TIMEOUT}", f"--numprocesses={self.workers}"),
            *(*self.suite.pytest_options(), *(files or self.suite.folders)),
        ]
        with log.open("wb") as output:
            done = subprocess.run(
                command,
                cwd=self.source,
                env=os.environ | {plugin.OUTCOMES: str(outcomes), plugin.ONLY: str(chosen)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode not in RUN_TO_THE_END or not outcomes.exists():
            raise SystemExit(f"pytest has not run to the end: see {log}")
        return read(outcomes.read_text().splitlines())


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
