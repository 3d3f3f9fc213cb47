"""A few simulated runs of each kind; and that they find what they are for."""

import os
import subprocess
import sys

import pytest
from support.clock import why_not
from support.paths import TESTS

from simulation.run import KINDS

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

#: A page is confirmed although requests that it yielded, and that are not stored, wait.
BUG = """
import sys
from simulation import run
from scrapy_bloom.crawl.claims.in_flight import UnkeptRequests
UnkeptRequests.add = lambda self, claim, parent: []
sys.exit(run.main())
"""


def simulate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Simulate in a process whose sets keep one order: the same runs each time."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_hidden(kind: str) -> None:
    done = simulate("-m", "simulation.run", "--kind", kind, "--runs", "12")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert f"{kind}: 12 runs" in done.stdout


def test_a_run_repeats() -> None:
    once, again = (
        simulate("-m", "simulation.run", "--kind", "faults", "--runs", "1", "--trace")
        for _ in range(2)
    )
    assert len(once.stdout.splitlines()) > 100
    assert once.stdout == again.stdout


def test_a_bug_is_found() -> None:
    done = simulate("-c", BUG, "--kind", "faults", "--runs", "30")
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr
    assert "hidden: " in done.stdout
