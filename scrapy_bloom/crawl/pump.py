"""Runs a callback beside whoever takes its outputs, so that neither waits for the other for long.

Not while a callback is slow, and not while ``start()`` waits for what it has yielded to be crawled.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any

from scrapy_bloom.crawl.basket import HELD, Basket, Decide

#: Seconds of a round of the event loop in which outputs are produced.
TURN = 0.02
#: Seconds after which a callback begins although the turn is over.
PATIENCE = 1.0


class Turn:
    """What all callbacks together may take of a round of the event loop.

    When it is over, each that has begun produces an output a round, and no other begins. The first
    goes first in the next round, so pages are finished one after the other, and fewer of them are
    parsed at the same time, which takes memory.
    """

    def __init__(self) -> None:
        self._ends: float | None = None

    def is_over(self) -> bool:
        """Whether others are to have their turn; the first question of a round begins it."""
        now = time.monotonic()
        if self._ends is None:
            self._ends = now + TURN
            asyncio.get_running_loop().call_soon(self._end)
        return now >= self._ends

    def _end(self) -> None:
        self._ends = None


async def in_batches(
    outputs: AsyncIterator[Any], size: int, decide: Decide, turn: Turn, *, is_lazy: bool = False
) -> AsyncGenerator[list[Any], None]:
    """Yield outputs in lists, as they are to be passed on; needs a running asyncio loop.

    The outputs are produced while this is waited for, all in one task, which is not this one. An
    exception in it comes after what was yielded before.

    Args:
        outputs: what a callback or ``start()`` yields.
        size: outputs that are produced before the first of them is asked for, at most.
        decide: what becomes of each request.
        turn: that of all callbacks of the crawl.
        is_lazy: produce nothing ahead unless there are requests to be collected.
    """
    pump = _Pump(outputs, Basket(size, decide), 1 if is_lazy else size, turn)
    try:
        while batch := await pump.next():
            yield batch
    finally:
        await pump.close()


class _Pump:
    """Runs an async iterator in a task of its own, so that waiting for it may take a limited time.

    One task for all of it, and not one for each output: time-outs and cancel scopes that a callback
    opens belong to the task they were opened in.
    """

    def __init__(self, outputs: AsyncIterator[Any], basket: Basket, ahead: int, turn: Turn) -> None:
        self._outputs, self._basket, self._ahead, self._turn = outputs, basket, ahead, turn
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        #: What is to be passed on now.
        self._ready: list[Any] = []
        #: Resolved when there is something; when more is wanted.
        self._news: asyncio.Future[None] | None = None
        self._demand: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = self._is_closing = False
        #: Whether this waits, and not the callback; what has cancelled it then.
        self._is_waiting = False
        self._cancelled: asyncio.CancelledError | None = None
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
        self._is_closing = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        close = getattr(self._outputs, "aclose", None)
        if close is not None:
            await close()

    async def _run(self) -> None:
        try:
            await self._begin()
            async for output in self._outputs:
                if self._is_closing:
                    break  # it was cancelled, and goes on yielding
                self._ready += self._basket.add(output)
                if self._basket and self._timer is None:
                    self._timer = self._loop.call_later(HELD, self._is_late)
                if self._ready:
                    _resolve(self._news)
                if len(self._ready) >= self._ahead:
                    await self._wait(self._pause())
                elif self._turn.is_over():
                    await self._wait(asyncio.sleep(0))
        except BaseException as error:
            self._error = error  # it is raised where it belongs
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_done = True
            self._stop_timer()
            _resolve(self._news)

    async def _begin(self) -> None:
        """Wait until others leave something of the turn; not where nothing is produced ahead."""
        latest = self._loop.time() + PATIENCE
        while self._ahead > 1 and self._turn.is_over() and self._loop.time() < latest:
            await self._wait(asyncio.sleep(0))

    async def _wait(self, own: Awaitable[None]) -> None:
        """Wait for something that is not the callback's.

        What cancels this task meanwhile is a time-out or a cancel scope that the callback is in:
        raised here, it would end the callback. So the callback gets it where it waits itself.
        """
        self._is_waiting = True
        try:
            await own
        except asyncio.CancelledError as error:
            if self._is_closing:
                raise
            self._cancelled = error
        finally:
            self._is_waiting = False
        if self._cancelled is not None:
            self._loop.call_soon(self._cancel_callback)

    def _cancel_callback(self) -> None:
        """Cancel what the callback waits for, unless it has left the scope that was cancelled."""
        error, task = self._cancelled, self._task
        if error is None or task is None or self._is_waiting:
            return
        self._cancelled = None
        if sys.version_info >= (3, 11):
            if not task.cancelling():
                return
            task.uncancel()
        task.cancel(*error.args)

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
