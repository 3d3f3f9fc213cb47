"""A scan of all claims: ends free claims without a request, and takes over the other free ones."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.protocol.claim_protocol import (
    ClaimPage,
    StoredClaim,
    reassign,
    release_fields,
    scan,
)
from scrapy_bloom.bloom.protocol.worker_protocol import remove_workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.liveness import Heartbeats, WorkerView
from scrapy_bloom.crawl.workers import Worker

#: Claims of a block scanned in one call, about.
SCAN = 1_000
#: Claims of a block that are scanned for a worker's own at its end, about.
SCAN_OWN = 100
#: Claims taken over in one call at most.
PAGE = 128
#: Characters of requests read in one call, about.
MAX_REPLY = 1 << 18


class ClaimSweep:
    """Scans claims.

    Args:
        context: what all parts use.
        me: this worker.
        heartbeats: say which claims are free.

    Attributes:
        is_waiting: whether a scan since ``begin`` has found claims that may be free soon.
    """

    def __init__(self, context: Context, me: Worker, heartbeats: Heartbeats) -> None:
        self._me, self._heartbeats, self._views = me, heartbeats, heartbeats.views
        self._server, self._token = context.server, context.token
        self._cooldown = context.settings.retry_after
        self.is_waiting = False

    def begin(self) -> None:
        """Begin a scan of all claims."""
        self.is_waiting = False

    def blocks(self, window: str) -> dict[int, str]:
        """Return where a scan of all claims of a filter begins: a cursor of each block."""
        header = self._server.session(window).header
        return dict.fromkeys(range(header.blocks if header else 0), "0")

    async def scan(
        self, window: str, cursors: Mapping[int, str], count: int = SCAN
    ) -> tuple[dict[int, ClaimPage], dict[int, str]]:
        """Return the next claims of some blocks, and where the scan goes on. One may come twice."""
        read = partial(scan, cursors=cursors, count=count, tag=self._me.tag)
        pages = await self._server.run(window, read) if cursors else {}
        left = {block: page.cursor for block, page in pages.items() if page.cursor != "0"}
        return pages, left

    def free_parts(self, window: str, page: ClaimPage) -> Iterator[list[StoredClaim]]:
        """Note the claims of a page; yield the free ones, in parts that are taken over at once."""
        view = self._views[window]
        self._note(view, page)
        return _bounded([one for one in page.claims if one.length and view.is_free(one)])

    async def take_over(
        self, window: str, block: int, part: Sequence[StoredClaim]
    ) -> Mapping[str, str]:
        """Take claims over that are free still; return their requests as JSON, by their fields.

        A silent worker may have come back since they were scanned.
        """
        claims = [*filter(self._views[window].is_free, part)]
        if not claims:
            return {}
        nonce = self._token(4)
        take = partial(reassign, owner=self._me.owner, nonce=nonce, cooldown=self._cooldown)
        try:
            return await self._server.run(window, partial(take, block=block, claims=claims))
        except BloomError:
            # The call may have succeeded: claims with this nonce are taken over again.
            self._heartbeats.lost.add(nonce)
            raise

    async def remove(self, window: str, dead: Collection[str]) -> None:
        """Remove workers that have been dead since before a scan: all their claims were free."""
        ended = [worker for worker in self._views[window].dead if worker.id in dead]
        if ended:
            entries = {worker.member: str(worker.until) for worker in ended}
            remove = partial(remove_workers, entries=entries, nonce=self._token(4))
            await self._server.run(window, remove)

    async def may_have_own(self, window: str) -> bool:
        """Whether this worker may have claims in a filter; it scans few claims."""
        pages, left = await self.scan(window, self.blocks(window), SCAN_OWN)
        own = (one for page in pages.values() for one in page.claims if one.owner == self._me.id)
        return bool(left) or any(own)

    async def drop_unkept(self, window: str) -> set[str]:
        """End all free claims without a request, which cannot be crawled; return their fields.

        The pages that yielded these requests are taken over next, or are start pages. They yield
        the requests again, and these must be new then. Another spider's claim is left to the spider
        that finds the URL first, as if it had failed: its own request stays.
        """
        dropped, cursors = set[str](), self.blocks(window)
        while cursors:
            pages, cursors = await self.scan(window, cursors)
            for block, page in pages.items():
                dropped |= await self._drop_of_page(window, block, page)
        # Pages of this worker that wait for these requests will be free soon.
        self.is_waiting |= bool(dropped)
        return dropped

    async def _drop_of_page(self, window: str, block: int, page: ClaimPage) -> set[str]:
        view = self._views[window]
        by_owner: dict[str, list[str]] = defaultdict(list)
        for claim in page.claims:
            if claim.length or not view.is_unkept_lost(claim):
                continue
            if view.is_kin(claim.owner):
                by_owner[claim.owner].append(claim.field)
            elif not claim.failed:
                await self._leave(window, block, claim)
        if page.damaged:
            by_owner[""] += page.damaged
        for owner, fields in by_owner.items():
            release = partial(release_fields, fields={block: fields}, owner=owner)
            await self._server.run(window, release)
        return {field for fields in by_owner.values() for field in fields}

    async def _leave(self, window: str, block: int, claim: StoredClaim) -> None:
        give = partial(reassign, owner=f"-{claim.owner[1:9]}", nonce=self._token(4))
        await self._server.run(window, partial(give, block=block, claims=[claim]))

    def _note(self, view: WorkerView, page: ClaimPage) -> None:
        for claim in page.claims:
            if not (view.is_kin(claim.owner) or view.is_free(claim)):
                self._heartbeats.awaited.add(claim.owner)
            self.is_waiting |= view.is_to_be_awaited(claim)
            if view.is_unknown(claim):
                self._heartbeats.note_unknown(claim.owner)


def _bounded(claims: Iterable[StoredClaim]) -> Iterator[list[StoredClaim]]:
    """Split claims into parts whose requests make a reply of bounded size."""
    part: list[StoredClaim] = []
    for claim in claims:
        if len(part) == PAGE or sum(one.length for one in part) + claim.length > MAX_REPLY:
            yield part
            part = []
        part.append(claim)
    if part:
        yield part
