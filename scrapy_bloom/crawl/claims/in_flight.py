"""Requests on their way through the engine, and pages that wait for requests that are not kept.

A request that is not kept on the server is lost with its process. Only the page that yielded it can
yield it again, so that page is settled after the request. A chain of pages that are not kept ends
at a start request, which the next run makes again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.jobs import JobKind

#: Claim -> length in characters of the request stored with it; 0 if none is stored.
Claims = dict[Key, int]
#: Requests that are not kept and that pages wait for, at most: about 50 MB with their pages.
MAX_UNKEPT = 100_000


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that has left the scheduler and is not settled yet.

    Args:
        claims: are settled with it.
        error: raised by its callback.
        times: how often it has to finish: its callback may have yielded the request again.
        epoch: the epoch in which its callback began to yield, see ``failover.py``.
        has_queued: whether claims on its links were queued for the background thread.
        kind: how it is settled when it waits for nothing; None until its callback is done.
        unkept: how many requests that it yielded are neither kept nor settled.
        instead: how it is settled instead of being recorded, because it has to yield one of these
            again: FAIL if that request failed, REPEAT if it was lost; None for neither.
        is_given_up: whether its claims stay as they are, for the next run.
        claim: its own claim; the others are of requests that became this one. None if it has none.
    """

    claims: Claims
    error: BaseException | None = None
    times: int = 1
    epoch: int = 0
    has_queued: bool = False
    kind: JobKind | None = None
    unkept: int = 0
    instead: JobKind | None = None
    is_given_up: bool = False
    claim: Key | None = field(init=False)

    def __post_init__(self) -> None:
        self.claim = next(reversed(self.claims), None)

    @property
    def is_complete(self) -> bool:
        """Whether it can be settled."""
        return self.kind is not None and not self.unkept and not self.is_given_up

    def end(self) -> JobKind:
        """Return how it is settled; called once."""
        kind, self.kind = self.kind, None
        assert kind is not None  # noqa: S101 - its callback is done
        return self.instead if kind is JobKind.CONFIRM and self.instead else kind


class UnkeptRequests:
    """Maps requests that are not kept to the pages that wait for them.

    Args:
        clock: returns seconds.
        limit: requests at most. Beyond it, the pages that wait longest are given up.
    """

    def __init__(self, clock: Callable[[], float], limit: int = MAX_UNKEPT) -> None:
        self._clock, self._limit = clock, limit
        #: The pages that wait, and since when.
        self._parents: dict[Key, tuple[InFlightRequest, float]] = {}
        #: The claims of these pages -> the pages.
        self._waiting: dict[Key | None, InFlightRequest] = {}
        #: Requests that no page waits for: start requests, and those that the spider schedules.
        self._orphans: set[Key] = set()

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, claim: Key, parent: InFlightRequest | None) -> list[InFlightRequest]:
        """Make a page wait for a request that it yielded; return the pages that are given up."""
        if claim in self._parents:
            return []  # the page that yielded it first waits for it
        if parent is None:
            if len(self._orphans) < self._limit:
                self._orphans.add(claim)
            return []
        self._orphans.discard(claim)
        self._parents[claim] = parent, self._clock()
        self._waiting.setdefault(parent.claim, parent)
        parent.unkept += 1
        return self._give_up_oldest() if len(self._parents) > self._limit else []

    def adopt(self, claim: Key, parent: InFlightRequest) -> list[InFlightRequest]:
        """Make a page wait for a request that no page waits for, if it is not settled."""
        return self.add(claim, parent) if claim in self._orphans else []

    def waits_for(self, page: InFlightRequest, claim: Key) -> bool:
        """Whether a page waits for a request."""
        return claim in self._parents and self._parents[claim][0] is page

    def is_crawled_twice(self, page: InFlightRequest) -> bool:
        """Whether the same page, crawled before, waits for requests: this one must not be recorded.

        If one of them failed, no page would yield it again.
        """
        return self._waiting.get(page.claim, page) is not page

    def settle(self, claim: Key, kind: JobKind) -> InFlightRequest | None:
        """Note how a claim is settled; return the page that can be settled now."""
        self._orphans.discard(claim)
        if claim not in self._parents:
            return None
        parent = self._pop(claim)
        if kind in (JobKind.FAIL, JobKind.REPEAT):
            parent.instead = kind
        return parent if parent.is_complete else None

    def find(self, window: str, fields: Collection[str], before: float) -> list[Key]:
        """Return the claims of a window, made before a moment, with one of these fields."""
        return [
            claim
            for claim, (_, since) in self._parents.items()
            if claim[0] == window and since < before and field_of(claim[1]) in fields
        ]

    def _give_up_oldest(self) -> list[InFlightRequest]:
        """Give up the page that waits longest, and the pages that wait for it."""
        oldest = next(iter(self._parents))
        given_up, waiting = [], [self._pop(oldest)]
        while waiting:
            flight = waiting.pop()
            if flight.is_given_up:
                continue
            flight.is_given_up = True
            given_up.append(flight)
            own = [claim for claim in flight.claims if claim in self._parents]
            waiting += [self._pop(claim) for claim in own]
        return given_up

    def _pop(self, claim: Key) -> InFlightRequest:
        """Return the page that waits for a request, and forget the request."""
        page, _ = self._parents.pop(claim)
        page.unkept -= 1
        if not page.unkept and self._waiting.get(page.claim) is page:
            del self._waiting[page.claim]
        return page
