"""Applies queued writes in the crawl's event loop, as long as the server is up.

The background thread could, and does without asyncio. But on a busy machine, each time that it gets
the interpreter's lock and has no core to run on, the crawl waits: 4 ms for a batch of pages.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.protocol.session import touches
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.flush import Flush
from scrapy_bloom.crawl.jobs import Step, Steps

#: Seconds in which jobs are collected: a ``kill -9`` loses them, and those of the round before.
FLUSH_SECONDS = 0.002


class LoopWriter:
    """Applies jobs in rounds: the first of them waits for others for a moment.

    Args:
        filters: are connected.
        driver: for their server.
        flushing: applies jobs.
        failed: is called with an error of the server's.
    """

    def __init__(
        self,
        filters: Filters,
        driver: AsyncDriver,
        flushing: Flush,
        failed: Callable[[Exception], object],
    ) -> None:
        self._sessions = {name: bloom.new_session() for name, bloom in filters.by_window.items()}
        self._driver, self._flushing, self._failed = driver, flushing, failed
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way."""
        return self._round is not None

    def wake(self) -> None:
        """Apply what is queued, soon."""
        if self._timer is None and self._round is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._begin)

    def stop(self) -> None:
        """Begin no other round."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def finish(self) -> None:
        """Stop, and wait for the round that is under way."""
        self.stop()
        if self._round is not None:
            await asyncio.wait({self._round})

    def _begin(self) -> None:
        self._timer = None
        if self._flushing.lock.acquire(blocking=False):
            self._round = asyncio.ensure_future(self._run())
        else:  # the thread is applying jobs
            self.wake()

    async def _run(self) -> None:
        queue = self._flushing.queue
        try:
            # Not those that come during the round: they would be few at a time.
            await self._carry_out(self._flushing.steps(len(queue)))
        except Exception as error:
            self._is_stopped = True  # the thread reconnects, and replays
            self._failed(error)
        finally:
            self._flushing.lock.release()
            self._round = None
        if queue:
            self.wake()

    async def _carry_out(self, steps: Steps[None]) -> None:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._answer(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration:
            return

    async def _answer(self, step: Step) -> Any:
        if step.wait is not None:
            return await self._driver.wait(touches(self._sessions.values()), step.wait)
        if step.operation is None:
            return await self._driver.server_id()
        return await self._driver.run(step.operation(self._sessions[step.window]))
