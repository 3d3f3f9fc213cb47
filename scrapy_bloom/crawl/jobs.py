"""Queued writes: what they are, their order, and the steps that apply them."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Any, TypeVar

from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Wait
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.settings import DEFAULT


class JobKind(Enum):
    """What is done with a URL."""

    #: Record it, because the server did not answer.
    RECORD = "record"
    #: Record the URL of a version that was recorded.
    BASE = "base"
    #: Claim it, because the server did not answer.
    CLAIM = "claim"
    #: Claim a request that is neither tested nor recorded.
    KEEP = "keep"
    #: Make a claim that may be the queue's, or another worker's, this worker's.
    HOLD = "hold"
    #: Its page is crawled: record it and end its claim.
    CONFIRM = "confirm"
    #: Its page is crawled: end its claim without recording it.
    DONE = "done"
    #: End its claim.
    RELEASE = "release"
    #: Its page failed: end its claim with a cool-down.
    FAIL = "fail"
    #: Its page is crawled, and has to yield a request again that failed: like FAIL, but a page that
    #: is read in each run is new to those that link it.
    LATER = "later"
    #: Its page has to be crawled again: free its claim for the next look.
    REPEAT = "repeat"
    #: End a claim of which only the field is known.
    DROP = "drop"


#: Those of pages that were crawled: not applied if the server may have lost their links.
CRAWLED = (JobKind.CONFIRM, JobKind.DONE)
#: Those that take memory on the server; most others give some back.
GROWING = (JobKind.RECORD, JobKind.BASE, JobKind.CLAIM, JobKind.KEEP)
#: Those that are queued because the server did not answer.
REPLAYED = (JobKind.RECORD, JobKind.CLAIM)


@dataclass(frozen=True, slots=True)
class Job:
    """A queued write.

    Args:
        kind: what is done.
        window: the filter's window.
        item: the fingerprint; for DROP, the claim's field.
        request: the request as JSON, for CLAIM and KEEP.
        block: the claim's block, for DROP.
        epoch: the epoch in which the page began to yield, for CONFIRM and DONE.
        is_last: whether all jobs before it come first: claims on the page's links.
        relies_on: for CONFIRM and DONE, claims of pages that wait for requests which this page has
            yielded too: if one is another worker's, the page is left for later.
        yielded: likewise, claims on requests that it yielded: if one is another worker's, without
            the request, the page is left for later.
        page: field of the claim of the page that yielded it, for CLAIM and KEEP.
        reason: why its page failed, for FAIL, LATER and REPEAT; why it is missing, for CONFIRM.
    """

    kind: JobKind
    window: str
    item: bytes
    request: str = field(default="", repr=False)  # long, and maybe with credentials
    block: int = 0
    epoch: int = 0
    is_last: bool = False
    page: str = ""
    reason: str = ""
    relies_on: frozenset[tuple[str, bytes]] = frozenset()
    yielded: frozenset[tuple[str, bytes]] = frozenset()


def group(job: Job) -> tuple[JobKind, str]:
    """Return what jobs have in common that are applied in one call."""
    return job.kind, job.window


def freeing_first(jobs: Iterable[Job]) -> tuple[list[Job], list[Job]]:
    """Return the jobs that give memory back on a full server and may be applied now; the others.

    Jobs on one item keep their order, and no page is settled before its links are claimed.
    """
    freeing: list[Job] = []
    others: list[Job] = []
    blocked = set[tuple[str, bytes]]()
    for job in jobs:
        is_free = not (job.is_last and others) and (job.window, job.item) not in blocked
        if job.kind not in GROWING and is_free:
            freeing.append(job)
        else:
            blocked.add((job.window, job.item))
            others.append(job)
    return freeing, others


class JobQueue:
    """The jobs that wait, in their order. The crawl's thread appends; that or another one takes.

    Attributes:
        length: characters of the requests in them.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._added = self._taken = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def length(self) -> int:
        """Characters of the requests in jobs that wait."""
        return self._added - self._taken

    def append(self, job: Job) -> None:
        """Add a job."""
        self._jobs.append(job)
        self._added += len(job.request)

    def first_batch(self, most: int) -> list[Job]:
        """Return the first jobs, as long as they are of one kind and for one filter."""
        # By number: the other thread may append, and an iterator of a deque would fail.
        first = (self._jobs[number] for number in range(min(most, len(self._jobs))))
        return list(takewhile(lambda job: group(job) == group(self._jobs[0]), first))

    def take(self, count: int) -> list[Job]:
        """Remove the first jobs, and return them."""
        jobs = [self._jobs.popleft() for _ in range(count)]
        self._taken += sum(len(job.request) for job in jobs)
        return jobs

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Add jobs before all others."""
        self._jobs.extendleft(reversed(jobs))
        self._taken -= sum(len(job.request) for job in jobs)


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


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """Something to ask the server.

    Args:
        window: of the filter.
        operation: is run on it; None to identify the server's process.
        wait: if given, is waited for instead.
    """

    window: str = DEFAULT
    operation: Callable[[FilterSession], Operation[Any]] | None = None
    wait: Wait | None = None


#: Makes the step of an operation.
Run = Callable[[Callable[[FilterSession], Operation[Any]]], Step]
#: Yields steps, receives what they return, returns its result.
Steps = Generator[Step, Any, T]


def run_blocking(steps: Steps[T], filters: Filters) -> T:
    """Carry out steps and return their result."""
    try:
        step = next(steps)
        while True:
            try:
                if step.wait is not None:
                    answer: Any = filters.wait(step.wait)
                elif step.operation is None:
                    answer = filters.server_id()
                else:
                    answer = filters.by_window[step.window].run(step.operation)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
