"""What BloomFilter does with other filters and with files: set algebra, saving and loading."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy_bloom.bloom.base import BaseFilter, Combine
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.file import (
    ArchiveReader,
    ArchiveWriter,
    PathOrFile,
    reading,
    writing,
)
from scrapy_bloom.bloom.extras.install import load
from scrapy_bloom.bloom.extras.multi import MultiOperation, run_together
from scrapy_bloom.bloom.extras.save import Progress, Saved, save
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession

if TYPE_CHECKING:
    from typing import Self  # in typing from Python 3.11 on

T = TypeVar("T")
S = TypeVar("S", bound="CombinableFilter")


class CombinableFilter(BaseFilter):
    """A filter that can be combined with others, saved and loaded: see ``BloomFilter``."""

    @abstractmethod
    def run(
        self, operation: Callable[[FilterSession], Operation[T]], *, on_all_blocks: bool = False
    ) -> T:
        """See ``BloomFilter.run``."""

    def approx_len(self) -> int:
        """Return how many items there are, estimated from the bits alone; ``len`` is exact.

        Raises:
            SaturatedError: a bitmap has no bit left that is 0.
            StorageError: the server did not answer.
        """
        return self.run(algebra.approx_len, on_all_blocks=True)

    def approx_union_len(self, other: "Self") -> int:
        """Return how many items there are in this filter or another one, estimated from the bits.

        Raises:
            FilterMismatchError: they place items differently, or have bitmaps of different sizes.
            SaturatedError: a bitmap has no bit left that is 0.
            StorageError: a server did not answer.
        """
        return round(self.run_together(self._overlap(other), other).union)

    def approx_intersection_len(self, other: "Self") -> int:
        """Return how many items this filter and another one have in common, estimated.

        Raises as ``approx_union_len``.
        """
        return round(self.run_together(self._overlap(other), other).intersection)

    def union(self, *others: "Self", key: str) -> "Self":
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
        return self._make(algebra.union, others, key)

    def intersection(self, *others: "Self", key: str) -> "Self":
        """Create a filter that says "seen" where this one and all others do, and return it.

        It has every item that they have in common. ``len`` is an upper bound. Arguments and errors
        are those of ``union``.

        Raises:
            FilterMismatchError: also if a window has several generations by now.
        """
        return self._make(algebra.intersection, others, key)

    def copy(self, key: str, *, client: Any = None) -> "Self":
        """Create a copy of this filter as it is now, and return it.

        Args:
            key: prefix of its keys.
            client: of the server for the copy; None for this filter's.

        Raises:
            ConfigurationError: the key is in use.
            StorageError: a server did not answer; nothing was made.
        """
        made = self._sibling(key, client)
        self.run_together(algebra.copy(self._session, Keys(key)), made)
        return made

    def update(self, *others: "Self") -> None:
        """Record all that others have, while this filter is in use. Raises as ``union`` does.

        If it fails midway a part is recorded; it can be done again.
        """
        self.run_together(algebra.update(*self._sessions(others)), *others)

    def __or__(self, other: "Self") -> "Self":
        """``a | b``: ``union`` under the key ``"<key>|<other key>"``."""
        if not isinstance(other, CombinableFilter):
            return NotImplemented
        return self.union(other, key=f"{self.key}|{other.key}")

    def __and__(self, other: "Self") -> "Self":
        """``a & b``: ``intersection`` under the key ``"<key>&<other key>"``."""
        if not isinstance(other, CombinableFilter):
            return NotImplemented
        return self.intersection(other, key=f"{self.key}&{other.key}")

    def __ior__(self, other: "Self") -> "Self":
        """``a |= b``: see ``update``."""
        if not isinstance(other, CombinableFilter):
            return NotImplemented
        self.update(other)
        return self

    def _make(self, combine: Combine, others: tuple["Self", ...], key: str) -> "Self":
        made = self._sibling(key)
        self.run_together(combine(self._sessions(others), Keys(key)), *others, made)
        return made

    def run_together(self, operation: MultiOperation[T], *others: "CombinableFilter") -> T:
        """Run an operation on this filter, number 0, and others."""
        filters = (self, *others)
        return run_together(
            operation, lambda n, steps: filters[n].run(lambda _: steps, on_all_blocks=True)
        )

    def save(self, file: PathOrFile, progress: Progress | None = None) -> Saved:
        """Save the filter to a file, also while it is in use: what it holds now is in the file.

        Claims are not saved.

        Args:
            file: a path, or a file that is open in binary mode.
            progress: called with the bytes of bitmaps done and in all, about.

        Raises:
            StorageError: the server did not answer, or there is no filter.
            ArchiveError: the file cannot be written.
        """
        with writing(file) as opened:
            steps = save(self._session.keys, ArchiveWriter(opened), progress)
            return self.run(lambda _: steps, on_all_blocks=True)

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
    ) -> "Self":
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
            reader = ArchiveReader(opened, max_memory)
            bloom.run_together(load(Keys(key), reader, progress))
        return bloom
