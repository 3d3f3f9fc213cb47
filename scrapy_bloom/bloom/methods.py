"""Methods of BloomFilter and AsyncBloomFilter, declared once: one blocks, the other is awaited.

The steps of a method are a generator that yields operations, of which each is carried out on its
own, and receives their results.
"""

import inspect
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import update_wrapper
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from scrapy_bloom.bloom.model.hashing import Item
from scrapy_bloom.bloom.protocol.ring_store import Operation

P = ParamSpec("P")
T = TypeVar("T")
#: Items that are sent together.
CHUNK_ITEMS = 8_192
#: Yields operations, receives what they return; returns the method's result.
Steps = Generator[Operation[Any], Any, T]


class Method(Generic[P, T]):
    """A method of both filters; which of them has it says whether it is awaited.

    Args:
        steps: returns its steps.
        on_all_blocks: whether the number of round trips grows with the number of blocks.
    """

    def __init__(
        self, steps: Callable[Concatenate[Any, P], Steps[T]], *, on_all_blocks: bool
    ) -> None:
        def blocking(bloom: Any, *args: P.args, **kwargs: P.kwargs) -> T:
            todo, result = steps(bloom, *args, **kwargs), None
            while True:
                try:
                    operation = todo.send(result)
                except StopIteration as stop:
                    return cast("T", stop.value)
                result = bloom.run(_given(operation), on_all_blocks=on_all_blocks)

        async def awaited(bloom: Any, *args: P.args, **kwargs: P.kwargs) -> T:
            todo, result = steps(bloom, *args, **kwargs), None
            while True:
                try:
                    operation = todo.send(result)
                except StopIteration as stop:
                    return cast("T", stop.value)
                result = await bloom.run(_given(operation), on_all_blocks=on_all_blocks)

        self._blocking, self._awaited = _like(steps, blocking), _like(steps, awaited)

    @overload
    def __get__(
        self, bloom: None, owner: type[AbstractContextManager[Any]]
    ) -> Callable[Concatenate[Any, P], T]: ...

    @overload
    def __get__(
        self, bloom: None, owner: type[AbstractAsyncContextManager[Any]]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, bloom: AbstractContextManager[Any], owner: Any) -> Callable[P, T]: ...

    @overload
    def __get__(
        self, bloom: AbstractAsyncContextManager[Any], owner: Any
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, bloom: Any, owner: Any) -> Any:
        function = self._awaited if owner.is_async else self._blocking
        return function if bloom is None else function.__get__(bloom, owner)


def method(
    *, on_all_blocks: bool = False
) -> Callable[[Callable[Concatenate[Any, P], Steps[T]]], Method[P, T]]:
    """Declare a method of both filters by its steps."""
    return lambda steps: Method(steps, on_all_blocks=on_all_blocks)


def _given(operation: Operation[T]) -> Callable[[object], Operation[T]]:
    """Return what a filter runs: an operation that knows its session."""
    return lambda _: operation


def _like(steps: Callable[..., Steps[Any]], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the name, text and parameters of its steps, and what they return."""
    signature = inspect.signature(steps)
    result = signature.return_annotation.__args__[-1]
    update_wrapper(function, steps)
    function.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return function


def once(operation: Operation[T]) -> Steps[T]:
    """Return the steps of one operation."""
    result: T = yield operation
    return result


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of what one round trip sends.

    Raises:
        TypeError: it is one item.
    """
    if isinstance(items, str | bytes):
        raise TypeError(f"several items are expected; for one, write [{items!r:.60}]")
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK_ITEMS)):
        yield chunk
