"""``WriteBehind`` applies jobs in their order, many at a time, and ends in time."""

import logging
import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis
from support.polling import PATIENCE
from support.proxy import Fault, Kind, Proxy
from support.servers import Server
from support.write_behind import TIMEOUT, EventLog, FakeServer, FakeTask, MakeWriter, items, put

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.crawl import flush
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind
from scrapy_bloom.crawl.write_behind import WriteBehind

pytestmark = pytest.mark.usefixtures("short_retries")
RECORD, CLAIM, KEEP, HOLD = JobKind.RECORD, JobKind.CLAIM, JobKind.KEEP, JobKind.HOLD
CONFIRM, RELEASE = JobKind.CONFIRM, JobKind.RELEASE
#: Seconds that a writer may take to stop when it has ``TIMEOUT`` seconds.
STOP_SECONDS = 2 * TIMEOUT + 2

# -- jobs --


def test_a_writer_with_nothing_to_do_has_no_thread_and_no_connection(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    assert make_writer().stop(TIMEOUT) == 0
    assert fake.made == 0


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


def test_jobs_are_done_in_their_order_whatever_their_kinds_and_windows(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    writer = make_writer()
    expected = []
    for number in range(300):
        kind, name = ((RELEASE, "release"), (HOLD, "hold"), (CLAIM, "claim"))[number * 7 % 5 % 3]
        window = "daily" if number % 11 < 4 else "default"
        writer.put(Job(kind, window, b"%d" % number))
        expected.append((f"{window} {name}", b"%d" % number))
    assert writer.stop(PATIENCE) == 0
    assert fake.operations() == expected
    assert len(fake.calls) < 300, "neighbours of a kind go together"


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (RECORD, "add"),
        (CLAIM, "claim"),
        (KEEP, "claim"),
        (HOLD, "hold"),
        (CONFIRM, "confirm"),
        (RELEASE, "release"),
        (JobKind.FAIL, "release"),
        (JobKind.LATER, "release"),
    ],
)
def test_a_job_is_one_operation(
    make_writer: MakeWriter, fake: FakeServer, kind: JobKind, operation: str
) -> None:
    writer = make_writer()
    put(writer, kind, items(1))
    assert writer.stop(TIMEOUT) == 0
    assert fake.calls == [(f"default {operation}", items(1))]


def test_the_backlog_is_known_in_characters(make_writer: MakeWriter, fake: FakeServer) -> None:
    writer = make_writer()
    fake.error = StorageError("it is away")
    for number in range(10):
        writer.put(Job(CLAIM, "default", b"%d" % number, "x" * 100))
    assert writer.queue.length == 1_000
    fake.error = None
    assert writer.stop(PATIENCE) == 0
    assert writer.queue.length == 0


