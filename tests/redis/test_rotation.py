"""Windows on real servers whose clock the tests move: what is forgotten, when, and what expires."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from redis import Redis
from support.clock import FrozenServer, MovedServer
from support.rotation import (
    ORDERS,
    URLS,
    assert_keys,
    assert_ttls,
    at,
    connect,
    stored_rings,
)

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import EXTEND
from scrapy_bloom.bloom.protocol.ring_store import LOST

pytestmark = pytest.mark.each_server(others="slow")


@pytest.fixture(scope="session")
def moved_server(moved_server: MovedServer, start_once: Any) -> Any:
    """A server whose clock stands still between two moves."""
    return start_once(FrozenServer, moved_server.binary)


@pytest.fixture
def client(moved: MovedServer) -> Iterator[Redis]:
    """A client of the moved server; what a test leaves behind has to be whole and to expire."""
    with moved.client() as client:
        yield client
        assert_keys(client)
        assert_ttls(client)


# -- boundaries --


JANUARY = at(2027, 1, 15, 12)


@pytest.mark.each_server
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "case",  # window, period, seen, forgotten
    [
        ("1 month", "1 month", at(2028, 2, 29, 23, 59, 59), at(2028, 3, 1)),
        ("5 months", None, at(2027, 1, 31, 23, 59, 59), at(2027, 6, 1)),
        ("1 week", "1 day", JANUARY, at(2027, 1, 22)),
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
    assert bloom.find("a").until == forgotten.timestamp()
    for moment in (seen + (forgotten - seen) / 2, forgotten - timedelta(seconds=1)):
        moved.set_time(moment)
        assert bloom.contains(["a"]) == [True]
        assert bloom.add("a") is False
        assert bloom.find("a").until == forgotten.timestamp()
    moved.set_time(forgotten)
    assert bloom.contains(["a"]) == [False]
    assert bloom.find("a").seen is False
    assert len(bloom) == 0
    assert [bloom.add("a"), bloom.add("a")] == [True, False]
    assert len(bloom) == 1
    assert bloom.lost_blocks == 0


# -- losses --


@pytest.mark.parametrize("over_a_boundary", [False, True])
@pytest.mark.parametrize(
    "operation",
    [
        lambda bloom: sum(bloom.add_many(URLS)) == len(URLS),
        lambda bloom: len(bloom) == 0,
        lambda bloom: bloom.rotate() is None,
        lambda bloom: bloom.open() is not None,
    ],
)
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

    for _ in range(10):
        client.flushall()
        start = Barrier(len(windows))
        with ThreadPoolExecutor(len(windows)) as pool:
            assert max(pool.map(open_one, windows)) <= 100
        rings = stored_rings(client)
        assert sorted(rings) == list(range(16))
        assert len({ring.header for ring in rings.values()}) == 1
        assert {ring.config.window for ring in rings.values()} == {"6 months"}
