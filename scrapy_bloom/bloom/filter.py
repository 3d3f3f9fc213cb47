"""BloomFilter: a set of strings in Redis: shared, small, almost exact, and it forgets on time."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self, TypeVar, overload

from scrapy_bloom.bloom.base import chunks
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.combinable import CombinableFilter
from scrapy_bloom.bloom.model.hashing import Item, to_bytes
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.info import FilterInfo, ItemInfo
from scrapy_bloom.bloom.protocol.measure import Measurement, probe, rounds
from scrapy_bloom.bloom.protocol.membership import MakeFrame, add, locate, verdict_on_one
from scrapy_bloom.bloom.protocol.ring_store import Operation, Snapshot
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Call, Wait
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.verdicts import Verdict

T = TypeVar("T")


class BloomFilter(CombinableFilter):
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

    def _use(self, client: Any) -> None:
        self._driver = Driver(client, self._label, self._timeout, self._words)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        """Close nothing: the client belongs to the caller."""

    def as_wanted(self) -> FilterOptions:
        """Return the options for another filter like this one."""
        self.open()
        return super().as_wanted()

    def open(self) -> Header:
        """Read or create the filter, and make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter has other blocks or seeds than were asked for.
            StorageError: the server cannot be reached or used, or what it holds cannot be read.
        """
        return self._driver.run(self._session.open(writable=True), on_all_blocks=True)

    def run(
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
        return self._driver.run(operation(self._session), on_all_blocks=on_all_blocks)

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
        if isinstance(items, str | bytes):
            return items in self
        return [seen for chunk in chunks(items) for seen in self._driver.run(self._contains(chunk))]

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
        session = self._session
        held, packed = locate(session, item)
        if held is not None:
            reply = self._driver.exchange(make_frame(held, packed))
            verdict = verdict_on_one(session, held, reply) if reply is not None else None
            if verdict is not None:
                return verdict
        return self._driver.run(operation(session))[0]

    def add_many(self, items: Iterable[Item], *, if_absent: bool = False) -> list[bool]:
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
        add, run = self._add, self._driver.run
        return [new for chunk in chunks(items) for new in run(add(chunk, if_absent=if_absent))]

    def extend(self, items: Iterable[Item], progress: Callable[[int], object] | None = None) -> int:
        """Record many items, streamed in constant memory; return how many were new.

        Args:
            items: the items.
            progress: called after each chunk with the number of items recorded since the last call.

        Raises:
            TypeError: an item is neither str nor bytes; those before it may be recorded.
            StorageError: the server did not answer; items before may be recorded.
        """
        new = 0
        for chunk in chunks(items):
            new += sum(self._driver.run(self._add(chunk)))
            if progress is not None:
                progress(len(chunk))
        return new

    def discard(self, item: Item) -> bool:
        """Discard an item from a counting filter, once; return whether it seemed to be there.

        At the error rate one that is not there seems to be, and then others may get lost: discard
        only what was added.

        Raises:
            ConfigurationError: the filter does not count.
            TypeError: the item is neither str nor bytes.
            StorageError: the outcome is unknown.
        """
        return self._driver.run(self._discard(item))

    def remove(self, item: Item) -> None:
        """Discard an item that must be there.

        Raises:
            KeyError: the item is certainly not there.
        """
        if not self.discard(item):
            raise KeyError(item)

    def __contains__(self, item: Item) -> bool:
        return self._driver.run(self._contains([item]))[0]

    def __len__(self) -> int:
        """Return the number of items remembered, exactly (false positives are not recorded)."""
        return self.info().count

    def clear(self, *, claims_only: bool = False) -> None:
        """Forget everything, for all processes; or only what is claimed and not recorded yet.

        Raises:
            StorageError: the server did not answer; some blocks may be empty already.
        """
        steps = self._session.clear_claims() if claims_only else self._session.clear()
        self._driver.run(steps, on_all_blocks=True)

    def delete(self) -> bool:
        """Delete all keys of the filter; return whether there was one.

        Bitmaps of blocks whose rings are lost or cannot be read are found by their names: then all
        keys of the server are walked (SCAN), which takes a second or so per million.

        The next use, by this object or another, creates a new filter with other seeds.

        Raises:
            StorageError: the server did not answer; some blocks may be gone already.
        """
        return self._driver.run(self._delete(), on_all_blocks=True)

    def keys(self) -> list[str]:
        """Return the Redis keys that it has.

        Raises:
            StorageError: the server did not answer.
        """
        return self._driver.run(deletion.all_keys(self._session), on_all_blocks=True)

    def rotate(self) -> None:
        """Open a new generation now; if there are as many as the window has, the oldest goes.

        Raises:
            ConfigurationError: the filter has no window.
            StorageError: the server did not answer; some blocks may have rotated already.
        """
        self._driver.run(self._rotate(), on_all_blocks=True)

    def info(self, block: int | None = None) -> FilterInfo:
        """Return what the filter, or one block of it, is and holds, read from the server now.

        Raises:
            ConfigurationError: the filter has no such block.
            StorageError: the server did not answer.
        """
        return self._driver.run(self._info(block), on_all_blocks=True)

    def look(self) -> Snapshot | None:
        """Read the filter as it is stored, without creating or changing anything; None if absent.

        Raises:
            StorageError: the server did not answer, or what it holds cannot be read.
        """
        return self._driver.run(self._session.look(), on_all_blocks=True)

    def find(self, item: Item) -> ItemInfo:
        """Say whether an item is remembered, since when, and when it is new again.

        Raises:
            TypeError: the item is neither str nor bytes.
            StorageError: the server did not answer.
        """
        return self.find_all([item])[0]

    def find_all(self, items: Iterable[Item]) -> list[ItemInfo]:
        """Find many items, in one round trip per 8,192: see ``find``."""
        return [info for chunk in chunks(items) for info in self._driver.run(self._find(chunk))]

    def measure(
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
        seen = total = 0
        for count in rounds(probes):
            seen += self._driver.run(probe(self._session, count))
            total += count
            if progress is not None:
                progress(count)
        return Measurement(total, seen)

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

    @property
    def round_trips(self) -> int:
        """Times this object sent commands and waited for the replies."""
        return self._driver.round_trips
