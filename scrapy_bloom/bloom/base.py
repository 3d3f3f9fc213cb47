"""What BloomFilter and AsyncBloomFilter share: parameters, methods and properties. No I/O."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.client.addresses import label_of_client
from scrapy_bloom.bloom.errors import WORDS, ConfigurationError, rewording, shown
from scrapy_bloom.bloom.methods import Method, chunks
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import Item, to_bytes
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import plain
from scrapy_bloom.bloom.options import DEFAULTS, REPLACE, FilterOptions
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.bloom.protocol.cached_ring import NO_ROOM, Verdict
from scrapy_bloom.bloom.protocol.info import (
    FilterInfo,
    ItemInfo,
    Measurement,
    describe,
    describe_item,
    probe,
    rounds,
)
from scrapy_bloom.bloom.protocol.membership import add, contains, discard, find
from scrapy_bloom.bloom.protocol.ring_store import Notify, Operation, Snapshot
from scrapy_bloom.bloom.protocol.session import FilterSession

T = TypeVar("T")


class BaseFilter(ABC):
    """One client's handle of a filter. Arguments: see ``BloomFilter``."""

    #: Whether its methods are awaited; filters that are used together are of one kind.
    is_async: ClassVar[bool]

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
            #: This client's session of the filter.
            self.session = self._session = _new_session(key, wanted, like, notify)
            self._client, self._given_label, self._timeout = client, label, _seconds(timeout)
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

    def _sibling(self, key: str, client: Any = None) -> Self:
        """Return another filter on the same server, or on another one."""
        if client is None:
            client, label = self._client, self._given_label
        else:
            label = None
        return type(self)(client, key, label=label, timeout=self._timeout, words=self._words)

    # -- methods of both --

    @Method
    async def open(self) -> Header:
        """Read or create the filter, and make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter has other blocks or seeds than were asked for.
            StorageError: the server cannot be reached or used, or what it holds cannot be read.
        """
        return await self._run(self._session.open(writable=True), on_all_blocks=True)

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
        session = self._session
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
        was_there = await self._run(deletion.delete(self._session), on_all_blocks=True)
        self._session.forget()
        return was_there

    @Method
    async def keys(self) -> list[str]:
        """Return the Redis keys that it has.

        Raises:
            StorageError: the server did not answer.
        """
        return await self._run(deletion.all_keys(self._session), on_all_blocks=True)

    @Method
    async def rotate(self) -> None:
        """Open a new generation now; if there are as many as the window has, the oldest goes.

        Raises:
            ConfigurationError: the filter has no window.
            StorageError: the server did not answer; some blocks may have rotated already.
        """
        snapshot = await self._run(self._session.read(), on_all_blocks=True)
        if snapshot.rings[0].config.schedule is None:
            raise ConfigurationError(
                f"the filter {self.key!r} has no window (`window`), so it has nothing "
                "to rotate: set one, or clear the filter"
            )
        await self._run(self._session.rotate(), on_all_blocks=True)

    @Method
    async def info(self, block: int | None = None) -> FilterInfo:
        """Return what the filter, or one block of it, is and holds, read from the server now.

        Raises:
            ConfigurationError: the filter has no such block.
            StorageError: the server did not answer.
        """
        snapshot = await self._run(self._session.read(), on_all_blocks=True)
        block = plain(block)
        if block is not None and (type(block) is not int or block not in snapshot.rings):
            raise ConfigurationError(
                f"block is one of the filter's, from 0 to {snapshot.header.blocks - 1}; "
                f"got {block!r:.40}"
            )
        return describe(self.key, snapshot, self._session.lost_blocks, block)

    @Method
    async def look(self) -> Snapshot | None:
        """Read the filter as it is stored, without creating or changing anything; None if absent.

        Raises:
            StorageError: the server did not answer, or what it holds cannot be read.
        """
        return await self._run(self._session.look(), on_all_blocks=True)

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
        seen = total = 0
        for count in rounds(probes):
            seen += await self._run(probe(self._session, count))
            total += count
            if progress is not None:
                progress(count)
        return Measurement(total, seen)

    # -- operations --

    def _add(self, items: Sequence[Item], *, if_absent: bool = False) -> Operation[list[bool]]:
        encoded = [to_bytes(item) for item in items]
        return self._judge((yield from add(self._session, encoded, if_absent=if_absent)))

    def _judge(self, verdicts: Sequence[Verdict]) -> list[bool]:
        self.unrecorded += sum(map(verdicts.count, NO_ROOM))
        return [verdict.is_new for verdict in verdicts]

    def _discard(self, item: Item) -> Operation[bool]:
        return (yield from discard(self._session, [to_bytes(item)]))[0]

    def _contains(self, items: Sequence[Item]) -> Operation[list[bool]]:
        return (yield from contains(self._session, [to_bytes(item) for item in items]))

    def _find(self, items: Sequence[Item]) -> Operation[list[ItemInfo]]:
        found = yield from find(self._session, [to_bytes(item) for item in items])
        return [describe_item(ring, generation) for ring, generation in found]

    # -- what this client knows --

    def new_session(self) -> FilterSession:
        """Return another session of the same filter, for operations of another driver."""
        return self._session.twin()

    @property
    def lost_blocks(self) -> int:
        """Blocks that this object found lost (evicted, deleted) and created again, empty."""
        return self._session.lost_blocks

    @property
    def config(self) -> Config | None:
        """What may change during the filter's life, as last seen; None before it is opened."""
        held = self._session.held.get(0)
        return None if held is None else held.ring.config

    @property
    def replaced_config(self) -> Config | None:
        """The stored configuration that this object's replaced when it opened; None if none."""
        return self._session.replaced_config

    @property
    def header(self) -> Header | None:
        """The filter's header; None before it is opened."""
        return self._session.header

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
            self._session.held[block].ring for block in range(blocks) if block in self._session.held
        ]
        return sum(layer.num_bits for ring in rings for layer in ring.layers)

    def as_wanted(self) -> FilterOptions:
        """Return the options for another filter like this one."""
        header, config = self._known_header, self._session.held[0].ring.config
        return FilterOptions.like(header, config, self._session.wanted.run)

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


def _new_session(
    key: str, wanted: FilterOptions, like: BaseFilter | None, notify: Notify | None
) -> FilterSession:
    if like is not None:
        if not isinstance(like, BaseFilter):
            raise ConfigurationError(
                f"like is a BloomFilter or an AsyncBloomFilter; got {shown(like)}"
            )
        wanted = wanted.over(like.as_wanted())
    wanted.check_run()
    if notify is not None and not callable(notify):
        raise ConfigurationError(f"notify is a function; got {shown(notify)}")
    return FilterSession(Keys(key), wanted, DEFAULTS, notify or (lambda *_: None))


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None else validators.seconds("timeout", timeout, 0.001, 3600)
