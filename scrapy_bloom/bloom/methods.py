"""The methods that BloomFilter and AsyncBloomFilter have in common, each declared once. No I/O."""

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.base import BaseFilter, Method, async_chunks, chunks
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.file import ArchiveReader, ArchiveWriter, PathOrFile, writing
from scrapy_bloom.bloom.extras.install import load
from scrapy_bloom.bloom.extras.save import Progress, Saved, save
from scrapy_bloom.bloom.model.hashing import Item, to_bytes
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import plain
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.bloom.protocol.cached_ring import NO_ROOM, Verdict
from scrapy_bloom.bloom.protocol.info import (
    MAX_PROBES,
    FilterInfo,
    ItemInfo,
    Measurement,
    describe,
    describe_item,
    probe,
)
from scrapy_bloom.bloom.protocol.membership import MAX_URLS_PER_ROUND, add, contains, discard, find
from scrapy_bloom.bloom.protocol.ring_store import Operation, Snapshot
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")


class FilterMethods(BaseFilter):
    """The operations on a filter, and on several: see ``BloomFilter``."""

    @Method
    async def run(
        self, operation: Callable[[FilterSession], Operation[T]], *, on_all_blocks: bool = False
    ) -> T:
        """Carry out an operation on this filter, such as those of ``bloom.protocol.claims``.

        Args:
            operation: returns its steps.
            on_all_blocks: whether the number of round trips grows with the number of blocks:
                then ``timeout`` does not count.

        Raises:
            StorageError: the server did not answer; whether anything was changed is unknown.
        """
        return await self._run(operation(self.session), on_all_blocks=on_all_blocks)

    @Method
    async def open(self) -> Header:
        """Read or create the filter, and make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter has other blocks or seeds than were asked for.
            StorageError: the server cannot be reached or used, or what it holds cannot be read.
        """
        return await self._run(self.session.open(writable=True), on_all_blocks=True)

    @Method
    async def add_many(self, items: Iterable[Item], *, if_absent: bool = False) -> list[bool]:
        """Record items; return True for each that was not recorded before.

        Test and set in one atomic step per item, in one round trip per 8,192 items. An item that
        occurs twice is new once.

        Args:
            items: the items.
            if_absent: a counting filter counts new items only, instead of each item each time.

        Raises:
            TypeError: an item is neither str nor bytes; those before it may be recorded.
            StorageError: the outcome is unknown; some items may have been recorded.
        """
        new = list[bool]()
        for chunk in chunks(items):
            new += await self._run(self._add(chunk, if_absent=if_absent))
        return new

    @Method
    async def extend(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Record many items, streamed in constant memory; return how many were new.

        Args:
            items: the items; of a filter that is awaited, they may come from an async iterator.
            progress: called after each chunk with the number of items recorded since the last call.

        Raises:
            TypeError: an item is neither str nor bytes; those before it may be recorded.
            StorageError: the server did not answer; items before may be recorded.
        """
        if isinstance(items, AsyncIterable) and not self.is_async:
            raise TypeError("items come from an async iterator: use AsyncBloomFilter")
        new = 0
        async for chunk in async_chunks(items):
            new += sum(await self._run(self._add(chunk)))
            if progress is not None:
                progress(len(chunk))
        return new

    @Method
    async def discard(self, item: Item) -> bool:
        """Discard an item from a counting filter, once; return whether it seemed to be there.

        At the error rate one that is not there seems to be, and then others may get lost: discard
        only what was added.

        Raises:
            ConfigurationError: the filter does not count.
            TypeError: the item is neither str nor bytes.
            StorageError: the outcome is unknown.
        """
        return await self._run(self._discard(item))

    @Method
    async def remove(self, item: Item) -> None:
        """Discard an item that must be there.

        Raises:
            KeyError: the item is certainly not there.
        """
        if not await self._run(self._discard(item)):
            raise KeyError(item)

    @Method
    async def clear(self, *, claims_only: bool = False) -> None:
        """Forget everything, for all processes; or only what is claimed and not recorded yet.

        Raises:
            StorageError: the server did not answer; some blocks may be empty already.
        """
        session = self.session
        clearing = session.clear_claims() if claims_only else session.clear()
        await self._run(clearing, on_all_blocks=True)

    @Method
    async def delete(self) -> bool:
        """Delete all keys of the filter; return whether there was one.

        Bitmaps of blocks whose rings are lost or cannot be read are found by their names: then all
        keys of the server are walked (SCAN), which takes a second or so per million.

        The next use, by this object or another, creates a new filter with other seeds.

        Raises:
            StorageError: the server did not answer; some blocks may be gone already.
        """
        was_there = await self._run(deletion.delete(self.session), on_all_blocks=True)
        self.session.forget()
        return was_there

    @Method
    async def keys(self) -> list[str]:
        """Return the Redis keys that it has.

        Raises:
            StorageError: the server did not answer.
        """
        return await self._run(deletion.all_keys(self.session), on_all_blocks=True)

    @Method
    async def rotate(self) -> None:
        """Open a new generation now; if there are as many as the window has, the oldest goes.

        Raises:
            ConfigurationError: the filter has no window.
            StorageError: the server did not answer; some blocks may have rotated already.
        """
        snapshot = await self._run(self.session.read(), on_all_blocks=True)
        if snapshot.rings[0].config.schedule is None:
            raise ConfigurationError(
                f"the filter {self.key!r} has no window (`window`), so it has nothing "
                "to rotate: set one, or clear the filter"
            )
        await self._run(self.session.rotate(), on_all_blocks=True)

    @Method
    async def info(self, block: int | None = None) -> FilterInfo:
        """Return what the filter, or one block of it, is and holds, read from the server now.

        Raises:
            ConfigurationError: the filter has no such block.
            StorageError: the server did not answer.
        """
        snapshot = await self._run(self.session.read(), on_all_blocks=True)
        block = plain(block)
        if block is not None and (type(block) is not int or block not in snapshot.rings):
            raise ConfigurationError(
                f"block is one of the filter's, from 0 to {snapshot.header.blocks - 1}; "
                f"got {block!r:.40}"
            )
        return describe(self.key, snapshot, self.session.lost_blocks, block)

    @Method
    async def look(self) -> Snapshot | None:
        """Read the filter as it is stored, without creating or changing anything; None if absent.

        Raises:
            StorageError: the server did not answer, or what it holds cannot be read.
        """
        return await self._run(self.session.look(), on_all_blocks=True)

    @Method
    async def find(self, item: Item) -> ItemInfo:
        """Say whether an item is remembered, since when, and when it is new again.

        Raises:
            TypeError: the item is neither str nor bytes.
            StorageError: the server did not answer.
        """
        return (await self._run(self._find([item])))[0]

    @Method
    async def find_all(self, items: Iterable[Item]) -> list[ItemInfo]:
        """Find many items, in one round trip per 8,192: see ``find``."""
        found = list[ItemInfo]()
        for chunk in chunks(items):
            found += await self._run(self._find(chunk))
        return found

    @Method
    async def measure(
        self, probes: int = 100_000, *, progress: Callable[[int], object] | None = None
    ) -> Measurement:
        """Measure how often the filter is wrong, by random items; nothing is recorded.

        The items are 20 random bytes each, like a fingerprint, and were never recorded: the share
        that is "seen" is the chance that a new URL is hidden now. Of 100,000 items of which none
        is seen, that chance is at most 4e-5, with 95% confidence: to measure a rate, take several
        times its reciprocal.

        Args:
            probes: how many items to test, in one round trip per 8,192.
            progress: called after each round with the number of items tested since the last call.

        Raises:
            ConfigurationError: probes is no whole number above 0.
            StorageError: the server did not answer.
        """
        meaning = "how many random items to test"
        left = total = validators.whole_number("probes", probes, 1, MAX_PROBES, meaning)
        seen = 0
        while left:
            count = min(left, MAX_URLS_PER_ROUND)
            seen += await self._run(probe(self.session, count))
            left -= count
            if progress is not None:
                progress(count)
        return Measurement(total, seen)

    @Method
    async def approx_len(self) -> int:
        """Return how many items there are, estimated from the bits alone; ``len`` is exact.

        Raises:
            SaturatedError: a bitmap has no bit left that is 0.
            StorageError: the server did not answer.
        """
        return await self.run_on_all(algebra.approx_len(self.session))

    @Method
    async def approx_union_len(self, other: BaseFilter) -> int:
        """Return how many items there are in this filter or another one, estimated from the bits.

        Raises:
            FilterMismatchError: they place items differently, or have bitmaps of different sizes.
            SaturatedError: a bitmap has no bit left that is 0.
            StorageError: a server did not answer.
        """
        return round((await algebra.overlap(*self._parts([other]))).union)

    @Method
    async def approx_intersection_len(self, other: BaseFilter) -> int:
        """Return how many items this filter and another one have in common, estimated.

        Raises as ``approx_union_len``.
        """
        return round((await algebra.overlap(*self._parts([other]))).intersection)

    @Method
    async def update(self, *others: BaseFilter) -> None:
        """Record all that others have, while this filter is in use. Raises as ``union`` does.

        If it fails midway a part is recorded; it can be done again.
        """
        await algebra.update(*self._parts(others))

    @Method
    async def save(self, file: PathOrFile, progress: Progress | None = None) -> Saved:
        """Save the filter to a file, also while it is in use: what it holds now is in the file.

        Claims are not saved. Of a filter that is awaited, writing to the file blocks the event
        loop.

        Args:
            file: a path, or a file that is open in binary mode.
            progress: called with the bytes of bitmaps done and in all, about.

        Raises:
            StorageError: the server did not answer, or there is no filter.
            ArchiveError: the file cannot be written.
        """
        with writing(file) as opened:
            steps = save(self.session.keys, ArchiveWriter(opened), progress)
            return await self._drive(steps, on_all_blocks=True)

    @Method
    async def restore(self, reader: ArchiveReader, progress: Progress | None = None) -> Saved:
        """Load what a file holds under this filter's key, which must be free: see ``load``."""
        return await load(self.run_on_all, self.session.keys, reader, progress)

    async def _make(
        self, combine: algebra.Combine, others: Sequence[Self], key: str, client: Any = None
    ) -> Self:
        """Make a filter of this one and others, and return it."""
        label = self._given_label if client is None else None
        client = self._client if client is None else client
        made = type(self)(client, key, label=label, timeout=self._timeout, words=self._words)
        await combine(self._parts(others), made.run_on_all, Keys(key))
        return made

    def _parts(self, others: Sequence[BaseFilter]) -> list[algebra.Part]:
        for other in others:
            if not isinstance(other, BaseFilter) or other.is_async != self.is_async:
                raise ConfigurationError(
                    f"the other filter must be a {type(self).__name__}, too; got {other!r:.60}"
                )
        return [algebra.Part(each.session, each.run_on_all) for each in (self, *others)]

    async def _test(self, items: Iterable[Item]) -> list[bool]:
        """Test items without recording them."""
        return [seen for chunk in chunks(items) for seen in await self._run(self._contains(chunk))]

    # -- operations --

    def _add(self, items: Sequence[Item], *, if_absent: bool = False) -> Operation[list[bool]]:
        encoded = [to_bytes(item) for item in items]
        return self._judge((yield from add(self.session, encoded, if_absent=if_absent)))

    def _judge(self, verdicts: Sequence[Verdict]) -> list[bool]:
        self.unrecorded += sum(map(verdicts.count, NO_ROOM))
        return [verdict.is_new for verdict in verdicts]

    def _discard(self, item: Item) -> Operation[bool]:
        return (yield from discard(self.session, [to_bytes(item)]))[0]

    def _contains(self, items: Sequence[Item]) -> Operation[list[bool]]:
        return (yield from contains(self.session, [to_bytes(item) for item in items]))

    def _find(self, items: Sequence[Item]) -> Operation[list[ItemInfo]]:
        found = yield from find(self.session, [to_bytes(item) for item in items])
        return [describe_item(ring, generation) for ring, generation in found]
