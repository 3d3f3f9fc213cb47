"""Simulated runs of each kind, with other seeds for each commit; and that they find bugs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest
from support.clock import why_not
from support.paths import ROOT, TESTS

from simulation import failing, web_mutants
from simulation.kinds import KINDS, scrapy_kinds, why_no_scrapy
from simulation.mutants import MUTANTS, Mutant, count_found, mutated

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

#: Runs of each kind. `make simulate` has 345 of the small engine's, and 273 of Scrapy's.
RUNS = 4
SMALL, SCRAPY = [*KINDS], [*scrapy_kinds()]
#: Kinds that one process simulates: to start one takes as long as ten runs.
SHARES = {
    "the first half": SMALL[::2],
    "the second half": SMALL[1::2],
    "the first half of Scrapy's": SCRAPY[::2],
    "the second half of Scrapy's": SCRAPY[1::2],
}
#: Each of the first bugs of these kinds is found by any run. `make mutants` has all bugs.
BUGS = [
    next(one for one in MUTANTS if one.kind == "calm"),
    next(one for one in web_mutants.MUTANTS if one.kind == "scrapy-feeds"),
]


def require(*kinds: str) -> None:
    """Skip a test of Scrapy's own engine where that cannot be simulated."""
    if not kinds or not {*kinds} <= {*SMALL, *SCRAPY}:
        pytest.skip(str(why_no_scrapy()))


def simulate(kinds: Sequence[str], *arguments: str) -> str:
    """Simulate in a process whose sets keep one order: the same runs each time."""
    require(*kinds)
    chosen = [text for kind in kinds for text in ("--kind", kind)]
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "--jobs", "1", *chosen, *arguments],
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def first_seed() -> str:
    """A number that is another one for each commit."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return str(int(done.stdout or "0", 16))


@pytest.mark.parametrize("share", SHARES)
def test_what_is_promised_holds(share: str, first_seed: str) -> None:
    kinds = SHARES[share]
    printed = simulate(kinds, "--first", first_seed, "--runs", str(RUNS))
    assert all(f"{kind}: {RUNS} runs" in printed for kind in kinds)


@pytest.mark.parametrize(("kind", "seed"), failing.read())
def test_a_run_that_failed_once_holds(kind: str, seed: int) -> None:
    simulate([kind], "--first", str(seed), "--runs", "1")


def test_runs_that_fail_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "failing.txt"
    path.write_text("# some\ncalm 3  # hidden: /1\n")
    for seed in (3, 4, 4):
        failing.note("calm", seed, ["left: #1\n of it", "no expiry"], path)
    assert failing.read(path) == [("calm", 3), ("calm", 4)]
    assert path.read_text().endswith("calm 3  # hidden: /1\ncalm 4  # left: #1 of it\n")
    assert failing.first_seed(date(2026, 11, 3)) == 202611030000


@pytest.mark.parametrize(
    "kinds", [["faults", "rotating"], ["faults", "scrapy-faults", "scrapy-server"]]
)
def test_a_run_repeats_in_another_process_and_after_others(kinds: list[str]) -> None:
    """Nothing is left of a run: no task, no generator that the garbage collector closes later."""
    arguments = ("--first", "5", "--runs", "1", "--trace")
    _, _, alone = simulate(kinds[-1:], *arguments).partition("\n")
    assert len(alone.splitlines()) > 100
    assert simulate(kinds, *arguments).endswith(alone)


@pytest.mark.parametrize("mutant", BUGS, ids=lambda one: one.what)
def test_a_bug_is_found(mutant: Mutant) -> None:
    require(mutant.kind)
    assert count_found(mutant, 2, 1, "--first", "0")


def test_all_bugs_can_still_be_put_in() -> None:
    for mutant in (*MUTANTS, *web_mutants.MUTANTS):
        mutated(mutant)
