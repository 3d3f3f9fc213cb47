"""Windows that are changed in a filter in use: what is forgotten at once, later, or never."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Barrier

import pytest
import redis
from support.clock import MovedServer
from support.rotation import (
    ORDERS,
    assert_keys,
    assert_ttls,
    at,
    checked_client,
    connect,
    first_of,
    stored_rings,
)

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.options import EXTEND

pytestmark = pytest.mark.each_server


@pytest.fixture
def client(moved: MovedServer) -> Iterator[redis.Redis]:
    """A client of the moved server; what a test leaves behind has to be whole and to expire."""
    with checked_client(moved) as client:
        yield client


def five_months(moved: MovedServer, client: redis.Redis, order: str) -> BloomFilter:
    """A filter that saw "0" in January to "4" in May, on 20 May."""
    bloom = connect(client, "5 months", ring=order)
    for month in range(5):
        moved.set_time(first_of(month) + timedelta(days=19))
        bloom.add(str(month))
    assert bloom.contains(list("01234")) == [True] * 5
    return bloom


def test_of_clients_that_only_extend_at_once_the_longest_window_holds(
    moved: MovedServer, client: redis.Redis
) -> None:
    """Those with a shorter one came first, or are refused; no ring is shortened again."""
    windows = ["1 month", "6 months", "2 months", "3 months"]

    def open_one(window: str) -> None:
        with moved.client() as own, suppress(FilterMismatchError):
            start.wait()
            connect(own, window, blocks=16, on_difference=EXTEND).open()

    for _ in range(20):
        client.flushall()
        start = Barrier(len(windows))
        with ThreadPoolExecutor(len(windows)) as pool:
            list(pool.map(open_one, windows))
        rings = stored_rings(client)
        assert {ring.config.window for ring in rings.values()} == {"6 months"}


@pytest.mark.parametrize("order", ORDERS)
def test_from_months_to_runs_and_back(moved: MovedServer, client: redis.Redis, order: str) -> None:
    stale = five_months(moved, client, order)
    first = connect(client, "2 runs", ring=order, run="1")
    assert first.add_many(["4", "run 1"]) == [False, True]
    assert_keys(client)
    assert_ttls(client)
    moved.set_time(at(2027, 12, 1))
    assert stale.contains(["4", "run 1"]) == [True, True]
    second = connect(client, ring=order, run="2")
    assert second.add_many(["4", "run 1", "run 2"]) == [True, False, True]
    assert stale.contains(["4", "run 1", "run 2"]) == [True] * 3
    back = connect(client, "2 months", ring=order)
    assert back.contains(["4", "run 2"]) == [True] * 2
    assert_keys(client)
    assert_ttls(client)
    moved.set_time(at(2028, 2, 1))
    assert back.contains(["4", "run 2"]) == [False] * 2
