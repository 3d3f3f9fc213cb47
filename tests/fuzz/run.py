"""Fuzzes all parsers, each in a process of its own: ``python -m fuzz.run --help``, from ``tests``.

It keeps what it learns: the next run begins with the corpus of the last one.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from support.paths import ROOT

from fuzz.targets import TARGETS

console = Console()
#: Longest input that is printed.
SHOWN = 2_000


def fuzz(name: str, directory: Path, runs: int, seconds: int) -> list[Path]:
    """Fuzz a target; return inputs with an error that is not documented, or that take too long."""
    own = directory / name
    own.mkdir(parents=True, exist_ok=True)
    log = own / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "fuzz.worker", name, str(own), str(runs), str(seconds)]
        # Hashes of text have one order each time: an input that fails fails again.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    text = log.read_text(errors="replace")
    counts = re.findall(r"stat::number_of_executed_units: +(\d+)", text)
    found = sorted(path for path in (own / "found").glob("*") if path.suffix != ".txt")
    if not counts or (done.returncode and not found):
        raise SystemExit(f"{name} cannot be fuzzed: see {log}\n{text[-2_000:]}")
    kept = len([*(own / "corpus").iterdir()])
    say(f"{name}: {int(counts[-1]):,} inputs, {kept:,} kept, {len(found)} found")
    return found


def report(name: str, path: Path) -> None:
    """Print a finding, with the command that repeats it."""
    say("", f"{name}: {path.name}", repr(path.read_bytes()[:SHOWN]))
    details = path.with_suffix(".txt")
    if details.exists():
        say(details.read_text())
    say(f"Repeat it: make fuzz FUZZ='--target {name} --input {path}'")


def say(*lines: str) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    """Fuzz; return 1 if something was found."""
    parser = argparse.ArgumentParser(description="Fuzzes the parsers of scrapy-bloom.")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all targets")
    parser.add_argument("--runs", type=int, default=-1, metavar="N", help="inputs of each target")
    parser.add_argument("--seconds", type=int, metavar="N", help="for each target; default: 60")
    parser.add_argument("--directory", type=Path, default=ROOT / ".fuzz", help="default: .fuzz")
    parser.add_argument("--input", type=Path, metavar="FILE", help="try this input, and no other")
    options = parser.parse_args()
    names = options.target or [*TARGETS]
    if options.input:
        for name in names:
            TARGETS[name].run(options.input.read_bytes())
        return 0
    # With neither limit, a minute; with a number of inputs, as long as they take.
    seconds = options.seconds or (60 if options.runs < 0 else 0)
    findings = 0
    for name in names:
        for path in fuzz(name, options.directory.resolve(), options.runs, seconds):
            findings += 1
            report(name, path)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
