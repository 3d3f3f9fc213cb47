"""Wait for events in other threads and processes."""

import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds that anything may take. Nothing is expected to be as slow.
PATIENCE = 300.0
TICK_SECONDS = 0.01
T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """Wait until a condition holds; return its value.

    Args:
        condition: called again and again, until it returns something true.
        what: the condition in words, for the error.
        seconds: how long it may take.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(TICK_SECONDS)
    return value


def until_it_works(action: Callable[[], T], *errors: type[Exception]) -> T:
    """Repeat an action until it raises none of these errors; return its value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return action()
        except errors:
            if time.monotonic() > deadline:
                raise
            time.sleep(TICK_SECONDS)
