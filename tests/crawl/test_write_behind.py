"""The thread that writes what nobody waits for: on a server that is made up, and on real ones."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import redis
from support.proxy import Fault, Kind, Proxy
from support.servers import Server

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.errors import BloomError, ServerFullError
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl import apply_jobs, server_state, write_behind
from scrapy_bloom.crawl.apply_jobs import ClaimOwner
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.write_behind import WriteBehind

RECORD, CLAIM, KEEP, HOLD = JobKind.RECORD, JobKind.CLAIM, JobKind.KEEP, JobKind.HOLD
CONFIRM, DONE, RELEASE = JobKind.CONFIRM, JobKind.DONE, JobKind.RELEASE
FAIL, REPEAT, DROP = JobKind.FAIL, JobKind.REPEAT, JobKind.DROP
#: Whose claims the jobs end.
OWNED = ClaimOwner(worker="w", retry=claim_protocol.RetryPolicy("-spider", 60, 5))

#: Seconds after which what ought to happen has not.
PATIENCE = 20.0
#: What ``stop`` is given.
TIMEOUT = 0.5


class FakeServer:
    """Takes down what it is told, and does not answer while it is told not to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[bytes]]] = []
        self.error: Exception | None = None
        self.seconds = 0.0
        self.id = "first"
        #: Whether it is out of memory until something is released.
        self.is_full = False
        #: Connections made, those that are open, and attempts to make one.
        self.made = self.open = self.attempts = 0
        self.on_call: Callable[[], object] = int

    def filters(self) -> Filters:
        self.made += 1
        self.open += 1
        return Filters({name: FakeBloom(self, name) for name in ("lasting", "daily")}, self)

    def answer(self) -> None:
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.open -= 1

    def told(self, kind: JobKind, window: str = "lasting") -> list[bytes]:
        """Return all items of the calls of a kind."""
        return [item for name, items in self.calls for item in items if name == f"{window} {kind}"]


class FakeBloom:
    """A filter on it."""

    def __init__(self, server: FakeServer, window: str) -> None:
        self._server, self._window = server, window
        self.round_trips = 0

    def open(self) -> None:
        self._server.attempts += 1
        self._server.answer()

    def server_id(self) -> str:
        self._server.answer()
        return self._server.id

    def run(self, operation: Callable[[str], tuple[str, Sequence[bytes]]]) -> list[Verdict]:
        self.round_trips += 1
        self._server.answer()
        kind, items = operation(self._window)
        if self._server.is_full and kind == "claim":
            raise ServerFullError("it is out of memory")
        self._server.is_full &= kind not in ("release", "confirm")
        self._server.calls.append((f"{self._window} {kind}", list(items)))
        self._server.on_call()
        return [Verdict.NEW] * len(items)


class Crawl:
    """Listens to a writer; ``pump`` is its event loop."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.told: list[str] = []
        self.late: list[bytes] = []
        self.unrecorded: list[bytes] = []
        self.repeats: list[bytes] = []
        self.epoch = 0
        self.filters: list[Filters] = []

    def server_failed(self, error: BloomError, epoch: int) -> None:
        self.told.append(f"failed: {error}")
        self.epoch = epoch

    def server_missing(self, error: BloomError) -> None:
        self.told.append(f"missing: {error}")

    def server_back(self, filters: Filters) -> None:
        self.told.append("back")
        self.filters.append(filters)

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        self.late += [job.item for job in jobs]
        self.unrecorded += unrecorded

    def server_restarted(self, epoch: int) -> None:
        self.told.append(f"restarted: {epoch}")

    def repeated(self, jobs: Sequence[Job]) -> None:
        self.repeats += [job.item for job in jobs]

    def count(self, word: str) -> int:
        return sum(what.startswith(word) for what in self.told)

    def pump(self, condition: Callable[[], object]) -> None:
        """Run what is to be run here until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"in vain: {self.told}"
            with suppress(Empty):
                self.queue.get(timeout=0.01)()

    def close(self) -> None:
        """Run what is left, and close what the crawl was given."""
        while not self.queue.empty():
            self.queue.get()()
        for filters in self.filters:
            filters.close()


