"""Crawler processes that start at once: forked from a process that has imported Scrapy already.

Each is what `scrapy crawl` would be, from its command line on. The parent talks to the nursery in
lines of JSON; when the parent is gone, so are all of its crawlers.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from scrapy.settings import default_settings

from support.paths import TESTS
from support.polling import PATIENCE, until

#: What a crawl imports; nothing of it installs a reactor.
PRELOADED = [
    *("scrapy.cmdline", "scrapy.commands.crawl", "scrapy.commands.shell", "scrapy.core.scraper"),
    *("scrapy.commands.runspider", "scrapy_redis.scheduler", "support.odd_site"),
    *("scrapy.downloadermiddlewares.redirect", "scrapy.linkextractors", "scrapy.spiders"),
    *("scrapy.pqueues", "scrapy.squeues", "scrapy.robotstxt", "scrapy.logformatter"),
    *("protego", "tldextract", "twisted.conch", "redis", "redis.cluster", "redis.asyncio"),
    *("scrapy_bloom.dupefilter", "scrapy_bloom.addon"),
    *("chaos.spider",),
]


def options_of(settings: Mapping[str, object]) -> list[str]:
    """Return settings as options of a command of Scrapy's."""
    options = []
    for name, value in settings.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        options += ["-s", f"{name}={text}"]
    return options


class Nursery:
    """The parent's side: start crawlers, end them, ask after them."""

    def __init__(self) -> None:
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.nursery"],
            cwd=TESTS,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process from which crawlers are forked."""
        return self._process.pid

    def start(
        self,
        arguments: list[str],
        log: Path,
        directory: Path = TESTS,
        *,
        errors: Path | None = None,
    ) -> int:
        """Run `scrapy` with these arguments; return the process id.

        Args:
            arguments: of `scrapy`.
            log: file for its output.
            directory: where it runs.
            errors: file for its standard error, if that is another one.
        """
        files = [str(log), str(errors or log)]
        return int(self._ask("start", arguments, files, str(directory), dict(os.environ)))

    def kill(self, pid: int) -> None:
        """Kill -9 a crawler, unless it has ended."""
        self._ask("kill", pid)

    def exit_code(self, pid: int) -> int | None:
        """Return how a crawler ended (-9 if it was killed), or None while it runs."""
        code = self._ask("exit_code", pid)
        return None if code is None else int(code)

    def _ask(self, *message: object) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait(self, pid: int, seconds: float = PATIENCE) -> int:
        """Wait until a crawler has ended; return how. It is killed if it takes far too long."""
        try:
            until(lambda: self.exit_code(pid) is not None, "the process ends", seconds)
        finally:
            self.kill(pid)
        return cast("int", self.exit_code(pid))

    def run(self, arguments: list[str], directory: Path) -> tuple[int, str, str]:
        """Run `scrapy` to its end; return its exit code, its output and its standard error."""
        with TemporaryDirectory() as files:
            out, errors = Path(files, "out"), Path(files, "errors")
            pid = self.start(arguments, out, directory, errors=errors)
            return self.wait(pid), out.read_text(), errors.read_text()

    def close(self) -> None:
        """End it, and any crawlers that are left."""
        self._process.communicate()


#: The nursery of this process, if it has one.
SHARED: list[Nursery] = []


def shared_nursery() -> Nursery:
    """Return the nursery of this process, which is started when it is first needed."""
    if not SHARED:
        SHARED.append(Nursery())
    return SHARED[0]


def close_shared_nursery() -> None:
    """End it, if there is one."""
    while SHARED:
        SHARED.pop().close()


class _Children:
    """The nursery's side."""

    def __init__(self) -> None:
        self.exit_codes: dict[int, int | None] = {}

    def start(
        self, arguments: list[str], files: list[str], directory: str, variables: dict[str, str]
    ) -> int:
        pid = os.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(variables)
            os.chdir(directory)
            become_crawler(arguments, *files)
        self.exit_codes[pid] = None
        return pid

    def kill(self, pid: int) -> None:
        if self.exit_code(pid) is None:
            os.kill(pid, signal.SIGKILL)
            self.exit_codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def exit_code(self, pid: int) -> int | None:
        if self.exit_codes[pid] is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
        return self.exit_codes[pid]


def become_crawler(arguments: list[str], log: str, errors: str) -> None:
    """Go on as `scrapy` would; the process ends in here."""
    from scrapy.cmdline import execute  # noqa: PLC0415 - preloaded; the parent's side needs none

    for number, (file, mode) in enumerate([(os.devnull, "rb"), (log, "ab"), (errors, "ab")]):
        with open(file, mode) as opened:  # noqa: PTH123
            os.dup2(opened.fileno(), number)
    sys.path.insert(0, str(Path.cwd()))  # as `python -m scrapy` does
    execute(["scrapy", *arguments])
    sys.exit(0)


def main() -> None:
    """Serve until the parent closes the pipe."""
    components = (
        *default_settings.EXTENSIONS_BASE,
        *default_settings.DOWNLOADER_MIDDLEWARES_BASE,
        *default_settings.SPIDER_MIDDLEWARES_BASE,
    )
    modules = {path.rpartition(".")[0] for path in components}
    for name in (*PRELOADED, *sorted(modules)):
        importlib.import_module(name)
    assert "twisted.internet.reactor" not in sys.modules
    gc.freeze()  # else each child would copy all of it, when it collects garbage
    children = _Children()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(getattr(children, name)(*arguments)) + "\n")
        sys.stdout.flush()
    for pid in children.exit_codes:
        children.kill(pid)


if __name__ == "__main__":
    main()
