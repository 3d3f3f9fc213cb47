"""A thread that writes what nobody has to wait for, and sees to it that the server is there.

The crawl puts jobs down; the thread carries them out in their order, many at a time. When the
server fails it, or the crawl, it looks for the server again and again, and then makes up for what
could not be written.
"""

import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile
from typing import Any, Protocol

from scrapy_bloom.bloom.client.deadline import within
from scrapy_bloom.bloom.errors import BloomError, ServerFullError
from scrapy_bloom.bloom.protocol import claims as claim_protocol
from scrapy_bloom.bloom.protocol.membership import UNRECORDED, add
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.filters import OPENING_TIMEOUT, Filters, Opening

logger = logging.getLogger(__name__)

#: Kinds of jobs: record a URL; claim one; claim one untested; hold a claim that is in a queue;
#: record a URL and end its claim; end the claim of a page that is crawled and not remembered; end
#: a claim; end it with a cool-down; have its page crawled again; end a claim of which only the
#: field is known.
RECORD, TAKE, KEEP, HOLD, CONFIRM, DONE, RELEASE, FAIL, REPEAT, DROP = (
    *("record", "take", "keep", "hold", "confirm", "done", "release", "fail", "repeat", "drop"),
)
#: Those of pages that were crawled: not carried out if the server may have lost their links.
CRAWLED = (CONFIRM, DONE)
#: Those that take no memory on the server; most give some back.
FREEING = (HOLD, CONFIRM, DONE, RELEASE, FAIL, REPEAT, DROP)
#: Those that are put down because the server did not answer.
REPLAYED = (RECORD, TAKE)
#: Seconds in which jobs are collected: what a ``kill -9`` loses of them.
FLUSH_INTERVAL = 0.1
#: Jobs carried out together at most.
MAX_BATCH = 500
#: Seconds between looks for the server: the first one, and at most.
FIRST_RETRY, LAST_RETRY = 0.1, 5.0
#: Seconds after which a server that stayed up counts as well again.
RECOVERED_AFTER = 10.0
#: Attempts after which the request of a page that did not fail is no longer kept: never.
FOREVER = 1_000_000_000

