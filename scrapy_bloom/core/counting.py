"""Items that are counted, so that they can be discarded: operations on counting filters. No I/O."""

from collections.abc import Sequence

from scrapy_bloom.core.membership import Batch, ask
from scrapy_bloom.core.rings import Steps
from scrapy_bloom.core.scripts import Call
from scrapy_bloom.core.view import View
from scrapy_bloom.errors import ConfigurationError


def add(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Record items, also those that are seen: NEW, SEEN, UNRECORDED or UNCOUNTED per item.

    What seems to be seen may be a false positive: if it were not counted, others would lose what
    is discarded for it. A filter that does not count does as ``membership.claim``.
    """
    return (yield from ask(view, items, lambda batch: batch.held.add(batch.packed)))


def discard(view: View, items: Sequence[bytes]) -> Steps[str]:
    """Take items out of the newest layers they are in, once each: PRESENT or ABSENT per item.

    Raises:
        ConfigurationError: the filter does not count.
    """

    def make_call(batch: Batch) -> Call:
        if not batch.held.ring.header.counting:
            raise ConfigurationError(
                f"items cannot be discarded from the filter {view.keys.prefix!r}, which does not "
                "count them: take a new one (another BLOOM_KEY) with BLOOM_COUNTING = True"
            )
        return batch.held.discard(batch.packed)

    return (yield from ask(view, items, make_call))
