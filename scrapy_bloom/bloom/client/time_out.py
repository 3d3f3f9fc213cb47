"""A time-out that counts only the time in which the event loop could have read a reply."""

import asyncio
from collections.abc import Callable

#: A time-out is made up of so many steps. A connection and a round trip take 25 rounds of the loop.
STEPS = 100
#: Seconds of a step at least: timers are exact to about one millisecond.
MIN_STEP_SECONDS = 0.002


class timeout:  # noqa: N801 - used as asyncio.timeout is
    """Cancel an ``async with`` block after some seconds: asyncio.TimeoutError.

    Counts the time in which the event loop could have read a reply, and not while it is blocked:
    a step that is late counts as if it had been in time, and as nothing if a reply comes after it.
    So a silent server is given up after ``STEPS`` rounds of a busy loop at most.

    Args:
        seconds: the time, None for no limit.
        replies: returns a number that is another one after each reply.
    """

    def __init__(self, seconds: float | None, replies: Callable[[], int] = int) -> None:
        self._seconds = seconds
        self._replies = replies
        self._timer: asyncio.Handle | None = None
        self._has_expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._seconds is None or task is None:
            return
        self._loop, self._task = asyncio.get_running_loop(), task
        self._cancelling = task.cancelling()
        self._step = max(self._seconds / STEPS, MIN_STEP_SECONDS)
        #: What is left, and what late steps have taken of it since the last reply.
        self._left, self._late = self._seconds, 0.0
        self._seen, self._last = self._loop.time(), self._replies()
        self._look()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._has_expired:
            # As asyncio.timeout does: others may have cancelled the task as well.
            is_ours = self._task.uncancel() <= self._cancelling
            if is_ours and kind is asyncio.CancelledError:
                raise TimeoutError

    def _look(self) -> None:
        if self._last != (last := self._replies()):
            self._last, self._late = last, 0.0
        took = self._loop.time() - self._seen
        self._seen += took
        if took <= self._step:
            self._left -= took
        else:
            self._late += self._step
        if self._left > self._late:
            # Half a step, because timers are always a little late.
            self._timer = self._loop.call_later(self._step / 2, self._look)
        else:
            # After what the loop has just read for the task.
            self._timer = self._loop.call_soon(self._expire)

    def _expire(self) -> None:
        self._has_expired = True
        self._task.cancel()
