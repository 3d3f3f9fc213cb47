"""The filters that a migration writes to: as stored, or created with the project's settings."""

from collections.abc import Iterable, Iterator

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.cli.session import Server
from scrapy_bloom.crawl import advice
from scrapy_bloom.migrate.batches import Items


class Target:
    """The filters of some windows.

    Args:
        server: has the filters.
        windows: names of the windows.

    Raises:
        NothingThereError: a filter does not exist, and the settings do not have its window.
        StorageError: the server did not answer.
    """

    def __init__(self, server: Server, windows: Iterable[str]) -> None:
        self._address = server.address
        snapshots = {window: server.look(window) for window in sorted(windows)}
        self._stored = {window: found for window, found in snapshots.items() if found}
        #: Windows whose filters exist.
        self._existing = set(self._stored)
        self._blooms: dict[str, BloomFilter] = {}
        for window in snapshots:
            if window in self._stored:
                self._blooms[window] = server.filter(window)
            elif window in server.filters.by_window:
                self._blooms[window] = server.filters.by_window[window]
            else:
                raise server.absent(window)
        self.keys = [bloom.key for bloom in self._blooms.values()]
        self.name = f"{', '.join(map(repr, self.keys))} on {server.address}"

    def warnings(self, fingerprinter: str, entries: int) -> Iterator[str]:
        """Yield warnings of filters that do not suit the fingerprinter, or so many entries."""
        for snapshot in self._stored.values():
            warning = advice.on_fingerprinter(snapshot.header.fingerprinter, fingerprinter)
            if warning:
                yield str(warning)
        (bloom, *others) = self._blooms.values()
        capacity = bloom.session.wanted.config(DEFAULTS).capacity
        if not others and not self._stored and entries > capacity:
            yield (
                f"{bloom.key!r} does not exist yet, and will be made for {capacity:,} URLs: about "
                f"{entries:,} entries do not fit into one layer, and all layers are tested for "
                f"each URL. Set BLOOM_CAPACITY = {entries:_} before: the capacity of a filter that "
                "exists changes with the next generation only"
            )

    def open(self) -> None:
        """Create the filters that do not exist."""
        for bloom in self._blooms.values():
            bloom.open()
        self._existing = set(self._blooms)

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
                    f"{bloom.key!r} on {self._address} is full and cannot grow, so there is no "
                    "room for what is left: set a larger BLOOM_MAX_MEMORY or BLOOM_GROWTH = 2, "
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
