"""Fuzzes all parsers, each in a process of its own: ``python -m fuzz.run --help``, from ``tests``.

It keeps what it learns: the next run begins with the corpus of the last one.
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from support.paths import ROOT

from fuzz.targets import TARGETS

console = Console()
#: Longest input that is printed.
SHOWN = 2_000


@dataclass
class Result:
    """What fuzzing a target has shown.

    Attributes:
        inputs: that were tried in this run.
        corpus: inputs that are kept, because each reaches something else.
        found: inputs with an error that the parser does not document, or that take too long.
    """

    inputs: int = 0
    corpus: int = 0
    found: list[Path] = field(default_factory=list)


def fuzz(name: str, directory: Path, runs: int, seconds: int) -> Result:
    """Fuzz a target; return what that has shown."""
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
    return Result(int(counts[-1]), len([*(own / "corpus").iterdir()]), found)


def report(results: dict[str, Result]) -> None:
    """Print a table, and each finding with the command that repeats it."""
    table = Table("target", "inputs", "kept", "found")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in results.items():
        table.add_row(name, f"{result.inputs:,}", f"{result.corpus:,}", str(len(result.found)))
    console.print(table)
    for name, result in results.items():
        for path in result.found:
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
    results = {
        name: fuzz(name, options.directory.resolve(), options.runs, seconds)
        for name in track(names, description="fuzzing", console=console)
    }
    report(results)
    return int(any(result.found for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
