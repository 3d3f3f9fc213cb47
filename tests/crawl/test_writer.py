"""``Writer``: outages without asyncio, errors that are bugs, and the end.

The simulator shows the rest.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scrapy.settings import Settings
from support.loops import eventually, in_loop

from scrapy_bloom import StorageError
from scrapy_bloom.bloom.errors import BloomError, ServerFullError
from scrapy_bloom.crawl import writer as writing
from scrapy_bloom.crawl.context import Context, Runtime
from scrapy_bloom.crawl.jobs import Job, JobKind, JobQueue
from scrapy_bloom.crawl.server import Filters, Server
from scrapy_bloom.crawl.writer import Writer
from scrapy_bloom.fingerprinter import Key
from scrapy_bloom.settings import BloomSettings

pytestmark = pytest.mark.usefixtures("short_retries")
RECORD, CLAIM, RELEASE = JobKind.RECORD, JobKind.CLAIM, JobKind.RELEASE
#: Seconds that a writer gets to finish.
TIMEOUT = 5.0


class Memory:
    """A server in memory, as a writer sees it: its connection, and all that the writer uses.

    Attributes:
        applied: the items that were applied together, with their kind.
        error: which a call, or an attempt to connect, raises.
        on_call: is called after each call.
        is_open: calls wait for it.
        is_full: whether it is out of memory until something is released.
    """

    is_slow = False

    def __init__(self) -> None:
        self.applied: list[tuple[JobKind, list[bytes]]] = []
        self.error: Exception | None = None
        self.is_full, self.attempts = False, 0
        self.on_call: Callable[[], object] = int
        self.is_open: asyncio.Event | None = None
        self.missed: list[str] = []
        self.replays: list[bool] = []
        self.late: list[bytes] = []
        self.counted = 0
        self.jobs, self.label = JobQueue(), ""
        here: Any = self
        self.server = Server(Filters({}, here), TIMEOUT)
        settings = BloomSettings.from_scrapy(Settings(), "shop")
        context = Context(settings, here, here, Runtime(), self.server, here, self.jobs)
        self.writer = Writer(context, here)

    def put(self, kind: JobKind, *items: bytes) -> None:
        """Queue jobs."""
        for item in items:
            self.jobs.put(Job(kind, "default", item))

    @property
    def order(self) -> list[tuple[JobKind, bytes]]:
        """All that was applied, item by item."""
        return [(kind, item) for kind, items in self.applied for item in items]

    # -- the connection --

    def restart(self) -> None:
        self.attempts += 1
        if self.error is not None:
            raise self.error

    # -- what applies jobs --

    async def apply(self, jobs: Sequence[Job]) -> list[bytes]:
        if self.is_open is not None:
            await self.is_open.wait()
        if self.error is not None:
            raise self.error
        if any(job.item == b"bad" for job in jobs):
            raise ValueError("it cannot be applied")
        if self.is_full and jobs[0].kind is CLAIM:
            raise ServerFullError("it is out of memory")
        self.is_full &= jobs[0].kind is not RELEASE
        self.applied.append((jobs[0].kind, [job.item for job in jobs]))
        self.on_call()
        return []

    async def identify_server(self, *, has_replayed: bool = True) -> None:
        self.replays.append(has_replayed)

    # -- what is reported, and noted in this process --

    def server_failed(self, error: BloomError, policy: str) -> None:
        """An outage begins."""

    def server_missing(self, error: BloomError) -> None:
        self.missed.append(str(error))

    def server_back(self, server: object, replayed: int) -> None:
        """An outage has ended."""

    def count(self, name: str, *, count: int) -> None:
        assert name == "recorded_late"
        self.counted += count

    def recorded(self, keys: Sequence[Key], unrecorded: Sequence[bytes], *, is_up: bool) -> None:
        assert not unrecorded
        self.late += [item for _, item in keys]

    def server_is_used(self) -> None:
        """Nothing was kept."""


@pytest.fixture
def memory() -> Memory:
    return Memory()


def items(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_without_asyncio_a_request_does_not_wait_for_all_that_an_outage_has_left(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_BATCH", 1)
    memory.on_call = lambda: time.sleep(0.01)
    memory.server.fail(StorageError("it was away"))
    memory.put(RECORD, *items(50))
    memory.writer.write_now(0.1)
    assert 0 < len(memory.late) < 50
    memory.writer.write_now(TIMEOUT)
    assert memory.late == items(50)


@in_loop
async def test_a_full_server_gets_memory_back_before_more_is_asked_of_it(memory: Memory) -> None:
    """It is no outage. What goes first: unit/test_jobs.py."""
    memory.is_full = True
    memory.put(CLAIM, b"new")
    memory.put(RELEASE, b"old")
    memory.writer.start()
    assert await memory.writer.finish(TIMEOUT) == 0
    assert memory.order == [(RELEASE, b"old"), (CLAIM, b"new")]
    assert memory.server.epoch == 0


# -- when the server does not answer, and bugs --


@in_loop
async def test_a_job_that_cannot_be_applied_does_not_keep_the_others_from_it(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.writer.start()
    memory.put(RELEASE, b"1")
    memory.put(RECORD, b"1", b"bad", b"2")
    memory.put(RELEASE, b"3")
    assert await memory.writer.finish(TIMEOUT) == 0
    assert memory.order == [(RELEASE, b"1"), (RECORD, b"1"), (RECORD, b"2"), (RELEASE, b"3")]
    assert memory.late == [b"1", b"2"], "what is not written must not be forgotten"
    assert caplog.text.count("Traceback") == 1


@in_loop
async def test_an_error_that_is_a_bug_neither_ends_the_writer_nor_makes_it_spin(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.writer.start()
    memory.error = RuntimeError("a bug")
    memory.server.fail(memory.error)
    await eventually(lambda: memory.attempts == 4)
    begin = time.monotonic()
    await eventually(lambda: memory.attempts == 8)
    assert time.monotonic() - begin > 0.2, "0.1 s between attempts"
    assert len(caplog.records) <= memory.attempts, "one line for an attempt"
    memory.error = None
    memory.put(RELEASE, b"1")
    await eventually(lambda: memory.server.is_up)
    assert await memory.writer.finish(TIMEOUT) == 0
    assert memory.order == [(RELEASE, b"1")]


# -- the end --


@in_loop
async def test_what_a_cancelled_task_leaves_is_written_at_the_end(memory: Memory) -> None:
    memory.is_open = is_open = asyncio.Event()
    memory.writer.start()
    memory.put(RELEASE, b"1")
    await asyncio.sleep(10 * writing.FLUSH_SECONDS)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if task.get_coro().__qualname__ == "Writer._run":
            task.cancel()
    await asyncio.sleep(0)
    is_open.set()
    memory.put(CLAIM, b"2")
    assert await memory.writer.finish(TIMEOUT) == 0
    assert memory.order == [(RELEASE, b"1"), (CLAIM, b"2")]


@in_loop
async def test_what_was_under_way_when_an_outage_began_is_no_replay(memory: Memory) -> None:
    """Else all pages of the outage are crawled again if the server is another one after it."""
    memory.is_open = asyncio.Event()
    memory.writer.start()
    memory.put(RELEASE, b"before")
    while memory.jobs.wake.is_set():  # until the job is under way
        await asyncio.sleep(0.001)
    memory.server.fail(StorageError("it was away"))
    memory.is_open.set()
    memory.put(RECORD, b"later")
    while not memory.server.is_up:
        await asyncio.sleep(0.001)
    assert memory.order == [(RELEASE, b"before"), (RECORD, b"later")]
    assert memory.replays == [False]
    await memory.writer.finish(TIMEOUT)
