"""AsyncBloomFilter: BloomFilter's methods to be awaited."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Self, TypeVar, overload

from scrapy_bloom.bloom.client.async_driver import AsyncDriver, finish, timeout
from scrapy_bloom.bloom.combinable import CombinableFilter
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.file import ArchiveReader, PathOrFile, reading
from scrapy_bloom.bloom.extras.save import Progress
from scrapy_bloom.bloom.methods import CHUNK_ITEMS, chunks
from scrapy_bloom.bloom.model.hashing import Item
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")


class AsyncBloomFilter(CombinableFilter):
    """``BloomFilter`` for asyncio: the same filters, parameters, answers and errors.

    One object may be used by many tasks of one loop; they are served one after the other, and
    waiting for others counts as well for ``timeout``. Instead of ``in`` and ``len`` it has
    ``contains`` and ``info``, and ``async with`` instead of ``with``.

    Args:
        client: a ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``.
        timeout: seconds an operation may take in all, and each round trip of one on all blocks; for
            the other arguments, see ``BloomFilter``.

    Raises:
        ConfigurationError: a parameter is out of its range.
    """

    is_async = True

    def _use(self, client: Any) -> None:
        self._driver = AsyncDriver(client, self._label, self._timeout, self._words)
        # A session is for one operation at a time.
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close nothing: the client belongs to the caller."""

    async def run(
        self, operation: Callable[[FilterSession], Operation[T]], *, on_all_blocks: bool = False
    ) -> T:
        """See ``BloomFilter.run``."""
        return await self._run(operation(self._session), on_all_blocks=on_all_blocks)

    async def add(self, item: Item, *, if_absent: bool = False) -> bool:
        """See ``BloomFilter.add``."""
        return (await self._run(self._add([item], if_absent=if_absent)))[0]

    async def extend(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """See ``BloomFilter.extend``; the items may come from an async iterator."""
        new = 0
        async for chunk in _chunks(items):
            new += sum(await self._run(self._add(chunk)))
            if progress is not None:
                progress(len(chunk))
        return new

    @overload
    async def contains(self, items: Item) -> bool: ...  # type: ignore[overload-overlap]

    @overload
    async def contains(self, items: Iterable[Item]) -> list[bool]: ...

    async def contains(self, items: Item | Iterable[Item]) -> bool | list[bool]:
        """See ``BloomFilter.contains``."""
        if isinstance(items, str | bytes):
            return (await self._run(self._contains([items])))[0]
        return [seen for chunk in chunks(items) for seen in await self._run(self._contains(chunk))]

    async def union(self, *others: Self, key: str) -> Self:
        """See ``BloomFilter.union``."""
        return await self._make(algebra.union, others, self._sibling(key))

    async def intersection(self, *others: Self, key: str) -> Self:
        """See ``BloomFilter.intersection``."""
        return await self._make(algebra.intersection, others, self._sibling(key))

    async def copy(self, key: str, *, client: Any = None) -> Self:
        """See ``BloomFilter.copy``."""
        return await self._make(algebra.copy, (), self._sibling(key, client))

    async def _make(self, combine: algebra.Combine, others: Sequence[Self], made: Self) -> Self:
        await self._combine(combine, others, made)
        return made

    @classmethod
    async def load(
        cls,
        client: Any,
        key: str,
        file: PathOrFile,
        *,
        max_memory: int | None = None,
        progress: Progress | None = None,
        timeout: float | None = None,
    ) -> Self:
        """See ``BloomFilter.load``."""
        bloom = cls(client, key, timeout=timeout)
        with reading(file) as opened:
            await bloom.restore(ArchiveReader(opened, max_memory), progress)
        return bloom

    async def _drive(self, operation: Operation[T], *, on_all_blocks: bool = False) -> T:
        return await self._driver.run(operation, on_all_blocks=on_all_blocks)

    async def _run(self, operation: Operation[T], *, on_all_blocks: bool = False) -> T:
        seconds = None if on_all_blocks else self._timeout
        try:
            async with timeout(seconds), self._lock:
                return await self._drive(operation, on_all_blocks=on_all_blocks)
        except TimeoutError as error:
            raise self._driver.late() from error

    async def run_on_all(self, operation: Operation[T], *, cleaning: bool = False) -> T:
        """See ``BaseFilter.run_on_all``; what cleans up is not cancelled."""
        running = super().run_on_all(operation)
        return await (finish(running) if cleaning else running)

    @property
    def round_trips(self) -> int:
        """Times this object sent commands and waited for the replies."""
        return self._driver.round_trips


async def _chunks(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[list[Item]]:
    if not isinstance(items, AsyncIterable):
        for chunk in chunks(items):
            yield chunk
        return
    waiting: list[Item] = []
    async for item in items:
        waiting.append(item)
        if len(waiting) == CHUNK_ITEMS:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
