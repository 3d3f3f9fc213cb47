"""Windows on real servers whose clock the tests move: what is forgotten, when, and what expires."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis
from support.clock import MovedServer
from support.rotation import (
    KEYS,
    OPERATIONS,
    ORDERS,
    SEEDS,
    SHORTLY,
    URLS,
    Notes,
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

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.protocol.ring_store import LOST, ROTATED
from scrapy_bloom.bloom.protocol.scripts import Reply

pytestmark = pytest.mark.each_server

DAY = 86_400


def assert_expires(moved: MovedServer, client: redis.Redis) -> None:
    """Move the clock to where the header ends: nothing is left."""
    names = list(client.scan_iter())
    moved.set_time(client.expiretime(KEYS.header()) + 1)
    assert client.exists(*names) == 0
    assert client.dbsize() == 0


@pytest.fixture
def client(moved: MovedServer) -> Iterator[redis.Redis]:
    """A client of the moved server; what a test leaves behind has to be whole and to expire."""
    with checked_client(moved) as client:
        yield client


class Periods:
    """What a filter is meant to be: of each period, the items that were first seen in it."""

    def __init__(self, generations: int) -> None:
        self.generations = generations
        self.period = 0
        self.sets: dict[int, set[str]] = {}

    def remembered(self) -> set[str]:
        live = range(self.period - self.generations + 1, self.period + 1)
        return set().union(*(self.sets.get(period, set()) for period in live))

    def add_many(self, items: list[str]) -> list[bool]:
        verdicts = []
        for item in items:
            verdicts.append(item not in self.remembered())
            if verdicts[-1]:
                self.sets.setdefault(self.period, set()).add(item)
        return verdicts


# -- boundaries --


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", [1, 2, 5])
def test_months_are_forgotten_one_by_one_on_the_first(
    moved: MovedServer, client: redis.Redis, window: int, order: str
) -> None:
    """From January 2027 to April 2028, at the start, in the middle and at the end of each month."""
    bloom = connect(client, f"{window} months", period="1 month", ring=order, capacity=2_000)
    model, randoms = Periods(window), random.Random(window)
    for month in range(16):
        model.period = month
        start, end = first_of(month), first_of(month + 1)
        middle, last = start + timedelta(days=14), end - timedelta(seconds=SHORTLY)
        for moment in (start, middle, last) if month else (middle, last):
            moved.set_time(moment)
            batch = [f"page {randoms.randrange(150)}" for _ in range(40)]
            known = model.remembered()
            assert bloom.contains(batch) == [item in known for item in batch]
            assert bloom.add_many(batch) == model.add_many(batch)
            assert len(bloom) == len(model.remembered())
            assert_keys(client)
            assert_ttls(client)
    assert bloom.lost_blocks == 0


def seconds_on(seen: datetime, period: int, periods: int) -> datetime:
    """Return the start of the period of seconds that is so many after the one of a moment."""
    index = unix(seen) // period
    return datetime.fromtimestamp((index + periods) * period, UTC)


JANUARY = at(2027, 1, 15, 12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "case",  # window, period, seen, forgotten
    [
        ("1 month", "1 month", at(2028, 2, 29, 23, 59, 50), at(2028, 3, 1)),
        ("1 month", "1 month", at(2028, 2, 28, 23, 59, 50), at(2028, 3, 1)),
        ("1 month", "1 month", at(2027, 2, 28, 23, 59, 50), at(2027, 3, 1)),
        ("1 month", None, at(2027, 12, 31, 23, 59, 50), at(2028, 1, 16)),
        ("1 month", None, at(2027, 2, 15, 23, 59, 50), at(2027, 3, 1)),
        ("2 months", None, at(2027, 12, 31, 12), at(2028, 2, 1)),
        ("5 months", None, at(2027, 1, 1), at(2027, 6, 1)),
        ("5 months", None, at(2027, 1, 31, 23, 59, 50), at(2027, 6, 1)),
        ("1 year", None, JANUARY, at(2028, 1, 1)),
        ("1 year", "1 year", at(2027, 12, 31, 12), at(2028, 1, 1)),
        ("6 months", "3 months", at(2027, 6, 30, 12), at(2027, 10, 1)),
        ("6 weeks", None, JANUARY, seconds_on(JANUARY, 21 * DAY, 2)),
        ("60 days", None, at(2027, 3, 2, 23), at(2027, 4, 2)),
        ("36h", None, JANUARY, seconds_on(JANUARY, 18 * 3600, 2)),
        ("36h", "12h", JANUARY, seconds_on(JANUARY, 12 * 3600, 3)),
        ("1 week", "1 day", JANUARY, at(2027, 1, 22)),
        ("60 seconds", None, JANUARY, JANUARY + timedelta(minutes=1)),
    ],
    ids=lambda case: " ".join(map(str, case)),
)
def test_a_url_is_seen_until_its_window_ends_and_then_new_again(
    moved: MovedServer,
    client: redis.Redis,
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
    moved: MovedServer, client: redis.Redis, order: str
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


@pytest.mark.parametrize(
    "first",
    [
        lambda bloom: bloom.contains(["a"]) == [False],
        lambda bloom: "a" not in bloom,
        lambda bloom: len(bloom) == 0,
        lambda bloom: bloom.info().count == 0,
        lambda bloom: bloom.find("a").seen is False,
        lambda bloom: bloom.add("b") is True,
        lambda bloom: bloom.add_many(["b", "a"]) == [True, True],
        lambda bloom: bloom.extend(["a", "b", "a"]) == 2,
        lambda bloom: bloom.open() is not None,
        lambda bloom: bloom.rotate() is None,
        lambda bloom: bloom.clear() is None,
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_whatever_is_called_first_after_a_boundary_finds_the_new_period(
    moved: MovedServer,
    client: redis.Redis,
    order: str,
    first: Callable[[BloomFilter], bool],
) -> None:
    """By the client that was there before, and by one that is new."""
    for newcomer in (False, True):
        client.flushall()
        moved.set_time(JANUARY)
        bloom = connect(client, "1 month", period="1 month", ring=order)
        bloom.add_many(["a", "z"])
        moved.set_time(at(2027, 2, 1))
        if newcomer:
            bloom = connect(client, "1 month", period="1 month", ring=order)
        assert first(bloom)
        assert_ttls(client)
        assert "z" not in bloom
        assert_keys(client)
        assert bloom.lost_blocks == 0


# -- runs --


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", [1, 2, 3])
def test_runs_are_forgotten_one_by_one(client: redis.Redis, window: int, order: str) -> None:
    model, randoms = Periods(window), random.Random(window)
    for run in range(8):
        model.period = run
        workers = [
            connect(client, f"{window} runs", ring=order, run=f"run {run}") for _ in range(3)
        ]
        for _ in range(2):
            for worker in workers:
                batch = [f"page {randoms.randrange(80)}" for _ in range(20)]
                assert worker.add_many(batch) == model.add_many(batch)
                assert len(worker) == len(model.remembered())
        assert {ring.active.number for ring in stored_rings(client).values()} == {run}
        assert_ttls(client)


@pytest.mark.parametrize("order", ORDERS)
def test_a_straggler_of_an_old_run_does_not_rotate_the_ring_back(
    client: redis.Redis, order: str
) -> None:
    straggler = connect(client, "1 run", ring=order, run="old")
    straggler.add_many(["a"])
    new = connect(client, ring=order, run="new")
    assert new.add_many(["a", "b"]) == [True, True]
    assert straggler.add_many(["a", "b", "c"]) == [False, False, True]
    late = connect(client, ring=order, run="old")
    assert late.add_many(["a", "b", "c"]) == [False, False, False]
    assert len(straggler) == len(late) == len(new) == 3
    assert stored_rings(client)[0].active.number == 1


def test_who_shows_no_run_rotates_nothing(client: redis.Redis) -> None:
    connect(client, "1 run", run="1").add_many(["a"])
    visitor = connect(client)
    assert visitor.contains(["a"]) == [True]
    assert visitor.add("b") is True
    assert len(visitor) == 2
    assert stored_rings(client)[0].active.number == 0


def test_time_does_not_rotate_a_window_in_runs_but_its_keys_expire(
    moved: MovedServer, client: redis.Redis
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


@pytest.mark.parametrize("order", ORDERS)
def test_an_idle_filter_catches_up_in_one_step(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """Seven months later: one new generation, and what is remembered is remembered."""
    notes: Notes = []
    bloom = connect(
        client,
        "1 year",
        ring=order,
        blocks=1,
        notify=lambda what, ring: notes.append((what, ring.active.number)),
    )
    bloom.add("january")
    moved.set_time(at(2027, 2, 15))
    bloom.add("february")
    moved.set_time(at(2027, 9, 15))
    assert bloom.add_many(["january", "february", "september"]) == [False, False, True]
    assert notes == [(ROTATED, 1), (ROTATED, 2)]
    assert layer_names(client) == ["2.0", "1.0", "0.0"]
    moved.set_time(at(2028, 1, 1))
    assert bloom.contains(["january", "february", "september"]) == [False, True, True]
    assert layer_names(client) == ["3.0", "2.0", "1.0"]
    moved.set_time(at(2028, 8, 31))
    assert bloom.contains(["february", "september"]) == [False, True]
    assert layer_names(client) == ["4.0", "3.0", "2.0"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("blocks", [1, 2, 40])
def test_a_filter_that_expired_is_opened_anew_by_who_held_it_and_nothing_counts_as_lost(
    moved: MovedServer,
    client: redis.Redis,
    blocks: int,
    operation: Callable[[BloomFilter], bool],
) -> None:
    notes: Notes = []
    bloom = connect(
        client,
        "5 months",
        blocks=blocks,
        notify=lambda what, ring: notes.append((what, ring.block)),
    )
    assert sum(bloom.add_many(URLS)) == len(URLS)
    header = bloom.open()
    assert_expires(moved, client)
    moved.set_time(at(2029, 2, 28, 12))
    assert operation(bloom)
    assert bloom.open() == header
    assert bloom.lost_blocks == 0
    assert LOST not in [what for what, _ in notes]
    assert connect(client, blocks=blocks).add("z") is True


@pytest.mark.parametrize("window", ["36h", "2 runs", "2 months"])
@pytest.mark.parametrize("days", [1.5, 3.7, 5, 30, 61, 63, 91, 93, 402, 800])
def test_however_long_nobody_came_nothing_is_lost(
    moved: MovedServer, client: redis.Redis, window: str, days: float
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


@pytest.mark.parametrize("order", ORDERS)
def test_a_clock_that_goes_back_a_little_changes_nothing(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """As at a failover to a replica whose clock is late, just over a boundary."""
    bloom = connect(client, "2 months", ring=order)
    bloom.add_many(["january"])
    moved.set_time(at(2027, 2, 1, 0, 0, 5))
    bloom.add_many(["february"])
    [before] = {ring.generations for ring in stored_rings(client).values() if ring.block == 0}
    moved.move(-10)
    for worker in (bloom, connect(client, "2 months", ring=order)):
        assert worker.contains(["january", "february"]) == [True, True]
        assert worker.add_many(["january", "february"]) == [False, False]
        assert worker.add(f"between {worker is bloom}") is True
        assert len(worker) == 3 + (worker is not bloom)
    assert stored_rings(client)[0].generations == before
    assert_ttls(client)
    moved.set_time(at(2027, 2, 28, 12))
    assert bloom.contains(["january", "february", "between True"]) == [True, True, True]
    moved.set_time(at(2027, 3, 1))
    assert bloom.contains(["january", "february", "between True"]) == [False, True, True]
    moved.set_time(at(2027, 4, 1))
    assert bloom.contains(["february", "between True", "between False"]) == [False] * 3


@pytest.mark.parametrize("order", ORDERS)
def test_what_was_opened_in_a_future_that_is_undone_counts_as_opened_now(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """Else it would be remembered for a year longer. It is noticed when the filter is opened."""
    bloom = connect(client, "3 months", ring=order)
    bloom.add_many(["january"])
    moved.set_time(at(2027, 2, 15))
    bloom.add_many(["february"])
    moved.set_time(at(2026, 1, 15))
    assert bloom.add_many(["january", "february"]) == [False, False]
    other = connect(client, ring=order)
    assert other.add_many(["january", "february", "new"]) == [False, False, True]
    assert_ttls(client)
    assert client.expiretime(KEYS.layer(0, layer_names(client)[0])) == unix(at(2026, 4, 2))
    moved.set_time(at(2026, 3, 31, 23, 59, 50))
    assert bloom.contains(["january", "february", "new"]) == [True, True, True]
    moved.set_time(at(2026, 4, 1))
    assert bloom.add_many(["january", "february", "new"]) == [True, True, True]


# -- stagger --


@pytest.mark.parametrize("order", ORDERS)
def test_staggered_blocks_rotate_one_after_the_other(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """In February of 28 days, four blocks on the 1st, 8th, 15th and 22nd."""
    bloom = connect(client, "2 months", ring=order, blocks=4, stagger=True)
    hasher = Hasher(SEEDS, 4)
    blocks = [hasher.hashes(url.encode())[0] for url in URLS]
    moved.set_time(at(2027, 1, 30))  # the last of them began its January on the 24th
    assert all(bloom.add_many(URLS))
    for block, day in enumerate((1, 8, 15, 22)):
        boundary = at(2027, 2, day)
        for moment, rotated in ((boundary - timedelta(seconds=SHORTLY), 0), (boundary, 1)):
            moved.set_time(moment)
            assert len(bloom) == len(URLS)
            for number in range(4):
                info = bloom.info(number)
                assert len(info.generations) == 1 + (number < block + rotated)
                assert_ttls(client)
        assert bloom.info(block).generations[0].opened == pytest.approx(unix(boundary), abs=60)
    for block in range(4):  # March has 31 days: quarters of 7.75
        boundary = at(2027, 3, 1) + block * timedelta(days=7.75)
        assert bloom.find(URLS[blocks.index(block)]).until == unix(boundary)
        moved.set_time(boundary - timedelta(seconds=SHORTLY))
        assert bloom.contains(URLS) == [number >= block for number in blocks]
        moved.set_time(boundary)
        assert bloom.contains(URLS) == [number > block for number in blocks]


# -- stale clients --


@pytest.mark.parametrize("order", ORDERS)
def test_a_client_that_slept_over_boundaries_gets_the_verdicts_of_today(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    sleeper = connect(client, "2 months", ring=order)
    waking = connect(client, "2 months", ring=order)
    assert all(sleeper.add_many(URLS))
    for month in range(1, 4):
        moved.set_time(first_of(month))
        waking.add_many([f"month {month}"])
        waking.contains(URLS)
    assert sleeper.add_many(["month 1", "month 2", "month 3", *URLS]) == [
        True,
        False,
        False,
        *[True] * len(URLS),
    ]
    assert_keys(client)
    assert waking.add_many(URLS) == [False] * len(URLS)
    assert sleeper.lost_blocks == waking.lost_blocks == 0


@pytest.mark.parametrize("order", ORDERS)
def test_a_stale_client_neither_writes_to_a_dropped_generation_nor_makes_its_key_again(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """Its call as it would have sent it, late: at each moment since."""
    sleeper = connect(client, "2 months", ring=order, blocks=1)
    sleeper.add_many(["a"])
    held = sleeper._session.held[0]
    _, hashes = sleeper._session.hasher.hashes(b"late")
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


@pytest.mark.parametrize("order", ORDERS)
def test_bitmaps_expire_a_day_after_they_are_of_no_more_use_and_rings_later(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    bloom = connect(client, "5 months", ring=order, blocks=1)
    bloom.add("a")
    layer, ring, header = KEYS.layer(0, "0.0"), KEYS.ring(0), KEYS.header()

    def expiries(*names: str) -> list[datetime]:
        ends = [client.expiretime(name) for name in names]
        return [datetime.fromtimestamp(end, UTC) for end in ends]

    later = timedelta(days=400)
    june = at(2027, 6, 2)
    assert expiries(layer, ring, header) == [june, june + later, at(2027, 6, 3) + later]
    moved.set_time(at(2027, 3, 10))
    bloom.add("b")
    march = KEYS.layer(0, "1.0")
    august = at(2027, 8, 2)
    assert expiries(layer, march) == [june, august]
    assert expiries(ring, header) == [august + later, at(2027, 8, 3) + later]
    bloom.rotate()  # by hand: also a generation of March
    assert expiries(KEYS.layer(0, "2.0"), ring) == [august, august + later]
    bloom.clear()
    ends = [august, august + later, at(2027, 8, 3) + later]
    assert expiries(KEYS.layer(0, "3.0"), ring, header) == ends
    assert_keys(client)
    assert_expires(moved, client)


@pytest.mark.parametrize("window", ["5 months", "1 year", "36h", "2 runs"])
@pytest.mark.parametrize("order", ORDERS)
def test_after_any_operation_everything_expires_in_the_end(
    moved: MovedServer, client: redis.Redis, order: str, window: str
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


def test_a_filter_without_a_window_never_expires(moved: MovedServer, client: redis.Redis) -> None:
    bloom = connect(client, capacity=50)
    bloom.add_many(URLS)
    assert_ttls(client)
    moved.set_time(at(2099, 12, 31))
    assert bloom.add_many(URLS) == [False] * len(URLS)
    bloom.clear()
    bloom.add_many(URLS)
