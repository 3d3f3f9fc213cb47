"""Applies queued writes to the filters: one call for many jobs of one kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scrapy_bloom.bloom.client.connect_guard import connecting
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.bloom.protocol.membership import add
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import CRAWLED, Job, JobKind
from scrapy_bloom.crawl.server_state import ServerState

#: Attempts after which the request of a page that did not fail is no longer stored: never.
FOREVER = 1_000_000_000

#: Runs an operation on a filter.
Run = Callable[[Callable[[FilterSession], Operation[Any]]], Any]


@dataclass(frozen=True, slots=True)
class ClaimOwner:
    """Whose claims jobs make and end.

    Args:
        owner: of the claims that are made: the worker, or its shared queue.
        worker: id of this worker, which holds claims.
        retry: what becomes of the claims of URLs that failed; None if nothing is claimed.
    """

    owner: str = ""
    worker: str = ""
    retry: RetryPolicy | None = None


class JobApplier:
    """Applies jobs.

    Args:
        claims: whose claims they make and end.
        server: which process it is, and what it may have lost.
        token: returns so many random bytes as hexadecimal text.
        restarted: is called with the epoch that a restart of the server begins.
        repeated: is called with pages that will be crawled again, because the claims on their links
            may be lost.
        freed: is called when claims have become free.
    """

    def __init__(
        self,
        claims: ClaimOwner,
        server: ServerState,
        token: Callable[[int], str],
        *,
        restarted: Callable[[int], object],
        repeated: Callable[[Sequence[Job]], object],
        freed: Callable[[], object],
    ) -> None:
        self._owner, self._worker, self._retry = claims.owner, claims.worker, claims.retry
        self._server, self._token = server, token
        self._restarted, self._repeated, self._freed = restarted, repeated, freed

    def apply(self, filters: Filters, jobs: Sequence[Job]) -> list[bytes]:
        """Apply jobs of one kind and window; return the items that could not be recorded."""
        kind, run = jobs[0].kind, filters.by_window[jobs[0].window].run
        items, nonce = [job.item for job in jobs], self._token(4)
        if kind in CRAWLED:
            return self._settle_crawled(filters, jobs)
        if kind is JobKind.RECORD:
            return _unrecorded(items, run(partial(add, items=items)))
        if kind in (JobKind.CLAIM, JobKind.KEEP):
            claim = partial(claim_protocol.claim, tested=kind is JobKind.CLAIM)
            requests = [job.request for job in jobs]
            run(lambda session: claim(session, items, requests, self._owner, nonce))
        elif kind is JobKind.HOLD:
            run(lambda session: claim_protocol.hold(session, items, self._worker, nonce))
        elif kind is JobKind.FAIL:
            run(lambda session: claim_protocol.release(session, items, self._worker, self._retry))
        elif kind is JobKind.RELEASE:
            self._release(run, items)
        elif kind is JobKind.REPEAT:
            self._repeat(run, items)
        elif kind is JobKind.DROP:
            for job in jobs:
                fields = {job.block: [job.item.decode()]}
                run(partial(claim_protocol.release_fields, fields=fields, owner=self._owner))
        return []

    def _release(self, run: Run, items: Sequence[bytes]) -> None:
        for owner in {self._worker, self._owner}:  # not of a worker that has taken them over
            run(lambda session, owner=owner: claim_protocol.release(session, items, owner))  # type: ignore[misc]

    # -- pages that are crawled --

    def _settle_crawled(self, filters: Filters, jobs: Sequence[Job]) -> list[bytes]:
        """Record pages and end their claims; return the items that could not be recorded.

        A server that was restarted, or replaced by a replica, may have lost the claims on the links
        of a page while the page's own, which are older, are there. So the pages that began before
        are crawled again, and every server is identified before its first confirmation.
        """
        self.identify_server(filters)
        with connecting(allowed=False):
            run = filters.by_window[jobs[0].window].run
            if repeated := [job for job in jobs if job.epoch < self._server.restarted]:
                self._repeat(run, [job.item for job in repeated])
                self._repeated(repeated)
            crawled = [job.item for job in jobs if job.epoch >= self._server.restarted]
            if jobs[0].kind is JobKind.CONFIRM:
                verdicts = run(partial(claim_protocol.confirm, items=crawled))
                return _unrecorded(crawled, verdicts)
            self._release(run, crawled)
            return []

    def _repeat(self, run: Run, items: Sequence[bytes]) -> None:
        """Leave pages to the next look at claims, which is soon."""
        assert self._retry is not None  # noqa: S101 - pages are claimed
        due_now = replace(self._retry, seconds=0, attempts=FOREVER)
        run(lambda session: claim_protocol.release(session, items, self._worker, due_now))
        self._freed()

    def identify_server(self, filters: Filters) -> None:
        """Note whether the server is another process than before.

        What was claimed since an outage began is queued here, and claimed on the new server: only
        pages that began before the outage are crawled again.
        """
        if self._server.identify(filters.server_id()):
            self._restarted(self._server.restarted)


def _unrecorded(items: Sequence[bytes], verdicts: Sequence[Verdict]) -> list[bytes]:
    return [
        item for item, verdict in zip(items, verdicts, strict=True) if verdict is Verdict.UNRECORDED
    ]
