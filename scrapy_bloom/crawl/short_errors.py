"""Shortens the log of a crawl that can't start to one line, instead of several tracebacks.

The dupefilter raises its error before the first request. Scrapy then closes parts of the engine
that it hasn't opened, and logs each failure of that, and the error, with all tracebacks.
"""

import logging
import re

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
CODES: dict[type[BloomError], str] = {
    FilterMismatchError: " [bloom-filter-mismatch]",
    NotReadyError: " [bloom-not-ready]",
}
#: Errors that one error may come of, at most.
_MAX_CHAIN = 20


def shorten_errors() -> None:
    """Shorten the log from now on; a second time changes nothing."""
    for name in _LAST + _NEXT:
        logging.getLogger(name).addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    """Drop a record of an error of the package; log the error, if the record is the last one."""
    given = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if given is None:
        # The next record has the error.
        return "Unhandled error in Deferred" not in record.getMessage()
    if isinstance(given, AssertionError | AttributeError) and _CLOSED.search(record.getMessage()):
        return False
    error = _cause(given)
    if error is None:
        return True
    if record.name in _LAST:
        text = "Bloom filter: the crawl doesn't start. %s%s"
        logger.error(text, in_settings(str(error)), CODES.get(type(error), ""))
    return False


def _cause(error: BaseException | None) -> BloomError | None:
    """Return the error of the package that an error is, or came of."""
    for _ in range(_MAX_CHAIN):
        if error is None or isinstance(error, BloomError):
            return error
        error = error.__cause__ or error.__context__
    return None
