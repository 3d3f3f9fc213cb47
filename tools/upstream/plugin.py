"""Pytest plugin ``upstream_plugin``: writes outcomes, and gives each test an empty filter.

It is copied into the environment of the suite, where the changed default settings import it too,
also in the processes that tests start. So it imports nothing but the standard library.
"""

import hashlib
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

#: Names the file to which each report of a test is appended, a line of JSON each.
OUTCOMES = "UPSTREAM_OUTCOMES"
#: Names a file with the ids of the tests, classes and modules that are run, a line each; all if
#: it is empty.
ONLY = "UPSTREAM_ONLY"
#: A copy: tests replace ``os.environ``. With pytest-xdist, the process that starts the workers
#: receives all reports.
ENVIRONMENT = dict(os.environ)
IS_WORKER = "PYTEST_XDIST_WORKER" in ENVIRONMENT


def key_of(nodeid: str) -> str:
    """Return the key of a test's filter, another one in each run."""
    run = ENVIRONMENT.get(OUTCOMES, "")
    return f"upstream:{hashlib.sha256(f'{run} {nodeid}'.encode()).hexdigest()[:16]}"


def current_key() -> str:
    """Return the key for the running test, which the processes that it starts inherit."""
    current = os.environ.get("PYTEST_CURRENT_TEST")  # for example "tests/test_a.py::test_b (call)"
    return key_of(current.rpartition(" ")[0] if current else f"process {os.getpid()}")


def is_chosen(nodeid: str, chosen: Collection[str]) -> bool:
    """Whether a test, its class or its module is chosen."""
    parts = nodeid.partition("[")[0].split("::")
    outer = ["::".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return nodeid in chosen or any(name in chosen for name in outer)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out the tests that are not chosen."""
    chosen = set(Path(ENVIRONMENT[ONLY]).read_text(encoding="utf-8").splitlines())
    if chosen:
        left_out = [item for item in items if not is_chosen(item.nodeid, chosen)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_chosen(item.nodeid, chosen)]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let the crawls of the next test begin with an empty filter."""
    settings: Any = sys.modules.get("scrapy.settings.default_settings")
    if hasattr(settings, "BLOOM_KEY"):
        settings.BLOOM_KEY = key_of(nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a step of a test: its setup, its call or its teardown."""
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, report.longrepr)


def pytest_collectreport(report: Any) -> None:
    """Write that a module cannot be imported."""
    if report.failed:
        _write(report.nodeid, "failed", report.longrepr)


def _write(nodeid: str, outcome: str, why: object) -> None:
    if not IS_WORKER:
        line = {"test": nodeid, "outcome": outcome, "why": str(why) if outcome == "failed" else ""}
        with Path(ENVIRONMENT[OUTCOMES]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
