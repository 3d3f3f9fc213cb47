"""A scan of all claims: ends free claims without a request, and takes over the other free ones."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.claim_protocol import (
    ClaimPage,
    StoredClaim,
    reassign,
    release_fields,
    scan,
    scan_all,
)
from scrapy_bloom.bloom.protocol.worker_protocol import remove_workers
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.liveness import REST, WorkerView
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import Runtime

#: Claims of a block scanned in one call, about.
SCAN = 1_000
#: Claims of a block that are scanned for a worker's own at its end, about.
SCAN_OWN = 100
#: Claims taken over in one call at most.
PAGE = 128
#: Owners without an entry that are noted one by one; the others are noted together.
MAX_UNKNOWN = 1_000
#: Characters of requests read in one call, about.
MAX_REPLY = 1 << 18


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Claims that were taken over in one filter.

    Args:
        window: the filter's window.
        block: the claims' block.
        requests: field of the claim -> request as JSON.
        block_of: returns the block of a fingerprint: another one, if the claim was made under a
            header that was lost.
    """

    window: str
    block: int
    requests: Mapping[str, str]
    block_of: Callable[[bytes], int]


class ClaimSweep:
    """Scans claims.

    Args:
        me: this worker.
        spider: name of its spider.
        dropped: is called with a window, the fields of claims that were ended because their
            requests are not stored, and the moment at which the look for them began.
        look_soon: is called when claims will be free soon.
        cooldown: seconds that a failed URL waits; 0 if that is not known.
        runtime: clock and random numbers.

    Attributes:
        views: window -> this worker's view of all workers.
        met: owner without an entry -> when one of its claims was first found.
        lost: nonces of calls without a reply.
        awaited: owners of other spiders' claims in which this spider has a request, and which were
            not free when they were scanned last.
        is_waiting: whether the last scan found claims that may be free soon.
    """

    def __init__(
        self,
        me: Worker,
        spider: str,
        *,
        dropped: Callable[[str, Collection[str], float], object],
        look_soon: Callable[[], object],
        cooldown: int,
        runtime: Runtime,
    ) -> None:
        self._me, self._tag, self.cooldown = me, workers.tag(spider), cooldown
        self._dropped, self._look_soon = dropped, look_soon
        self._clock, self._token = runtime.monotonic, runtime.token
        self.views: dict[str, WorkerView] = {}
        self.met: dict[str, float] = {}
        self.lost: set[str] = set()
        self.awaited: set[str] = set()
        self.is_waiting = False

    def look(self, filters: Filters) -> Iterator[Reclaimed]:
        """Scan all claims; yield those that were taken over, page by page."""
        self.drop_unkept(filters, [*filters.by_window])
        self.awaited.clear()
        for window, bloom in filters.by_window.items():
            dead = {worker.id for worker in self.views[window].dead}
            for block, page in self._scan(bloom):
                self._note(self.views[window], page)
                yield from self._take_over(bloom, window, block, page)
            # Since before the scan: all their claims were free.
            ended = [worker for worker in self.views[window].dead if worker.id in dead]
            if ended:
                entries = {worker.member: str(worker.until) for worker in ended}
                bloom.run(partial(remove_workers, entries=entries, nonce=self._token(4)))

    def may_find(self, filters: Filters) -> bool:
        """Whether a look may find claims that are free, damaged, or may be free soon.

        It scans few claims: most crawls find none when they open.
        """
        for window, bloom in filters.by_window.items():
            view = self.views[window]
            for page in self._first_pages(bloom, SCAN).values():
                if page.cursor != "0" or page.damaged:
                    return True
                if any(view.is_free(one) or view.is_to_be_awaited(one) for one in page.claims):
                    return True
        return False

    def may_have_own(self, bloom: BloomFilter) -> bool:
        """Whether this worker may have claims in a filter; it scans few claims."""
        pages, me = self._first_pages(bloom, SCAN_OWN).values(), self._me.id
        if any(claim.owner == me for page in pages for claim in page.claims):
            return True
        return any(page.cursor != "0" for page in pages)

    def drop_unkept(self, filters: Filters, windows: Collection[str]) -> None:
        """End all free claims without a request, which cannot be crawled.

        The pages that yielded these requests are taken over next, or are start pages. They yield
        the requests again, and these must be new then. Another spider's claim is left to the spider
        that finds the URL first, as if it had failed: its own request stays.
        """
        for window in windows:
            begun = self._clock()
            fields = self._drop_unkept(filters.by_window[window], self.views[window])
            if fields:
                self._dropped(window, fields, begun)
                # Pages of this worker that wait for these requests will be free soon.
                self.is_waiting = True
                self._look_soon()

    def _drop_unkept(self, bloom: BloomFilter, view: WorkerView) -> set[str]:
        dropped = set[str]()
        for block, page in self._scan(bloom):
            by_owner: dict[str, list[str]] = defaultdict(list)
            for claim in page.claims:
                if claim.length or not view.is_unkept_lost(claim):
                    continue
                if view.is_kin(claim.owner):
                    by_owner[claim.owner].append(claim.field)
                elif not claim.failed:
                    self._leave(bloom, block, claim)
            if page.damaged:
                by_owner[""] += page.damaged
            for owner, fields in by_owner.items():
                bloom.run(partial(release_fields, fields={block: fields}, owner=owner))
                dropped.update(fields)
        return dropped

    def _leave(self, bloom: BloomFilter, block: int, claim: StoredClaim) -> None:
        give = partial(reassign, owner=f"-{claim.owner[1:9]}", nonce=self._token(4))
        bloom.run(partial(give, block=block, claims=[claim]))

    def _note(self, view: WorkerView, page: ClaimPage) -> None:
        for claim in page.claims:
            if not (view.is_kin(claim.owner) or view.is_free(claim)):
                self.awaited.add(claim.owner)
            self.is_waiting |= view.is_to_be_awaited(claim)
            if view.is_unknown(claim):
                is_one_more = claim.owner in self.met or len(self.met) < MAX_UNKNOWN
                self.met.setdefault(claim.owner if is_one_more else REST, self._clock())

    def _take_over(
        self, bloom: BloomFilter, window: str, block: int, page: ClaimPage
    ) -> Iterator[Reclaimed]:
        # Lazily: a silent worker may have come back before the crawl takes the next part.
        free = (one for one in page.claims if one.length and self.views[window].is_free(one))
        for claims in _bounded(free):
            nonce = self._token(4)
            owner = self._me.shared_queue or self._me.id
            take = partial(reassign, owner=owner, nonce=nonce, cooldown=self.cooldown)
            try:
                requests = bloom.run(partial(take, block=block, claims=claims))
            except BloomError:
                # The call may have succeeded: claims with this nonce are taken over again.
                self.lost.add(nonce)
                raise
            if requests:
                yield Reclaimed(window, block, requests, bloom.session.hasher.block)

    def _first_pages(self, bloom: BloomFilter, count: int) -> dict[int, ClaimPage]:
        """Return the first claims of each block, about ``count``."""
        cursors = dict.fromkeys(_blocks(bloom), "0")
        read = partial(scan, cursors=cursors, count=count, tag=self._tag)
        return bloom.run(read) if cursors else {}

    def _scan(self, bloom: BloomFilter) -> Iterator[tuple[int, ClaimPage]]:
        """Yield all claims of a filter, page by page, with their blocks."""
        return scan_all(bloom.run, _blocks(bloom), SCAN, self._tag)


def _blocks(bloom: BloomFilter) -> range:
    return range(bloom.header.blocks if bloom.header else 0)


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
