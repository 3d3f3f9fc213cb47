"""The way from another thread to the one that the crawl runs in."""

import asyncio
from collections.abc import Callable
from typing import Any

from twisted.internet.task import deferLater

#: Has a function called in the crawl's thread, soon.
InMain = Callable[[Callable[[], object]], object]


def in_main() -> InMain:
    """Return what calls functions in this thread, in which an event loop or a reactor runs."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        # Another reactor than asyncio's.
        return _reactor().callFromThread  # type: ignore[no-any-return]


async def next_turn() -> None:
    """Let the event loop, or the reactor, do what else there is to do."""
    if has_asyncio():
        await asyncio.sleep(0)
    else:
        await deferLater(_reactor(), 0)


def _reactor() -> Any:
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    return reactor


def has_asyncio() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
