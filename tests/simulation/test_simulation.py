"""Simulated runs of each kind, with other seeds for each commit; and that they find bugs."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from support.clock import why_not
from support.paths import TESTS

from simulation import failing
from simulation.in_process import first_seed, simulate
from simulation.kinds import KINDS, why_no_scrapy
from simulation.mutants import MUTANTS, Mutant, count_found, mutate

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

#: Runs of each kind: 500 in all.
RUNS = -(-500 // len(KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_promised_holds(kind: str) -> None:
    done = simulate("--kind", kind, "--first", first_seed(), "--runs", str(RUNS))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert f"{kind}: {RUNS} runs" in done.stdout


@pytest.mark.parametrize(("kind", "seed"), failing.read())
def test_a_run_that_failed_once_holds(kind: str, seed: int) -> None:
    if kind.startswith("scrapy-") and (reason := why_no_scrapy()):
        pytest.skip(reason)
    done = simulate("--kind", kind, "--first", str(seed), "--runs", "1")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


def test_runs_that_fail_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "failing.txt"
    path.write_text("# some\ncalm 3  # hidden: /1\n")
    for seed in (3, 4, 4):
        failing.note("calm", seed, ["left: #1\n of it", "no expiry"], path)
    assert failing.read(path) == [("calm", 3), ("calm", 4)]
    assert path.read_text().endswith("calm 3  # hidden: /1\ncalm 4  # left: #1 of it\n")


def test_each_day_has_seeds_of_its_own() -> None:
    assert failing.first_seed(date(2026, 11, 3)) == 202611030000
    done = simulate("--kind", "scheduled", "--runs", "1")
    days = {failing.first_seed(datetime.now(UTC).date() - timedelta(n)) for n in (0, 1)}
    assert any(f"first seed {first}:" in done.stdout for first in days), done.stdout


def test_a_run_repeats() -> None:
    arguments = ("--kind", "rotating", "--first", "0", "--runs", "2", "--trace")
    once, again = (simulate(*arguments) for _ in range(2))
    assert len(once.stdout.splitlines()) > 200
    assert once.stdout == again.stdout


def test_a_run_repeats_after_another_one() -> None:
    """Nothing is left of a run: no task, no generator that the garbage collector closes later."""
    code = (
        "from simulation.__main__ import *; begin();"
        "traces = [simulate(servers[0], seed, KINDS['faults']).trace for seed in (5, 6, 5)];"
        "assert len(traces[0]) > 100; assert traces[0] == traces[2]"
    )
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, "-c", code], cwd=TESTS, env=environment, check=True)


@pytest.mark.parametrize(
    "mutant",
    [
        # All are found by `make mutants`; a test run looks that bugs are found at all.
        pytest.param(one, marks=[pytest.mark.slow] if number > 1 else [])
        for number, one in enumerate(one for one in MUTANTS if one.kind == "calm")
    ],
    ids=lambda one: one.what,
)
def test_a_bug_is_found(mutant: Mutant) -> None:
    assert count_found(mutant, 30, jobs=1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.what)
def test_a_bug_can_still_be_put_in(mutant: Mutant, tmp_path: Path) -> None:
    mutate(mutant, tmp_path)
