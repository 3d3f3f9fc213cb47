"""Windows on real servers whose clock the tests move: what is forgotten, when, and what expires."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.filters import URLS, add_to, assert_expiries, rings, small, with_windows

from scrapy_bloom import BloomFilter

pytestmark = pytest.mark.each_server(others="slow")

ORDERS = ["write-newest", "write-all"]


def at(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC)  # type: ignore[misc, arg-type]


@pytest.fixture
def client(moved: MovedServer) -> Iterator[Redis]:
    with moved.client() as client:
        yield client


def connect(client: Redis, window: object, **options: Any) -> BloomFilter:
    return small(client, **{"window": window, "blocks": 2, "capacity": 4_000, **options})


@pytest.mark.each_server
@pytest.mark.parametrize("ring", ORDERS)
@pytest.mark.parametrize(
    "case",  # window, seen, forgotten
    [
        ("1 month", at(2028, 2, 15, 23, 59, 59), at(2028, 3, 1)),
        ("1 month", at(2028, 2, 29, 23, 59, 59), at(2028, 3, 16)),
        ("2 months", at(2027, 12, 31), at(2028, 2, 1)),
        ("5 months", at(2027, 1, 31, 23, 59, 59), at(2027, 6, 1)),
        ("36 hours", at(2027, 1, 15, 12), at(2027, 1, 17)),
    ],
    ids=str,
)
def test_a_url_is_seen_until_its_window_ends_and_then_new_again(
    moved: MovedServer, client: Redis, ring: str, case: tuple[str, datetime, datetime]
) -> None:
    """However often it's seen meanwhile: sight doesn't refresh it."""
    window, seen, forgotten = case
    moved.set_time(seen)
    bloom = connect(client, window, ring=ring)
    assert bloom.add("a")
    assert_expiries(client)
    assert bloom.info().windows["default"].generations[-1].forgotten == forgotten.timestamp()
    for moment in (seen + (forgotten - seen) / 2, forgotten - timedelta(seconds=1)):
        moved.set_time(moment)
        assert (bloom.contains("a"), bloom.add("a")) == (True, False)
        assert_expiries(client)
    moved.set_time(forgotten)
    assert (bloom.contains("a"), len(bloom)) == (False, 0)
    assert [bloom.add("a"), bloom.add("a")] == [True, False]
    assert len(bloom) == 1
    assert_expiries(client)


def test_rotation_is_said_once_per_block(moved: MovedServer, client: Redis) -> None:
    notes: list[str] = []
    bloom = connect(client, "2 months", notify=lambda what, *_: notes.append(what))
    bloom.add_many(URLS)
    moved.set_time(at(2027, 2, 1))
    bloom.add_many(URLS)
    bloom.add_many(URLS)
    assert notes.count("rotated") == 2
    assert not {"lost", "grown"} & set(notes)


def test_a_lookup_opens_the_generations_of_all_its_blocks_in_few_round_trips(
    moved: MovedServer, client: Redis
) -> None:
    bloom = connect(client, "2 months", blocks=64, capacity=1000)
    bloom.add_many(URLS)
    moved.set_time(at(2027, 2, 1))
    before = bloom.transport.round_trips
    bloom.add_many(URLS)
    assert bloom.transport.round_trips - before <= 3
    assert {len(ring.layers) for ring in rings(client, 64)} == {2}


# -- windows that change --


def test_a_run_with_a_shorter_window_by_accident_changes_nothing_for_the_next_run(
    moved: MovedServer, client: Redis
) -> None:
    usual, short = connect(client, "5 months"), connect(client, "2 days")
    usual.add_many(URLS[:500])
    moved.set_time(at(2027, 2, 10))
    usual.add_many(URLS[500:])
    assert short.contains(URLS) == [True] * 1000, "what another period made counts until it ends"
    moved.set_time(at(2027, 2, 20))
    short.add("x")
    assert_expiries(client)
    moved.set_time(at(2027, 5, 31, 23))
    assert usual.contains(URLS) == [True] * 1000
    moved.set_time(at(2027, 6, 1))
    assert usual.contains(URLS) == [False] * 500 + [True] * 500
    assert_expiries(client)


def test_what_never_was_forgotten_counts_as_seen_when_the_filter_gets_a_window(
    moved: MovedServer, client: Redis
) -> None:
    connect(client, None).add_many(URLS)
    assert {client.ttl(key) for key in client.keys()} == {-1}
    moved.move(800 * 86_400)
    moved.set_time(at(2029, 5, 20))
    bloom = connect(client, "2 months")
    assert bloom.add_many(URLS) == [False] * 1000
    moved.set_time(at(2029, 6, 30, 23))
    assert bloom.contains(URLS) == [True] * 1000
    moved.set_time(at(2029, 7, 1))
    assert bloom.add_many(URLS) == [True] * 1000
    # The old bitmaps go when the next generation is opened.
    moved.set_time(at(2029, 8, 1))
    bloom.add_many(URLS)
    assert all(layer.ends for ring in rings(client, 2) for layer in ring.layers)
    assert_expiries(client)


def test_half_of_a_month_remains_of_the_last_run_when_a_run_is_on_each_1st(
    moved: MovedServer, client: Redis
) -> None:
    """With "1 month", all pages of the run before are new, also of one that took days."""
    for month in range(1, 13):
        moved.set_time(at(2027, month, 1))
        bloom = connect(client, "1 month")
        assert bloom.add_many(URLS[:500]) == [True] * 500
        moved.set_time(at(2027, month, 12))
        assert bloom.add_many(URLS) == [False] * 500 + [True] * 500


def test_windows_of_one_filter_rotate_each_in_its_own_time(
    moved: MovedServer, client: Redis
) -> None:
    bloom = with_windows(client, default="5 months", week="1 week", hour="1 hour")
    for window in ("default", "week", "hour"):
        assert add_to(bloom, window, "a") == [True]
    assert_expiries(client)
    for days, new in ((1, ["hour"]), (8, ["week", "hour"]), (180, ["default", "week", "hour"])):
        moved.move(days * 86_400)
        found = [name for name in ("default", "week", "hour") if add_to(bloom, name, "a")[0]]
        assert found == new
        assert_expiries(client)
