"""``WriteBehind``: batches, a server that is full, and errors that are bugs.

The simulator shows the rest.
"""

import time

import pytest
from support.polling import PATIENCE
from support.write_behind import TIMEOUT, EventLog, FakeServer, FakeTask, MakeWriter, items, put

from scrapy_bloom import StorageError
from scrapy_bloom.crawl import flush
from scrapy_bloom.crawl.jobs import Job, JobKind

pytestmark = pytest.mark.usefixtures("short_retries")
RECORD, CLAIM, CONFIRM = JobKind.RECORD, JobKind.CLAIM, JobKind.CONFIRM
RELEASE = JobKind.RELEASE

# -- batches --


def test_jobs_of_a_kind_are_done_together(make_writer: MakeWriter, fake: FakeServer) -> None:
    writer = make_writer()
    put(writer, RELEASE, items(100))
    assert writer.stop(TIMEOUT) == 0
    assert fake.items("release") == items(100)
    assert len(fake.calls) < 10
    assert writer.round_trips == len(fake.calls)


def test_ten_thousand_jobs_are_done_in_batches_that_are_not_too_large(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    writer = make_writer()
    put(writer, RELEASE, items(10_000))
    assert writer.stop(PATIENCE) == 0
    assert fake.items("release") == items(10_000)
    assert max(len(batch) for _, batch in fake.calls) <= flush.MAX_BATCH
    assert len(fake.calls) < 200


# -- a server that is out of memory --


def test_a_full_server_gets_memory_back_before_more_is_asked_of_it(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    """Jobs on one item keep their order; a full server is no outage."""
    writer = make_writer()
    fake.is_full = True
    for kind, name in ((CLAIM, b"new"), (CONFIRM, b"new"), (RELEASE, b"old"), (CLAIM, b"next")):
        writer.put(Job(kind, "default", name))
    assert writer.stop(PATIENCE) == 0
    done = fake.operations()
    assert done[:2] == [("default release", b"old"), ("default claim", b"new")]
    assert done.index(("default confirm", b"new")) < done.index(("default claim", b"next"))


def test_a_full_server_records_no_page_whose_links_are_not_claimed(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    writer = make_writer()
    fake.is_full = True
    writer.put(Job(CLAIM, "default", b"link"))
    writer.put(Job(CONFIRM, "default", b"page", is_last=True))
    writer.put(Job(CONFIRM, "default", b"leaf"))
    assert writer.stop(PATIENCE) == 0
    done = fake.operations()
    order = [("default confirm", b"leaf"), ("default claim", b"link"), ("default confirm", b"page")]
    assert sorted(order, key=done.index) == order


def test_a_full_server_with_nothing_to_give_back_is_an_outage(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    writer = make_writer()
    fake.is_full = True
    put(writer, CLAIM, items(3))
    events.pump(lambda: events.count("missing"))
    assert events.received[0] == "failed: it is out of memory"
    assert len(writer.queue) == 3
    fake.is_full = False
    events.pump(lambda: events.count("back"))
    assert fake.items("claim") == items(3)


# -- when the server does not answer --


def test_what_was_done_before_the_server_failed_is_not_done_again(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "MAX_BATCH", 1)

    def fail_at_five() -> None:
        fake.error = StorageError("it is away") if len(fake.calls) == 5 else None

    fake.on_call = fail_at_five
    writer = make_writer()
    put(writer, RELEASE, items(10))
    events.pump(lambda: events.count("missing"))
    fake.error = None
    events.pump(lambda: not writer.queue)
    assert fake.items("release") == items(10)


# -- bugs --


def test_a_job_that_cannot_be_done_does_not_keep_the_others_from_it(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make_writer()
    put(writer, RELEASE, items(5))
    writer.put(Job(JobKind.DROP, "default", b"\xff"))
    writer.put(Job(CLAIM, "no such window", b"lost"))
    put(writer, RELEASE, items(5, 5))
    events.pump(lambda: not writer.queue)
    assert fake.items("release") == items(10)
    assert caplog.text.count("Traceback") <= 2
    assert b"lost" not in events.late, "it is not written, so it must not be forgotten"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("bug"), RecursionError()])
def test_an_error_that_is_a_bug_neither_ends_the_thread_nor_makes_it_spin(
    make_writer: MakeWriter,
    fake: FakeServer,
    events: EventLog,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = make_writer()
    fake.error = error
    writer.fail()
    events.pump(lambda: events.count("missing") == 4)
    begin = time.monotonic()
    events.pump(lambda: events.count("missing") == 8)
    # 0.1 s between attempts; the first event may have been late.
    assert time.monotonic() - begin > 0.2
    assert len(caplog.records) <= fake.attempts, "one line for an attempt"
    fake.error = None
    events.pump(lambda: events.count("back"))
    put(writer, RELEASE, items(1))
    events.pump(lambda: fake.calls)


def test_a_periodic_task_that_fails_neither_spins_nor_keeps_jobs_from_being_applied(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    task = FakeTask(RuntimeError("a bug"))
    writer = make_writer(task=task)
    begin = time.monotonic()
    put(writer, RELEASE, items(10))
    events.pump(lambda: not writer.queue and events.count("failed"))
    events.pump(lambda: task.calls.count("run") == 8)
    assert time.monotonic() - begin > 0.02 + 0.04 + 0.08 + 4 * 0.1
    assert fake.items("release") == items(10)


def test_jobs_are_applied_when_the_event_loop_is_closed(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    """An event loop that is closed raises RuntimeError."""
    writer = make_writer()

    def fail(function: object) -> None:
        raise RuntimeError("Event loop is closed")

    writer._in_main = fail
    writer.fail()
    put(writer, RECORD, items(10))
    events.pump(lambda: not writer.queue)
    assert writer.stop(TIMEOUT) == 0
    assert fake.items("add") == items(10)
