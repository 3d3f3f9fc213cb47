"""``WriteBehind`` and a server that is full, down or restarted; and errors that are bugs."""

import time

import pytest
from support.polling import PATIENCE
from support.write_behind import TIMEOUT, EventLog, FakeServer, FakeTask, MakeWriter, items, put

from scrapy_bloom import StorageError
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl import flush, server_state
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind

pytestmark = pytest.mark.usefixtures("short_retries")
RECORD, CLAIM, CONFIRM = JobKind.RECORD, JobKind.CLAIM, JobKind.CONFIRM
DONE, RELEASE, REPEAT = JobKind.DONE, JobKind.RELEASE, JobKind.REPEAT
#: Whose claims the jobs end.
OWNED = ClaimOwner(worker="w", retry=claim_protocol.RetryPolicy("-spider", 60, 5))

# -- a server that is out of memory, and one that was restarted --


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


@pytest.mark.parametrize("kind", [CONFIRM, DONE])
def test_pages_begun_before_the_server_was_restarted_are_crawled_again(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog, kind: JobKind
) -> None:
    task = FakeTask()
    writer = make_writer(task=task, claims=OWNED)
    put(writer, kind, items(2))
    events.pump(lambda: not writer.queue)
    assert events.repeats == []
    fake.id, before = "second", len(fake.calls)
    put(writer, kind, items(2, 2))
    writer.put(Job(kind, "default", b"begun later", epoch=1))
    events.pump(lambda: not writer.queue)
    events.pump(lambda: events.repeats == items(2, 2))
    assert events.count("restarted: 1") == 1
    assert "look soon" in task.calls
    assert fake.items("confirm") == ([*items(2), b"begun later"] if kind is CONFIRM else [])
    assert ("default release", items(2, 2)) in fake.calls[before:]


@pytest.mark.parametrize("is_restarted", [True, False])
def test_pages_begun_in_an_outage_are_not_crawled_again(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog, is_restarted: bool
) -> None:
    """Their links are claimed on the server that is up after the outage."""
    writer = make_writer(claims=OWNED)
    put(writer, CONFIRM, items(1))
    events.pump(lambda: not writer.queue)
    fake.error = StorageError("it is away")
    put(writer, CONFIRM, items(1, 1))
    events.pump(lambda: events.count("missing"))
    assert writer.fail() == events.epoch == 1
    writer.put(Job(CLAIM, "default", b"link"))
    writer.put(Job(CONFIRM, "default", b"page", epoch=events.epoch))
    fake.id = "second" if is_restarted else fake.id
    fake.error = None
    events.pump(lambda: events.count("back"))
    assert events.count("restarted: 1") == is_restarted
    assert events.repeats == items(1, 1) * is_restarted
    assert fake.items("confirm") == [b"0", *([] if is_restarted else [b"1"]), b"page"]


def test_a_page_that_waited_for_what_is_lost_is_due_at_once(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    task = FakeTask()
    writer = make_writer(task=task, claims=OWNED)
    put(writer, REPEAT, items(2))
    assert writer.stop(PATIENCE) == 0
    assert fake.calls == [("default release", items(2))]
    assert "look soon" in task.calls


# -- when the server does not answer --


def test_what_fails_is_done_again_in_order_when_the_server_is_back(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    writer = make_writer()
    put(writer, RELEASE, items(10))
    events.pump(lambda: len(fake.items("release")) == 10)
    fake.error = StorageError("it is away")
    put(writer, RELEASE, items(10, 10))
    events.pump(lambda: events.count("missing") > 1)
    put(writer, RELEASE, items(10, 20))
    assert events.received[0] == "failed: it is away"
    assert events.received[1] == "missing: it is away"
    assert events.count("failed") == 1
    assert len(writer.queue) == 20
    fake.error = None
    events.pump(lambda: events.count("back"))
    events.pump(lambda: not writer.queue)
    assert fake.items("release") == items(30)


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


def test_the_crawl_can_have_the_server_looked_for(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    writer = make_writer()
    fake.error = StorageError("it is away")
    writer.fail()
    events.pump(lambda: events.count("missing") > 2)
    assert events.count("failed") == 0, "the crawl knows"
    fake.error = None
    events.pump(lambda: events.count("back"))
    (theirs,) = events.filters
    assert theirs.by_window["default"] is not writer._filters.by_window["default"]


def test_the_server_is_back_only_when_what_was_left_is_written(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    writer = make_writer()
    fake.error = StorageError("it is away")
    writer.fail()
    put(writer, RECORD, items(1_200))
    events.pump(lambda: events.count("missing"))
    fake.error = None
    events.pump(lambda: events.count("back"))
    assert events.late == fake.items("add") == items(1_200)


def test_connections_that_fail_halfway_are_closed(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    """The fixture ``make_writer`` finds those that are still open at the end."""
    writer = make_writer()
    fake.error = StorageError("it is away")
    writer.fail()
    events.pump(lambda: events.count("missing") > 5)
    assert fake.open <= 1
    fake.error = None
    events.pump(lambda: events.count("back"))
    assert fake.open == 2


def test_attempts_to_reconnect_become_rarer_whatever_there_is_to_do(
    make_writer: MakeWriter,
    fake: FakeServer,
    events: EventLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_state, "LAST_RETRY_SECONDS", 3600.0)
    # The intervals begin small again after any uptime, but not during an outage.
    monkeypatch.setattr(server_state, "RECOVERED_AFTER_SECONDS", 0.0)
    writer = make_writer()
    put(writer, RELEASE, items(1))
    events.pump(lambda: fake.calls)
    fake.error = StorageError("it is away")
    begin = time.monotonic()

    def is_missing_for_long() -> bool:
        put(writer, RELEASE, items(1))
        return events.count("missing") == 5

    events.pump(is_missing_for_long)
    assert time.monotonic() - begin > 0.02 + 0.04 + 0.08 + 0.16 + 0.32
    fake.error = None
    writer.stop(TIMEOUT)


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
