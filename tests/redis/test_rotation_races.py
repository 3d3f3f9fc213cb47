"""Many clients at once, over rotation and growth."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.rotation import assert_keys, assert_ttls, at, connect

from scrapy_bloom import BloomFilter

pytestmark = pytest.mark.each_server(others="slow")

DAY = 86_400


@pytest.fixture
def client(moved: MovedServer) -> Iterator[Redis]:
    with moved.client() as client:
        yield client
        assert_keys(client, going=True)


CLIENTS = 6
PAGES = [f"https://example.com/page/{i}" for i in range(600)]
#: A filter of few hashes, whose layers are full soon.
FAST = {"seeds": None, "capacity": 50, "blocks": 4}


class Claimer:
    """Claims all pages over and over, in random order, in batches and one by one."""

    def __init__(self, number: int, stop: Event) -> None:
        self._randoms = random.Random(number)
        self._stop = stop
        self.news = [0] * len(PAGES)
        self.passes = 0

    def run(self, server: MovedServer, options: dict[str, Any]) -> None:
        """Claim until it is told to stop."""
        order = list(range(len(PAGES)))
        with server.client() as client:
            bloom = connect(client, **options)
            while not self._stop.is_set():
                self._randoms.shuffle(order)
                self._claim(bloom, order)
                self.passes += 1

    def _claim(self, bloom: BloomFilter, order: list[int]) -> None:
        start = 0
        while start < len(order):
            size = self._randoms.choice([1, 1, 20, 100])
            batch = order[start : start + size]
            if size == 1:
                verdicts = [bloom.add(PAGES[batch[0]])]
            else:
                verdicts = bloom.add_many([PAGES[page] for page in batch])
            for page, new in zip(batch, verdicts, strict=True):
                self.news[page] += new
            start += size


@pytest.mark.parametrize(
    ("options", "new_in"),
    [
        ({"window": "1 day", "period": "1 day", "stagger": True}, [1, 1, 1]),
        ({"window": "2 days", "period": "1 day", "ring": "write-all"}, [1, 0, 1]),
    ],
    ids=str,
)
def test_claims_that_race_over_boundaries_are_new_once_in_each_window(
    moved: MovedServer, client: Redis, options: dict[str, Any], new_in: list[int]
) -> None:
    """Each client claims every page in each period; who was first, nobody else was."""
    moved.set_time(at(2027, 1, 15, 13))
    options = {**FAST, **options}
    connect(client, **{**options, "seeds": 12}).open()
    stop = Event()
    claimers = [Claimer(number, stop) for number in range(CLIENTS)]

    def news() -> list[int]:
        return [sum(counts) for counts in zip(*(one.news for one in claimers), strict=True)]

    seen_new = 0
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(one.run, moved, options) for one in claimers]
        try:
            for period, new in enumerate(new_in):
                if period:
                    assert news() == [seen_new] * len(PAGES)
                    winners = [sum(one.news) for one in claimers]
                    moved.move(DAY)
                # The pass under way may have begun before.
                target = [one.passes + 2 for one in claimers]
                while any(one.passes < n for one, n in zip(claimers, target, strict=True)):
                    assert not any(one.done() for one in running)
                    stop.wait(0.005)
                seen_new += new
                if period and new:
                    gained = [sum(c.news) > n for c, n in zip(claimers, winners, strict=True)]
                    assert sum(gained) > 1, "they did not race"
        finally:
            stop.set()
        for one in running:
            one.result()
    assert news() == [seen_new] * len(PAGES)
    assert len(connect(client, **options)) == len(PAGES)
    assert_ttls(client)
