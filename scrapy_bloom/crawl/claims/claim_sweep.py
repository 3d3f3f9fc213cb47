"""One look at all claims of a crawl: ends those without a request, takes over the free ones."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import ClaimPage, StoredClaim
from scrapy_bloom.crawl.claims.worker_view import WorkerView
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import Runtime

#: Claims looked at, and taken over, at once at most.
PAGE = 128
#: Claims of a block looked at in one call where only their heads are of interest.
SCAN = 1_000
#: Characters of requests that are read at once, about.
MAX_REPLY = 1 << 18


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Claims that were taken over in one filter.

    Args:
        window: the filter's window.
        block: the claims' block.
        requests: field of the claim -> request as JSON.
    """

    window: str
    block: int
    requests: Mapping[str, str]


class ClaimSweep:
    """Looks at all claims.

    Args:
        me: this worker.
        dropped: is called with a window and the fields of claims that were ended without being
            crawled, because their requests are not stored.
        look_soon: is called when claims will be free soon.
        runtime: time and chance.

    Attributes:
        views: per window, the workers as this one sees them.
        met: when owners without an entry were first met.
        lost: nonces of calls whose replies did not come.
        is_waiting: whether the last look met claims whose fate will be clear soon.
    """

    def __init__(
        self,
        me: Worker,
        *,
        dropped: Callable[[str, Collection[str]], object],
        look_soon: Callable[[], object],
        runtime: Runtime,
    ) -> None:
        self._me = me
        self._dropped, self._look_soon = dropped, look_soon
        self._clock, self._token = runtime.monotonic, runtime.token
        self.views: dict[str, WorkerView] = {}
        self.met: dict[str, float] = {}
        self.lost: set[str] = set()
        self.is_waiting = False

    def look(self, filters: Filters) -> Iterator[Reclaimed]:
        """Look at all claims; yield what was taken over, page by page."""
        self.drop_unkept(filters, [*filters.by_window])
        for window, bloom in filters.by_window.items():
            dead = {worker.id for worker in self.views[window].dead}
            for block in range(bloom.header.blocks if bloom.header else 0):
                cursor = ""
                while cursor != "0":
                    page = bloom.run(
                        partial(claim_protocol.scan, block=block, cursor=cursor or "0", count=PAGE)
                    )
                    cursor = page.cursor
                    self._note_unknown(self.views[window], page)
                    yield from self._take_over(bloom, window, block, page)
            for worker in self.views[window].dead:
                if worker.id in dead:  # all the while
                    entry = f"{worker.until} {worker.describe()}"
                    bloom.run(
                        partial(
                            claim_protocol.heartbeat, worker=worker.id, life="", description=entry
                        )
                    )

    def drop_unkept(self, filters: Filters, windows: Collection[str]) -> None:
        """End all free claims that have no request: nothing can be crawled for them.

        The pages that yielded these requests are free as well, or are start pages. They yield them
        again, and by then they have to be new: so this comes before anything is taken over.
        """
        for window in windows:
            fields = self._drop_unkept(filters.by_window[window], self.views[window])
            if fields:
                self._dropped(window, fields)
                # Pages of this worker that wait for them will be free soon: look once more.
                self.is_waiting = True
                self._look_soon()

    def _drop_unkept(self, bloom: BloomFilter, view: WorkerView) -> set[str]:
        dropped = set[str]()
        cursors = dict.fromkeys(range(bloom.header.blocks if bloom.header else 0), "0")
        while cursors:
            pages = bloom.run(partial(claim_protocol.scan_many, cursors=cursors, count=SCAN))
            gone: dict[str, dict[int, list[str]]] = defaultdict(dict)
            for block, page in pages.items():
                for claim in page.claims:
                    if not claim.length and view.is_unkept_lost(claim):
                        gone[claim.owner].setdefault(block, []).append(claim.field)
                if page.damaged:
                    gone[""][block] = list(page.damaged)
            for owner, fields in gone.items():
                bloom.run(partial(claim_protocol.release_fields, fields=fields, owner=owner))
                dropped.update(*fields.values())
            cursors = {block: page.cursor for block, page in pages.items() if page.cursor != "0"}
        return dropped

    def _note_unknown(self, view: WorkerView, page: ClaimPage) -> None:
        for claim in page.claims:
            self.is_waiting |= view.is_to_be_awaited(claim)
            if view.is_unknown(claim):
                self.met.setdefault(claim.owner, self._clock())

    def _take_over(
        self, bloom: BloomFilter, window: str, block: int, page: ClaimPage
    ) -> Iterator[Reclaimed]:
        free = [claim for claim in page.claims if self.views[window].is_free(claim)]
        for claims in _bounded([claim for claim in free if claim.length]):
            nonce = self._token(4)
            reassign = partial(
                claim_protocol.reassign,
                block=block,
                claims=claims,
                owner=self._me.shared_queue or self._me.id,
                nonce=nonce,
            )
            try:
                requests = bloom.run(reassign)
            except BloomError:
                # Perhaps they are this worker's by now, and it was not told of what.
                self.lost.add(nonce)
                raise
            if requests:
                yield Reclaimed(window, block, requests)


def _bounded(claims: Sequence[StoredClaim]) -> Iterator[list[StoredClaim]]:
    """Split claims into parts whose requests make a reply of bounded size."""
    part: list[StoredClaim] = []
    for claim in claims:
        if len(part) == PAGE or sum(one.length for one in part) + claim.length > MAX_REPLY:
            yield part
            part = []
        part.append(claim)
    if part:
        yield part
