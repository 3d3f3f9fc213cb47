"""Python and Scrapy, each called in a process of its own as a user would."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from support.nursery import shared_nursery
from support.paths import TESTS

#: Seconds that anything may take. Nothing is expected to be as slow.
CRAWL_TIMEOUT = 300


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the directory of the tests."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=CRAWL_TIMEOUT,
        check=False,
    )


def run_scrapy(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run Scrapy in a directory as ``python -m scrapy`` does, without importing.

    The process is forked from one that has imported Scrapy already.
    """
    nursery = shared_nursery()
    with TemporaryDirectory() as output:
        out, err = Path(output, "out"), Path(output, "err")
        pid = nursery.start(list(arguments), out, directory, errors=err)
        code = nursery.wait(pid, CRAWL_TIMEOUT)
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())
