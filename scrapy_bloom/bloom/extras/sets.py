"""Methods of filters that use them as sets, or keep them in files."""

from typing import Any, Self

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras import algebra, archive
from scrapy_bloom.bloom.protocol.method import method
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.session import Session


class Sets:
    """The methods of a filter that concern all that it remembers.

    Attributes:
        session: of the filter.
        client: redis-py's client.
        source: that client, or the address that it was made for.
        label: the server's address for error messages.
    """

    session: Session
    client: Any
    source: Any
    label: str

    @method
    def approx_len(self) -> Operation[float]:
        """Estimate how many items it remembers, from its bits alone."""
        return (yield from algebra.cardinality(self.session))

    @method
    def approx_union_len(self, other: Self) -> Operation[float]:
        """Estimate how many items this filter and another one remember together."""
        return (yield from algebra.cardinality(self.session, self._session_of(other)))

    @method
    def approx_intersection_len(self, other: Self) -> Operation[float]:
        """Estimate how many items both remember, by inclusion and exclusion."""
        both = self.session, self._session_of(other)
        total = yield from algebra.cardinality(*both)
        alone = 0.0
        for session in both:
            alone += yield from algebra.cardinality(session)
        return max(0.0, alone - total)

    @method
    def copy(self, key: str) -> Operation[Self]:
        """Create a copy of the filter as it is now, and return it."""
        return (yield from self._combined((self,), key, shared=False))

    @method
    def union(self, other: Self, key: str) -> Operation[Self]:
        """Create a filter with all items of this one and another one, and return it.

        Both must have the same seeds, blocks and sizes, and the same address or client.

        Raises:
            FilterMismatchError: they place items differently, or one has grown.
            ConfigurationError: the key is in use.
        """
        return (yield from self._combined((self, other), key, shared=False))

    @method
    def intersection(self, other: Self, key: str) -> Operation[Self]:
        """Create a filter that has every item that both have, and return it. See ``union``."""
        return (yield from self._combined((self, other), key, shared=True))

    def _combined(self, filters: tuple[Self, ...], key: str, *, shared: bool) -> Operation[Self]:
        make: Any = type(self)
        windows = self.session.windows
        made: Self = make(self.client, key, label=self.label, windows=windows)
        made.source = self.source
        sessions = tuple(self._session_of(one) for one in filters)
        yield from algebra.combine(sessions, made.session, shared=shared)
        return made

    def _session_of(self, other: Self) -> Session:
        if type(other) is not type(self) or other.source != self.source:
            raise ConfigurationError(
                f"{other!r:.80} isn't a filter of the same kind with the same client. "
                "Create both with one client, or with the same address"
            )
        return other.session

    @method
    def save(self, path: archive.Path) -> Operation[None]:
        """Write the filter to a file, while it's in use.

        Raises:
            ArchiveError: the file can't be written.
        """
        yield from archive.save(path, self.session)

    @method
    def load(self, path: archive.Path, max_memory: int = 4 << 30) -> Operation[None]:
        """Fill this filter, whose key must be free, from a file, whole or not at all.

        Args:
            path: of the file.
            max_memory: bytes of bitmaps that it may have.

        Raises:
            ConfigurationError: the key is in use.
            ArchiveError: the file is damaged, or too large.
        """
        yield from archive.load(path, self.session, max_memory)
