"""Knows the claims of the requests in the scheduler's queue.

They travel in a request's ``meta``: a queue on a disk or a server makes another object of it. Most
requests have one claim, and are stored with it. Theirs is a text, which takes less memory.
"""

from collections.abc import Collection, Iterator
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request

from scrapy_bloom.bloom.protocol.rings import DEFAULT
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.endings import ONCE
from scrapy_bloom.rules import RUN

#: The key of ``meta`` that holds a request's claims.
META = "bloom_claims"
#: Claims of a queued request, each with whether this request is stored with it, or another one.
Claimed = dict[Key, bool | str]


class Queue:
    """The requests in the scheduler's queue that have claims.

    Args:
        windows: of the filter.

    Attributes:
        picked_up: those that another run, or another attempt, has left.
    """

    def __init__(self, windows: Collection[str]) -> None:
        self._windows = windows
        #: In their order; a set would lose it.
        self._queued: WeakKeyDictionary[Request, None] = WeakKeyDictionary()
        self.picked_up: WeakSet[Request] = WeakSet()
        #: Requests that other workers get, and that the scheduler still has.
        self._given: WeakSet[Request] = WeakSet()

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, request: Request) -> bool:
        return request in self._queued

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests that are there now, unless they leave meanwhile."""
        return (request for request in [*self._queued] if request in self._queued)

    def claims_of(self, request: Request) -> Claimed:
        """Return a request's claims, as far as they are valid: stored text may be anything."""
        claims: Claimed = {}
        found = request.meta.get(META, {})
        try:
            for name, stored in {found: True}.items() if isinstance(found, str) else found.items():
                window, _, item = name.partition(":")
                known = window if window == RUN or window in self._windows else DEFAULT
                text = stored if isinstance(stored, str) else ""
                claims[known, bytes.fromhex(item)] = text or bool(stored)
        except (AttributeError, ValueError):
            return {}
        return claims

    def put(self, request: Request) -> None:
        """Note a request that the queue has taken."""
        self._queued[request] = None

    def pop(self, request: Request) -> Claimed | None:
        """Return the claims of a request that has left the queue; None if it's another worker's."""
        if request in self._given:
            self._given.discard(request)
            return None
        self._queued.pop(request, None)
        return self.claims_of(request)

    def store(self, request: Request) -> Key | None:
        """Note that a request is stored with its own claim; return that if it's in the queue."""
        claims = self.claims_of(request)
        if request not in self._queued or not claims:
            return None
        key = next(reversed(claims))
        claims[key] = True
        set_claims(request, claims)
        return key

    def give(self, most: int) -> dict[Key, Request]:
        """Take out requests that another worker can crawl, the oldest first.

        The scheduler has no way to let go of one. It hands it out some time, and it's dropped then.
        """
        given: dict[Key, Request] = {}
        for request in [*self._queued]:
            if len(given) == most:
                break
            claims = self.claims_of(request)  # none, if the spider has emptied its meta since
            key = next(iter(claims), None)
            if key is None or key in given or key[1].startswith(ONCE) or request.dont_filter:
                continue
            if [*claims.values()] == [True]:
                given[key] = request
                del self._queued[request]
                self._given.add(request)
        return given

    def take_back(self, request: Request) -> bool:
        """Have a request again that was given to nobody; return whether it's still in the queue."""
        is_there = request in self._given
        if is_there:
            self._given.discard(request)
            self._queued[request] = None
        return is_there


def set_claims(request: Request, claims: Claimed) -> None:
    """Write claims into a request's ``meta``."""
    texts = {f"{key[0]}:{key[1].hex()}": stored for key, stored in claims.items()}
    request.meta[META] = next(iter(texts)) if [*claims.values()] == [True] else texts
