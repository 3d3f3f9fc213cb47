"""When a URL counts as seen: the interface of both policies, and "scheduled"."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from scrapy import Request

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.cached_ring import UNKEPT_ELSEWHERE, CachedRing, Verdict
from scrapy_bloom.bloom.protocol.membership import add
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind
from scrapy_bloom.crawl.opening import Opening
from scrapy_bloom.crawl.write_behind import PeriodicTask, WriteBehind
from scrapy_bloom.fingerprinter import VERSIONED, base_of

#: What a batch of lookups runs on a filter.
LookUp = Callable[[FilterSession], Operation[list[Verdict]]]


@dataclass(slots=True)
class Lookup:
    """A request that is looked up before the scheduler is offered it.

    Args:
        key: its key.
        request: the request.
        verdict: of the filters or of this process; None until it is known.
        length: characters of the request stored with its claim.
    """

    key: Key
    request: Request
    verdict: Verdict | None = None
    length: int = 0

    @property
    def is_duplicate(self) -> bool:
        """Whether the request is dropped. UNKEPT_ELSEWHERE is not: the scheduler notes its page."""
        verdict = self.verdict
        return verdict is not None and not verdict.is_new and verdict not in UNKEPT_ELSEWHERE


class Policy:
    """Records or claims requests.

    A subclass defines ``look_up_one``, ``look_up`` and ``record_later``.
    """

    #: Verdicts that may be cached: the URL stays seen after them.
    certain: frozenset[Verdict]
    #: Whether callbacks' outputs are followed, even with BLOOM_BATCH = 0.
    follows_outputs = False
    #: Requests of which each page has to know that yields them again: only pages wait for them
    #: whose claims are not certain; or their own claims are not.
    doubtful: Collection[Key] = ()
    uncertain: Collection[Key] = ()
    #: Owner of the claims that the background thread makes and ends; what it runs between jobs.
    claims = ClaimOwner()
    task: PeriodicTask | None = None

    def start(self, filters: Filters, write_behind: WriteBehind, opening: Opening) -> None:
        """Begin with open filters, before the first request is looked up."""

    def look_up_one(self, bloom: BloomFilter, key: Key, request: Request) -> Verdict:
        """Look up a request, and record or claim it if it is new, in one round trip.

        Raises:
            StorageError: the outcome is unknown.
        """
        raise NotImplementedError

    def look_up(self, lookups: Sequence[Lookup]) -> LookUp:
        """Return the operation that looks up many requests of one window."""
        raise NotImplementedError

    def record_later(self, key: Key, request: Request) -> None:
        """Record or claim a request after an outage."""
        raise NotImplementedError

    def answered(self, lookups: Sequence[Lookup]) -> None:
        """Note the verdicts of ``look_up``."""

    def take_claimed(self, key: Key, request: Request) -> bool | None:  # noqa: ARG002
        """Return whether a request that has its claim is new; None if it has no claim.

        Such a request is put back, or redirected to itself.
        """
        return None

    def decided(self, key: Key, verdict: Verdict) -> None:
        """Note the verdict on the request that the scheduler is offered."""

    def attach_claim(self, request: Request, key: Key, length: int) -> None:
        """Give a request the claim that was made when it was looked up."""

    def give_back(self, key: Key, verdict: Verdict, length: int) -> None:
        """End the claim of a request that was looked up and never scheduled."""

    def let_pass(self, request: Request) -> None:
        """Store a request that is neither tested nor recorded."""

    def yields(self, page: Request) -> Callable[[object], None] | None:  # noqa: ARG002
        """Return a function for each request and item that a page yields; None for none."""
        return None

    def yields_again(self, page: Request, key: Key) -> None:
        """Note that a page yields such a request."""

    def raised(self, page: Request, error: BaseException, *, in_pipeline: bool = False) -> None:
        """Note that links of a page may not have been found, or that an item was not stored."""

    def forget(self, key: Key) -> None:
        """Note that a page is crawled again in this run."""

    def begin_epoch(self, epoch: int) -> None:
        """Note that the server may have lost what was written last."""

    def may_close(self) -> bool:
        """Return whether an idle spider may close; if not, the engine is woken later."""
        return True

    def finish(self) -> None:
        """Queue the last jobs before the background thread ends."""


class RecordWhenScheduled(Policy):
    """``BLOOM_REMEMBER = "scheduled"``: a URL counts as seen once its request is scheduled.

    Args:
        recorded: notes in the local cache that the URL of a version is recorded in a moment.
    """

    certain = frozenset((Verdict.SEEN, Verdict.NEW))

    def __init__(self, recorded: Callable[[Key], None]) -> None:
        self._recorded = recorded

    def start(self, filters: Filters, write_behind: WriteBehind, opening: Opening) -> None:  # noqa: ARG002
        """See ``Policy``."""
        self._put = write_behind.put

    def look_up_one(self, bloom: BloomFilter, key: Key, request: Request) -> Verdict:  # noqa: ARG002
        """See ``Policy``."""
        item = key[1]
        return bloom.run_one(item, CachedRing.add_one, partial(add, items=[item]))

    def look_up(self, lookups: Sequence[Lookup]) -> LookUp:
        """See ``Policy``."""
        return partial(add, items=[lookup.key[1] for lookup in lookups])

    def record_later(self, key: Key, request: Request) -> None:  # noqa: ARG002
        """See ``Policy``."""
        self._put(Job(JobKind.RECORD, *key))

    def decided(self, key: Key, verdict: Verdict) -> None:
        """See ``Policy``. The URL of a version is recorded a moment later, in no further call."""
        if verdict is Verdict.NEW and key[1].startswith(VERSIONED):
            self._put(Job(JobKind.BASE, key[0], base_of(key[1]) or b""))
            self._recorded(key)
