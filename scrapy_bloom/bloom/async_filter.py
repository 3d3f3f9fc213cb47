"""AsyncBloomFilter: BloomFilter's methods to be awaited."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Self, TypeVar, overload

from scrapy_bloom.bloom.base import BaseFilter, Combine
from scrapy_bloom.bloom.client.async_driver import AsyncDriver, finish, timeout
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.file import (
    ArchiveReader,
    ArchiveWriter,
    PathOrFile,
    reading,
    writing,
)
from scrapy_bloom.bloom.extras.install import load
from scrapy_bloom.bloom.extras.multi import MultiOperation, run_together_async
from scrapy_bloom.bloom.extras.save import Progress, Saved, save
from scrapy_bloom.bloom.methods import CHUNK_ITEMS, chunks
from scrapy_bloom.bloom.model.hashing import Item
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")


class AsyncBloomFilter(BaseFilter):
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

    async def approx_len(self) -> int:
        """See ``BloomFilter.approx_len``."""
        return await self._run(algebra.approx_len(self._session), on_all_blocks=True)

    async def approx_union_len(self, other: "AsyncBloomFilter") -> int:
        """See ``BloomFilter.approx_union_len``."""
        return round((await self.run_together(self._overlap(other), other)).union)

    async def approx_intersection_len(self, other: "AsyncBloomFilter") -> int:
        """See ``BloomFilter.approx_intersection_len``."""
        return round((await self.run_together(self._overlap(other), other)).intersection)

    async def union(self, *others: "AsyncBloomFilter", key: str) -> "AsyncBloomFilter":
        """See ``BloomFilter.union``."""
        return await self._make(algebra.union, others, key)

    async def intersection(self, *others: "AsyncBloomFilter", key: str) -> "AsyncBloomFilter":
        """See ``BloomFilter.intersection``."""
        return await self._make(algebra.intersection, others, key)

    async def copy(self, key: str, *, client: Any = None) -> "AsyncBloomFilter":
        """See ``BloomFilter.copy``."""
        made = self._sibling(key, client)
        await self.run_together(algebra.copy(self._session, Keys(key)), made)
        return made

    async def update(self, *others: "AsyncBloomFilter") -> None:
        """See ``BloomFilter.update``."""
        await self.run_together(algebra.update(*self._sessions(others)), *others)

    async def _make(
        self, combine: Combine, others: tuple["AsyncBloomFilter", ...], key: str
    ) -> "AsyncBloomFilter":
        made = self._sibling(key)
        await self.run_together(combine(self._sessions(others), Keys(key)), *others, made)
        return made

    async def run_together(self, operation: MultiOperation[T], *others: "AsyncBloomFilter") -> T:
        """See ``BloomFilter.run_together``."""
        filters = (self, *others)
        return await run_together_async(
            operation, lambda n, steps: filters[n].run(lambda _: steps, on_all_blocks=True), finish
        )

    async def save(self, file: PathOrFile, progress: Progress | None = None) -> Saved:
        """See ``BloomFilter.save``; writing to the file blocks the event loop."""
        with writing(file) as opened:
            steps = save(self._session.keys, ArchiveWriter(opened), progress)
            # It needs no session: other tasks may use the filter at the same time.
            return await self._driver.run(steps, on_all_blocks=True)

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
    ) -> "AsyncBloomFilter":
        """See ``BloomFilter.load``."""
        bloom = cls(client, key, timeout=timeout)
        with reading(file) as opened:
            reader = ArchiveReader(opened, max_memory)
            await bloom.run_together(load(Keys(key), reader, progress))
        return bloom

    async def _run(self, steps: Operation[T], *, on_all_blocks: bool = False) -> T:
        seconds = None if on_all_blocks else self._timeout
        try:
            async with timeout(seconds), self._lock:
                return await self._driver.run(steps, on_all_blocks=on_all_blocks)
        except TimeoutError as error:
            raise self._driver.late() from error

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
