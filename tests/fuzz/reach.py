"""Measures which lines of a target's modules its corpus reaches: started by ``run.py``.

Lines that run when a module is imported (definitions, constants) do not count.
"""

import argparse
import json
import logging
import sys
import warnings
from importlib import import_module
from pathlib import Path

from coverage import Coverage


def main() -> None:
    """Run all inputs of a corpus; print how many lines there are, and those not reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("corpus", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    importing = _coverage()
    importing.start()
    target = import_module("fuzz.targets").TARGETS[options.target]
    importing.stop()
    replaying = _coverage()
    replaying.start()
    inputs = [path.read_bytes() for path in sorted(options.corpus.iterdir())]
    for data in (*target.seeds(), *inputs):
        try:
            target.run(data)
        except Exception:  # the worker has noted it
            continue
    replaying.stop()
    lines, missing = 0, {}
    for module in target.modules:
        file = str(sys.modules[f"scrapy_bloom.{module}"].__file__)
        _, statements, _, _, _ = importing.analysis2(file)
        own = set(statements) - set(importing.get_data().lines(file) or ())
        lines += len(own)
        missing[module] = sorted(own - set(replaying.get_data().lines(file) or ()))
    json.dump({"inputs": len(inputs), "lines": lines, "missing": missing}, sys.stdout)


def _coverage() -> Coverage:
    return Coverage(data_file=None, config_file=False, source=["scrapy_bloom"], messages=False)


if __name__ == "__main__":
    main()
