"""What queued writes do with the filters: one call for many jobs of one kind."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scrapy_bloom.bloom.errors import RestartedError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol
from scrapy_bloom.bloom.protocol.cached_ring import UNKEPT_ELSEWHERE, Verdict
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept
from scrapy_bloom.bloom.protocol.membership import add, renew
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Acknowledged, Wait
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl import failures
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.jobs import CRAWLED, ClaimOwner, Job, JobKind
from scrapy_bloom.crawl.workers import owner_tag
from scrapy_bloom.fingerprinter import base_of

#: Runs an operation on a window's filter.
Run = Callable[[Callable[[FilterSession], Operation[Any]]], Awaitable[Any]]

#: Attempts after which the request of a page that did not fail is no longer stored: never.
FOREVER = 1_000_000_000
#: Milliseconds of a wait for replicas after one that was too short: replicas that are gone do not
#: hold up writes, and those that are back are noticed.
RETRY_MILLISECONDS = 20


class JobApplier:
    """Applies jobs.

    Args:
        context: what all parts use.
        claims: whose claims they make and end.
        ledgers: windows whose filters keep the requests of pages that are recorded.
        freed: is called when claims have become free.
    """

    def __init__(
        self,
        context: Context,
        claims: ClaimOwner,
        ledgers: Collection[str] = (),
        freed: Callable[[], object] = int,
    ) -> None:
        self._server, self._local, self._report = context.server, context.local, context.report
        self._token = context.token
        self._owner, self._worker, self._retry = claims.owner, claims.worker, claims.retry
        #: Those of this worker, and of its shared queue.
        self._owners = tuple(dict.fromkeys((claims.worker, claims.owner)))
        self._ledgers, self._freed = ledgers, freed
        #: Replicas of each primary that have to acknowledge the claims on a page's links.
        self._replicas = context.settings.wait_replicas
        self._longest_wait = max(1, int(context.settings.timeout / 2 * 1_000))
        self._lacks_replicas = False
        #: Fields of the claims of pages that have yielded a request which another worker has
        #: claimed and not stored: it may lose it, and then only these pages have it.
        self._doubtful: set[str] = set()
        #: Per window, URLs of versions that were recorded, until they are recorded themselves.
        self._bases: dict[str, set[bytes]] = defaultdict(set)

    async def apply(self, jobs: Sequence[Job]) -> list[bytes]:
        """Apply jobs of one kind and window; return the items that could not be recorded."""
        kind, run = jobs[0].kind, partial(self._server.run, jobs[0].window)
        items, nonce = [job.item for job in jobs], self._token(4)
        if kind in CRAWLED:
            return await self._settle_crawled(jobs)
        if kind in (JobKind.RECORD, JobKind.BASE):
            verdicts = await run(partial(add, items=items))
            bases = await self._record_bases(jobs[0].window, items, verdicts)
            return _unrecorded(items, verdicts) + bases
        if kind in (JobKind.CLAIM, JobKind.KEEP):
            cooldown = self._retry.seconds if self._retry else 0
            claim = partial(claim_protocol.claim, tested=kind is JobKind.CLAIM, cooldown=cooldown)
            requests, pages = [job.request for job in jobs], [job.page for job in jobs]
            verdicts = await run(
                lambda session: claim(session, items, requests, self._owner, nonce, pages=pages)
            )
            self._note_doubtful(jobs, verdicts)
        elif kind is JobKind.HOLD:
            await run(lambda session: claim_protocol.hold(session, items, self._worker, nonce))
        elif kind in (JobKind.FAIL, JobKind.LATER):
            reasons = {job.item: job.reason for job in jobs}
            kept = self._kept(jobs)
            if kept is not None and self._retry is not None:  # if this was the last try
                add_failed = partial(ledger_protocol.add_failed, items=items, kept=kept)
                tries = self._retry.attempts
                await run(partial(add_failed, tries=tries, owners=self._owners))
            fail = partial(self._release_mine, retry=self._retry, hides=kind is JobKind.FAIL)
            if await run(fail(items, reasons=reasons)) < len(items):
                lost = await self._claim_again(run, [job for job in jobs if job.request], nonce)
                await run(fail(lost, reasons=reasons))
        elif kind is JobKind.RELEASE:
            await self._release(run, items)
        elif kind is JobKind.REPEAT:
            await self._repeat(run, items, jobs[0].reason)
        elif kind is JobKind.DROP:
            for job in jobs:
                fields = {job.block: [job.item.decode()]}
                await run(partial(claim_protocol.release_fields, fields=fields, owner=self._owner))
        return []

    def _note_doubtful(self, jobs: Sequence[Job], verdicts: Sequence[Verdict]) -> None:
        for job, verdict in zip(jobs, verdicts, strict=True):
            if verdict is Verdict.OTHERS_UNKEPT or verdict in UNKEPT_ELSEWHERE:
                self._doubtful.add(job.page)

    async def _claim_again(self, run: Run, jobs: Sequence[Job], nonce: str) -> list[bytes]:
        """Claim the requests of failed pages whose claims are lost; return their items.

        Another server may have taken over without them; and the pages that yield them, which are
        crawled again for that, take them for known as long as they are under way here.
        """
        items, requests = [job.item for job in jobs], [job.request for job in jobs]
        claim = partial(claim_protocol.claim, items=items, requests=requests, owner=self._worker)
        verdicts = await run(partial(claim, nonce=nonce)) if jobs else []
        return [item for item, one in zip(items, verdicts, strict=True) if one is Verdict.NEW]

    async def _release(self, run: Run, items: Sequence[bytes], *, server: str = "") -> None:
        for owner in self._owners:  # not of a worker that has taken them over
            await run(partial(claim_protocol.release, items=items, owner=owner, server=server))

    # -- pages that are crawled --

    async def _settle_crawled(self, jobs: Sequence[Job]) -> list[bytes]:
        """Record pages and end their claims; return the items that could not be recorded.

        A server that was restarted, or replaced by a replica, may have lost the claims on the links
        of a page while the page's own, which are older, are there. So the pages that began before
        are crawled again, and only the process that was identified last confirms others.
        """
        # Claims on the links of a page may be on other nodes of a cluster. First these have to be
        # on the replicas; then none of the primaries may have been replaced before.
        acknowledged = await self._wait_for_replicas()
        if self._server.is_many:
            await self.identify_server()
        try:
            unrecorded = await self._confirm(jobs)
        except RestartedError:
            if self._server.refused():
                self._report.restarts_unnoticed(
                    "names another process each time (run_id, in INFO server), as a proxy in front "
                    "of several servers does"
                )
            await self.identify_server()
            unrecorded = await self._confirm(jobs)
        if self._lacks_replicas:
            self._report.unreplicated(len(jobs), acknowledged)
        return unrecorded

    async def check_replicas(self) -> None:
        """Notify whether there are too few replicas, before there are any pages."""
        acknowledged = await self._wait_for_replicas()
        if self._lacks_replicas:
            self._report.unreplicated(0, acknowledged)

    async def _wait_for_replicas(self) -> Acknowledged:
        """Wait until replicas have what was written before, but not for long.

        Pages are recorded all the same then: if they waited until a missing replica is back, a
        crawl would record nothing, and in the end be paused.
        """
        if not self._replicas:
            return Acknowledged(0)
        longest = self._longest_wait
        milliseconds = min(longest, RETRY_MILLISECONDS) if self._lacks_replicas else longest
        acknowledged = await self._server.wait(Wait(self._replicas, milliseconds))
        self._lacks_replicas = acknowledged.replicas < self._replicas
        return acknowledged

    async def _confirm(self, jobs: Sequence[Job]) -> list[bytes]:
        run = partial(self._server.run, jobs[0].window)
        if repeated := [job for job in jobs if job.epoch < self._server.restarted]:
            await self._repeat(run, [job.item for job in repeated], failures.RESTARTED)
            self._report.repeated(len(repeated))
            for job in repeated:
                self._local.discard((job.window, job.item))
                if job.kind is JobKind.DONE:
                    self._local.to_repeat.add((job.window, job.item))
        current = [job for job in jobs if job.epoch >= self._server.restarted]
        settled, left = list[Job](), list[bytes]()
        for job in current:
            if self._is_doubtful(job):
                left.append(job.item)
            else:
                settled.append(job)
        crawled = [job.item for job in settled]
        if left:
            why = dict.fromkeys(left, failures.OTHERS_LINK)
            hides = jobs[0].kind is JobKind.CONFIRM  # else it is read in each run
            await run(self._release_mine(left, self._retry, why, hides=hides))
            self._doubtful.difference_update(map(field_of, left))
        if jobs[0].kind is JobKind.CONFIRM:
            confirm = partial(
                claim_protocol.confirm,
                items=crawled,
                owners=self._owners,
                server=self._server.id,
                kept=self._kept(settled),
            )
            verdicts = await run(confirm)
            # Afterwards: a page that is not confirmed must not be seen by way of its URL.
            bases = await self._record_bases(jobs[0].window, crawled, verdicts)
            unrecorded = _unrecorded(crawled, verdicts) + bases
        else:
            await self._release(run, crawled, server=self._server.id)
            unrecorded = []
        if crawled:
            self._server.confirmed()
        return unrecorded

    async def _record_bases(
        self, window: str, items: Sequence[bytes], verdicts: Sequence[Verdict]
    ) -> list[bytes]:
        """Record the URLs of versions that were recorded; return those for which there is no room.

        If the server fails, they are recorded with the next ones: the versions are not confirmed a
        second time.
        """
        bases = self._bases[window]
        for item, verdict in zip(items, verdicts, strict=True):
            base = base_of(item) if verdict in (Verdict.NEW, Verdict.SEEN) else None
            if base is not None:
                bases.add(base)
        if not bases:
            return []
        ordered = sorted(bases)
        recorded = await self._server.run(window, partial(renew, items=ordered))
        bases.clear()
        return _unrecorded(ordered, recorded)

    def _is_doubtful(self, page: Job) -> bool:
        """Whether another worker may lose a request that a page yielded, and only the page has.

        It must not be recorded then, and so must not the pages that have waited for it.
        """
        is_doubtful = field_of(page.item) in self._doubtful
        if is_doubtful:
            self._doubtful.update(page.waiting)
        return is_doubtful

    async def _repeat(self, run: Run, items: Sequence[bytes], reason: str) -> None:
        """Leave pages to the next look at claims, which is soon."""
        assert self._retry is not None  # noqa: S101 - pages are claimed
        due_now = replace(self._retry, seconds=0, attempts=FOREVER)
        await run(self._release_mine(items, due_now, dict.fromkeys(items, reason)))
        self._freed()

    def _release_mine(
        self,
        items: Sequence[bytes],
        retry: RetryPolicy | None,
        reasons: Mapping[bytes, str],
        *,
        hides: bool = True,
    ) -> Callable[[FilterSession], Operation[Any]]:
        if retry is not None:
            by_field = {field_of(item): reason for item, reason in reasons.items() if reason}
            retry = replace(retry, reasons=by_field, hides=hides)
        return lambda session: claim_protocol.release(session, items, self._worker, retry)

    async def identify_server(self, *, has_replayed: bool = True) -> None:
        """Note whether the server is another process than before.

        What was claimed since an outage began is queued here. As long as none of it was replayed,
        it is claimed on the new server: only pages that began before the outage are crawled again.
        """
        if self._server.identify(await self._server.ask_id(), has_replayed=has_replayed):
            self._local.clear()  # it may have lost what it has said

    def _kept(self, jobs: Sequence[Job]) -> Kept | None:
        """Return how a ledger keeps the requests of pages of one window; None if none does."""
        if not jobs or jobs[0].window not in self._ledgers:
            return None
        # Crawled pages have a reason if they are missing.
        missing = [job for job in jobs if job.reason or job.kind not in CRAWLED]
        return Kept(owner_tag(self._worker), {job.item: job.reason for job in missing})


def _unrecorded(items: Sequence[bytes], verdicts: Sequence[Verdict]) -> list[bytes]:
    return [
        item for item, verdict in zip(items, verdicts, strict=True) if verdict is Verdict.UNRECORDED
    ]
