"""Sums the time that some functions and coroutines keep the thread they run in."""

import types
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")


class Stopwatch:
    """Times functions; what one of them calls counts once, what it awaits does not count.

    Attributes:
        seconds: the sum.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_running = False

    def function(self, timed: Callable[..., T]) -> Callable[..., T]:
        """Return a function that is timed."""

        @wraps(timed)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            if self._is_running:
                return timed(*args, **kwargs)
            self._is_running = True
            start = perf_counter()
            try:
                return timed(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - start
                self._is_running = False

        return wrapper

    def coroutine(self, timed: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """Return a coroutine function that is timed step by step."""

        @wraps(timed)
        async def wrapper(*args: Any, **kwargs: Any) -> T:
            return await self._steps(timed(*args, **kwargs))

        return wrapper

    @types.coroutine
    def _steps(self, awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
        """Await something; time what it does from one wait to the next."""
        steps: Any = awaitable.__await__()
        step, throw = self.function(steps.send), self.function(steps.throw)
        error: BaseException | None = None
        while True:
            try:
                waited_for = step(None) if error is None else throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                yield waited_for
                error = None
            except BaseException as thrown:  # a time-out or a cancellation
                error = thrown
