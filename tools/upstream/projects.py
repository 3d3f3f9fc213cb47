"""The suites that run, and what is changed in them to put ``BloomDupeFilter`` in."""

import re
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

SCRAPY, SCRAPY_REDIS = "scrapy", "scrapy-redis"
#: Scrapy's suites make errors of warnings: of those that newer versions of pytest added as well.
NEWEST = ("pytest<9.2",)
#: With the oldest Scrapy, the oldest versions of what scrapy-bloom needs (see the Makefile), and of
#: other packages those of its time: some of its tests fail with newer ones.
LOWEST = (
    *("redis==6.4.0", "mmh3==5.0.0", "twisted<25.6"),
    *("pytest<9", "lxml<6", "pyopenssl<25.2", "service-identity<25"),
)
#: Values of Scrapy's own option ``--reactor``; 2.13 has no "none".
REACTORS = ("asyncio", "default", "none")
#: Files in which tests give a command 15 seconds, which are too few while others use the machine.
HASTY = ("tests/utils/cmdline.py", "tests/test_commands.py", "tests/test_engine.py")


@dataclass(frozen=True, slots=True)
class Suite:
    """A version of a project, and how its tests run.

    Args:
        project: ``scrapy`` or ``scrapy-redis``.
        version: as on the package index; ``newest``, or a git reference of Scrapy's repository.
        reactor: the kind of reactor, for Scrapy.
        remember: the value of ``BLOOM_REMEMBER``.
        pins: further requirements.
    """

    project: str
    version: str
    reactor: str = "asyncio"
    remember: str = "crawled"
    pins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in tables, and of the directory of its results."""
        reactor = "" if self.reactor == REACTORS[0] else f"-{self.reactor}"
        return f"{self.project}-{self.version}{reactor}"

    def requirements(self, source: Path) -> list[str]:
        """Return what the tests need, as the project pins it."""
        tools = ["pytest-timeout", "pytest-xdist", *self.pins]
        if self.project == SCRAPY_REDIS:
            lines = (source / "requirements-tests.txt").read_text().splitlines()
            return [line for line in lines if line.startswith(("pytest", "mock"))] + tools
        if self.reactor == "none":
            tools.append("pytest-asyncio")
        tox = ConfigParser(interpolation=None)
        tox.read(source / "tox.ini")
        lines = tox["test-requirements"]["deps"].splitlines()
        return [line.partition(" #")[0].strip() for line in lines if line.strip()] + tools

    def pytest_options(self) -> list[str]:
        """Return the options of pytest with which the project's ``tox.ini`` runs its tests.

        Not those for coverage; and tests that need the internet are left out.
        """
        if self.project == SCRAPY_REDIS:
            return []
        options = ["--doctest-modules", "-m", "not requires_internet", f"--reactor={self.reactor}"]
        return [*options, "-p", "no:twisted"] if self.reactor == "none" else options

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders with tests."""
        return ("tests",) if self.project == SCRAPY_REDIS else ("scrapy", "tests")

    def wait_longer(self, source: Path) -> None:
        """Let the tests wait longer for the commands that they run."""
        for path in map(source.joinpath, HASTY):
            if path.exists():
                text = re.sub(r"(timeout=|Timer\()15\b", r"\g<1>110", path.read_text())
                path.write_text(text)

    def put_in(self, source: Path, url: str) -> None:
        """Make ``BloomDupeFilter`` the dupefilter of crawls that do not choose one.

        Args:
            source: the unpacked source; files in it are changed.
            url: of the server.
        """
        settings = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_REDIS_URL": url}
        settings["BLOOM_REMEMBER"] = self.remember
        if self.project == SCRAPY:
            path = source / "scrapy/settings/default_settings.py"
            lines = [f"{name} = {value!r}" for name, value in settings.items()]
            lines += ["from upstream_plugin import current_key", "BLOOM_KEY = current_key()"]
            path.write_text(path.read_text() + "\n\n" + "\n".join(lines) + "\n")
            return
        # The test of the scheduler chooses scrapy-redis's own.
        path = source / "tests/test_scrapy_redis.py"
        own = '"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",'
        text = path.read_text()
        if text.count(own) != 1:
            raise SystemExit(f"{path} does not set {own} once")
        ours = "\n".join(f"{name!r}: {value!r}," for name, value in settings.items())
        ours += '\n"BLOOM_KEY": __import__("upstream_plugin").current_key(),'
        path.write_text(text.replace(own, ours))


SUITES = (
    Suite(SCRAPY, "newest", pins=NEWEST),
    Suite(SCRAPY, "2.13.0", pins=LOWEST),
    # Its tests of the scheduler run without the event loop that "crawled" needs.
    Suite(SCRAPY_REDIS, "0.9.1", remember="scheduled"),
)
