"""Simulated runs of each kind. ``mutants/test_mutants.py`` tests that they find mistakes."""

import os
import subprocess
import sys

import pytest
import scrapy
from support.clock import why_not
from support.paths import TESTS

from simulation.kinds import KINDS

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(scrapy.version_info < (2, 19), reason="Scrapy needs a reactor before 2.19"),
]
#: Runs of each kind: 300 in all, two minutes of one core. `make simulate` has 1,500.
RUNS = 300 // len(KINDS)
#: Their first seed. It's a fixed one, so that a change is tested by the same runs everywhere.
FIRST = 202611280000
#: Kinds that one process simulates.
SHARES = [[*KINDS][place::4] for place in range(4)]


def simulate(*arguments: str) -> str:
    """Simulate in a process whose sets keep one order: the same runs each time."""
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "--jobs", "1", *arguments],
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    return done.stdout


@pytest.mark.timeout(3_600)  # it takes two minutes of CPU
@pytest.mark.parametrize("kinds", SHARES, ids=",".join)
def test_what_is_promised_holds(kinds: list[str]) -> None:
    """No page and no item of plain Scrapy's is missing, and nothing lasts that should not."""
    chosen = [text for kind in kinds for text in ("--kind", kind)]
    printed = simulate(*chosen, "--first", str(FIRST), "--runs", str(RUNS * len(kinds)))
    assert all(f"{kind}: {RUNS} runs" in printed for kind in kinds)


def test_a_run_repeats_in_another_process_and_after_others() -> None:
    """Nothing is left of a run: no task, no generator that the garbage collector closes later."""
    arguments = ("--kind", "server", "--first", "5", "--trace", "--runs")
    _, _, alone = simulate(*arguments, "1").partition("\n")
    trace = [line for line in alone.splitlines() if line.startswith(" ")]
    assert len(trace) > 100
    after = simulate("--kind", "sharing", *arguments, "2")
    assert "\n".join(trace) in after
