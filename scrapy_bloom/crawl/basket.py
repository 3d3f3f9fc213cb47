"""Collects the requests that a callback yields, to ask about many of them at once.

Requests keep their order, everything else passes them by. Nothing is held for long.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from enum import Enum
from typing import Any

from scrapy import Request

#: Seconds after which a request is held no longer for more of them to come.
HELD = 0.1


class Fate(Enum):
    """What becomes of a request that a callback yields."""

    #: It is to be asked about.
    ASKED = "asked"
    #: It goes on as it is; held only to keep the order.
    PASSED = "passed"
    #: It goes nowhere.
    DROPPED = "dropped"


#: Decides what becomes of a request.
Decide = Callable[[Request], Fate]


class Basket:
    """Holds requests until there are enough of them.

    Args:
        size: requests that are passed on together.
        decide: what becomes of each.
    """

    def __init__(self, size: int, decide: Decide) -> None:
        self._size, self._decide = size, decide
        self._held: list[Any] = []

    def add(self, output: Any) -> list[Any]:
        """Take an output; return those that are to be passed on now."""
        if not isinstance(output, Request):
            return [output]
        fate = self._decide(output)
        if fate is Fate.DROPPED:
            return []
        if fate is Fate.PASSED and not self._held:
            return [output]
        self._held.append(output)
        return self.empty() if len(self._held) >= self._size else []

    def empty(self) -> list[Any]:
        """Return what is held, and hold it no longer."""
        held, self._held = self._held, []
        return held

    def __len__(self) -> int:
        return len(self._held)


async def in_batches_without_asyncio(
    outputs: AsyncIterator[Any], size: int, decide: Decide
) -> AsyncGenerator[list[Any], None]:
    """Yield outputs in lists, as they are to be passed on, without an asyncio loop.

    Nothing can be passed on while the next output takes long. An exception comes after what was
    yielded before.

    Args:
        outputs: what a callback yields.
        size: requests that are passed on together.
        decide: what becomes of each request.
    """
    basket, since = Basket(size, decide), 0.0
    try:
        async for output in outputs:
            was_empty = not basket
            if batch := basket.add(output):
                yield batch
            if was_empty:
                since = time.monotonic()
            elif basket and time.monotonic() - since > HELD:
                yield basket.empty()
    except Exception:
        if basket:
            yield basket.empty()
        raise
    if basket:
        yield basket.empty()
