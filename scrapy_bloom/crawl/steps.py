"""What queued writes ask the server, as values: the event loop or a thread carries it out."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Wait
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.settings import DEFAULT

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """Something to ask the server.

    Args:
        window: of the filter.
        operation: is run on it; None to identify the server's process.
        wait: if given, is waited for instead.
    """

    window: str = DEFAULT
    operation: Callable[[FilterSession], Operation[Any]] | None = None
    wait: Wait | None = None


#: Makes the step of an operation.
Run = Callable[[Callable[[FilterSession], Operation[Any]]], Step]
#: Yields steps, receives what they return, returns its result.
Steps = Generator[Step, Any, T]


def run_blocking(steps: Steps[T], filters: Filters) -> T:
    """Carry out steps and return their result."""
    try:
        step = next(steps)
        while True:
            try:
                if step.wait is not None:
                    answer: Any = filters.wait(step.wait)
                elif step.operation is None:
                    answer = filters.server_id()
                else:
                    answer = filters.by_window[step.window].run(step.operation)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
