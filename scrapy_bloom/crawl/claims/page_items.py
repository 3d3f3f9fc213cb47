"""Which pages have an item, for ``BLOOM_REMEMBER = "items"``: the others are read in each run."""

from collections.abc import Callable

from scrapy import Request
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT
from scrapy_bloom.crawl.claims.in_flight import InFlightRequest
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.settings import RUN

#: The key of ``meta`` that says whether a page has an item, whatever it yields.
META = "bloom_has_item"
#: Pages with this status or a higher one, which count as crawled, are errors such as 404.
ERROR_STATUS = 400


class PageItems:
    """Decides which pages have an item.

    Args:
        key_of: identifies a request.
        report: warns.
    """

    def __init__(self, key_of: Callable[[Request], Key], report: Report) -> None:
        self._key_of, self._report = key_of, report

    def judge(self, page: InFlightRequest, request: Request, result: Response | Failure) -> None:
        """Note whether a page that is crawled has an item, once its callback is done.

        A page that is not there lists nothing, so it counts as if it had one. A request with
        ``dont_filter`` is not recorded itself, but a retry from a callback is one: if it has an
        item, its URL is recorded like one that is crawled at the first attempt.
        """
        is_error = isinstance(result, Response) and result.status >= ERROR_STATUS
        page.has_item = self._marked(request, default=page.has_item or is_error)
        if page.has_item and any(item.startswith(KEPT) for _, item in page.claims):
            key = self._key_of(request)
            page.also = key if key[0] != RUN else None

    def _marked(self, request: Request, *, default: bool) -> bool:
        mark = request.meta.get(META)
        if mark is None or isinstance(mark, bool):
            return default if mark is None else mark
        self._report.warn_once(
            "bad-has-item",
            f"meta['{META}'] of {shown(request)} is a {type(mark).__name__}, and is True or False: "
            "what its callback yields counts",
        )
        return default
