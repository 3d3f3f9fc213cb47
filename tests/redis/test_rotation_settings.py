"""Windows that are changed in a filter in use: what is forgotten at once, later, or never."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Barrier

import pytest
import redis
from support.clock import MovedServer
from support.rotation import (
    KEYS,
    ORDERS,
    SHORTLY,
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


def assert_forgets(moved: MovedServer, bloom: BloomFilter, forgotten: dict[str, datetime]) -> None:
    """Each item is remembered until the given moment, and not longer."""
    for moment in sorted(set(forgotten.values())):
        for when in (moment - timedelta(seconds=SHORTLY), moment):
            moved.set_time(when)
            expected = [forgotten[item] > when for item in forgotten]
            assert bloom.contains(forgotten) == expected, when


@pytest.mark.parametrize("order", ORDERS)
def test_a_shorter_window_forgets_at_once_what_is_older(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    stale = five_months(moved, client, order)
    bloom = connect(client, "3 months", ring=order)
    bloom.open()
    assert bloom.replaced_config is not None
    assert_keys(client)
    assert_ttls(client)
    for worker in (stale, bloom):
        assert worker.contains(list("01234")) == [False, False, True, True, True]
    assert client.expiretime(KEYS.layer(0, layer_names(client)[0])) == unix(at(2027, 8, 2))
    assert_forgets(moved, stale, {"2": at(2027, 6, 1), "3": at(2027, 7, 1), "4": at(2027, 8, 1)})


@pytest.mark.parametrize("order", ORDERS)
def test_a_longer_window_remembers_longer_what_is_still_there(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    stale = five_months(moved, client, order)
    bloom = connect(client, "1 year", ring=order)
    bloom.open()
    assert_keys(client)
    assert_ttls(client)
    assert client.expiretime(KEYS.layer(0, layer_names(client)[0])) == unix(at(2028, 5, 2))
    assert_forgets(
        moved,
        stale,
        {str(month): first_of(12 + month) for month in range(5)},
    )


@pytest.mark.parametrize("order", ORDERS)
def test_windows_change_back_and_forth(moved: MovedServer, client: redis.Redis, order: str) -> None:
    five_months(moved, client, order)
    connect(client, "3 months", ring=order).open()
    bloom = connect(client, "1 year", ring=order)
    assert bloom.add_many(list("01234")) == [True, True, False, False, False]
    assert_ttls(client)
    may = at(2028, 5, 1)
    assert_forgets(
        moved,
        bloom,
        {"0": may, "1": may, "2": at(2028, 3, 1), "3": at(2028, 4, 1), "4": may},
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_window_for_a_filter_that_never_forgot(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """A client that knew it without goes on, and keeps the header alive."""
    old = connect(client, ring=order)
    old.add_many(["a"])
    old.open()
    assert_ttls(client)
    new = connect(client, "5 months", ring=order)
    assert new.add_many(["a", "b"]) == [False, True]
    assert_ttls(client)
    for month in range(1, 5):
        moved.set_time(first_of(month))
        assert old.contains(["a", "b"]) == [True, True]
        assert_ttls(client)
    moved.set_time(first_of(5))
    assert old.add_many(["a", "b"]) == [True, True]


@pytest.mark.parametrize("order", ORDERS)
def test_a_window_taken_away_forgets_nothing_any_more(
    moved: MovedServer, client: redis.Redis, order: str
) -> None:
    """Above all nothing of what was remembered until then."""
    stale = five_months(moved, client, order)
    bloom = connect(client, "never", ring=order)
    bloom.open()
    assert_keys(client)
    assert_ttls(client)
    assert bloom.contains(list("01234")) == [True] * 5
    assert bloom.add("new") is True
    moved.set_time(at(2031, 1, 1))
    assert stale.add_many([*"01234", "new"]) == [False] * 6
    assert len(bloom) == 6


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
