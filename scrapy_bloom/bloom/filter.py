"""BloomFilter: a set of strings in Redis: shared, small, almost exact, and it forgets on time.

AsyncBloomFilter has its methods to be awaited.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self, TypeVar, overload

from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.client.async_driver import AsyncDriver, finish, timeout
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.file import ArchiveReader, PathOrFile, reading
from scrapy_bloom.bloom.extras.save import Progress
from scrapy_bloom.bloom.methods import FilterMethods
from scrapy_bloom.bloom.model.hashing import Item, to_bytes
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.bloom.protocol.cached_ring import (
    BY_CODE,
    NO_ROOM,
    CachedRing,
    Verdict,
    is_answer,
)
from scrapy_bloom.bloom.protocol.membership import add
from scrapy_bloom.bloom.protocol.ring_store import FILLING, Operation
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Call, Reply, Wait
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")
#: Makes the call for one item as it is sent, of its ring and its packed offsets.
MakeFrame = Callable[[CachedRing, bytes], bytes]


class BloomFilter(FilterMethods):
    """A set in Redis that answers "new" or "seen" and, at a known rate, "seen" wrongly.

    All processes that use the same key share it, whatever their number. It is opened (and created
    if it is not there) at its first use or by ``open()``. One object is for one thread.

    ``with BloomFilter(...) as bloom:`` opens it. Nothing is closed at the end: the client belongs
    to the caller. A filter is true, also an empty one; ``len`` says whether it has items.

    Args:
        client: a ``redis.Redis`` or ``redis.RedisCluster``, with or without ``decode_responses``.
            It should not repeat commands by itself (``retry=Retry(NoBackoff(), 0)``): a claim whose
            reply was lost would come back "seen".
        key: prefix of all its keys, without ``{`` and ``}``.
        like: another filter, whose seeds, blocks and settings count where no others are given: the
            two can be united and compared.
        capacity: items a generation takes before it grows; None as stored, else 1,000,000.
        error_rate: bound on the false-positive rate, 0 < p < 1; None as stored, else 1e-5.
        blocks: bitmaps it is spread over, 1 to 16,384; None as stored, else 16 or as many more as
            keep a bitmap within 8 MiB.
        seeds: MurmurHash3 seeds (list), or how many to draw (int); None as stored, else as many as
            need the fewest bits. Drawn seeds are secret.
        window: how long items are remembered: ``"5 months"``, ``"6 weeks"``, ``"36h"``,
            ``"2 runs"``, seconds, a ``timedelta``, or ``"never"`` to forget nothing; None as
            stored, else never.
            An item seen at ``t`` becomes new again between ``t + window - period`` and
            ``t + window``, whether it is seen in between or not.
        period: how often a new generation is opened; it divides the window. None as stored with
            that window, else 1 month for windows of 2 months and more, 1 run, or half of it.
        ring: ``"write-newest"`` or ``"write-all"``, which takes more memory and tests less.
        stagger: whether the blocks rotate one after the other, spread over the period.
        counting: whether items can be discarded: counters of 4 bits take the place of bits, at four
            times the memory; None as stored, else not.
        growth: size of the next layer in sizes of the last one, 1 to 64; 0 never grows. A filter
            that cannot grow forgets its oldest generation early if there is an older one than this
            period's; else it records no more and goes on answering "new". It never hides anything.
        max_memory: bytes of all bitmaps beyond which no layer is added; 0 for no limit, None as
            stored, else no limit.
        run: id of this run, for windows in runs: the first client that shows a new one rotates.
        on_difference: what happens if the stored capacity, error rate, window, period, growth or
            memory limit are others than those that are given: ``"replace"`` takes the given ones,
            times at once, sizes from the next generation on (without a window: the next layer);
            ``"extend"`` refuses those that forget items earlier, and takes the others; ``"keep"``
            takes what is stored.
        notify: called with what happens (``ring_store.LOST``, ``ROTATED``, ``GROWN``, ``FULL``,
            ``FILLING``, ``CHANGED``) and the ring of the block.
        fingerprinter: noted in the header of a filter that is created.
        label: the server's address for error messages; None takes it from the client.
        timeout: seconds an operation of several round trips may take; None for no limit. It does
            not count for operations on all blocks (opening, clearing, rotating, ``info``). The
            client's own time-outs bound each reply. See ``Driver``.
        words: what error messages call parameters and remedies, for callers with settings of their
            own; see ``errors.WORDS``.

    Raises:
        ConfigurationError: a parameter is out of its range.
    """

    is_async = False
    _driver: Driver

    def _use(self, client: Any) -> None:
        self._driver = Driver(client, self._label, self._timeout, self._words)

    async def _drive(self, operation: Operation[T], *, on_all_blocks: bool = False) -> T:
        return self._driver.run(operation, on_all_blocks=on_all_blocks)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        """Close nothing: the client belongs to the caller."""

    def as_wanted(self) -> FilterOptions:
        """Return the options for another filter like this one."""
        self.open()
        return super().as_wanted()

    @overload
    def contains(self, items: Item) -> bool: ...  # type: ignore[overload-overlap]

    @overload
    def contains(self, items: Iterable[Item]) -> list[bool]: ...

    def contains(self, items: Item | Iterable[Item]) -> bool | list[bool]:
        """Test one item, or many, without recording: True is "seen", wrongly so at the error rate.

        Raises:
            TypeError: an item is neither str nor bytes.
            StorageError: the server did not answer.
        """
        return items in self if isinstance(items, str | bytes) else complete(self._test(items))

    def add(self, item: Item, *, if_absent: bool = False) -> bool:
        """Record an item in one round trip; return whether it was new. Raises as ``add_many``."""
        encoded = to_bytes(item)
        verdict = self.run_one(
            encoded,
            partial(CachedRing.add_one, if_absent=if_absent),
            partial(add, items=[encoded], if_absent=if_absent),
        )
        return self._judge([verdict])[0]

    def run_one(
        self,
        item: bytes,
        make_frame: MakeFrame,
        operation: Callable[[FilterSession], Operation[list[Verdict]]],
    ) -> Verdict:
        """Return the verdict on one item, without the bookkeeping of a batch (15 us).

        Args:
            item: the item.
            make_frame: makes the call as it is sent.
            operation: does the same as a batch: where the ring is not known, or has changed.

        Raises:
            StorageError: the outcome is unknown.
        """
        session = self.session
        # Without a header, no ring is held.
        block, hashes = session.hasher.hashes(item) if session.header else (0, [])
        if (held := session.held.get(block)) is not None:
            reply = self._driver.exchange(make_frame(held, held.pack(hashes)))
            verdict = verdict_on_one(session, held, reply) if reply is not None else None
            if verdict is not None:
                return verdict
        return self._driver.run(operation(session))[0]

    def union(self, *others: Self, key: str) -> Self:
        """Create a filter with all items of this one and others, and return it.

        It has each item as long as they have it; ``len`` is an estimate.

        Args:
            others: filters whose bitmaps are as this one's (``like=``), also on other servers.
            key: prefix of the keys of the new one, which is on this one's server.

        Raises:
            FilterMismatchError: they place items differently, or forget them at other times, or
                one has grown; says in what they differ.
            ConfigurationError: the key is in use, there are too many items for a bitmap's error
                rate, or it is a filter with ``counting``, ``ring="write-all"`` or a window in runs.
            StorageError: a server did not answer; nothing was made.
        """
        return complete(self._make(algebra.union, others, key))

    def intersection(self, *others: Self, key: str) -> Self:
        """Create a filter that says "seen" where this one and all others do, and return it.

        It has every item that they have in common. ``len`` is an upper bound. Arguments and errors
        are those of ``union``.

        Raises:
            FilterMismatchError: also if a window has several generations by now.
        """
        return complete(self._make(algebra.intersection, others, key))

    def copy(self, key: str, *, client: Any = None) -> Self:
        """Create a copy of this filter as it is now, and return it.

        Args:
            key: prefix of its keys.
            client: of the server for the copy; None for this filter's.

        Raises:
            ConfigurationError: the key is in use.
            StorageError: a server did not answer; nothing was made.
        """
        return complete(self._make(algebra.copy, (), key, client))

    @classmethod
    def load(
        cls,
        client: Any,
        key: str,
        file: PathOrFile,
        *,
        max_memory: int | None = None,
        progress: Progress | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Load a filter from a file, whole or not at all, and return it.

        Args:
            client: as for a new filter; any server or cluster will do.
            key: the prefix that its keys are to have.
            file: a path, or a file that is open in binary mode.
            max_memory: bytes of bitmaps that it may have, 0 for any; None for 4 GiB.
            progress: as in ``save``.
            timeout: as for a new filter.

        Raises:
            ConfigurationError: the key is in use.
            ArchiveError: the file cannot be read, is damaged, or too large.
            StorageError: the server did not answer, or is out of memory.
        """
        bloom = cls(client, key, timeout=timeout)
        with reading(file) as opened:
            bloom.restore(ArchiveReader(opened, max_memory), progress)
        return bloom

    def __or__(self, other: Self) -> Self:
        """``a | b``: ``union`` under the key ``"<key>|<other key>"``."""
        if not isinstance(other, BloomFilter):
            return NotImplemented
        return self.union(other, key=f"{self.key}|{other.key}")

    def __and__(self, other: Self) -> Self:
        """``a & b``: ``intersection`` under the key ``"<key>&<other key>"``."""
        if not isinstance(other, BloomFilter):
            return NotImplemented
        return self.intersection(other, key=f"{self.key}&{other.key}")

    def __ior__(self, other: Self) -> Self:
        """``a |= b``: see ``update``."""
        if not isinstance(other, BloomFilter):
            return NotImplemented
        self.update(other)
        return self

    def __contains__(self, item: Item) -> bool:
        return self._driver.run(self._contains([item]))[0]

    def __len__(self) -> int:
        """Return the number of items remembered, exactly (false positives are not recorded)."""
        return self.info().count

    def eviction_policy(self) -> str:
        """Return the server's ``maxmemory-policy``; "" if unknown."""
        return self._driver.eviction_policy()

    def server_id(self) -> str:
        """Return the id of the server's process; "" if unknown."""
        return self._driver.server_id()

    def wait(self, calls: list[Call], wait: Wait) -> Acknowledged:
        """Wait until replicas have what was written before: see ``Driver.wait``."""
        return self._driver.wait(calls, wait)

    @property
    def may_connect(self) -> bool:
        """Whether a connection may be made; if not, and there is none, operations fail at once."""
        return self._driver.may_connect

    @may_connect.setter
    def may_connect(self, value: bool) -> None:
        self._driver.may_connect = value

    def keep_connection(self) -> None:
        """Keep the connection on which single items are added for the next one: 10 us less.

        Only for a client whose pool has no other user at the same time, and no limit.
        """
        self._driver.keep_connection()


