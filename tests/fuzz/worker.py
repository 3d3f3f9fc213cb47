"""Fuzzes one target in this process, which has little memory: started by ``run.py``.

The corpus is in a directory. A finding does not end it: one input for each place in the code that
raises an error is kept, with the traceback.
"""

import argparse
import logging
import re
import resource
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["scrapy_bloom"]):
    from fuzz.targets import TARGETS
from fuzz.target import Mutate, Target

#: Bytes of address space that a target may take in addition to what its modules take.
MEMORY = 512 << 20
#: Seconds that an input may take.
SECONDS = 20
#: Words of seeds that mutations put in elsewhere, and how many of them.
TOKEN, TOKENS = re.compile(rb"[\w.:/?&=%+-]{2,30}"), 300
#: Share of the mutations that keep the format.
STRUCTURED = 0.6


def main() -> None:
    """Fuzz until there were so many inputs, or seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("runs", type=int)
    parser.add_argument("seconds", type=int)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of literals and of escapes in settings
    target = TARGETS[options.target]
    corpus, found = options.directory / "corpus", options.directory / "found"
    for directory in (corpus, found):
        directory.mkdir(parents=True, exist_ok=True)
    run = _recorder(target, found)
    limit_memory()
    tokens = Counter[bytes]()
    for seed in target.seeds():
        tokens.update(TOKEN.findall(seed[: target.max_length]))
        run(seed)  # libFuzzer cuts off what is longer than an input may be
        if len(seed) <= target.max_length:
            (corpus / sha1(seed).hexdigest()).write_bytes(seed)
    words = options.directory / "words"
    words.write_text("".join(f'"{_escaped(token)}"\n' for token, _ in tokens.most_common(TOKENS)))
    arguments = [
        sys.argv[0],
        f"-runs={options.runs}",
        f"-max_total_time={options.seconds}",
        f"-timeout={SECONDS}",
        f"-max_len={target.max_length}",
        "-len_control=0",
        f"-dict={words}",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup(arguments, run, custom_mutator=_mutator(target.mutate))
    atheris.Fuzz()


def limit_memory() -> None:
    """Let this process take ``MEMORY`` more than it has: what needs more fails at once."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _recorder(target: Target, found: Path) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        try:
            target.run(data)
        except Exception as error:
            path = found / _place(error)
            if not path.exists() or path.stat().st_size > len(data):
                path.write_bytes(data)
                path.with_suffix(".txt").write_text(traceback.format_exc(), errors="replace")

    return run


def _place(error: Exception) -> str:
    """Return the name of the file for an error: its type and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/scrapy_bloom/" in f.filename or "/fuzz/" in f.filename]
    return f"{type(error).__name__}-{Path(own[-1].filename).stem}-{own[-1].lineno}"


def _mutator(mutate: Mutate) -> Callable[[bytes, int, int], bytes]:
    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        dice = Random(seed)
        if dice.random() < STRUCTURED:
            changed = mutate(data, dice)
            if len(changed) <= max_size:
                return changed
        return bytes(atheris.Mutate(data, max_size))

    return mutator


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    main()
