"""How a project's settings differ from those of a stored filter, and what a crawl does about it."""

from scrapy_bloom.bloom.errors import BloomError, in_words
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.settings import WORDS


def compare(wanted: FilterOptions, key: str, header: Header, stored: Config) -> Finding | None:
    """Return how settings differ from those of a stored filter.

    Args:
        wanted: what the project asks for.
        key: the filter's key.
        header: as stored.
        stored: the configuration that is stored.
    """
    try:
        wanted.check(header, key)
        return advice.on_difference(stored, wanted.config(stored))
    except BloomError as error:
        return _refused(error)


def _refused(error: BloomError) -> Finding:
    problem, _, remedy = in_words(str(error), WORDS).partition(": ")
    remedy = remedy or "Correct the settings"
    return Finding(problem, "a crawl refuses to open the filter", remedy[0].upper() + remedy[1:])
