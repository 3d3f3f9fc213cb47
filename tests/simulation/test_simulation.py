"""Simulated runs of each kind, with other seeds for each commit; and that they find bugs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clock import why_not
from support.paths import ROOT, TESTS

from simulation.kinds import KINDS
from simulation.mutants import MUTANTS, Mutant, count_found, mutate

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

#: Runs of each kind: 500 in all.
RUNS = -(-500 // len(KINDS))


def simulate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Simulate in a process whose sets keep one order: the same runs each time."""
    return subprocess.run(
        [sys.executable, "-m", "simulation", "--jobs", "1", *arguments],
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def first_seed() -> str:
    """Return a number that is another one for each commit."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return str(int(done.stdout or "0", 16))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_promised_holds(kind: str) -> None:
    done = simulate("--kind", kind, "--first", first_seed(), "--runs", str(RUNS))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert f"{kind}: {RUNS} runs" in done.stdout


def test_a_run_repeats() -> None:
    once, again = (simulate("--kind", "rotating", "--runs", "2", "--trace") for _ in range(2))
    assert len(once.stdout.splitlines()) > 200
    assert once.stdout == again.stdout


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.kind == "calm"], ids=lambda one: one.what
)
def test_a_bug_is_found(mutant: Mutant) -> None:
    assert count_found(mutant, 30, jobs=1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.what)
def test_a_bug_can_still_be_put_in(mutant: Mutant, tmp_path: Path) -> None:
    mutate(mutant, tmp_path)
