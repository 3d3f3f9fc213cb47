"""Queued writes: what they are, and their order."""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile

from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy


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
        request: the request as JSON, for CLAIM, KEEP, and FAIL if it is stored.
        block: the claim's block, for DROP.
        epoch: the epoch in which the page began to yield, for CONFIRM and DONE.
        is_last: whether all jobs before it come first: claims on the page's links.
        page: field of the claim of the page that yielded it, for CLAIM and KEEP.
        waiting: for CONFIRM and DONE, fields of the claims of pages that have waited for it.
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
    waiting: tuple[str, ...] = ()
    reason: str = ""


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


def _holds(jobs: Collection[Job]) -> list[Job]:
    """Return the claims to hold of one filter before which nothing is done with their URLs."""
    found, before, hold = list[Job](), set[tuple[str, bytes]](), JobKind.HOLD
    if not any(job.kind is hold for job in jobs):
        return found  # as most do: 500,000 jobs may wait
    for job in jobs:
        is_first = (job.window, job.item) not in before
        before.add((job.window, job.item))
        if job.kind is hold and is_first and job.window == (found or [job])[0].window:
            found.append(job)
    return found


class JobQueue:
    """The jobs that wait: in their order for each URL, with claims to hold first.

    Attributes:
        wake: is set when there are any, or the writer has something else to do.
        length: characters of the requests in them.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self.wake = asyncio.Event()
        self.length = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: Job) -> None:
        """Add a job."""
        self._jobs.append(job)
        self.length += len(job.request)
        self.wake.set()

    def first_batch(self, most: int) -> list[Job]:
        """Return the next jobs to apply together: of one kind, for one filter, of the first ones.

        Claims to hold come before all else that is done with other URLs. A worker with a shared
        queue has one of them between any two pages that it confirms, and would do all one by one.
        """
        jobs = [*islice(self._jobs, most)]
        first = group(jobs[0])
        return _holds(jobs) or list(takewhile(lambda job: group(job) == first, jobs))

    def take(self, batch: Collection[Job]) -> None:
        """Remove jobs, which are among the first ones."""
        left, passed = set(map(id, batch)), list[Job]()
        while left:
            job = self._jobs.popleft()
            if id(job) in left:
                left.remove(id(job))
            else:
                passed.append(job)
        self._jobs.extendleft(reversed(passed))
        self.length -= sum(len(job.request) for job in batch)

    def take_all(self) -> list[Job]:
        """Remove all jobs, and return them."""
        jobs = [*self._jobs]
        self._jobs.clear()
        self.length = 0
        return jobs

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Add jobs before all others."""
        self._jobs.extendleft(reversed(jobs))
        self.length += sum(len(job.request) for job in jobs)


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