class AsyncBloomFilter(FilterMethods):
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
    _driver: AsyncDriver

    def _use(self, client: Any) -> None:
        self._driver = AsyncDriver(client, self._label, self._timeout, self._words)
        # A session is for one operation at a time.
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close nothing: the client belongs to the caller."""

    async def add(self, item: Item, *, if_absent: bool = False) -> bool:
        """See ``BloomFilter.add``."""
        return (await self._run(self._add([item], if_absent=if_absent)))[0]

    @overload
    async def contains(self, items: Item) -> bool: ...  # type: ignore[overload-overlap]

    @overload
    async def contains(self, items: Iterable[Item]) -> list[bool]: ...

    async def contains(self, items: Item | Iterable[Item]) -> bool | list[bool]:
        """See ``BloomFilter.contains``."""
        if isinstance(items, str | bytes):
            return (await self._test([items]))[0]
        return await self._test(items)

    async def union(self, *others: Self, key: str) -> Self:
        """See ``BloomFilter.union``."""
        return await self._make(algebra.union, others, key)

    async def intersection(self, *others: Self, key: str) -> Self:
        """See ``BloomFilter.intersection``."""
        return await self._make(algebra.intersection, others, key)

    async def copy(self, key: str, *, client: Any = None) -> Self:
        """See ``BloomFilter.copy``."""
        return await self._make(algebra.copy, (), key, client)

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


def verdict_on_one(session: FilterSession, held: CachedRing, reply: Reply) -> Verdict | None:
    """Return the verdict in the reply to an addition, or a claim, of one item.

    None if the reply has none: nothing has changed, and ``add`` has to be used.
    """
    if not is_answer(reply, 1) or (
        reply.verdicts in NO_ROOM and not session.is_stuck(held.ring.block)
    ):
        return None
    if reply.mark == FILLING:
        session.notify(FILLING, held.ring)
    return BY_CODE[reply.verdicts]
