"""Pytest plugin that gives each test its own empty filter.

It's copied into the environment of a suite, where Scrapy's default settings import it, also in the
processes that tests start. So it imports nothing but the standard library.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

#: Differs between the runs of a suite.
RUN = os.environ.get("UPSTREAM_RUN", "")


def key(test: str = "") -> str:
    """Return the filter's key for a test, or for the one that runs, also in its processes."""
    # For example "tests/test_a.py::test_b (call)".
    current = os.environ.get("PYTEST_CURRENT_TEST", f"process-{os.getpid()} (call)")
    text = f"{RUN} {test or current.rpartition(' ')[0]}"
    return f"upstream:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let the crawls of the next test begin with an empty filter."""
    settings: Any = sys.modules.get("scrapy.settings.default_settings")
    if hasattr(settings, "BLOOM_KEY"):
        settings.BLOOM_KEY = key(nodeid)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Have tests of schedulers run within the event loop that a crawl gives them."""
    for item in items:
        if os.environ.get("UPSTREAM_LOOP"):
            item.runtest = partial(in_loop, item.runtest)


def in_loop(test: Callable[[], object]) -> None:
    """Call a test while an event loop runs."""

    async def call() -> None:
        test()

    asyncio.run(call())
