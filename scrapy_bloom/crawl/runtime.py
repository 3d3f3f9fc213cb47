"""The surroundings of a crawl: time, chance, threads, and calls into its own thread.

A simulator passes another ``Runtime``; with its own ``connect_filters`` it then drives everything.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.task import deferLater

#: Schedules a function in the crawl's thread.
InMain = Callable[[Callable[[], object]], object]


def start_thread(target: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=target, name="scrapy-bloom", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time, chance and threads.

    Args:
        monotonic: returns seconds that never go back.
        sleep: blocks the calling thread for some seconds.
        token: returns so many random bytes as hexadecimal text.
        event: makes an event that threads wait for.
        start_thread: runs a function in a new thread.
        in_main: schedules a function in the crawl's thread; None to find the way in ``to_main``.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    token: Callable[[int], str] = secrets.token_hex
    event: Callable[[], threading.Event] = threading.Event
    start_thread: Callable[[Callable[[], None]], threading.Thread] = start_thread
    in_main: InMain | None = None

    def to_main(self) -> InMain:
        """Return what schedules functions in the calling thread, which runs a loop or reactor."""
        if self.in_main is not None:
            return self.in_main
        try:
            return asyncio.get_running_loop().call_soon_threadsafe
        except RuntimeError:
            # Another reactor than asyncio's.
            return _reactor().callFromThread  # type: ignore[no-any-return]


async def next_turn() -> None:
    """Let the event loop, or the reactor, run its other tasks."""
    if has_asyncio():
        await asyncio.sleep(0)
    else:
        await deferLater(_reactor(), 0)


def has_asyncio() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _reactor() -> Any:
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    return reactor
