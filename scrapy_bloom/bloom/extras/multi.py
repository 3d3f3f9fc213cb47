"""Operations on several filters, which may be on different servers. No I/O.

Such an operation is a generator that yields the number of a filter with steps for the driver of
that filter, and receives their result. So synchronous and asynchronous clients share it.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar, cast

from scrapy_bloom.bloom.protocol.ring_store import Operation

S = TypeVar("S")
T = TypeVar("T")
#: Yields the number of a filter with steps for it, receives what they return; returns its result.
MultiOperation = Generator[tuple[int, Operation[Any]], Any, T]


def run_together(operation: MultiOperation[T], run: Callable[[int, Operation[Any]], Any]) -> T:
    """Run an operation on several filters, and return its result.

    Args:
        operation: the operation. Any exception, also KeyboardInterrupt, is thrown into it, to let
            it clean up.
        run: runs steps by the driver of the filter of that number.
    """
    go_on = partial(operation.send, None)
    while True:
        try:
            number, steps = go_on()
        except StopIteration as stop:
            return cast("T", stop.value)
        try:
            go_on = partial(operation.send, run(number, steps))
        except BaseException as error:
            go_on = partial(operation.throw, error)


async def run_together_async(
    operation: MultiOperation[T],
    run: Callable[[int, Operation[Any]], Awaitable[Any]],
    clean_up: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None,
) -> T:
    """``run_together`` for drivers that are awaited.

    Args:
        operation: the operation. Its task's cancellation is thrown into it, too.
        run: runs steps by the driver of the filter of that number.
        clean_up: awaits the steps that run after an error: within a time, and also if the task is
            cancelled again; None awaits them like the others.
    """
    go_on, wait = partial(operation.send, None), None
    while True:
        try:
            number, steps = go_on()
        except StopIteration as stop:
            return cast("T", stop.value)
        try:
            running = run(number, steps)
            go_on = partial(operation.send, await (wait(running) if wait else running))
        except BaseException as error:
            go_on, wait = partial(operation.throw, error), clean_up


def on(number: int, steps: Operation[S]) -> MultiOperation[S]:
    """Have steps run by a filter's driver."""
    return cast("S", (yield number, steps))
