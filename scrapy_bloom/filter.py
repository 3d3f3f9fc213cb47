"""BloomFilter: a set of strings in Redis: shared, small, almost exact, and it forgets on time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from scrapy_bloom import values
from scrapy_bloom.driver import Driver
from scrapy_bloom.errors import ConfigurationError
from scrapy_bloom.generations import Config
from scrapy_bloom.hashing import Item, to_bytes
from scrapy_bloom.header import Header
from scrapy_bloom.info import FilterInfo, ItemInfo, describe, describe_item
from scrapy_bloom.keys import Keys
from scrapy_bloom.membership import (
    PRESENT,
    SEEN,
    UNRECORDED,
    claim,
    contains,
    find,
    locate,
    verdict_on_one,
)
from scrapy_bloom.ring import Ring
from scrapy_bloom.rings import Snapshot, Steps
from scrapy_bloom.schedule import RUNS, Span, parse_span
from scrapy_bloom.view import View
from scrapy_bloom.wanted import Wanted

T = TypeVar("T")

#: What a filter is created with unless the user says otherwise.
DEFAULTS = Config(capacity=1_000_000, error_rate=1e-5)
#: Items that ``extend`` sends together.
EXTEND_CHUNK = 4_096


class BloomFilter:
    """A set in Redis that answers "new" or "seen" and, at a known rate, "seen" wrongly.

    All processes that use the same key share it, whatever their number. It is opened (and created
    if it is not there) at its first use or by ``open()``. One object is for one thread.

    Args:
        client: a ``redis.Redis`` or ``redis.RedisCluster``, with or without ``decode_responses``.
            It should not repeat commands by itself (``retry=Retry(NoBackoff(), 0)``): a claim whose
            reply was lost would come back "seen".
        key: prefix of all its keys, without ``{`` and ``}``.
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
            ``t + window``, whether it is seen meanwhile or not.
        period: how often a new generation is opened; it divides the window. None as stored with
            that window, else 1 month for windows in months, 1 run for runs, else the window itself.
        ring: ``"write-newest"`` or ``"write-all"``, which takes more memory and tests less.
        stagger: whether the blocks rotate one after the other, spread over the period.
        growth: size of the next layer in sizes of the last one, 1 to 64; 0 never grows. A filter
            that cannot grow forgets its oldest generation early if there is an older one than this
            period's; else it records no more and goes on answering "new". It never hides anything.
        max_memory: bytes of all bitmaps beyond which no layer is added; 0 for no limit, None as
            stored, else no limit.
        run: id of this run, for windows in runs: the first client that shows a new one rotates.
        notify: is called with what happens (``view.LOST``, ``ROTATED``, ``GROWN``, ``FULL``,
            ``FILLING``) and the ring of the block.
        fingerprinter: noted in the header of a filter that is created.
        label: the server's address for error messages.
        timeout: seconds an operation may take in all, and each round trip of one on all blocks
            (opening, clearing, rotating, ``info``); None for no limit. See ``Driver``.

    Raises:
        ConfigurationError: a parameter is out of its range.
    """

    def __init__(
        self,
        client: Any,
        key: str,
        *,
        capacity: int | None = None,
        error_rate: float | None = None,
        blocks: int | None = None,
        seeds: Sequence[int] | int | None = None,
        window: Any = None,
        period: Any = None,
        ring: str | None = None,
        stagger: bool | None = None,
        growth: float | None = None,
        max_memory: int | None = None,
        run: str | None = None,
        notify: Callable[[str, Ring], object] | None = None,
        fingerprinter: str = "",
        label: str = "Redis",
        timeout: float | None = None,
    ) -> None:
        given, num_hashes = (None, None) if seeds is None else values.seeds("seeds", seeds)
        wanted = Wanted(
            capacity=_optional(values.capacity, "capacity", capacity),
            error_rate=_optional(values.error_rate, "error_rate", error_rate),
            blocks=_optional(values.blocks, "blocks", blocks),
            seeds=given,
            num_hashes=num_hashes,
            window=_optional(values.window, "window", window),
            period=_optional(parse_span, "period", period),
            order=_optional(values.ring_order, "ring", ring),
            stagger=_optional(values.flag, "stagger", stagger),
            growth=_optional(values.growth, "growth", growth),
            max_memory=_optional(values.memory, "max_memory", max_memory),
            run=_optional(values.run, "run", run),
            fingerprinter=fingerprinter,
        )
        if isinstance(wanted.window, Span) and wanted.window.unit == RUNS and wanted.run is None:
            raise ConfigurationError(
                f'window = "{wanted.window}" counts runs: give run an id, the same in all clients '
                "of a run and another one in each run"
            )
        self.key = key
        self._view = View(Keys(key), wanted, DEFAULTS, notify or (lambda *_: None))
        self._driver = Driver(client, label, timeout)
        #: Items that were new but not recorded, because their block was full and could not grow.
        self.unrecorded = 0

    def open(self) -> Header:
        """Read or create the filter, and make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter has other blocks or seeds than were asked for.
            StorageError: the server cannot be reached or used, or what it holds cannot be read.
        """
        return self._driver.run(self._view.open(writable=True), on_all_blocks=True)

    def claim(self, items: Iterable[Item]) -> list[bool]:
        """Take items: True for each that nobody has taken before, who takes it now.

        Test and set in one atomic step per item, in one round trip per 8,192 items. An item that
        occurs twice is new once.

        Raises:
            TypeError: an item is neither str nor bytes.
            StorageError: the outcome is unknown; some items may have been recorded.
        """
        verdicts = self._driver.run(claim(self._view, _encode(items)))
        return self._judge(verdicts)

    def run(self, operation: Callable[[View], Steps[T]]) -> T:
        """Carry out an operation on this filter, as those of ``scrapy_bloom.pending``.

        Raises:
            StorageError: the server did not answer; whether anything was changed is unknown.
        """
        return self._driver.run(operation(self._view))

    def contains(self, items: Iterable[Item]) -> list[bool]:
        """Test items without recording them: True is "seen", wrongly so at the error rate.

        Raises:
            TypeError: an item is neither str nor bytes.
            StorageError: the server did not answer.
        """
        verdicts = self._driver.run(contains(self._view, _encode(items)))
        return [verdict == PRESENT for verdict in verdicts]

    def add(self, item: Item) -> bool:
        """Record an item; return whether it was new. Raises as ``claim`` does."""
        encoded = to_bytes(item)
        if self._view.complete:
            # What a crawl does all the time, without the bookkeeping of a batch (15 us).
            held, packed = locate(self._view, encoded)
            reply = self._driver.call(held.claim(packed))
            verdict = verdict_on_one(self._view, held, reply)
            if verdict is not None:
                return self._judge(verdict)[0]
        return self.claim([encoded])[0]

    def extend(self, items: Iterable[Item]) -> int:
        """Record many items, streamed in constant memory; return how many were new.

        Raises:
            TypeError: an item is neither str nor bytes; those before it may be recorded.
            StorageError: the server did not answer; items before may be recorded.
        """
        return sum(sum(self.claim(chunk)) for chunk in _chunks(items, EXTEND_CHUNK))

    def _judge(self, verdicts: str) -> list[bool]:
        self.unrecorded += verdicts.count(UNRECORDED)
        return [verdict != SEEN for verdict in verdicts]

    def __contains__(self, item: Item) -> bool:
        return self.contains([item])[0]

    def __len__(self) -> int:
        """Return the number of items remembered, exactly (false positives are not recorded)."""
        return self.info().count

    def clear(self, *, claims_only: bool = False) -> None:
        """Forget everything, for all processes; or only what is claimed and not recorded yet.

        Raises:
            StorageError: the server did not answer; some blocks may be empty already.
        """
        steps = self._view.clear_claims() if claims_only else self._view.clear()
        self._driver.run(steps, on_all_blocks=True)

    def rotate(self) -> None:
        """Open a new generation now; if there are as many as the window has, the oldest goes.

        Raises:
            ConfigurationError: the filter has no window.
            StorageError: the server did not answer; some blocks may have rotated already.
        """
        if self.info().window is None:
            raise ConfigurationError(
                f"the filter {self.key!r} has no window (BLOOM_RECRAWL_AFTER), so it has nothing "
                "to rotate: set one, or clear the filter"
            )
        self._driver.run(self._view.rotate(), on_all_blocks=True)

    def info(self, block: int | None = None) -> FilterInfo:
        """Return what the filter, or one block of it, is and holds, read from the server now.

        Raises:
            ConfigurationError: the filter has no such block.
            StorageError: the server did not answer.
        """
        snapshot = self._driver.run(self._view.read(), on_all_blocks=True)
        if block is not None and block not in snapshot.rings:
            raise ConfigurationError(
                f"block is one of the filter's, from 0 to {snapshot.header.blocks - 1}; "
                f"got {block!r:.40}"
            )
        return describe(self.key, snapshot, self._view.lost_blocks, block)

    def look(self) -> Snapshot | None:
        """Read the filter as it is stored, without creating or changing anything; None if absent.

        Raises:
            StorageError: the server did not answer, or what it holds cannot be read.
        """
        return self._driver.run(self._view.look(), on_all_blocks=True)

    def find(self, item: Item) -> ItemInfo:
        """Say whether an item is remembered, since when, and when it is new again.

        Raises:
            TypeError: the item is neither str nor bytes.
            StorageError: the server did not answer.
        """
        return self.find_all([item])[0]

    def find_all(self, items: Iterable[Item]) -> list[ItemInfo]:
        """Do as ``find`` with many items, in one round trip."""
        found = self._driver.run(find(self._view, _encode(items)))
        return [describe_item(ring, generation) for ring, generation in found]

    def eviction_policy(self) -> str:
        """Return what the server does when its memory is full; "" where it does not say."""
        return self._driver.eviction_policy()

    @property
    def view(self) -> View:
        """This client's view of the filter."""
        return self._view

    def new_view(self) -> View:
        """Return another view of the same filter, for operations of another driver."""
        return self._view.twin()

    @property
    def may_connect(self) -> bool:
        """Whether a connection may be made; if not, and there is none, operations fail at once."""
        return self._driver.may_connect

    @may_connect.setter
    def may_connect(self, value: bool) -> None:
        self._driver.may_connect = value

    @property
    def round_trips(self) -> int:
        """Times this object sent commands and waited for the replies."""
        return self._driver.round_trips

    @property
    def lost_blocks(self) -> int:
        """Blocks that this object found lost (evicted, deleted) and made anew, empty."""
        return self._view.lost_blocks

    @property
    def config(self) -> Config | None:
        """What may change during the filter's life, as last seen; None before it is opened."""
        held = self._view.held.get(0)
        return None if held is None else held.ring.config

    @property
    def replaced_config(self) -> Config | None:
        """The stored configuration that this object's replaced when it opened; None if none."""
        return self._view.replaced_config

    @property
    def header(self) -> Header | None:
        """The filter's header; None before it is opened."""
        return self._view.header

    def __repr__(self) -> str:
        return f"<BloomFilter {self.key!r} on {self._driver.label}>"


def _encode(items: Iterable[Item]) -> list[bytes]:
    if isinstance(items, str | bytes):
        raise TypeError(f"several items are expected; for one, write [{items!r:.60}]")
    return [to_bytes(item) for item in items]


def _optional(parse: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    return None if value is None else parse(name, value)


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    if isinstance(items, str | bytes):
        raise TypeError(f"several items are expected; for one, use add({items!r:.60})")
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
