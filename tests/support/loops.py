"""Tests that run in an event loop, as Scrapy does, and wait there for events."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from support.polling import PATIENCE, TICK_SECONDS

P = ParamSpec("P")


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test in a loop of its own, and wait until all its tasks have ended."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            # A test may wait for several events.
            await asyncio.wait_for(test(*args, **kwargs), 2 * PATIENCE)
            await eventually(lambda: len(asyncio.all_tasks()) == 1, "all tasks end")

        asyncio.run(bounded())

    return run


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Let the event loop run until a condition holds.

    Args:
        condition: called again and again, until it returns something true.
        what: the condition in words, for the error.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what or condition}"
        await asyncio.sleep(TICK_SECONDS)
