"""An asyncio event loop in a simulated world: one for each process, in its greenlet.

Its clock is the world's, and it does no I/O. Where a loop would wait for a file or for its next
timer, it lets other tasks of the world continue; between two of its turns, it does so by the seed.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any

from simulation.world import KilledError, World

#: How often a loop that has something to do lets other tasks continue before its next turn.
GIVES_WAY = 0.5


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop.

    In each turn, the tasks that can continue do so in an order that the seed chooses. Callbacks of
    ``call_soon`` keep their order, because asyncio promises it. So do tasks that begin: handlers of
    one signal are called in the order of their connection.

    Args:
        world: the world.
    """

    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._selector = self  # see ``select``
        self._clock_resolution = 1e-6
        self._has_ready = self._ready.__len__
        #: In the order in which they were made; all that are not done are among them.
        self.tasks: list[asyncio.Task[Any]] = []
        self._is_dropping = False

    def time(self) -> float:
        """Return the world's time."""
        return self._world.now

    def select(self, timeout: float | None) -> tuple[()]:
        """Let other tasks of the world continue, at the longest for so many seconds."""
        world = self._world
        if world.is_ending:
            raise KilledError  # something between has caught the first one
        if timeout is None or timeout > 0:
            world.wait(float("inf") if timeout is None else timeout, self._has_ready)
        elif world.rng.random() < GIVES_WAY:
            world.wait(0.0, lambda: True)
        if len(self._ready) > 1:
            self._shuffle()
        return ()

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """What another task adds wakes the loop: ``select`` looks for it."""

    def _shuffle(self) -> None:
        handles = [*self._ready]
        places = [number for number, handle in enumerate(handles) if self._is_shuffled(handle)]
        if len(places) < 2:
            return
        shuffled = [handles[number] for number in places]
        self._world.rng.shuffle(shuffled)
        for number, handle in zip(places, shuffled, strict=True):
            handles[number] = handle
        self._ready.clear()
        self._ready.extend(handles)

    def _is_shuffled(self, handle: asyncio.Handle) -> bool:
        """Whether a handle is the step of a task that may come before those of others."""
        task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        if not isinstance(task, asyncio.Task):
            return False
        coroutine = task.get_coro()  # or what closes an asynchronous generator
        return not (iscoroutine(coroutine) and getcoroutinestate(coroutine) == CORO_CREATED)

    # -- its end --

    def create_task(self, coro: Any, **options: Any) -> Any:
        """Make a task; none any more when the process is over."""
        if self._is_dropping:
            coro.close()
            return self.create_future()
        task = super().create_task(coro, **options)
        self.tasks.append(task)
        return task

    def drop(self) -> None:
        """Drop all tasks: nothing of them happens any more. The world is ending them."""
        if self.is_closed():
            return
        self._is_dropping = True
        self._ready.clear()
        self._scheduled.clear()
        with _running(self):
            for task in self.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    # Now: the garbage collector would do it at any time.
                    with suppress(BaseException):
                        task.get_coro().close()
        self.tasks.clear()
        self._ready.clear()
        self._is_dropping = False
        self.close()

    def _call_soon(self, *what: Any) -> Any:
        handle = super()._call_soon(*what)  # type: ignore[misc]
        if self._is_dropping:
            self._ready.clear()
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that nobody awaits: it counts as a fault."""
        # A generator that runs when a second SIGINT closes the loop cannot be closed: Scrapy's own.
        if not (self._is_dropping or self.is_closed() or "asyncgen" in context):
            error = context.get("exception")
            if (found := f"{context.get('message')}: {error!r}"[:200]) not in self._world.found:
                self._world.found.append(found)


@contextmanager
def _running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    before, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)
        sys.set_asyncgen_hooks(*hooks)
