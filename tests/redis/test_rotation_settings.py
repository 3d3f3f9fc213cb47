"""Windows that are changed in a filter in use: what is forgotten at once, later, or never."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
import redis
from support.clock import MovedServer
from support.rotation import checked_client, connect, stored_rings

from scrapy_bloom import FilterMismatchError
from scrapy_bloom.bloom.options import EXTEND

pytestmark = pytest.mark.each_server


@pytest.fixture
def client(moved: MovedServer) -> Iterator[redis.Redis]:
    """A client of the moved server; what a test leaves behind has to be whole and to expire."""
    with checked_client(moved) as client:
        yield client


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
