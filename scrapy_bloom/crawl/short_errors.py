"""Shortens the log of a crawl that can't start to one line, instead of several tracebacks.

The dupefilter raises its error before the first request. Scrapy then closes parts of the engine
that it hasn't opened, and logs each failure of that, and the error, with all tracebacks.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_bloom.bloom.errors import BloomError, FilterMismatchError, NotReadyError
from scrapy_bloom.settings import in_settings

logger = logging.getLogger(__name__)

#: Loggers that show why a crawl ended. Twisted's, if Scrapy runs on Deferreds (before 2.15).
_LAST = ("asyncio", "twisted")
#: Loggers that show the failures that follow from that.
_NEXT = ("scrapy.core.engine", "scrapy.utils.signal")
#: Extensions that fail when a spider is closed that was not opened.
_CLOSED = re.compile(r"(CoreStats|SpiderState)\.spider_closed")
#: Errors that the docs explain -> the code at the end of the line.
CODES: dict[type[BaseException], str] = {
    FilterMismatchError: " [bloom-filter-mismatch]",
    NotReadyError: " [bloom-not-ready]",
}
#: Errors that one error may come of, at most.
_MAX_CHAIN = 20
#: The note of an error of a dupefilter. Others are logged as they are.
_NOTE = "Bloom filter: the crawl doesn't start."
#: Spiders that such an error keeps from being opened.
_spiders: WeakSet[Spider] = WeakSet()
#: Twisted's record before the one that has an error.
_headlines: list[logging.LogRecord] = []


@contextmanager
def short_errors(crawler: Crawler) -> Iterator[None]:
    """Have an error by which a crawl doesn't start logged in one line."""
    try:
        yield
    except BloomError as error:
        error.add_note(_NOTE)
        if crawler.spider is not None:
            _spiders.add(crawler.spider)
        for name in _LAST + _NEXT:
            logging.getLogger(name).addFilter(_shorten)
        raise


def _shorten(record: logging.LogRecord) -> bool:
    """Drop a record of such an error; log the error, if the record is the last one."""
    given = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if given is None and str(record.msg).startswith("Unhandled error in Deferred"):
        _headlines.append(record)
        return False
    if isinstance(given, AssertionError | AttributeError) and _CLOSED.search(record.getMessage()):
        return getattr(record, "spider", None) not in _spiders
    error = _cause(given)
    while _headlines:
        headline = _headlines.pop()
        if error is None:
            logging.getLogger(headline.name).callHandlers(headline)
    if error is not None and record.name in _LAST:
        end = CODES.get(type(error), "")
        logger.error("%s %s%s", _NOTE, in_settings(str(error)), end)
    return error is None


def _cause(error: BaseException | None) -> BaseException | None:
    """Return the error of a dupefilter that an error is, or came of."""
    for _ in range(_MAX_CHAIN):
        if error is None or _NOTE in getattr(error, "__notes__", ()):
            return error
        error = error.__cause__ or error.__context__
    return None
