"""Time and chance of a crawl, and coroutines that never wait."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time and chance.

    Args:
        monotonic: returns seconds that never go back.
        sleep: blocks for some seconds.
        token: returns so many random bytes as hexadecimal text.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    token: Callable[[int], str] = secrets.token_hex


def has_asyncio() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def finish_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, because what it awaits blocks; return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise AssertionError("it waits")


async def in_thread(blocking: Callable[[], object]) -> None:
    """Run a function that blocks in a thread of asyncio's pool."""
    await asyncio.to_thread(blocking)


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, or so many seconds; return whether it has happened."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
