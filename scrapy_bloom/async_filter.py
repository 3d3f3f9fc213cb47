"""AsyncBloomFilter: BloomFilter's methods to be awaited."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, TypeVar, overload

from scrapy_bloom.async_driver import AsyncDriver
from scrapy_bloom.base import CHUNK, BaseFilter, chunks
from scrapy_bloom.hashing import Item
from scrapy_bloom.header import Header
from scrapy_bloom.info import FilterInfo, ItemInfo
from scrapy_bloom.rings import Snapshot, Steps
from scrapy_bloom.view import View

T = TypeVar("T")


class AsyncBloomFilter(BaseFilter):
    """``BloomFilter`` for asyncio: the same filters, parameters, answers and errors.

    One object may be used by many tasks of one loop; they are served one after the other. Instead
    of ``in`` and ``len`` it has ``contains`` and ``info``.

    Args:
        client: a ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``; the rest, see
            ``BloomFilter``.

    Raises:
        ConfigurationError: a parameter is out of its range.
    """

    def _use(self, client: Any, label: str, timeout: float | None) -> None:
        self._driver = AsyncDriver(client, label, timeout)
        # The view of a filter is for one operation at a time.
        self._lock = asyncio.Lock()

    async def open(self) -> Header:
        """See ``BloomFilter.open``."""
        return await self._run(self._view.open(writable=True), on_all_blocks=True)

    async def run(self, operation: Callable[[View], Steps[T]]) -> T:
        """See ``BloomFilter.run``."""
        return await self._run(operation(self._view))

    async def add(self, item: Item) -> bool:
        """See ``BloomFilter.add``."""
        return (await self._run(self._claim([item])))[0]

    async def claim(self, items: Iterable[Item]) -> list[bool]:
        """See ``BloomFilter.claim``."""
        return [new for chunk in chunks(items) for new in await self._run(self._claim(chunk))]

    async def extend(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """See ``BloomFilter.extend``; the items may come from an async iterator."""
        new = 0
        async for chunk in _chunks(items):
            new += sum(await self._run(self._claim(chunk)))
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

    async def find(self, item: Item) -> ItemInfo:
        """See ``BloomFilter.find``."""
        return (await self._run(self._find([item])))[0]

    async def find_all(self, items: Iterable[Item]) -> list[ItemInfo]:
        """See ``BloomFilter.find_all``."""
        return [info for chunk in chunks(items) for info in await self._run(self._find(chunk))]

    async def clear(self, *, claims_only: bool = False) -> None:
        """See ``BloomFilter.clear``."""
        steps = self._view.clear_claims() if claims_only else self._view.clear()
        await self._run(steps, on_all_blocks=True)

    async def rotate(self) -> None:
        """See ``BloomFilter.rotate``."""
        await self._run(self._rotate(), on_all_blocks=True)

    async def delete(self) -> bool:
        """See ``BloomFilter.delete``."""
        return await self._run(self._view.delete(), on_all_blocks=True)

    async def keys(self) -> list[str]:
        """See ``BloomFilter.keys``."""
        return await self._run(self._view.all_keys(), on_all_blocks=True)

    async def info(self, block: int | None = None) -> FilterInfo:
        """See ``BloomFilter.info``."""
        return await self._run(self._info(block), on_all_blocks=True)

    async def look(self) -> Snapshot | None:
        """See ``BloomFilter.look``."""
        return await self._run(self._view.look(), on_all_blocks=True)

    async def _run(self, steps: Steps[T], *, on_all_blocks: bool = False) -> T:
        async with self._lock:
            return await self._driver.run(steps, on_all_blocks=on_all_blocks)

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
        if len(waiting) == CHUNK:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
