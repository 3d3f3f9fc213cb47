"""Simulated runs of Scrapy's own engine, with other seeds for each commit; and that they repeat."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clock import why_not
from support.paths import TESTS

from simulation.in_process import first_seed, simulate
from simulation.kinds import scrapy_kinds, why_no_scrapy
from simulation.mutants import Mutant, count_found, mutate
from simulation.web_mutants import MUTANTS

reason = why_not() or why_no_scrapy()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

KINDS = [*scrapy_kinds()]
#: Runs of each kind: 300 in all.
RUNS = -(-300 // max(1, len(KINDS)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_promised_holds(kind: str) -> None:
    done = simulate("--kind", kind, "--first", first_seed(), "--runs", str(RUNS))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert f"{kind}: {RUNS} runs" in done.stdout


def test_a_run_repeats() -> None:
    arguments = ("--engine", "scrapy", "--first", "7", "--runs", "1", "--trace")
    once, again = (simulate(*arguments) for _ in range(2))
    assert len(once.stdout.splitlines()) > 500
    assert once.stdout == again.stdout


def test_a_run_repeats_after_others() -> None:
    """Nothing is left of a run: no task, no generator that the garbage collector closes later."""
    code = (
        "from simulation.__main__ import *; begin();"
        "kinds = ['scrapy-server', 'scrapy-faults', 'faults', 'scrapy-server'];"
        "traces = [simulate(servers[0], 5, KINDS[kind]).trace for kind in kinds];"
        "assert len(traces[0]) > 100; assert traces[0] == traces[3]"
    )
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, "-c", code], cwd=TESTS, env=environment, check=True)


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.kind == "scrapy-failing"][:1], ids=lambda one: one.what
)
def test_a_fault_is_found(mutant: Mutant) -> None:
    assert count_found(mutant, 10, jobs=1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.what)
def test_a_fault_can_still_be_put_in(mutant: Mutant, tmp_path: Path) -> None:
    mutate(mutant, tmp_path)
