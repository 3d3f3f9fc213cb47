"""Puts requests back into the crawl that were taken over from other workers."""

import logging

from scrapy import Request

from scrapy_bloom.bloom.errors import shown, tagged
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.jobs import Job, JobKind, JobQueue
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.sweep import Reclaimed
from scrapy_bloom.crawl.tracker import set_claims

logger = logging.getLogger(__name__)


class Restorer:
    """Puts requests back.

    Args:
        context: what all parts use.
        server: of the filters.
        claims: of the crawl.
        jobs: are written later.
    """

    def __init__(self, context: Context, server: Server, claims: Claims, jobs: JobQueue) -> None:
        self._spider, self._engine, self._report = context.spider, context.engine, context.report
        self._keeps_headers = context.settings.keep_headers
        self._server, self._put = server, jobs.put
        self._tracker, self._settler = claims.tracker, claims.settler

    def put_back(self, found: Reclaimed) -> None:
        """Schedule requests, with their claims."""
        tracker = self._tracker
        for name, text in found.requests.items():
            request = self._read(found, name, text)
            if request is None:
                self._drop(found, name)
                continue
            self._settler.length += len(text)
            tracker.restored, tracker.was_offered = request, False
            try:
                self._engine.crawl(request)
            except Exception:
                line = "Bloom filter: pending request %s cannot be scheduled"
                logger.exception(tagged("not-scheduled", line), shown(request))
                continue  # its claim stays, and the next run tries again
            finally:
                tracker.restored = None
            self._report.count("taken_over", found.window)
            if not tracker.was_offered:  # a middleware dropped it, for instance as offsite
                self._settler.settle(tracker.claims_of(request), JobKind.RELEASE)

    def _read(self, found: Reclaimed, name: str, text: str) -> Request | None:
        window = found.window
        reason = "it is not the request that was claimed"
        try:
            request = request_codec.load_stored(
                text, self._spider, keeps_headers=self._keeps_headers
            )
            claims = self._tracker.claims_of(request)
            for key in claims:
                if (window, name) == (key[0], field_of(key[1])):
                    set_claims(request, {**claims, key: len(text)})
                    if self._server.block_of(key) != found.block:  # of a header that was lost
                        self._put(Job(JobKind.CLAIM, *key, text))
                        self._drop(found, name)
                    return request
        except ValueError as error:
            reason = str(error)
        self._report.count("not_restored", window)
        self._report.warn_once(
            "not-restored",
            f"a pending request of another run cannot be put back: {reason}. Has the spider "
            "changed? Its URL is crawled when it is found again (bloom/not_restored counts them)",
        )
        return None

    def _drop(self, found: Reclaimed, name: str) -> None:
        self._put(Job(JobKind.DROP, found.window, name.encode(), block=found.block))
