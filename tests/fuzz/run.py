"""Fuzzes all parsers, each in a process of its own: ``python -m fuzz.run --help``, from ``tests``.

It keeps what it learns: the next run begins with the corpus of the last one.
"""

import argparse
import logging
import resource
import sys
import traceback
import warnings
from contextlib import redirect_stderr
from hashlib import sha1
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from random import Random

import atheris
from rich.console import Console
from support.paths import ROOT

# It writes a line for each module.
with redirect_stderr(StringIO()), atheris.instrument_imports(include=["scrapy_bloom"]):
    from fuzz.targets import TARGETS

#: Bytes of address space that a target may take in addition to what its modules take.
MEMORY = 512 << 20
#: Seconds that an input may take.
SECONDS = 20
#: Share of the mutations that keep the format; the others are libFuzzer's.
STRUCTURED = 0.6
#: Longest input that is printed.
SHOWN = 2_000

console = Console(soft_wrap=True, markup=False, highlight=False)


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
    failed = False
    for name in names:
        console.print(f"-- {name} --")
        own = options.directory.resolve() / name
        child = get_context("spawn").Process(target=fuzz, args=(name, own, options.runs, seconds))
        child.start()
        child.join()
        found = sorted((own / "found").glob("*"))
        for path in found:
            console.print(f"{path.name}: {path.read_bytes()[:SHOWN]!r}")
            console.print(f"Repeat it: make fuzz FUZZ='--target {name} --input {path}'")
        failed |= bool(found or child.exitcode)
    return int(failed)


def fuzz(name: str, directory: Path, runs: int, seconds: int) -> None:
    """Fuzz a target in this process, until there were so many inputs or seconds; then it ends.

    An error does not end it: of each place in the code that raises one, the shortest input is kept.
    """
    target, corpus, found = TARGETS[name], directory / "corpus", directory / "found"
    for path in (corpus, found):
        path.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of literals and of escapes in settings

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except Exception as error:
            path = found / _place(error)
            if not path.exists() or path.stat().st_size > len(data):
                path.write_bytes(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        dice = Random(seed)
        changed = target.mutate(data, dice) if dice.random() < STRUCTURED else None
        if changed is None or len(changed) > max_size:
            return bytes(atheris.Mutate(data, max_size))
        return changed

    _limit_memory()
    for seed in target.seeds():
        run(seed)  # libFuzzer cuts off what is longer than an input may be
        if len(seed) <= target.max_length:
            (corpus / sha1(seed).hexdigest()).write_bytes(seed)
    options = {
        "runs": runs,
        "max_total_time": seconds,
        "timeout": SECONDS,
        "report_slow_units": SECONDS,
        "max_len": target.max_length,
        "len_control": 0,
        "artifact_prefix": f"{found}/",
        "verbosity": 0,
        "print_final_stats": 1,
    }
    arguments = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], run, custom_mutator=mutate)
    atheris.Fuzz()


def _limit_memory() -> None:
    """Let this process take ``MEMORY`` more than it has: what needs more fails at once."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _place(error: Exception) -> str:
    """Return the name of the file for an error: its type and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/scrapy_bloom/" in f.filename or "/fuzz/" in f.filename]
    return f"{type(error).__name__}-{Path(own[-1].filename).stem}-{own[-1].lineno}"


if __name__ == "__main__":
    sys.exit(main())
