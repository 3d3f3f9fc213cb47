"""Windows on real servers whose clock the tests move: what is forgotten, when, and what expires."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Barrier, Event
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.rotation import ORDERS, URLS, assert_keys, assert_ttls, at, connect, stored_rings

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.options import EXTEND
from scrapy_bloom.bloom.protocol import swaps
from scrapy_bloom.bloom.protocol.ring_store import LOST, ROTATED

pytestmark = pytest.mark.each_server(others="slow")


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
    moved: MovedServer, client: Redis, order: str, case: tuple[str, str | None, datetime, datetime]
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
        assert (bloom.contains("a"), bloom.add("a")) == (True, False)
        assert bloom.find("a").until == forgotten.timestamp()
    moved.set_time(forgotten)
    assert (bloom.contains("a"), bloom.find("a").seen, len(bloom)) == (False, False, 0)
    assert [bloom.add("a"), bloom.add("a")] == [True, False]
    assert (len(bloom), bloom.lost_blocks) == (1, 0)


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
    told: list[tuple[str, int]] = []
    options: Any = {"notify": lambda what, ring: told.append((what, ring.block))}
    bloom = connect(client, "2 months", blocks=40, **options)
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
    assert sorted(block for what, block in told if what == LOST) == [*range(40)]
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


# -- many blocks take few round trips --

#: Calls of a wave; and blocks for three waves, of which two are full.
MOST, BLOCKS, PARTS = 32, 72, 3


@pytest.fixture
def many(client: Redis, monkeypatch: pytest.MonkeyPatch) -> Redis:
    monkeypatch.setattr(swaps, "MAX_CALLS", MOST)
    return client


def waves(bloom: BloomFilter, action: Callable[[], object]) -> int:
    before = bloom.round_trips
    action()
    return bloom.round_trips - before


def some(client: Redis, **options: Any) -> BloomFilter:
    return connect(client, **{"blocks": BLOCKS, "window": "5 months"} | options)


def test_changes_of_all_blocks_take_few_waves(many: Redis) -> None:
    some(many).open()
    some(many).delete()  # the scripts are loaded
    bloom, second = some(many), some(many, blocks=None)
    # Of its rights on each block, and of its rings.
    assert waves(bloom, bloom.open) <= 5 * PARTS + 1
    assert waves(second, second.open) <= PARTS + 5
    assert len({ring.header for ring in stored_rings(many).values()}) == 1
    assert waves(bloom, bloom.info) == PARTS
    # Looked at; then read and swapped, and the fifth time what is forgotten is dropped. And the
    # header is read, it is made to live longer, and a script is loaded.
    for _ in range(4):
        assert waves(bloom, bloom.rotate) <= 3 * PARTS + 2
    assert waves(bloom, bloom.rotate) <= 4 * PARTS + 4
    assert {len(ring.generations) for ring in stored_rings(many).values()} == {5}
    # Five bitmaps of each block go, and its claims.
    assert waves(bloom, bloom.clear) <= (2 + 5 + 1) * PARTS + 3
    assert {len(ring.generations) for ring in stored_rings(many).values()} == {1}
    other = some(many, window="2 months")
    assert waves(other, other.open) <= 4 * PARTS + 6
    assert {ring.config.window for ring in stored_rings(many).values()} == {"2 months"}
    assert waves(other, lambda: other.clear(claims_only=True)) <= PARTS + 2
    assert waves(other, other.delete) <= 5 * PARTS
    assert many.dbsize() == 0


def test_what_is_due_at_open_is_rotated_in_few_waves(moved: MovedServer, many: Redis) -> None:
    some(many).open()
    moved.set_time(at(2027, 2, 1))
    told: list[str] = []
    bloom = some(many, notify=lambda what, _: told.append(what))
    assert waves(bloom, bloom.open) <= 4 * PARTS + 6
    assert told == [ROTATED] * BLOCKS
    again = some(many, notify=lambda what, _: told.append(what))
    assert waves(again, again.open) <= 8
    assert told == [ROTATED] * BLOCKS, "who does them is told"


@pytest.mark.parametrize("stagger", [False, True])
def test_a_lookup_rotates_all_its_blocks_at_once(
    moved: MovedServer, many: Redis, stagger: bool
) -> None:
    bloom = connect(many, blocks=16, window="2 months", stagger=stagger)
    bloom.add_many(URLS[:64])
    # The links, and again; rings read, the header's expiry, swapped, dropped; scripts loaded.
    for year in (2028, 2029):
        moved.set_time(at(year, 2, 1))
        assert waves(bloom, lambda: bloom.add_many(URLS[:64])) <= 6 + 2


# -- many clients at once --

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
    moved: MovedServer, options: dict[str, Any], new_in: list[int]
) -> None:
    """Each client claims every page in each period; who was first, nobody else was."""
    moved.set_time(at(2027, 1, 15, 13))
    options = {**FAST, **options}
    with moved.client() as client:
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
                    moved.move(86_400)
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
    with moved.client() as client:
        assert len(connect(client, **options)) == len(PAGES)
        assert_keys(client, going=True)
        assert_ttls(client)