def test_jobs_may_be_queued_while_others_are_applied(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    writer = make_writer()
    fake.seconds = 0.002

    def is_released(item: bytes) -> bool:
        return item in fake.items("release")

    for number in range(0, 2_000, 200):
        put(writer, RELEASE, items(100, number))
        events.pump(partial(is_released, b"%d" % number))
        put(writer, RELEASE, items(100, number + 100))
    events.pump(lambda: not writer.queue)
    assert fake.items("release") == items(2_000)


@pytest.mark.parametrize(("kind", "is_reported"), [(RECORD, True), (CLAIM, True), (CONFIRM, False)])
def test_events_name_the_urls_that_the_filter_has_recorded(
    make_writer: MakeWriter, events: EventLog, kind: JobKind, is_reported: bool
) -> None:
    writer = make_writer()
    put(writer, kind, items(10))
    writer.stop(TIMEOUT)
    events.close()
    assert events.late == (items(10) if is_reported else [])


# -- the periodic task --


def test_the_periodic_task_runs_when_it_is_due_and_at_the_end(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    task = FakeTask()
    task.wait = 0.01
    writer = make_writer(task=task)
    writer.wake()
    events.pump(lambda: len(task.calls) > 5)
    fake.error = StorageError("it is away")
    writer.fail()
    events.pump(lambda: events.count("missing"))
    fake.error = None
    events.pump(lambda: "recovered" in task.calls)
    writer.stop(TIMEOUT)
    assert task.calls.count("recovered") == 1
    assert task.calls[-1] == "end"
    assert task.calls.count("end") == 1


# -- the end --


def test_stopping_writes_what_is_left_however_long_it_would_have_waited(
    make_writer: MakeWriter, fake: FakeServer, events: EventLog
) -> None:
    fake.error = StorageError("it is away")
    writer = make_writer()
    writer.fail()
    put(writer, RECORD, items(100))
    events.pump(lambda: events.count("missing"))
    writer.server._failures = 1_000
    fake.error = None
    assert writer.stop(PATIENCE) == 0
    assert fake.items("add") == items(100)


def test_stopping_ends_in_time_without_a_server_and_returns_what_is_left(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    fake.error = StorageError("it is away")
    writer = make_writer()
    put(writer, RECORD, items(100))
    begin = time.monotonic()
    assert writer.stop(TIMEOUT) == 100
    assert time.monotonic() - begin < STOP_SECONDS
    assert not writer._thread.is_alive()


def test_stopping_ends_in_time_however_slow_the_server_is(
    make_writer: MakeWriter, fake: FakeServer
) -> None:
    writer = make_writer()
    fake.seconds = 0.05
    for number in range(1_000):
        put(writer, (RELEASE, HOLD)[number % 2], items(1))
    begin = time.monotonic()
    left = writer.stop(TIMEOUT)
    assert time.monotonic() - begin < STOP_SECONDS
    assert not writer._thread.is_alive()
    assert left + len(fake.calls) == 1_000
    assert 0 < left < 1_000


def test_stopping_twice_does_no_harm(make_writer: MakeWriter, fake: FakeServer) -> None:
    writer = make_writer()
    put(writer, RELEASE, items(1))
    assert writer.stop(TIMEOUT) == writer.stop(TIMEOUT) == 0


# -- real servers --


@pytest.fixture
def proxy(server: Server, client: redis.Redis) -> Iterator[Proxy]:
    """A proxy to a real server, which is empty."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def real(proxy: Proxy, events: EventLog) -> Iterator[WriteBehind]:
    """A writer on that server."""
    filters = partial(real_filters, proxy.url)
    writer = WriteBehind(filters, events.queue.put, events, claims=ClaimOwner("me"))
    yield writer
    writer.stop(TIMEOUT)


def real_filters(url: str) -> Filters:
    connection = connect(url, timeout=TIMEOUT)
    bloom = BloomFilter(connection.client, "shop", capacity=20_000, timeout=TIMEOUT)
    return Filters({"default": bloom}, connection)


def test_ten_thousand_urls_are_recorded(
    real: WriteBehind, client: redis.Redis, events: EventLog
) -> None:
    put(real, RECORD, items(10_000))
    events.pump(lambda: len(events.late) == 10_000)
    assert real.stop(PATIENCE) == 0
    assert all(BloomFilter(client, "shop").contains(items(10_000)))
    assert real.round_trips < 300


def test_what_is_claimed_twice_because_a_reply_was_lost_is_claimed_once(
    real: WriteBehind, proxy: Proxy, client: redis.Redis, events: EventLog
) -> None:
    put(real, CLAIM, items(10))
    events.pump(lambda: len(events.late) == 10)
    proxy.fault = Fault(Kind.RESET_REPLY, times=3)
    put(real, CLAIM, items(10, 10))
    put(real, CONFIRM, items(5))
    events.pump(lambda: events.count("back"))
    assert real.stop(PATIENCE) == 0
    assert sum(client.hlen(key) for key in client.scan_iter("*:claims")) == 15
    assert BloomFilter(client, "shop").contains(items(10)) == [True] * 5 + [False] * 5


def test_events_name_the_urls_that_the_filter_has_no_room_for(
    server: Server, client: redis.Redis, events: EventLog
) -> None:
    BloomFilter(client, "shop", capacity=10, blocks=1, error_rate=1e-9, growth=0).open()

    def connect_filters() -> Filters:
        connection = connect(server.url)
        return Filters({"default": BloomFilter(connection.client, "shop")}, connection)

    writer = WriteBehind(connect_filters, events.queue.put, events)
    put(writer, RECORD, items(25))
    assert writer.stop(PATIENCE) == 0
    events.close()
    assert len(events.unrecorded) == 15
    assert len(BloomFilter(client, "shop")) == 10


@pytest.mark.parametrize("fault", [Kind.HANG, Kind.DROP_REPLY, Kind.RESET_REQUEST])
def test_stopping_ends_in_time_whatever_the_connection_does(
    real: WriteBehind, proxy: Proxy, events: EventLog, fault: Kind
) -> None:
    put(real, RECORD, items(10))
    events.pump(lambda: len(events.late) == 10)
    proxy.fault = Fault(fault)
    put(real, RECORD, items(10, 10))
    begin = time.monotonic()
    assert real.stop(TIMEOUT) == 10
    assert time.monotonic() - begin < STOP_SECONDS
    assert not real._thread.is_alive()


def test_nothing_is_logged_when_all_is_well(
    real: WriteBehind, events: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    put(real, RECORD, items(10))
    assert real.stop(PATIENCE) == 0
    assert not events.received
    assert not caplog.records
