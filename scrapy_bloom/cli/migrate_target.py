"""The filters that a migration writes to: as stored, or created with the project's settings."""

from collections.abc import Iterable, Iterator

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError, in_words
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.forecast import recrawl
from scrapy_bloom.bloom.model.schedule import RUNS, Span
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.cli.session import Server
from scrapy_bloom.crawl import advice
from scrapy_bloom.migrate.batches import Items
from scrapy_bloom.settings import WORDS


class Target:
    """The filters of some windows.

    Args:
        server: has the filters.
        windows: names of the windows.

    Raises:
        ConfigurationError: a filter does not exist, and cannot be created.
        StorageError: the server did not answer.
    """

    def __init__(self, server: Server, windows: Iterable[str]) -> None:
        self._server = server
        snapshots = {window: server.look(window) for window in sorted(windows)}
        #: The filters that exist, as they are stored.
        self._stored = {window: stored for window, stored in snapshots.items() if stored}
        self._existing = set(self._stored)
        self._blooms = {
            window: server.filter(window) if window in self._stored else self._new(window)
            for window in snapshots
        }
        self.keys = [bloom.key for bloom in self._blooms.values()]
        self.name = f"{', '.join(map(repr, self.keys))} on {server.address}"

    def _new(self, window: str) -> BloomFilter:
        """Return a filter that does not exist yet."""
        new = self._server.filters.by_window.get(window)
        if new is None:
            raise ConfigurationError(
                f"there is no filter {self._server.key(window)!r} on {self._server.address}, and "
                f"BLOOM_WINDOWS does not say how to make one for --window {window!r:.60}"
            )
        wanted = new.session.wanted.window
        if isinstance(wanted, Span) and wanted.unit == RUNS:
            raise ConfigurationError(
                f"there is no filter {new.key!r} on {self._server.address} yet, and its window, "
                f'"{wanted}", counts runs: what is recorded belongs to a run, so crawl once before'
            )
        return new

    def open(self) -> None:
        """Create the filters that do not exist."""
        for bloom in self._blooms.values():
            bloom.open()
        self._existing = set(self._blooms)

    def warnings(self, fingerprinter: str) -> Iterator[str]:
        """Yield warnings of stored filters with fingerprints of another class."""
        for snapshot in self._stored.values():
            warning = advice.on_fingerprinter(snapshot.header.fingerprinter, fingerprinter)
            if warning:
                yield warning

    def advise(self, entries: int) -> Iterator[str]:
        """Yield a warning if the only filter is new, and is made for fewer entries."""
        (bloom, *others) = self._blooms.values()
        capacity = bloom.session.wanted.config(DEFAULTS).capacity
        if not others and not self._stored and entries > capacity:
            yield (
                f"{bloom.key!r} does not exist yet, and will be made for {capacity:,} URLs: about "
                f"{entries:,} entries do not fit into one layer, and all layers are tested for "
                f"each URL. Set BLOOM_CAPACITY = {entries:_} before: the capacity of a filter that "
                "exists changes with the next generation only"
            )

    def until(self) -> Iterator[str]:
        """Yield for each filter when its URLs are crawled again."""
        for bloom in self._blooms.values():
            name = f"{bloom.key!r}: they" if len(self._blooms) > 1 else "They"
            if bloom.config is None or bloom.config.schedule is None:
                yield f"{name} are not crawled again: the filter has no window"
            else:
                again = in_words(recrawl(bloom.config.schedule), WORDS)
                yield f"{name} count as first seen now: crawled again {again}"

    def record(self, items: Items) -> int:
        """Record items; return how many were new.

        Raises:
            StorageError: there is no room for all of them, or the server did not answer.
        """
        new = 0
        for window, batch in items.items():
            bloom = self._blooms[window]
            new += sum(bloom.add_many(batch, if_absent=True))
            if bloom.unrecorded:
                raise StorageError(
                    f"{bloom.key!r} on {self._server.address} is full and cannot grow, so there is "
                    "no room for what is left: set a larger BLOOM_MAX_MEMORY or BLOOM_GROWTH = 2, "
                    "start a crawl, which applies it, and run the same command again"
                )
        return new

    def count_seen(self, items: Items) -> int:
        """Return how many items are seen; a filter that does not exist has none."""
        return sum(
            sum(self._blooms[window].contains(batch))
            for window, batch in items.items()
            if window in self._existing
        )
