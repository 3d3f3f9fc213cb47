"""What filters do with other filters and with files: set algebra, saving and loading."""

from collections.abc import Sequence

from scrapy_bloom.bloom.base import BaseFilter
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.algebra import Part
from scrapy_bloom.bloom.extras.file import ArchiveReader, ArchiveWriter, PathOrFile, writing
from scrapy_bloom.bloom.extras.install import load
from scrapy_bloom.bloom.extras.save import Progress, Saved, save
from scrapy_bloom.bloom.methods import Method
from scrapy_bloom.bloom.model.keys import Keys


class CombinableFilter(BaseFilter):
    """A filter that can be combined with others, saved and loaded: see ``BloomFilter``."""

    @Method
    async def approx_len(self) -> int:
        """Return how many items there are, estimated from the bits alone; ``len`` is exact.

        Raises:
            SaturatedError: a bitmap has no bit left that is 0.
            StorageError: the server did not answer.
        """
        return await self.run_on_all(algebra.approx_len(self._session))

    @Method
    async def approx_union_len(self, other: BaseFilter) -> int:
        """Return how many items there are in this filter or another one, estimated from the bits.

        Raises:
            FilterMismatchError: they place items differently, or have bitmaps of different sizes.
            SaturatedError: a bitmap has no bit left that is 0.
            StorageError: a server did not answer.
        """
        return round((await algebra.overlap(*self._parts([other]))).union)

    @Method
    async def approx_intersection_len(self, other: BaseFilter) -> int:
        """Return how many items this filter and another one have in common, estimated.

        Raises as ``approx_union_len``.
        """
        return round((await algebra.overlap(*self._parts([other]))).intersection)

    @Method
    async def update(self, *others: BaseFilter) -> None:
        """Record all that others have, while this filter is in use. Raises as ``union`` does.

        If it fails midway a part is recorded; it can be done again.
        """
        await algebra.update(*self._parts(others))

    @Method
    async def save(self, file: PathOrFile, progress: Progress | None = None) -> Saved:
        """Save the filter to a file, also while it is in use: what it holds now is in the file.

        Claims are not saved. Of a filter that is awaited, writing to the file blocks the event
        loop.

        Args:
            file: a path, or a file that is open in binary mode.
            progress: called with the bytes of bitmaps done and in all, about.

        Raises:
            StorageError: the server did not answer, or there is no filter.
            ArchiveError: the file cannot be written.
        """
        with writing(file) as opened:
            steps = save(self._session.keys, ArchiveWriter(opened), progress)
            return await self._drive(steps, on_all_blocks=True)

    @Method
    async def restore(self, reader: ArchiveReader, progress: Progress | None = None) -> Saved:
        """Load what a file holds under this filter's key, which must be free: see ``load``."""
        return await load(self.run_on_all, self._session.keys, reader, progress)

    async def _combine(
        self, combine: algebra.Combine, others: Sequence[BaseFilter], made: "CombinableFilter"
    ) -> None:
        """Make a filter of this one and others."""
        await combine(self._parts(others), made.run_on_all, Keys(made.key))

    def _parts(self, others: Sequence[BaseFilter]) -> list[Part]:
        for other in others:
            if not isinstance(other, BaseFilter) or other.is_async != self.is_async:
                raise ConfigurationError(
                    f"the other filter must be a {type(self).__name__}, too; got {other!r:.60}"
                )
        return [Part(each.session, each.run_on_all) for each in (self, *others)]
