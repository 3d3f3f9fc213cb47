"""Methods of BloomFilter and AsyncBloomFilter, declared once: one blocks, the other is awaited.

They are coroutines. In a filter that blocks, all that they await blocks, so they never wait.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from scrapy_bloom.bloom.model.hashing import Item

P = ParamSpec("P")
T = TypeVar("T")
#: Items that are sent together.
CHUNK_ITEMS = 8_192


class Method(Generic[P, T]):
    """A method of both filters; which of them has it says whether it is awaited.

    Args:
        awaited: the method.
    """

    def __init__(self, awaited: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        @wraps(awaited)
        def blocking(bloom: Any, *args: P.args, **kwargs: P.kwargs) -> T:
            return complete(awaited(bloom, *args, **kwargs))

        self._awaited, self._blocking = awaited, blocking

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
        function: Any = self._awaited if owner.is_async else self._blocking
        return function if bloom is None else function.__get__(bloom, owner)


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError(f"{coroutine} waits for something")


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
