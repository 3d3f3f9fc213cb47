"""What BloomFilter and AsyncBloomFilter share: parameters, properties, and how methods are bound.

A method of both is a coroutine that is declared once. In a filter that blocks, all that it awaits
blocks, so it never waits.
"""

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import fields
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.client.addresses import label_of_client
from scrapy_bloom.bloom.client.exchanges import BaseDriver
from scrapy_bloom.bloom.errors import WORDS, ConfigurationError, rewording, shown
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import Item
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.options import REPLACE, FilterOptions
from scrapy_bloom.bloom.protocol.membership import MAX_URLS_PER_ROUND
from scrapy_bloom.bloom.protocol.ring_store import Notify, Operation, ignore
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.swaps import in_parts

T = TypeVar("T")
P = ParamSpec("P")


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
    """Return the result of a coroutine that never waits, because what it awaits blocks."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine} waits for something")


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of what one round trip sends.

    Raises:
        TypeError: it is one item.
    """
    if isinstance(items, str | bytes):
        raise TypeError(f"several items are expected; for one, write [{items!r:.60}]")
    yield from in_parts(items, MAX_URLS_PER_ROUND)


async def async_chunks(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[list[Item]]:
    """Do as ``chunks`` does, also with items from an async iterator."""
    if not isinstance(items, AsyncIterable):
        for chunk in chunks(items):
            yield chunk
        return
    waiting: list[Item] = []
    async for item in items:
        waiting.append(item)
        if len(waiting) == MAX_URLS_PER_ROUND:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


class BaseFilter(ABC):
    """One client's handle of a filter. Arguments: see ``BloomFilter``."""

    #: Whether its methods are awaited; filters that are used together are of one kind.
    is_async: ClassVar[bool]
    _driver: BaseDriver

    def __init__(
        self,
        client: Any,
        key: str,
        *,
        like: "BaseFilter | None" = None,
        capacity: int | None = None,
        error_rate: float | None = None,
        blocks: int | None = None,
        seeds: Sequence[int] | int | None = None,
        window: Any = None,
        period: Any = None,
        ring: str | None = None,
        stagger: bool | None = None,
        counting: bool | None = None,
        growth: float | None = None,
        max_memory: int | None = None,
        run: str | None = None,
        on_difference: str = REPLACE,
        notify: Notify | None = None,
        fingerprinter: str = "",
        label: object = None,
        timeout: float | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        given = locals()
        self.key, self._words = key, WORDS if words is None else words
        with rewording(self._words):
            options = {own.name: given[own.name] for own in fields(FilterOptions)}
            wanted = FilterOptions.parse(**options)
            if like is not None:
                if not isinstance(like, BaseFilter):
                    raise ConfigurationError(
                        f"like is a BloomFilter or an AsyncBloomFilter; got {shown(like)}"
                    )
                wanted = wanted.over(like.as_wanted())
            wanted.check_run()
            if notify is not None and not callable(notify):
                raise ConfigurationError(f"notify is a function; got {shown(notify)}")
            if timeout is not None:
                timeout = validators.seconds("timeout", timeout, 0.001, 3600)
            #: This client's session of the filter.
            self.session = FilterSession(Keys(key), wanted, notify or ignore)
            self._client, self._given_label, self._timeout = client, label, timeout
            self._label = label_of_client(client) if label is None else label
            self._use(client)
        #: Items that were new but not recorded, because their block was full and could not grow.
        self.unrecorded = 0

    @abstractmethod
    def _use(self, client: Any) -> None:
        """Create the driver for a client."""

    @abstractmethod
    async def _drive(self, operation: Operation[T], *, on_all_blocks: bool = False) -> T:
        """Run an operation that needs no session."""

    async def _run(self, operation: Operation[T], *, on_all_blocks: bool = False) -> T:
        """Run an operation on the session; ``timeout`` does not count for one on all blocks."""
        return await self._drive(operation, on_all_blocks=on_all_blocks)

    async def run_on_all(self, operation: Operation[T], *, cleaning: bool = False) -> T:  # noqa: ARG002
        """Run an operation on all blocks, perhaps to clean up after another one."""
        return await self._run(operation, on_all_blocks=True)

    # -- what this client knows --

    @property
    def round_trips(self) -> int:
        """Times this object sent commands and waited for the replies."""
        return self._driver.round_trips

    @property
    def lost_blocks(self) -> int:
        """Blocks that this object found lost (evicted, deleted) and created again, empty."""
        return self.session.lost_blocks

    @property
    def config(self) -> Config | None:
        """What may change during the filter's life, as last seen; None before it is opened."""
        held = self.session.held.get(0)
        return None if held is None else held.ring.config

    @property
    def replaced_config(self) -> Config | None:
        """The stored configuration that this object's replaced when it opened; None if none."""
        return self.session.replaced_config

    @property
    def header(self) -> Header | None:
        """The filter's header; None before it is opened."""
        return self.session.header

    @property
    def seeds(self) -> tuple[int, ...]:
        """MurmurHash3 seeds, one for each bit that an item sets: keep them secret."""
        return self._known_header.seeds

    @property
    def blocks(self) -> int:
        """Blocks that it is spread over."""
        return self._known_header.blocks

    @property
    def num_hashes(self) -> int:
        """Bits that an item sets in a layer."""
        return len(self._known_header.seeds)

    @property
    def num_bits(self) -> int:
        """Bits of all its bitmaps, as last seen by this client."""
        blocks = self._known_header.blocks
        rings = [
            self.session.held[block].ring for block in range(blocks) if block in self.session.held
        ]
        return sum(layer.num_bits for ring in rings for layer in ring.layers)

    def as_wanted(self) -> FilterOptions:
        """Return the options for another filter like this one."""
        header, config = self._known_header, self.session.held[0].ring.config
        return FilterOptions.like(header, config, self.session.wanted.run)

    @property
    def _known_header(self) -> Header:
        if self.header is None:
            raise ConfigurationError(f"the filter {self.key!r} is not open yet: call its open()")
        return self.header

    def __bool__(self) -> bool:
        """Return True, also for an empty filter, without a round trip."""
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied by Python, for it has a client: "
            "make another one with the same key and a client of its own"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} on {self._label}>"
