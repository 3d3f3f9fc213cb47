"""The filters that a migration writes to: as stored, or created with the project's settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError, in_words
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.forecast import load, recrawl
from scrapy_bloom.bloom.model.schedule import RUNS, Span
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.render import size
from scrapy_bloom.cli.session import CommandSession
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.filters import connect_filters
from scrapy_bloom.settings import WORDS

#: Items by the window that they are recorded for.
Items = Mapping[str, Sequence[bytes]]


class Target:
    """The filters of some windows.

    Args:
        session: says which.
        identifier: says what the fingerprints are made by.
        windows: names of the windows.

    Raises:
        ConfigurationError: a filter is not there, and cannot be made.
        StorageError: the server did not answer.
    """

    def __init__(
        self, session: CommandSession, identifier: Identifier, windows: Iterable[str]
    ) -> None:
        self._identifier = identifier
        self._filters = connect_filters(
            session.settings, session.crawler.settings, fingerprinter=identifier.name
        )
        self.address = self._filters.connection.label
        self._stored: dict[str, Snapshot] = {}
        self._blooms: dict[str, BloomFilter] = {}
        self._used: set[str] = set()
        try:
            for window in sorted(windows):
                self._blooms[window] = self._find(session.settings.key, window)
        except BaseException:
            self.close()
            raise
        self.keys = [bloom.key for bloom in self._blooms.values()]
        self.name = f"{', '.join(map(repr, self.keys))} on {self.address}"

    def _find(self, prefix: str, window: str) -> BloomFilter:
        """Return a filter: as it is stored, because settings would change it; else a new one."""
        new = self._filters.by_window.get(window)
        key = f"{prefix}:{window}" if new is None else new.key
        there = BloomFilter(self._filters.connection.client, key, label=self.address, words=WORDS)
        snapshot = there.look()
        # A header outlives its blocks.
        if snapshot is not None and snapshot.rings:
            self._stored[window] = snapshot
            return there
        if new is None:
            raise ConfigurationError(
                f"there is no filter {key!r} on {self.address}, and BLOOM_WINDOWS does not say how "
                f"to make one for --window {window!r:.60}"
            )
        wanted = new.session.wanted.window
        if isinstance(wanted, Span) and wanted.unit == RUNS:
            raise ConfigurationError(
                f'there is no filter {key!r} on {self.address} yet, and its window, "{wanted}", '
                "counts runs: what is recorded belongs to a run, so crawl once before"
            )
        return new

    def close(self) -> None:
        """Close the connection."""
        self._filters.close()

    def open(self) -> None:
        """Make what is not there."""
        for bloom in self._blooms.values():
            bloom.open()

    # -- what to say of them --

    def warnings(self) -> Iterator[str]:
        """Say what is wrong with them as they are stored."""
        for snapshot in self._stored.values():
            warning = advice.on_fingerprinter(snapshot.header.fingerprinter, self._identifier.name)
            if warning:
                yield warning

    def advise(self, entries: int) -> str | None:
        """Say which capacity a new filter should have for so many entries; None for any.

        Raises:
            ConfigurationError: there is no room for them.
        """
        (bloom, *others) = self._blooms.values()
        if others or self._stored or not entries:
            return None
        wanted, capacity = bloom.session.wanted, _rounded(entries)
        config = wanted.config(DEFAULTS)
        as_it_is = load(wanted.new_header(DEFAULTS), config, entries)
        if as_it_is.unrecorded:
            raise ConfigurationError(
                f"{bloom.key!r} is to be made for {config.capacity:,} URLs, and does not grow as "
                f"far as to hold about {entries:,} entries: set BLOOM_CAPACITY = {capacity:,} (or "
                "BLOOM_GROWTH, BLOOM_MAX_MEMORY)"
            )
        if as_it_is.layers < 2 and not as_it_is.forgets_early:
            return None
        wanted = replace(wanted, capacity=capacity)
        fitting = load(wanted.new_header(DEFAULTS), wanted.config(DEFAULTS), entries)
        return (
            f"{bloom.key!r} is not there yet, and will be made for {config.capacity:,} URLs: about "
            f"{entries:,} entries do not fit into one layer, and all layers are tested for each "
            f"URL. With BLOOM_CAPACITY = {capacity:_} they take {size(fitting.generation_memory)}. "
            "Set it before: the capacity of what is there counts from the next generation on"
        )

    def until(self) -> Iterator[str]:
        """Say of each filter that got items when they are crawled again."""
        for window in sorted(self._used):
            bloom = self._blooms[window]
            name = f"{bloom.key!r}: they" if len(self._blooms) > 1 else "They"
            if bloom.config is None or bloom.config.schedule is None:
                yield f"{name} are not crawled again: the filter has no window"
            else:
                again = in_words(recrawl(bloom.config.schedule), WORDS)
                yield f"{name} count as first seen now: crawled again {again}"

    # -- items --

    def claim(self, items: Items) -> int:
        """Record items; return how many were new.

        Raises:
            StorageError: there is no room for all of them, or the server did not answer.
        """
        new = 0
        self._used |= items.keys()
        for window, batch in items.items():
            bloom = self._blooms[window]
            new += sum(bloom.add_many(batch, if_absent=True))
            if bloom.unrecorded:
                raise StorageError(
                    f"{bloom.key!r} on {self.address} is full and cannot grow, so there is no room "
                    "for what is left: set a larger BLOOM_MAX_MEMORY or BLOOM_GROWTH = 2, start a "
                    "crawl, which applies it, and run the same command again"
                )
        return new

    def count_seen(self, items: Items, *, only_if_there: bool = False) -> int:
        """Return how many of the items are seen; of filters that are not there, none are."""
        seen = 0
        self._used |= items.keys()
        for window, batch in items.items():
            if window in self._stored or not only_if_there:
                seen += sum(self._blooms[window].contains(list(batch)))
        return seen


def _rounded(entries: int) -> int:
    """Round up to two digits."""
    unit: int = 10 ** max(0, len(str(entries)) - 2)
    return -(-entries // unit) * unit
