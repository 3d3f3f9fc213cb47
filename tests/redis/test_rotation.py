"""Windows on real servers whose clock the tests move: what is forgotten, when, and what expires."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Barrier

import pytest
from redis import Redis
from support.clock import MovedServer
from support.rotation import (
    KEYS,
    OPERATIONS,
    ORDERS,
    SHORTLY,
    URLS,
    assert_keys,
    assert_ttls,
    at,
    checked_client,
    connect,
    first_of,
    layer_names,
    stored_rings,
    unix,
)
from support.servers import contents

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import EXTEND
from scrapy_bloom.bloom.protocol.ring_store import LOST
from scrapy_bloom.bloom.protocol.scripts import Reply

pytestmark = pytest.mark.each_server

DAY = 86_400


def assert_expires(moved: MovedServer, client: Redis) -> None:
    """Move the clock to where the header ends: nothing is left."""
    names = list(client.scan_iter())
    moved.set_time(client.expiretime(KEYS.header()) + 1)
    assert client.exists(*names) == 0
    assert client.dbsize() == 0


@pytest.fixture
def client(moved: MovedServer) -> Iterator[Redis]:
    """A client of the moved server; what a test leaves behind has to be whole and to expire."""
    with checked_client(moved) as client:
        yield client


# -- boundaries --


JANUARY = at(2027, 1, 15, 12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "case",  # window, period, seen, forgotten
    [
        ("1 month", "1 month", at(2028, 2, 29, 23, 59, 50), at(2028, 3, 1)),
        ("1 month", None, at(2027, 12, 31, 23, 59, 50), at(2028, 1, 16)),
        ("5 months", None, at(2027, 1, 31, 23, 59, 50), at(2027, 6, 1)),
        ("1 year", None, JANUARY, at(2028, 1, 1)),
        ("6 months", "3 months", at(2027, 6, 30, 12), at(2027, 10, 1)),
        ("1 week", "1 day", JANUARY, at(2027, 1, 22)),
        ("60 seconds", None, JANUARY, JANUARY + timedelta(minutes=1)),
    ],
    ids=lambda case: " ".join(map(str, case)),
)
def test_a_url_is_seen_until_its_window_ends_and_then_new_again(
    moved: MovedServer,
    client: Redis,
    order: str,
    case: tuple[str, str | None, datetime, datetime],
) -> None:
    """However often it is seen meanwhile: sight does not refresh it."""
    window, period, seen, forgotten = case
    moved.set_time(seen)
    bloom = connect(client, window, period=period, ring=order)
    assert bloom.add_many(["a"]) == [True]
    assert_ttls(client)
    assert bloom.find("a").until == unix(forgotten)
    for moment in (seen + (forgotten - seen) / 2, forgotten - timedelta(seconds=SHORTLY)):
        moved.set_time(moment)
        assert bloom.contains(["a"]) == [True]
        assert bloom.add("a") is False
        assert bloom.find("a").until == unix(forgotten)
    moved.set_time(forgotten)
    assert bloom.contains(["a"]) == [False]
    assert bloom.find("a").seen is False
    assert len(bloom) == 0
    assert [bloom.add("a"), bloom.add("a")] == [True, False]
    assert len(bloom) == 1
    assert bloom.lost_blocks == 0


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_second_of_a_window_belongs_to_it(
    moved: MovedServer, client: Redis, order: str
) -> None:
    boundary = at(2027, 2, 1)
    for _ in range(20):
        client.flushall()
        moved.set_time(JANUARY)
        bloom = connect(client, "1 month", period="1 month", ring=order)
        bloom.add("a")
        moved.set_time(boundary - timedelta(seconds=1))
        verdicts = [bloom.add("a"), *bloom.contains(["a"])]
        if moved.now() < boundary.timestamp():
            break  # else this machine was too slow to tell
    assert verdicts == [False, True]
    moved.set_time(boundary)
    assert bloom.add("a") is True


@pytest.mark.each_server(others="slow")
@pytest.mark.parametrize(
    "first",
    [
        lambda bloom: bloom.contains(["a"]) == [False],
        lambda bloom: len(bloom) == 0,
        lambda bloom: bloom.info().count == 0,
        lambda bloom: bloom.find("a").seen is False,
        lambda bloom: bloom.add("b") is True,
        lambda bloom: bloom.add_many(["b", "a"]) == [True, True],
        lambda bloom: bloom.open() is not None,
        lambda bloom: bloom.rotate() is None,
        lambda bloom: bloom.clear() is None,
    ],
)
@pytest.mark.parametrize("then", [at(2027, 2, 1), at(2029, 2, 28)], ids=["later", "expired"])
def test_whatever_is_called_first_after_a_boundary_finds_the_new_period(
    moved: MovedServer, client: Redis, then: datetime, first: Callable[[BloomFilter], bool]
) -> None:
    """By the client that was there before, and by one that is new; two years later all is gone."""
    for newcomer in (False, True):
        client.flushall()
        moved.set_time(JANUARY)
        bloom = connect(client, "1 month", period="1 month")
        bloom.add_many(["a", "z"])
        moved.set_time(then)
        if newcomer:
            bloom = connect(client, "1 month", period="1 month")
        assert first(bloom)
        assert_ttls(client)
        assert "z" not in bloom
        assert_keys(client)
        assert bloom.lost_blocks == 0


# -- runs --


def test_time_does_not_rotate_a_window_in_runs_but_its_keys_expire(
    moved: MovedServer, client: Redis
) -> None:
    bloom = connect(client, "2 runs", run="1")
    bloom.add_many(["a"])
    moved.move(399 * DAY)
    assert bloom.add_many(["a"]) == [False]
    other = connect(client, run="2")
    assert other.add_many(["a", "b"]) == [False, True]
    moved.move(399 * DAY)
    assert bloom.add_many(["a", "b"]) == [False, False]
    moved.move(2 * DAY)
    assert bloom.add_many(["a", "b"]) == [False, False], "it is in use"
    moved.move(400 * DAY)
    assert bloom.add_many(["a"]) == [True]
    assert bloom.lost_blocks == 0


# -- the clock jumps --


@pytest.mark.each_server(others="slow")
@pytest.mark.parametrize("window", ["36h", "2 runs", "2 months"])
@pytest.mark.parametrize("days", [1.5, 3.7, 61, 91, 402])
def test_however_long_nobody_came_nothing_is_lost(
    moved: MovedServer, client: Redis, window: str, days: float
) -> None:
    """Also when a part of the keys has expired only: layers before rings before the header."""
    bloom = connect(client, window, blocks=30)
    bloom.add_many(URLS)
    moved.move(days * DAY)
    before = bloom.contains(URLS)
    assert len(set(before)) == 1
    assert [not new for new in bloom.add_many(URLS)] == before
    assert bloom.add_many(URLS) == [False] * len(URLS)
    assert bloom.lost_blocks == 0
    assert connect(client, blocks=30).contains(URLS) == [True] * len(URLS)


# -- stale clients --


@pytest.mark.parametrize("order", ORDERS)
def test_a_stale_client_neither_writes_to_a_dropped_generation_nor_makes_its_key_again(
    moved: MovedServer, client: Redis, order: str
) -> None:
    """Its call as it would have sent it, late: at each moment since."""
    sleeper = connect(client, "2 months", ring=order, blocks=1)
    sleeper.add_many(["a"])
    held = sleeper.session.held[0]
    _, hashes = sleeper.session.hasher.hashes(b"late")
    calls = [held.add(held.pack(hashes)), held.contains(held.pack(hashes), held.ring.active)]

    def send_late() -> None:
        before = contents(client)
        for call in calls:
            reply = Reply.parse(
                client.eval(call.script.text, len(call.keys), *call.keys, *call.args)
            )
            assert reply.status == "stale"
        assert contents(client) == before

    moved.set_time(at(2027, 2, 1))
    send_late()  # nobody has rotated yet
    other = connect(client, "2 months", ring=order, blocks=1)
    for month in range(1, 5):
        moved.set_time(first_of(month))
        send_late()
        other.add(f"month {month}")
        send_late()
    assert layer_names(client) == ["4.0", "3.0"]
    other.clear()
    send_late()
    client.flushall()
    send_late()
    assert client.dbsize() == 0
    other.add("a")


# -- what is stored until when --


@pytest.mark.parametrize("window", ["5 months", "1 year", "36h", "2 runs"])
@pytest.mark.parametrize("order", ORDERS)
def test_after_any_operation_everything_expires_in_the_end(
    moved: MovedServer, client: Redis, order: str, window: str
) -> None:
    runs = iter(range(100))

    def worker() -> BloomFilter:
        return connect(client, window, ring=order, capacity=50, run=str(next(runs)))

    bloom = worker()
    operations: list[Callable[[], object]] = [
        bloom.open,
        lambda: bloom.add_many(URLS),  # the layers grow
        bloom.rotate,
        lambda: bloom.add_many(URLS),
        lambda: moved.move(40 * DAY),
        lambda: bloom.contains(URLS),
        lambda: worker().open(),
        lambda: client.delete(KEYS.layer(0, layer_names(client)[0])),
        lambda: bloom.add_many(URLS),
        lambda: client.delete(KEYS.ring(1)),
        lambda: bloom.add_many(URLS),
        lambda: client.delete(KEYS.header()),
        lambda: worker().add_many(URLS),
        bloom.clear,
        lambda: bloom.add_many(URLS),
    ]
    for operation in operations:
        operation()
        if client.exists(KEYS.header()):
            for name in client.scan_iter():
                assert client.expiretime(name) > 0
    assert_ttls(client)
    assert_expires(moved, client)


# -- losses --


@pytest.mark.each_server(others="slow")
@pytest.mark.parametrize("over_a_boundary", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_block_of_a_flushed_filter_counts_as_lost(
    moved: MovedServer,
    client: Redis,
    operation: Callable[[BloomFilter], bool],
    over_a_boundary: bool,
) -> None:
    """More blocks than rounds: a flush costs one round, not one for each of them."""
    lost: list[int] = []

    def note(what: str, ring: Ring) -> None:
        lost.extend([ring.block] * (what == LOST))

    bloom = connect(client, "2 months", blocks=40, notify=note)
    bloom.add_many(URLS)
    header = bloom.open()
    if over_a_boundary:
        moved.set_time(at(2027, 2, 1))
    client.flushall()
    assert operation(bloom)
    assert not any(bloom.contains(["x", "y"]))
    bloom.add_many(URLS)
    bloom.info()
    assert bloom.lost_blocks == 40
    assert sorted(lost) == list(range(40))
    assert bloom.open() == header


# -- windows that are changed in a filter in use --


def test_of_clients_that_only_extend_at_once_the_longest_window_holds(
    moved: MovedServer, client: Redis
) -> None:
    """Those with a shorter one came first, or are refused; no ring is shortened again."""
    windows = ["1 month", "6 months", "2 months", "3 months"]

    def open_one(window: str) -> int:
        with moved.client() as own, suppress(FilterMismatchError):
            bloom = connect(own, window, blocks=16, on_difference=EXTEND)
            start.wait()
            bloom.open()
            return bloom.round_trips
        return 0

    for _ in range(20):
        client.flushall()
        start = Barrier(len(windows))
        with ThreadPoolExecutor(len(windows)) as pool:
            assert max(pool.map(open_one, windows)) <= 100
        rings = stored_rings(client)
        assert sorted(rings) == list(range(16))
        assert len({ring.header for ring in rings.values()}) == 1
        assert {ring.config.window for ring in rings.values()} == {"6 months"}
