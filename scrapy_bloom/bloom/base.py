"""What BloomFilter and AsyncBloomFilter share: parameters, properties, and operations. No I/O."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NoReturn, Self

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.client.addresses import label_of_client
from scrapy_bloom.bloom.errors import WORDS, ConfigurationError, rewording, shown
from scrapy_bloom.bloom.extras.algebra import Overlap, overlap
from scrapy_bloom.bloom.extras.multi import MultiOperation
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import Item, to_bytes
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import plain
from scrapy_bloom.bloom.options import DEFAULTS, REPLACE, FilterOptions
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.bloom.protocol.info import FilterInfo, ItemInfo, describe, describe_item
from scrapy_bloom.bloom.protocol.membership import add, contains, discard, find
from scrapy_bloom.bloom.protocol.ring_store import Notify, Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.verdicts import NO_ROOM, Verdict

#: Makes a filter under some keys, of others.
Combine = Callable[[Sequence[FilterSession], Keys], MultiOperation[None]]
#: Items that are sent together.
CHUNK_ITEMS = 8_192


class BaseFilter(ABC):
    """One client's handle of a filter. Arguments: see ``BloomFilter``.

    The methods that begin with an underscore are operations, for a driver to run.
    """

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
        self.key, self._words = key, WORDS if words is None else words
        with rewording(self._words):
            wanted = FilterOptions.parse(
                capacity=capacity,
                error_rate=error_rate,
                blocks=blocks,
                seeds=seeds,
                window=window,
                period=period,
                ring=ring,
                stagger=stagger,
                counting=counting,
                growth=growth,
                max_memory=max_memory,
                run=run,
                on_difference=on_difference,
                fingerprinter=fingerprinter,
            )
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

    def _sibling(self, key: str, client: Any = None) -> Self:
        """Return another filter on the same server, or on another one."""
        if client is None:
            client, label = self._client, self._given_label
        else:
            label = None
        return type(self)(client, key, label=label, timeout=self._timeout, words=self._words)

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

    def _info(self, block: int | None = None) -> Operation[FilterInfo]:
        snapshot = yield from self._session.read()
        block = plain(block)
        if block is not None and (type(block) is not int or block not in snapshot.rings):
            raise ConfigurationError(
                f"block is one of the filter's, from 0 to {snapshot.header.blocks - 1}; "
                f"got {block!r:.40}"
            )
        return describe(self.key, snapshot, self._session.lost_blocks, block)

    def _rotate(self) -> Operation[None]:
        info = yield from self._info()
        if info.window is None:
            raise ConfigurationError(
                f"the filter {self.key!r} has no window (`window`), so it has nothing "
                "to rotate: set one, or clear the filter"
            )
        yield from self._session.rotate()

    def _delete(self) -> Operation[bool]:
        was_there = yield from deletion.delete(self._session)
        self._session.forget()
        return was_there

    def _overlap(self, other: "BaseFilter") -> MultiOperation[Overlap]:
        return overlap(*self._sessions([other]))

    def _sessions(self, others: Sequence["BaseFilter"]) -> list[FilterSession]:
        for other in others:
            if not isinstance(other, BaseFilter) or other.is_async != self.is_async:
                raise ConfigurationError(
                    f"the other filter must be a {type(self).__name__}, too; got {other!r:.60}"
                )
        return [self._session, *(other.session for other in others)]

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


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of what one round trip sends.

    Raises:
        TypeError: it is one item.
    """
    if isinstance(items, str | bytes):
        raise TypeError(f"several items are expected; for one, write [{items!r:.60}]")
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK_ITEMS)):
        yield chunk


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
