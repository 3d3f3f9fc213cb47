"""What is lost of a filter with a window: which items are new again, and that nothing else is."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis
from support.clock import MovedServer
from support.rotation import (
    KEYS,
    OPERATIONS,
    ORDERS,
    SEEDS,
    URLS,
    Notes,
    assert_keys,
    assert_ttls,
    at,
    checked_client,
    connect,
    first_of,
    layer_names,
)

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.protocol.ring_store import LOST

pytestmark = pytest.mark.each_server


@pytest.fixture
def client(moved: MovedServer) -> Iterator[redis.Redis]:
    """A client of the moved server; what a test leaves behind has to be whole and to expire."""
    with checked_client(moved) as client:
        yield client


def three_months(moved: MovedServer, client: redis.Redis, order: str) -> tuple[BloomFilter, Notes]:
    """A filter of one block that saw "0" in January, "1" in February and "2" in March."""
    notes: Notes = []
    bloom = connect(
        client,
        "5 months",
        ring=order,
        blocks=1,
        notify=lambda what, ring: notes.append((what, ring.block)),
    )
    for month in range(3):
        moved.set_time(first_of(month) + timedelta(days=14))
        bloom.add(str(month))
    notes.clear()
    return bloom, notes


def delete(client: redis.Redis, layer: str) -> None:
    client.delete(KEYS.layer(0, layer))


def truncate(client: redis.Redis, layer: str) -> None:
    client.set(KEYS.layer(0, layer), b"\x00")


def forget_count(client: redis.Redis, layer: str) -> None:
    client.hdel(KEYS.ring(0), f"n:{layer}")


@pytest.mark.parametrize(
    ("lost", "seen"), [((0,), "12"), ((1,), "02"), ((2,), "01"), ((0, 1), "2"), ((0, 1, 2), "")]
)
def test_a_lost_layer_costs_its_own_items(
    moved: MovedServer, client: redis.Redis, lost: tuple[int, ...], seen: str
) -> None:
    bloom, notes = three_months(moved, client, "write-newest")
    other = connect(client, blocks=1)
    other.open()
    for number in lost:
        delete(client, f"{number}.0")
    assert bloom.contains(list("012")) == [item in seen for item in "012"]
    assert (bloom.lost_blocks, notes) == (1, [(LOST, 0)])
    assert_keys(client)
    assert_ttls(client)
    assert other.add_many(list("012")) == [item not in seen for item in "012"]
    assert bloom.add_many(list("012")) == [False] * 3
    assert (bloom.lost_blocks, other.lost_blocks) == (1, 0)
    for month in range(3, 7):  # what was claimed again is remembered from March on
        moved.set_time(first_of(month))
        known = [item not in seen or month < 5 + int(item) for item in "012"]
        assert bloom.contains(list("012")) == known
    moved.set_time(first_of(7))
    assert len(bloom) == 0


@pytest.mark.parametrize("lose", [delete, truncate, forget_count])
@pytest.mark.parametrize(
    "case",  # lost, what is seen then, and in the months to come
    [
        # The oldest holds all; when it goes, the next one has what came since.
        (0, "12", ["12", "12", "12", "2", ""]),
        # A younger one: nothing, until the older ones are forgotten.
        (1, "012", ["012", "012", "2", "2", ""]),
        # The active one is allocated anew, and empty.
        (2, "012", ["012", "012", "12", "", ""]),
    ],
)
def test_under_write_all_a_lost_generation_costs_what_no_older_one_has(
    moved: MovedServer,
    client: redis.Redis,
    case: tuple[int, str, list[str]],
    lose: Callable[[redis.Redis, str], None],
) -> None:
    lost, now, later = case
    bloom, notes = three_months(moved, client, "write-all")
    lose(client, f"{lost}.0")
    assert bloom.add_many(["x"]) == [True]  # a claim needs all bitmaps
    assert (bloom.lost_blocks, notes) == (1, [(LOST, 0)])
    assert_keys(client)
    assert_ttls(client)
    for month, seen in enumerate([now, *later], start=2):
        moved.set_time(first_of(month) + timedelta(days=20))
        assert bloom.contains(list("012")) == [item in seen for item in "012"]
        assert bloom.contains(["x"]) == [month < 7]
    assert bloom.lost_blocks == 1


def test_under_write_all_all_layers_may_be_lost(moved: MovedServer, client: redis.Redis) -> None:
    bloom, notes = three_months(moved, client, "write-all")
    for number in range(3):
        delete(client, f"{number}.0")
    assert bloom.add_many(list("012x")) == [True] * 4
    assert (bloom.lost_blocks, notes) == (1, [(LOST, 0)])
    assert layer_names(client) == ["2.0"]
    moved.set_time(first_of(6) + timedelta(days=20))
    assert bloom.add_many(list("012x")) == [False] * 4
    moved.set_time(first_of(7))
    assert bloom.add_many(list("012x")) == [True] * 4


@pytest.mark.parametrize("lose", [truncate, forget_count])
def test_a_damaged_active_layer_is_made_anew(
    moved: MovedServer, client: redis.Redis, lose: Callable[[redis.Redis, str], None]
) -> None:
    bloom, notes = three_months(moved, client, "write-newest")
    lose(client, "2.0")
    assert bloom.add_many(list("012")) == [False, False, True]
    assert (bloom.lost_blocks, notes) == (1, [(LOST, 0)])


@pytest.mark.parametrize("order", ORDERS)
def test_a_lost_ring_costs_its_block(moved: MovedServer, client: redis.Redis, order: str) -> None:
    notes: Notes = []
    bloom = connect(
        client,
        "2 months",
        ring=order,
        notify=lambda what, ring: notes.append((what, ring.block)),
    )
    bloom.add_many(URLS)
    hasher = Hasher(SEEDS, 2)
    blocks = [hasher.hashes(url.encode())[0] for url in URLS]
    client.delete(KEYS.ring(1))
    assert bloom.add_many(URLS) == [block == 1 for block in blocks]
    assert (bloom.lost_blocks, notes) == (1, [(LOST, 1)])
    moved.set_time(at(2027, 2, 1))
    client.delete(KEYS.ring(0))
    # It is missed by whoever comes first, over a boundary as well.
    assert bloom.add_many(URLS) == [block == 0 for block in blocks]
    assert bloom.lost_blocks == 2
    moved.set_time(at(2027, 3, 1))
    assert bloom.contains(URLS) == [block == 0 for block in blocks]


@pytest.mark.parametrize("over_a_boundary", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_block_of_a_flushed_filter_counts_as_lost(
    moved: MovedServer,
    client: redis.Redis,
    operation: Callable[[BloomFilter], bool],
    over_a_boundary: bool,
) -> None:
    """More blocks than rounds: a flush costs one round, not one for each of them."""
    notes: Notes = []
    bloom = connect(
        client,
        "2 months",
        blocks=40,
        notify=lambda what, ring: notes.append((what, ring.block)),
    )
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
    assert sorted(block for what, block in notes if what == LOST) == list(range(40))
    assert bloom.open() == header


@pytest.mark.parametrize("stagger", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_a_lost_header_is_restored_from_the_rings(
    moved: MovedServer, client: redis.Redis, order: str, stagger: bool
) -> None:
    """By a newcomer, and to live longer than any ring: staggered, the last block ends last."""
    bloom = connect(client, "2 months", ring=order, blocks=4, stagger=stagger, seeds=None)
    moved.set_time(at(2027, 1, 30))
    bloom.add_many(URLS)
    header = bloom.open()
    for day in (at(2027, 1, 31), at(2027, 2, 26)):
        moved.set_time(day)
        client.delete(KEYS.header())
        newcomer = connect(client, blocks=None, seeds=None)
        assert newcomer.add_many(URLS) == [False] * len(URLS)
        assert newcomer.header == header
        assert newcomer.lost_blocks == 0
        assert_ttls(client)


def test_a_header_made_anew_outlives_the_rings_of_who_knew_a_longer_lived_one(
    moved: MovedServer, client: redis.Redis
) -> None:
    """The clock goes back by a year, all is flushed, and two workers restore one block each."""
    workers = [connect(client, "2 months", stagger=True) for _ in range(2)]
    for worker in workers:
        worker.open()
    hasher = Hasher(SEEDS, 2)
    moved.set_time(at(2026, 1, 30))
    workers[0].info()
    client.flushall()
    for number, moment in enumerate((at(2026, 1, 30), at(2026, 3, 5))):
        moved.set_time(moment)
        workers[number].add(next(url for url in URLS if hasher.hashes(url.encode())[0] == number))
    assert client.exists(KEYS.header())
    assert_keys(client)
    assert_ttls(client)
