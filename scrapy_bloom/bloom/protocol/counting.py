"""Items that are counted, so that they can be discarded: operations on counting filters. No I/O."""

from collections.abc import Sequence

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.membership import PRESENT, BlockBatch, ask
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call
from scrapy_bloom.bloom.protocol.session import FilterSession


def discard(session: FilterSession, items: Sequence[bytes]) -> Operation[list[bool]]:
    """Take items out of the newest layers they are in, once each: True if it was there.

    Raises:
        ConfigurationError: the filter does not count.
    """

    def make_call(batch: BlockBatch) -> Call:
        if not batch.held.ring.header.counting:
            raise ConfigurationError(
                f"items cannot be discarded from the filter {session.keys.prefix!r}, which does "
                "not count them: take a new one (another `key`) with `counting` = True"
            )
        return batch.held.discard(batch.packed)

    codes = yield from ask(session, items, make_call)
    return [code == PRESENT for code in codes]
