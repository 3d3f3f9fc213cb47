"""Says in a few words why a page failed, for ``scrapy bloom failed``.

The text of an exception may be anything. URLs in it lose their user names, passwords and queries.
"""

import re
from contextlib import suppress

from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import CrawlSpider
from twisted.internet.error import DNSLookupError
from twisted.python.failure import Failure

#: Pages that are crawled again although nothing was wrong with them.
RESTARTED = "the server was restarted and may have lost links of this page"
LOST_LINK = "a link of this page, which was not stored, is lost"
FAILED_LINK = "a link of this page failed, and is not stored"
OTHERS_LINK = "another worker has a link of this page that is not stored"
OTHERS_TARGET = "it is redirected to a page that another worker has"
TWICE = "the page was crawled twice at a time"
UNDELIVERED = "the crawl has ended before its items were stored"
#: The queue of the scheduler has refused it.
NOT_QUEUED = "the scheduler's queue failed"

#: Characters of an exception that are read: more than are ever stored.
_MAX_TEXT = 10_000
#: A URL. All up to its last "@" may be a password, however it is written.
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)(\S*@)?([^\s?#'\"<>]*)([?#][^\s'\"<>,)\]]*)?")


def describe(
    request: Request, result: Response | Failure, error: BaseException | None = None
) -> str:
    """Return why a request failed: ``HTTP 503``, ``TimeoutError: ...``, ``parse: KeyError: ...``.

    Args:
        request: the request.
        result: what the downloader returned.
        error: raised by its callback.
    """
    if isinstance(result, Failure):
        return _of_exception(result.value)
    if error is None:
        return f"HTTP {result.status}"
    return f"{_callback_of(request) or 'callback'}: {_of_exception(error)}"


def of_pipeline(error: BaseException | str) -> str:
    """Return why an item of a page was not stored: ``pipeline: ConnectionError: ...``."""
    text = redact(error[:_MAX_TEXT]) if isinstance(error, str) else _of_exception(error)
    return f"pipeline: {text}"


def redact(text: str) -> str:
    """Return a text whose URLs have no user name, password and query."""
    return _URL.sub(_without_secrets, text)


def _without_secrets(match: re.Match[str]) -> str:
    scheme, who, where, query = match.groups()
    return f"{scheme}{'***@' if who else ''}{where}{'?***' if query else ''}"


def _of_exception(error: BaseException | None) -> str:
    # Twisted's ResponseFailed and the like show the failures that they were made of as objects.
    reasons = getattr(error, "reasons", None)
    if isinstance(reasons, list) and reasons and isinstance(reasons[0], Failure):
        error = reasons[0].value
    try:
        text = redact(str(error)[:_MAX_TEXT])
    except Exception:  # a user's class may raise anything
        text = ""
    if isinstance(error, DNSLookupError):  # it says so itself
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _callback_of(request: Request) -> str:
    """Return the name of a request's callback, or of its rule's in a CrawlSpider; "" for none."""
    callback: object = "parse" if request.callback is None else request.callback
    spider = getattr(callback, "__self__", None)
    if isinstance(spider, CrawlSpider) and callback == spider._callback:  # noqa: SLF001
        with suppress(LookupError, TypeError):  # the spider may have changed its rules, or the meta
            callback = spider._rules[request.meta["rule"]].callback  # noqa: SLF001
    name = callback if isinstance(callback, str) else getattr(callback, "__name__", "")
    return name if isinstance(name, str) else ""