class Chores:
    """What is to be done beside; takes down that it is."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done: list[str] = []
        self.error = error
        self.wait = 3600.0

    def run(self, filters: Filters) -> float:
        self.done.append("run")
        if self.error is not None:
            raise self.error
        return self.wait

    def recovered(self) -> None:
        self.done.append("recovered")

    def look_soon(self) -> None:
        self.done.append("look soon")

    def end(self, filters: Filters) -> None:
        self.done.append("end")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server that is made up: an operation on it is its name and its items."""

    def named(name: str) -> Callable[..., tuple[str, Sequence[bytes]]]:
        return lambda _, items, *args, **kwargs: (name, items)

    for name in ("claim", "confirm", "hold", "release"):
        monkeypatch.setattr(claim_protocol, name, named(name))
    monkeypatch.setattr(apply_jobs, "add", named("add"))
    return FakeServer()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(server_state, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(server_state, "LAST_RETRY_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, the thread ends."""
    yield
    deadline = time.monotonic() + PATIENCE
    while any(thread.name == "scrapy-bloom" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread is left"
        time.sleep(0.01)


@pytest.fixture
def crawl() -> Iterator[Crawl]:
    crawl = Crawl()
    yield crawl
    crawl.close()


@pytest.fixture
def make(fake: FakeServer, crawl: Crawl) -> Iterator[Callable[..., WriteBehind]]:
    """Build writers on the made-up server; they are stopped at the end of the test."""
    made: list[WriteBehind] = []

    def build(**options: Any) -> WriteBehind:
        made.append(WriteBehind(fake.filters, crawl.queue.put, crawl, **options))
        return made[-1]

    yield build
    for one in made:
        one.stop(TIMEOUT)
    crawl.close()
    crawl.filters.clear()
    assert fake.open == 0, "a connection is left"


Make = Callable[..., WriteBehind]


def items(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def put(one: WriteBehind, kind: JobKind, names: Sequence[bytes], window: str = "lasting") -> None:
    for name in names:
        one.put(Job(kind, window, name))


# -- jobs --


def test_a_writer_with_nothing_to_do_has_no_thread_and_no_connection(
    make: Make, fake: FakeServer
) -> None:
    assert make().stop(TIMEOUT) == 0
    assert fake.made == 0


def test_jobs_of_a_kind_are_done_together(make: Make, fake: FakeServer) -> None:
    one = make()
    put(one, RELEASE, items(100))
    assert one.stop(TIMEOUT) == 0
    assert fake.told("release") == items(100)
    assert len(fake.calls) < 10
    assert one.round_trips == len(fake.calls)
    assert one.done[RELEASE] == 100


def test_ten_thousand_jobs_are_done_in_batches_that_are_not_too_large(
    make: Make, fake: FakeServer
) -> None:
    one = make()
    put(one, RELEASE, items(10_000))
    assert one.stop(PATIENCE) == 0
    assert fake.told("release") == items(10_000)
    assert max(len(batch) for _, batch in fake.calls) <= write_behind.MAX_BATCH
    assert len(fake.calls) < 200


def test_jobs_are_done_in_their_order_whatever_their_kinds_and_windows(
    make: Make, fake: FakeServer
) -> None:
    one = make()
    expected = []
    for number in range(300):
        kind, name = ((RELEASE, "release"), (HOLD, "hold"), (CLAIM, "claim"))[number * 7 % 5 % 3]
        window = "daily" if number % 11 < 4 else "lasting"
        one.put(Job(kind, window, b"%d" % number))
        expected.append((f"{window} {name}", b"%d" % number))
    assert one.stop(PATIENCE) == 0
    assert [(name, item) for name, batch in fake.calls for item in batch] == expected
    assert len(fake.calls) < 300, "neighbours of a kind go together"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (RECORD, ["add"]),
        (CLAIM, ["claim"]),
        (KEEP, ["claim"]),
        (HOLD, ["hold"]),
        (CONFIRM, ["confirm"]),
        (RELEASE, ["release"]),
        (FAIL, ["release"]),
    ],
)
def test_a_page_is_recorded_before_its_claim_ends(
    make: Make, fake: FakeServer, kind: JobKind, expected: list[str]
) -> None:
    one = make()
    put(one, kind, items(1))
    assert one.stop(TIMEOUT) == 0
    assert fake.calls == [(f"lasting {name}", items(1)) for name in expected]


def test_the_backlog_is_known_in_characters(make: Make, fake: FakeServer) -> None:
    one = make()
    fake.error = StorageError("it is away")
    for number in range(10):
        one.put(Job(CLAIM, "lasting", b"%d" % number, "x" * 100))
    assert one.queue.length == 1_000
    fake.error = None
    assert one.stop(PATIENCE) == 0
    assert one.queue.length == 0


def test_jobs_may_be_put_down_while_others_are_done(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    one = make()
    fake.seconds = 0.002
    for number in range(2_000):
        one.put(Job(RELEASE, "lasting", b"%d" % number))
        if number % 50 == 0:
            time.sleep(0.001)
    crawl.pump(lambda: not one.queue)
    assert fake.told("release") == items(2_000)


@pytest.mark.parametrize(("kind", "is_told"), [(RECORD, True), (CLAIM, True), (CONFIRM, False)])
def test_the_crawl_is_told_what_it_has_to_remember_no_more(
    make: Make, crawl: Crawl, kind: JobKind, is_told: bool
) -> None:
    one = make()
    put(one, kind, items(10))
    one.stop(TIMEOUT)
    crawl.close()
    assert crawl.late == (items(10) if is_told else [])


# -- a server that is out of memory, and one that was restarted --


def test_a_full_server_gets_memory_back_before_more_is_asked_of_it(
    make: Make, fake: FakeServer
) -> None:
    """Jobs on one item keep their order; the server is not taken to be away."""
    one = make()
    fake.is_full = True
    for kind, name in ((CLAIM, b"new"), (CONFIRM, b"new"), (RELEASE, b"old"), (CLAIM, b"next")):
        one.put(Job(kind, "lasting", name))
    assert one.stop(PATIENCE) == 0
    done = [(name, item) for name, batch in fake.calls for item in batch]
    assert done[:2] == [("lasting release", b"old"), ("lasting claim", b"new")]
    assert done.index(("lasting confirm", b"new")) < done.index(("lasting claim", b"next"))


def test_a_full_server_records_no_page_whose_links_are_not_claimed(
    make: Make, fake: FakeServer
) -> None:
    one = make()
    fake.is_full = True
    one.put(Job(CLAIM, "lasting", b"link"))
    one.put(Job(CONFIRM, "lasting", b"page", is_last=True))
    one.put(Job(CONFIRM, "lasting", b"leaf"))
    assert one.stop(PATIENCE) == 0
    done = [(name, item) for name, batch in fake.calls for item in batch]
    order = [("lasting confirm", b"leaf"), ("lasting claim", b"link"), ("lasting confirm", b"page")]
    assert sorted(order, key=done.index) == order


def test_a_full_server_with_nothing_to_give_back_is_an_outage(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    one = make()
    fake.is_full = True
    put(one, CLAIM, items(3))
    crawl.pump(lambda: crawl.count("missing"))
    assert crawl.told[0] == "failed: it is out of memory"
    assert len(one.queue) == 3
    fake.is_full = False
    crawl.pump(lambda: crawl.count("back"))
    assert fake.told("claim") == items(3)


@pytest.mark.parametrize("kind", [CONFIRM, DONE])
def test_pages_begun_before_the_server_was_restarted_are_crawled_again(
    make: Make, fake: FakeServer, crawl: Crawl, kind: JobKind
) -> None:
    chore = Chores()
    one = make(task=chore, claims=OWNED)
    put(one, kind, items(2))
    crawl.pump(lambda: one.done[kind] == 2)
    assert crawl.repeats == []
    fake.id, before = "second", len(fake.calls)
    put(one, kind, items(2, 2))
    one.put(Job(kind, "lasting", b"begun later", epoch=1))
    crawl.pump(lambda: one.done[kind] == 5)
    crawl.pump(lambda: crawl.repeats == items(2, 2))
    assert crawl.count("restarted: 1") == 1
    assert "look soon" in chore.done
    assert fake.told("confirm") == ([*items(2), b"begun later"] if kind is CONFIRM else [])
    assert ("lasting release", items(2, 2)) in fake.calls[before:]


@pytest.mark.parametrize("is_restarted", [True, False])
def test_pages_begun_in_an_outage_are_not_crawled_again(
    make: Make, fake: FakeServer, crawl: Crawl, is_restarted: bool
) -> None:
    """Their links are claimed on the server that is there when it is over."""
    one = make(claims=OWNED)
    put(one, CONFIRM, items(1))
    crawl.pump(lambda: one.done[CONFIRM] == 1)
    fake.error = StorageError("it is away")
    put(one, CONFIRM, items(1, 1))
    crawl.pump(lambda: crawl.count("missing"))
    assert one.fail() == crawl.epoch == 1
    one.put(Job(CLAIM, "lasting", b"link"))
    one.put(Job(CONFIRM, "lasting", b"page", epoch=crawl.epoch))
    fake.id = "second" if is_restarted else fake.id
    fake.error = None
    crawl.pump(lambda: crawl.count("back"))
    assert crawl.count("restarted: 1") == is_restarted
    assert crawl.repeats == items(1, 1) * is_restarted
    assert fake.told("confirm") == [b"0", *([] if is_restarted else [b"1"]), b"page"]


def test_a_page_that_waited_for_what_is_lost_is_due_at_once(make: Make, fake: FakeServer) -> None:
    chore = Chores()
    one = make(task=chore, claims=OWNED)
    put(one, REPEAT, items(2))
    assert one.stop(PATIENCE) == 0
    assert fake.calls == [("lasting release", items(2))]
    assert "look soon" in chore.done


# -- when the server does not answer --


def test_what_fails_is_done_again_in_order_when_the_server_is_back(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    one = make()
    put(one, RELEASE, items(10))
    crawl.pump(lambda: len(fake.told("release")) == 10)
    fake.error = StorageError("it is away")
    put(one, RELEASE, items(10, 10))
    crawl.pump(lambda: crawl.count("missing") > 1)
    put(one, RELEASE, items(10, 20))
    assert crawl.told[0] == "failed: it is away"
    assert crawl.told[1] == "missing: it is away"
    assert crawl.count("failed") == 1
    assert len(one.queue) == 20
    fake.error = None
    crawl.pump(lambda: crawl.count("back"))
    crawl.pump(lambda: not one.queue)
    assert fake.told("release") == items(30)


def test_what_was_done_before_the_server_failed_is_not_done_again(
    make: Make, fake: FakeServer, crawl: Crawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "MAX_BATCH", 1)

    def fail_at_five() -> None:
        fake.error = StorageError("it is away") if len(fake.calls) == 5 else None

    fake.on_call = fail_at_five
    one = make()
    put(one, RELEASE, items(10))
    crawl.pump(lambda: crawl.count("missing"))
    fake.error = None
    crawl.pump(lambda: not one.queue)
    assert fake.told("release") == items(10)


def test_the_crawl_can_have_the_server_looked_for(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    one = make()
    fake.error = StorageError("it is away")
    one.fail()
    crawl.pump(lambda: crawl.count("missing") > 2)
    assert crawl.count("failed") == 0, "the crawl knows"
    fake.error = None
    crawl.pump(lambda: crawl.count("back"))
    (theirs,) = crawl.filters
    assert theirs.by_window["lasting"] is not one._filters.by_window["lasting"]


def test_the_server_is_back_only_when_what_was_left_is_written(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    one = make()
    fake.error = StorageError("it is away")
    one.fail()
    put(one, RECORD, items(1_200))
    crawl.pump(lambda: crawl.count("missing"))
    fake.error = None
    crawl.pump(lambda: crawl.count("back"))
    assert crawl.late == fake.told("add") == items(1_200)


def test_connections_that_fail_halfway_are_closed(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    """The fixture counts those that are left."""
    one = make()
    fake.error = StorageError("it is away")
    one.fail()
    crawl.pump(lambda: crawl.count("missing") > 5)
    assert fake.open <= 1
    fake.error = None
    crawl.pump(lambda: crawl.count("back"))
    assert fake.open == 2


def test_the_server_is_looked_for_less_and_less_often_whatever_there_is_to_do(
    make: Make, fake: FakeServer, crawl: Crawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_state, "LAST_RETRY_SECONDS", 3600.0)
    monkeypatch.setattr(server_state, "RECOVERED_AFTER_SECONDS", 0.2)
    one = make()
    put(one, RELEASE, items(1))
    crawl.pump(lambda: fake.calls)
    fake.error = StorageError("it is away")
    attempts = fake.attempts
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        put(one, RELEASE, items(1))
        time.sleep(0.005)
    # 0.02 + 0.04 + 0.08 + ... : 6 in 1.28 s.
    assert 2 <= fake.attempts - attempts <= 8
    fake.error = None
    one.stop(TIMEOUT)


def test_it_is_looked_for_at_once_when_it_was_there_for_long(
    make: Make, fake: FakeServer, crawl: Crawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_state, "RECOVERED_AFTER_SECONDS", 0.05)
    one = make()
    one.server._failures = 1_000
    put(one, RELEASE, items(1))
    crawl.pump(lambda: fake.calls)
    time.sleep(0.1)
    fake.error = StorageError("it is away")
    put(one, RELEASE, items(1))
    crawl.pump(lambda: crawl.count("failed"))
    assert one.server._failures < 10


# -- bugs --


def test_a_job_that_cannot_be_done_does_not_keep_the_others_from_it(
    make: Make, fake: FakeServer, crawl: Crawl, caplog: pytest.LogCaptureFixture
) -> None:
    one = make()
    put(one, RELEASE, items(5))
    one.put(Job(DROP, "lasting", b"\xff"))
    one.put(Job(CLAIM, "no such window", b"lost"))
    put(one, RELEASE, items(5, 5))
    crawl.pump(lambda: not one.queue)
    assert fake.told("release") == items(10)
    assert caplog.text.count("Traceback") <= 2
    assert b"lost" not in crawl.late, "it is not written, so it must not be forgotten"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("bug"), RecursionError()])
def test_an_error_that_is_a_bug_neither_ends_the_thread_nor_makes_it_spin(
    make: Make, fake: FakeServer, crawl: Crawl, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    one = make()
    fake.error = error
    one.fail()
    crawl.pump(lambda: crawl.count("missing") > 3)
    end = time.monotonic() + 0.5
    logged = len(caplog.records)
    while time.monotonic() < end:
        time.sleep(0.05)
    assert len(caplog.records) - logged < 20
    fake.error = None
    crawl.pump(lambda: crawl.count("back"))
    put(one, RELEASE, items(1))
    crawl.pump(lambda: fake.calls)


def test_a_chore_that_is_a_bug_does_not_keep_jobs_from_being_done(
    make: Make, fake: FakeServer, crawl: Crawl, caplog: pytest.LogCaptureFixture
) -> None:
    chores = Chores(RuntimeError("a bug"))
    one = make(task=chores)
    put(one, RELEASE, items(10))
    crawl.pump(lambda: not one.queue and crawl.count("failed"))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        time.sleep(0.05)
    assert len(chores.done) < 40
    assert fake.told("release") == items(10)


def test_a_crawl_that_hears_nothing_any_more_ends_nothing(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    """An event loop that is closed raises RuntimeError."""
    one = make()

    def fail(function: object) -> None:
        raise RuntimeError("Event loop is closed")

    one._in_main = fail
    one.fail()
    put(one, RECORD, items(10))
    crawl.pump(lambda: not one.queue)
    assert one.stop(TIMEOUT) == 0
    assert fake.told("add") == items(10)


# -- chores --


def test_chores_are_done_when_they_are_due_and_at_the_end(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    chores = Chores()
    chores.wait = 0.01
    one = make(task=chores)
    one.wake()
    crawl.pump(lambda: len(chores.done) > 5)
    fake.error = StorageError("it is away")
    one.fail()
    crawl.pump(lambda: crawl.count("missing"))
    fake.error = None
    crawl.pump(lambda: "recovered" in chores.done)
    one.stop(TIMEOUT)
    assert chores.done.count("recovered") == 1
    assert chores.done[-1] == "end"
    assert chores.done.count("end") == 1


# -- the end --


def test_stopping_writes_what_is_left_however_long_it_would_have_waited(
    make: Make, fake: FakeServer, crawl: Crawl
) -> None:
    fake.error = StorageError("it is away")
    one = make()
    one.fail()
    put(one, RECORD, items(100))
    crawl.pump(lambda: crawl.count("missing"))
    one.server._failures = 1_000
    fake.error = None
    assert one.stop(PATIENCE) == 0
    assert fake.told("add") == items(100)


def test_stopping_ends_in_time_without_a_server_and_returns_what_is_left(
    make: Make, fake: FakeServer
) -> None:
    fake.error = StorageError("it is away")
    one = make()
    put(one, RECORD, items(100))
    begin = time.monotonic()
    assert one.stop(TIMEOUT) == 100
    assert time.monotonic() - begin < 2 * TIMEOUT + 2
    assert not one._thread.is_alive()


def test_stopping_ends_in_time_however_slow_the_server_is(make: Make, fake: FakeServer) -> None:
    one = make()
    fake.seconds = 0.05
    for number in range(1_000):
        put(one, (RELEASE, HOLD)[number % 2], items(1))
    begin = time.monotonic()
    left = one.stop(TIMEOUT)
    assert time.monotonic() - begin < 2 * TIMEOUT + 2
    assert not one._thread.is_alive()
    assert left + len(fake.calls) == 1_000
    assert 0 < left < 1_000


def test_stopping_twice_does_no_harm(make: Make, fake: FakeServer) -> None:
    one = make()
    put(one, RELEASE, items(1))
    assert one.stop(TIMEOUT) == one.stop(TIMEOUT) == 0


# -- real servers --


@pytest.fixture
def real(server: Server, client: redis.Redis, crawl: Crawl) -> Iterator[WriteBehind]:
    """A writer on a real server, through a proxy."""
    with Proxy(server.port) as proxy:
        one = WriteBehind(
            partial(real_filters, proxy.url), crawl.queue.put, crawl, claims=ClaimOwner("me")
        )
        one.proxy = proxy
        yield one
        one.stop(TIMEOUT)


def real_filters(url: str) -> Filters:
    connection = connect(url, timeout=TIMEOUT)
    bloom = BloomFilter(connection.client, "shop", capacity=20_000, timeout=TIMEOUT)
    return Filters({"lasting": bloom}, connection)


def test_ten_thousand_urls_are_recorded(
    real: WriteBehind, client: redis.Redis, crawl: Crawl
) -> None:
    put(real, RECORD, items(10_000))
    crawl.pump(lambda: len(crawl.late) == 10_000)
    assert real.stop(PATIENCE) == 0
    assert all(BloomFilter(client, "shop").contains(items(10_000)))
    assert real.round_trips < 300


def test_what_is_claimed_twice_because_a_reply_was_lost_is_claimed_once(
    real: WriteBehind, client: redis.Redis, crawl: Crawl
) -> None:
    put(real, CLAIM, items(10))
    crawl.pump(lambda: len(crawl.late) == 10)
    real.proxy.fault = Fault(Kind.RESET_REPLY, times=3)
    put(real, CLAIM, items(10, 10))
    put(real, CONFIRM, items(5))
    crawl.pump(lambda: crawl.count("back"))
    assert real.stop(PATIENCE) == 0
    assert sum(client.hlen(key) for key in client.scan_iter("*:claims")) == 15
    assert BloomFilter(client, "shop").contains(items(10)) == [True] * 5 + [False] * 5


def test_urls_that_there_is_no_room_for_are_told(
    server: Server, client: redis.Redis, crawl: Crawl
) -> None:
    BloomFilter(client, "shop", capacity=10, blocks=1, error_rate=1e-9, growth=0).open()

    def connect_filters() -> Filters:
        connection = connect(server.url)
        return Filters({"lasting": BloomFilter(connection.client, "shop")}, connection)

    one = WriteBehind(connect_filters, crawl.queue.put, crawl)
    put(one, RECORD, items(25))
    assert one.stop(PATIENCE) == 0
    crawl.close()
    assert len(crawl.unrecorded) == 15
    assert len(BloomFilter(client, "shop")) == 10


@pytest.mark.parametrize("fault", [Kind.HANG, Kind.DROP_REPLY, Kind.RESET_REQUEST])
def test_stopping_ends_in_time_whatever_the_connection_does(
    real: WriteBehind, client: redis.Redis, crawl: Crawl, fault: Kind
) -> None:
    put(real, RECORD, items(10))
    crawl.pump(lambda: len(crawl.late) == 10)
    real.proxy.fault = Fault(fault)
    put(real, RECORD, items(10, 10))
    begin = time.monotonic()
    assert real.stop(TIMEOUT) == 10
    assert time.monotonic() - begin < 2 * TIMEOUT + 2
    assert not real._thread.is_alive()


def test_nothing_is_logged_when_all_is_well(
    real: WriteBehind, crawl: Crawl, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    put(real, RECORD, items(10))
    assert real.stop(PATIENCE) == 0
    assert not crawl.told
    assert not caplog.records