#: Runs an operation on a filter.
Run = Callable[[Callable[[FilterSession], Operation[Any]]], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be written.

    Args:
        kind: what is to be done.
        window: the filter's window.
        item: the fingerprint; for DROP, the claim's field.
        request: the request as JSON, for TAKE and KEEP.
        block: the claim's block, for DROP.
        epoch: the epoch in which the page began to yield, for CONFIRM and DONE.
        is_last: whether it has to come after all jobs before it: claims on the page's links.
    """

    kind: str
    window: str
    item: bytes
    request: str = ""
    block: int = 0
    epoch: int = 0
    is_last: bool = False


class Events(Protocol):
    """Is told what happens; always in the crawl's thread."""

    def server_failed(self, error: BloomError, epoch: int) -> None:
        """The server does not do what it is asked; an epoch begins."""

    def server_missing(self, error: BloomError) -> None:
        """It was looked for, and still does not."""

    def server_back(self, filters: Filters) -> None:
        """It does again; these filters are connected to it."""

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        """Jobs have been carried out, save that some items could not be recorded."""

    def server_restarted(self, epoch: int) -> None:
        """It is another process than before, and may have lost what was written last."""

    def repeated(self, jobs: Sequence[Job]) -> None:
        """These pages will be crawled again, because the claims on their links may be lost."""


class PeriodicTask(Protocol):
    """What the thread does beside its jobs."""

    def run(self, filters: Filters) -> float:
        """Do it; return the seconds until it has to be done again."""

    def recovered(self) -> None:
        """The server was away, and is back."""

    def look_soon(self) -> None:
        """There are claims to be taken over."""

    def end(self, filters: Filters) -> None:
        """Do what has to be done last."""


class WriteBehind:
    """Writes in a thread of its own.

    Args:
        connect: makes filters for one thread.
        in_main: has a function called in the crawl's thread.
        events: is told what happens.
        owner: of the claims that are made.
        worker: id of this worker, who holds claims.
        failure: what becomes of the claims of URLs that failed.
        chore: what is to be done beside.
    """

    def __init__(
        self,
        connect: Callable[[], Filters],
        in_main: Callable[[Callable[[], object]], object],
        events: Events,
        *,
        owner: str = "",
        worker: str = "",
        failure: claim_protocol.RetryPolicy | None = None,
        chore: PeriodicTask | None = None,
    ) -> None:
        self._connect = connect
        self._in_main = in_main
        self._events = events
        self._owner = owner
        self._worker = worker
        self._failure = failure
        self._chore = chore
        #: Epochs are counted in outages, and in restarts that were none. Pages that began in an
        #: earlier one than that of the last restart have links whose claims may be lost.
        self._epoch = self._restarted = 0
        self._epoch_lock = threading.Lock()
        self._server_id = ""
        #: Jobs carried out, and round trips they took.
        self.done: Counter[str] = Counter()
        self.round_trips = 0
        self._jobs: deque[Job] = deque()
        #: Characters of the requests in jobs: put down by the crawl, and carried out since.
        self._put_length = self._done_length = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: When the thread has to end; until then it tries.
        self._deadline = float("inf")
        self._filters: Filters | None = None
        #: Whether the server has failed this thread, or the crawl's, and was not found since.
        self._is_broken = False
        #: Looks for the server in vain, and when it was found last.
        self._failures, self._found = 0, float("-inf")

    # -- called by the crawl's thread --

    def put(self, job: Job) -> None:
        """Have a job done; jobs are done in their order."""
        self._jobs.append(job)
        self._put_length += len(job.request)
        self.wake()

    def wake(self) -> None:
        """Have the thread look what there is to do."""
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="scrapy-bloom", daemon=True)
            self._thread.start()

    def fail(self) -> int:
        """Take note that the server failed the crawl: the thread looks for it; return the epoch."""
        epoch = self._begin_outage()
        self.wake()
        return epoch

    def _begin_outage(self) -> int:
        """Begin an epoch, unless there is an outage already: both threads may notice it."""
        with self._epoch_lock:
            self._epoch += not self._is_broken
            self._is_broken = True
            return self._epoch

    @property
    def backlog(self) -> int:
        """Jobs that are waiting."""
        return len(self._jobs)

    @property
    def backlog_length(self) -> int:
        """Characters of the requests in jobs that are waiting."""
        return self._put_length - self._done_length

    def stop(self, timeout: float) -> int:
        """Do what there is to do, for so many seconds; return the number of jobs left undone."""
        if self._thread is None and not self._jobs and self._chore is None:
            return 0
        self._deadline = time.monotonic() + timeout
        self._stopping.set()
        self.wake()
        assert self._thread is not None  # noqa: S101 - wake started it
        # The call that is under way at the end may take a time-out more.
        self._thread.join(2 * timeout + 1)
        return len(self._jobs)

    # -- the thread --

    def _run(self) -> None:
        try:
            wait = 0.0
            while not self._is_over():
                self._wait(min(wait, max(0.0, self._deadline - time.monotonic())))
                wait = self._step()
        finally:
            self._disconnect()

    def _wait(self, seconds: float) -> None:
        if self._is_broken:
            # No job makes it look for the server sooner. (The outage may have begun after the step
            # that returned the seconds.)
            if self._stopping.wait(min(seconds, LAST_RETRY)):
                time.sleep(min(seconds, FLUSH_INTERVAL))
            return
        self._wake.wait(seconds)
        self._wake.clear()
        # Jobs are collected for a moment, so that a page's are done together.
        self._stopping.wait(FLUSH_INTERVAL)

    def _is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        if self._is_late:
            return True
        if self._is_broken or self._jobs:
            return False
        with suppress(BloomError):
            if self._chore is not None:
                self._chore.end(self._connected())
        return True

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _step(self) -> float:
        """Carry out what there is; return the seconds until something is due."""
        try:
            if self._is_broken:
                self._look_for_server()
            filters = self._connected()
            self._flush(filters)
            seconds = 3600.0 if self._chore is None else self._chore.run(filters)
        except BloomError as error:
            return self._failed(error)
        except Exception as error:
            logger.exception("Bloom filter: the writer failed")
            return self._failed(BloomError(f"{type(error).__name__}: {error}"))
        # The crawl's thread may have noticed an outage that this one has not.
        return FIRST_RETRY if self._is_broken else seconds

    def _failed(self, error: BloomError) -> float:
        """Take note that the server failed; return the seconds until the next look for it."""
        if self._is_broken:
            self._tell(partial(self._events.server_missing, error))
        else:
            self._tell(partial(self._events.server_failed, error, self._begin_outage()))
        self._disconnect()
        if time.monotonic() - self._found > RECOVERED_AFTER:
            self._failures, self._found = 0, float("inf")
        self._failures += 1
        return min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(self._failures, 10))

    def _flush(self, filters: Filters) -> None:
        while self._jobs and not self._is_late:
            jobs = self._next_batch()
            try:
                unrecorded = self._carry_out(filters, jobs)
            except ServerFullError:
                if not self._free_memory(filters):
                    raise
                continue
            except BloomError:
                raise  # they are done again, and may so be done twice, which does no harm
            except Exception:
                logger.exception("Bloom filter: %s cannot be carried out", jobs[0])
                self._done_length += len(self._jobs.popleft().request)
                continue  # the others are tried again, without it
            for _ in jobs:
                self._done_length += len(self._jobs.popleft().request)
            self.done[jobs[0].kind] += len(jobs)
            if unrecorded or jobs[0].kind in REPLAYED:
                self._tell(partial(self._events.written, jobs, unrecorded))

    def _next_batch(self) -> list[Job]:
        """Return the next jobs, as long as they are of one kind and for one filter."""
        first = self._jobs[0]
        # By number: while it is iterated over, nothing could be put down.
        jobs = (self._jobs[number] for number in range(min(MAX_BATCH, len(self._jobs))))
        return list(takewhile(lambda job: _group(job) == _group(first), jobs))

    def _free_memory(self, filters: Filters) -> bool:
        """Carry out the jobs that give memory back on a full server; whether there were any.

        Jobs on one item keep their order, and no page is settled before its links are claimed.
        """
        waiting = [self._jobs.popleft() for _ in range(len(self._jobs))]
        freeing: list[Job] = []
        others: list[Job] = []
        blocked = set[tuple[str, bytes]]()
        for job in waiting:
            is_free = not (job.is_last and others) and (job.window, job.item) not in blocked
            if job.kind in FREEING and is_free:
                freeing.append(job)
            else:
                blocked.add((job.window, job.item))
                others.append(job)
        is_freed = False
        try:
            for _, group in groupby(freeing.copy(), _group):
                jobs = list(group)
                for start in range(0, len(jobs), MAX_BATCH):
                    self._carry_out(filters, jobs[start : start + MAX_BATCH])
                    del freeing[: len(jobs[start : start + MAX_BATCH])]
                    is_freed = True
        except ServerFullError:
            pass  # a filter that has to grow first; the others have made room for it, perhaps
        finally:
            self._jobs.extendleft(reversed(freeing + others))
        return is_freed

    def _carry_out(self, filters: Filters, jobs: Sequence[Job]) -> list[bytes]:
        """Carry out jobs of one kind and window; return the items that could not be recorded."""
        kind, run = jobs[0].kind, filters.by_window[jobs[0].window].run
        items, requests = [job.item for job in jobs], [job.request for job in jobs]
        nonce, worker = secrets.token_hex(4), self._worker
        if kind == RECORD:
            verdicts = run(lambda session: add(session, items))
            return [item for item, v in zip(items, verdicts, strict=True) if v == UNRECORDED]
        if kind in (TAKE, KEEP):
            untested = kind == KEEP
            run(
                lambda v: claim_protocol.claim(
                    v, items, requests, self._owner, nonce, tested=not untested
                )
            )
        elif kind == HOLD:
            run(lambda session: claim_protocol.hold(session, items, worker, nonce))
        elif kind == FAIL:
            run(lambda session: claim_protocol.release(session, items, worker, self._failure))
        elif kind == DROP:
            for job in jobs:
                fields = {job.block: [job.item.decode()]}
                run(partial(claim_protocol.release_fields, fields=fields, owner=self._owner))
        elif kind == RELEASE:
            self._release(run, items)
        elif kind == REPEAT:
            self._repeat(run, items)
        elif kind in CRAWLED:
            return self._settle_crawled(filters, jobs)
        return []

    def _release(self, run: Run, items: Sequence[bytes]) -> None:
        for owner in {self._worker, self._owner}:  # not of a worker that has taken them over
            run(partial(claim_protocol.release, items=items, owner=owner))

    # -- pages that are crawled --

    def _settle_crawled(self, filters: Filters, jobs: Sequence[Job]) -> list[bytes]:
        """Record pages and end their claims; return the items that could not be recorded.

        A server that was restarted, or replaced by a replica, may have lost the claims on the links
        of a page while the page's own, which are older, are there. So the pages that began before
        are crawled again, and nothing may be sent to a server that was not looked at.
        """
        self._look_at_server(filters)
        with within(None, connect=False):
            run = filters.by_window[jobs[0].window].run
            if repeated := [job for job in jobs if job.epoch < self._restarted]:
                self._repeat(run, [job.item for job in repeated])
                self._tell(partial(self._events.repeated, repeated))
            crawled = [job.item for job in jobs if job.epoch >= self._restarted]
            if jobs[0].kind == CONFIRM:
                return self._confirm(run, crawled)
            self._release(run, crawled)
            return []

    def _repeat(self, run: Run, items: Sequence[bytes]) -> None:
        """Leave pages to the next look at claims, which is soon."""
        assert self._failure is not None  # noqa: S101 - pages are claimed
        due_now = replace(self._failure, seconds=0, attempts=FOREVER)
        run(lambda session: claim_protocol.release(session, items, self._worker, due_now))
        if self._chore is not None:
            self._chore.look_soon()

    def _confirm(self, run: Run, items: Sequence[bytes]) -> list[bytes]:
        nonce = secrets.token_hex(4)
        # If its claim is lost, those of its links may be as well: it is to be crawled again.
        there = run(lambda session: claim_protocol.hold(session, items, self._worker, nonce))
        items = [item for item in items if claim_protocol.field_of(item) in there]
        verdicts = run(lambda session: add(session, items, on_full=True))
        # After it is recorded: at every moment it is seen by one or the other.
        run(lambda session: claim_protocol.release(session, items))
        return [item for item, v in zip(items, verdicts, strict=True) if v == UNRECORDED]

    def _look_at_server(self, filters: Filters) -> None:
        """Take note if the server is another process than before.

        What was claimed since an outage began is put down for this thread, and claimed on the new
        server: only pages that began before the outage are to be crawled again.
        """
        server_id = filters.server_id()
        if self._server_id and server_id != self._server_id:
            with self._epoch_lock:
                self._epoch += not self._is_broken
                self._restarted = self._epoch
            self._tell(partial(self._events.server_restarted, self._restarted))
        self._server_id = server_id

    # -- the server --

    def _connected(self) -> Filters:
        if self._filters is None:
            self._filters = self._open()
        return self._filters

    def _open(self) -> Filters:
        filters = self._connect()
        # While the server is looked for, there is another attempt soon.
        patience = 0.0 if self._is_broken else OPENING_TIMEOUT
        opening = Opening(patience, lambda: self._is_broken or self._stopping.is_set())
        try:
            for bloom in filters.by_window.values():
                opening.run(bloom.open)
            opening.run(partial(self._look_at_server, filters))
        except BaseException:
            filters.close()
            raise
        return filters

    def _disconnect(self) -> None:
        if self._filters is not None:
            self.round_trips += self._filters.round_trips
            self._filters.close()
            self._filters = None

    def _look_for_server(self) -> None:
        """Connect anew and make up for what could not be written; or raise."""
        self._disconnect()
        self._flush(self._connected())
        # The crawl gets filters of its own: those it has may be in any state.
        theirs = self._open()
        with self._epoch_lock:
            self._is_broken = False
        self._found = time.monotonic()
        if self._chore is not None:
            self._chore.recovered()
        if not self._tell(partial(self._events.server_back, theirs)):
            theirs.close()

    def _tell(self, function: Callable[[], object]) -> bool:
        try:
            self._in_main(function)
        except RuntimeError:
            # The crawl is over, and its event loop closed.
            return False
        return True


def _group(job: Job) -> tuple[str, str]:
    return job.kind, job.window
