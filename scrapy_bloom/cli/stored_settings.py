"""How a project's settings differ from those of a stored filter, and what a crawl does about it."""

from scrapy_bloom.bloom.errors import BloomError, in_words
from scrapy_bloom.bloom.options import EXTEND, FilterOptions
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.settings import WORDS, BloomSettings


def options_of(settings: BloomSettings, window: str) -> FilterOptions:
    """Return what settings ask of the filter of a window."""
    others = settings.windows.others
    return FilterOptions(**settings.parameters(others.get(window)), on_difference=EXTEND)


def compare(wanted: FilterOptions, key: str, snapshot: Snapshot) -> Finding | None:
    """Return how settings differ from those of a stored filter; None if they do not.

    Args:
        wanted: what the project asks for.
        key: the filter's key.
        snapshot: what is stored.
    """
    stored = next(iter(snapshot.rings.values())).config
    try:
        wanted.check(snapshot.header, key)
        return advice.on_difference(stored, wanted.change(stored, key))
    except BloomError as error:
        return _refused(error)


def _refused(error: BloomError) -> Finding:
    problem, _, remedy = in_words(str(error), WORDS).partition(": ")
    remedy = remedy or "Correct the settings"
    return Finding(problem, "a crawl refuses to open the filter", remedy[0].upper() + remedy[1:])
