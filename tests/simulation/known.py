"""Faults of the product that simulated runs have found, and that are not mended yet.

They do not count, so that others are found. What is mended goes from here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl.claims.policy import Lookup
from scrapy_bloom.crawl.deduplicator import Deduplicator
from simulation.world import World

#: A claim that is dropped while a filter opens, and the filter cannot be opened after that: the
#: event is for an object that has not begun.
KNOWN = ("'Restorer' object has no attribute '_settler'",)
_reserve = Deduplicator._reserve


def is_known(violation: str) -> bool:
    """Whether a violation is a fault that is known."""
    return any(text in violation for text in KNOWN)


@contextmanager
def watched(world: World) -> Iterator[None]:
    """Note claims of lookups that were under way while their URL was crawled, and not recorded.

    The requests count as seen by then, and nobody ends the claims before the next run.
    """

    def reserve(self: Deduplicator, lookups: Sequence[Lookup]) -> None:
        claimed = [lookup for lookup in lookups if lookup.verdict is Verdict.NEW]
        _reserve(self, lookups)
        for lookup in claimed:
            if lookup.verdict is Verdict.SEEN:
                world.process.forgotten_claims.add(field_of(lookup.key[1]))

    with mock.patch.object(Deduplicator, "_reserve", reserve):
        yield
