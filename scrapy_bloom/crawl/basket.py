"""Collects the requests that a callback yields, to ask about many of them at once.

Requests keep their order, everything else passes them by. Nothing is held for long: not while a
callback is slow, and not while ``start()`` waits for what it has yielded to be crawled.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from scrapy import Request

#: Seconds that a request is held at most, for more of them to come.
HELD = 0.1
#: Seconds for which a callback's outputs are produced before others have their turn.
TURN = 0.02


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


async def in_batches(
    outputs: AsyncIterator[Any], size: int, decide: Decide, *, is_lazy: bool = False
) -> AsyncIterator[list[Any]]:
    """Yield outputs in lists, as they are to be passed on; needs a running asyncio loop.

    The outputs are produced while this is waited for, all in one task, which is not this one. An
    exception in it comes after what was yielded before.

    Args:
        outputs: what a callback or ``start()`` yields.
        size: outputs that are produced before the first of them is asked for, at most.
        decide: what becomes of each request.
        is_lazy: produce nothing ahead unless there are requests to be collected.
    """
    pump = _Pump(outputs, Basket(size, decide), 1 if is_lazy else size)
    try:
        while batch := await pump.next():
            yield batch
    finally:
        await pump.close()


async def in_batches_without_asyncio(
    outputs: AsyncIterator[Any], size: int, decide: Decide
) -> AsyncIterator[list[Any]]:
    """Do as ``in_batches``, save that nothing can be passed on while the next output takes long."""
    basket, since = Basket(size, decide), 0.0
    try:
        async for output in outputs:
            was_empty = not basket
            if batch := basket.add(output):
                yield batch
            elif was_empty:
                since = time.monotonic()
            elif time.monotonic() - since > HELD:
                yield basket.empty()
    except Exception:
        if basket:
            yield basket.empty()
        raise
    if basket:
        yield basket.empty()


class _Pump:
    """Runs an async iterator in a task of its own, so that waiting for it may take a limited time.

    One task for all of it, and not one for each output: time-outs and cancel scopes that a callback
    opens belong to the task they were opened in.
    """

    def __init__(self, outputs: AsyncIterator[Any], basket: Basket, ahead: int) -> None:
        self._outputs, self._basket, self._ahead = outputs, basket, ahead
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        #: What is to be passed on now.
        self._ready: list[Any] = []
        #: Resolved when there is something; when more is wanted.
        self._news: asyncio.Future[None] | None = None
        self._demand: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = False
        self._error: BaseException | None = None

    async def next(self) -> list[Any]:
        """Return the outputs to be passed on next; none at the end."""
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        while not self._ready and not self._is_done:
            _resolve(self._demand)
            self._news = self._loop.create_future()
            await self._news
        if not self._ready and self._is_done:
            self._ready = self._basket.empty()
        if not self._ready and self._error is not None:
            error, self._error = self._error, None
            raise error
        ready, self._ready = self._ready, []
        return ready

    async def close(self) -> None:
        """Stop producing outputs."""
        self._stop_timer()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        close = getattr(self._outputs, "aclose", None)
        if close is not None:
            await close()

    async def _run(self) -> None:
        since = time.monotonic()
        try:
            async for output in self._outputs:
                self._ready += self._basket.add(output)
                if self._basket and self._timer is None:
                    self._timer = self._loop.call_later(HELD, self._is_late)
                if self._ready:
                    _resolve(self._news)
                if len(self._ready) >= self._ahead:
                    await self._pause()
                    since = time.monotonic()
                elif time.monotonic() - since > TURN:
                    await asyncio.sleep(0)
                    since = time.monotonic()
        except BaseException as error:
            self._error = error  # it is raised where it belongs
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_done = True
            self._stop_timer()
            _resolve(self._news)

    async def _pause(self) -> None:
        if not self._basket:
            self._stop_timer()
        self._demand = self._loop.create_future()
        await self._demand

    def _is_late(self) -> None:
        self._timer = None
        self._ready += self._basket.empty()
        _resolve(self._news)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
