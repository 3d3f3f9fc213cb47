"""Windows on real servers whose clock the tests move: what is forgotten, when, and what expires."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.filters import URLS, add_to, assert_expiries, fields, rings, small, with_windows

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
    bloom = connect(client, window, ring=ring)
    moved.set_time(seen - (forgotten - seen) / 2)
    assert bloom.add("older")
    moved.set_time(seen)
    assert bloom.add("a")
    assert_expiries(client)
    assert bloom.info().windows["default"].generations[0].forgotten == forgotten.timestamp()
    for moment in (seen + (forgotten - seen) / 2, forgotten - timedelta(seconds=1)):
        moved.set_time(moment)
        assert (bloom.contains("a"), bloom.add("a")) == (True, False)
        assert_expiries(client)
    moved.set_time(forgotten)
    assert (bloom.contains("a"), len(bloom)) == (False, 0)
    assert [bloom.add("a"), bloom.add("a")] == [True, False]
    assert len(bloom) == 1
    assert_expiries(client)


@pytest.mark.parametrize("ring", ORDERS)
@pytest.mark.parametrize("before", ["2 months", "never"])
def test_a_longer_window_keeps_what_another_run_has_recorded(
    moved: MovedServer, client: Redis, before: str, ring: str
) -> None:
    moved.set_time(at(2027, 1, 20))
    assert connect(client, before, ring=ring).add("a")
    bloom = connect(client, "5 months", ring=ring)
    for moment in (at(2027, 1, 20), at(2027, 4, 5), at(2027, 5, 31, 23, 59, 59)):
        moved.set_time(moment)
        assert "a" in bloom
    moved.set_time(at(2027, 6, 1))
    assert "a" not in bloom


def test_rotation_is_said_once_per_block(moved: MovedServer, client: Redis) -> None:
    notes: list[str] = []
    bloom = connect(client, "2 months", notify=lambda what, *_: notes.append(what))
    bloom.add_many(URLS)
    moved.set_time(at(2027, 2, 1))
    bloom.add_many(URLS)
    bloom.add_many(URLS)
    assert notes.count("rotated") == 2
    assert not {"lost", "grown"} & set(notes)
    moved.set_time(at(2028, 2, 1))
    bloom.add_many(URLS)
    counts = {name for name in fields(client) if name.startswith("n:")}
    assert counts == {f"n:default:{one.name}" for one in rings(client, 1)[0].bitmaps}, "no old ones"


def test_a_lookup_opens_the_generations_of_all_its_blocks_in_few_round_trips(
    moved: MovedServer, client: Redis
) -> None:
    bloom = connect(client, "2 months", blocks=64, capacity=1000)
    bloom.add_many(URLS)
    moved.set_time(at(2027, 2, 1))
    before = bloom.transport.round_trips
    bloom.add_many(URLS)
    assert bloom.transport.round_trips - before <= 3
    assert {len(ring.bitmaps) for ring in rings(client, 64)} == {2}


def test_windows_of_one_filter_rotate_each_in_its_own_time(
    moved: MovedServer, client: Redis
) -> None:
    # The hash of a block lasts for its longest window, whichever has changed last.
    bloom = with_windows(client, default="3 years", week="1 week", hour="1 hour")
    for window in ("default", "week", "hour"):
        assert add_to(bloom, window, "a") == [True]
    assert_expiries(client)
    for days, new in ((1, ["hour"]), (8, ["week", "hour"]), (1_200, ["default", "week", "hour"])):
        moved.move(days * 86_400)
        found = [name for name in ("default", "week", "hour") if add_to(bloom, name, "a")[0]]
        assert found == new
        assert_expiries(client)
