"""BloomFilter: a set of strings in Redis that is shared, small, and almost exact."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import fsum
from typing import Any, TypeVar

from scrapy_bloom import values
from scrapy_bloom.driver import Driver
from scrapy_bloom.hashing import Item, to_bytes
from scrapy_bloom.keys import Keys
from scrapy_bloom.membership import PRESENT, SEEN, UNRECORDED, claim, claim_one, contains, is_answer
from scrapy_bloom.ring import Config, Header
from scrapy_bloom.sizing import predicted_error_rate
from scrapy_bloom.view import View, Wanted

T = TypeVar("T")

#: What a filter is created with unless the user says otherwise.
DEFAULTS = Config(capacity=1_000_000, error_rate=1e-5)
#: Items that ``extend`` sends together.
EXTEND_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class FilterInfo:
    """What a filter is and holds.

    Args:
        key: its key prefix in Redis.
        capacity: items it takes (a generation of it).
        error_rate: the bound on its false-positive rate that was asked for.
        blocks: number of blocks.
        num_hashes: bits an item sets.
        num_bits: bits of all its bitmaps.
        count: items recorded.
        estimated_error_rate: false-positive rate at this count.
        memory: bytes of its bitmaps.
        lost_blocks: blocks this client found lost (evicted, deleted) and made anew.
    """

    key: str
    capacity: int
    error_rate: float
    blocks: int
    num_hashes: int
    num_bits: int
    count: int
    estimated_error_rate: float
    memory: int
    lost_blocks: int

    @property
    def bits_per_url(self) -> float:
        """Bits of bitmap per item when the filter holds its capacity."""
        return self.memory * 8 / self.capacity


class BloomFilter:
    """A set in Redis that answers "new" or "seen" and, at a known rate, "seen" wrongly.

    All processes that use the same key share it, whatever their number. It is opened (and created
    if it is not there) at its first use or by ``open()``. One object is for one thread.

    Args:
        client: a ``redis.Redis`` or ``redis.RedisCluster``, with or without ``decode_responses``.
            It should not repeat commands by itself (``retry=Retry(NoBackoff(), 0)``): a claim whose
            reply was lost would come back "seen".
        key: prefix of all its keys, without ``{`` and ``}``.
        capacity: items it takes; None as stored, else 1,000,000. A full filter records no more and
            goes on answering "new", so that it never hides anything.
        error_rate: bound on the false-positive rate, 0 < p < 1; None as stored, else 1e-5.
        blocks: bitmaps it is spread over, 1 to 16,384; None as stored, else 16 or as many more as
            keep a bitmap within 8 MiB.
        seeds: MurmurHash3 seeds (list), or how many to draw (int); None as stored, else as many as
            need the fewest bits. Drawn seeds are secret.
        fingerprinter: noted in the header of a filter that is created.
        label: the server's address for error messages.

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
        fingerprinter: str = "",
        label: str = "Redis",
    ) -> None:
        given, num_hashes = (None, None) if seeds is None else values.seeds("seeds", seeds)
        wanted = Wanted(
            capacity=_optional(values.capacity, "capacity", capacity),
            error_rate=_optional(values.error_rate, "error_rate", error_rate),
            blocks=_optional(values.blocks, "blocks", blocks),
            seeds=given,
            num_hashes=num_hashes,
            fingerprinter=fingerprinter,
        )
        self.key = key
        self._view = View(Keys(key), wanted, DEFAULTS)
        self._driver = Driver(client, label)
        #: Items that were new but not recorded, because their block was full.
        self.unrecorded = 0

    def open(self) -> Header:
        """Read or create the filter, and make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter has other blocks or seeds than were asked for.
            StorageError: the server cannot be reached or used, or what it holds cannot be read.
        """
        return self._driver.run(self._view.open(writable=True))

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
            reply = self._driver.call(claim_one(self._view, encoded))
            if is_answer(reply, 1):
                return self._judge(reply.verdicts)[0]
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
        """Return the number of items recorded, exactly (false positives are not recorded)."""
        return sum(sum(counts) for counts in self._driver.run(self._view.read()).values())

    def clear(self) -> None:
        """Forget everything, for all processes; a changed capacity or error rate applies now.

        Raises:
            StorageError: the server did not answer; some blocks may be empty already.
        """
        self._driver.run(self._view.clear())

    def info(self) -> FilterInfo:
        """Return what the filter is and holds, read from the server now.

        Raises:
            StorageError: the server did not answer.
        """
        counts = self._driver.run(self._view.read())
        rings = [self._view.held[block].ring for block in counts]
        rates = [
            predicted_error_rate(sum(count), ring.active.num_bits, len(ring.header.seeds))
            for ring, count in zip(rings, counts.values(), strict=True)
        ]
        config = rings[0].config
        return FilterInfo(
            key=self.key,
            capacity=config.capacity,
            error_rate=config.error_rate,
            blocks=len(rings),
            num_hashes=len(rings[0].header.seeds),
            num_bits=sum(layer.num_bits for ring in rings for layer in ring.layers),
            count=sum(map(sum, counts.values())),
            estimated_error_rate=fsum(rates) / len(rates),
            memory=sum(layer.memory for ring in rings for layer in ring.layers),
            lost_blocks=self._view.lost_blocks,
        )

    def eviction_policy(self) -> str:
        """Return what the server does when its memory is full; "" where it does not say."""
        return self._driver.eviction_policy()

    @property
    def round_trips(self) -> int:
        """Times this object sent commands and waited for the replies."""
        return self._driver.round_trips

    @property
    def lost_blocks(self) -> int:
        """Blocks that this object found lost (evicted, deleted) and made anew, empty."""
        return self._view.lost_blocks

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
