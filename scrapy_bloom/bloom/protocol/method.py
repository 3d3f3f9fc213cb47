"""Makes methods that one body serves: blocking on one kind of filters, awaited on the other."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from types import NoneType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args, overload

from scrapy_bloom.bloom.protocol.rings import Operation

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class Blocking(Protocol):
    """A filter whose methods return their results."""

    def run(self, operation: Operation[T]) -> T:
        """Run an operation."""


class Awaited(Protocol):
    """A filter whose methods are awaited."""

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation."""


class Method(Protocol[P, T_co]):
    """What type checkers see of a method."""

    @overload
    def __get__(self, bloom: Blocking, owner: Any) -> Callable[P, T_co]: ...

    @overload
    def __get__(self, bloom: Awaited, owner: Any) -> Callable[P, Coroutine[Any, Any, T_co]]: ...

    @overload
    def __get__(self, bloom: None, owner: Any) -> Callable[..., Any]: ...


def method(operation: Callable[Concatenate[Any, P], Operation[T]]) -> Method[P, T]:
    """Return a method that runs an operation on its filter."""

    @wraps(operation)
    def run(bloom: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return bloom.run(operation(bloom, *args, **kwargs))

    shown = inspect.signature(operation)
    *_, result = get_args(shown.return_annotation)  # of the operation's generator
    result = None if result is NoneType else result
    run.__signature__ = shown.replace(return_annotation=result)  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]
