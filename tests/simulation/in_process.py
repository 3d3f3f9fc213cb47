"""Simulates runs in a process of their own, for tests."""

import os
import subprocess
import sys

from support.paths import ROOT, TESTS


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
