"""What concerns all blocks of a filter, or many of them, takes few round trips."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.rotation import assert_keys, assert_ttls, at, connect, stored_rings

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.ring_store import ROTATED
from scrapy_bloom.bloom.protocol.scripts import Call
from scrapy_bloom.bloom.protocol.swaps import MAX_CALLS

pytestmark = pytest.mark.each_server(others="slow")

#: Three waves, of which two are full.
BLOCKS, PARTS = 2 * MAX_CALLS + 8, 3
#: Links enough that each of 16 blocks has some, and those of a page.
LINKS = [f"https://example.com/{number}" for number in range(400)]
PAGE = LINKS[:64]


@pytest.fixture
def many(moved: MovedServer) -> Iterator[Redis]:
    with moved.client() as client:
        yield client
        assert_keys(client)
        assert_ttls(client)


def waves(bloom: BloomFilter, action: Callable[[], object]) -> int:
    before = bloom.round_trips
    action()
    return bloom.round_trips - before


def windows(client: Redis) -> set[str | None]:
    return {ring.config.window for ring in stored_rings(client).values()}


def some(client: Redis, **options: Any) -> BloomFilter:
    # Of other options than in most tests: 1,024 blocks of tiny bitmaps.
    return connect(
        client, **{"blocks": BLOCKS, "capacity": 100_000, "window": "5 months"} | options
    )


# -- how many --


def test_a_filter_of_1024_blocks_is_created_and_opened_in_few_waves(many: Redis) -> None:
    first, second = some(many, blocks=1_024), some(many, blocks=None)
    assert waves(first, first.open) <= 25
    assert waves(second, second.open) <= 8
    assert sorted(stored_rings(many)) == list(range(1_024))
    assert len({ring.header for ring in stored_rings(many).values()}) == 1


def test_changes_of_all_blocks_take_few_waves(many: Redis) -> None:
    bloom = some(many)
    bloom.open()
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
    assert windows(many) == {"2 months"}
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
    bloom.add_many(PAGE)
    # The links, and again; rings read, the header's expiry, swapped, dropped; scripts loaded.
    for year in (2028, 2029):
        moved.set_time(at(year, 2, 1))
        assert waves(bloom, lambda: bloom.add_many(PAGE)) <= 6 + 2


# -- several at once --


def test_a_wave_allocates_and_deletes_no_more_than_it_may(
    many: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bitmaps of which two fit."""
    bloom = connect(many, blocks=40, capacity=16_000_000, window="1 month", period="1 month")
    driver, most = bloom._driver, Counter[str]()
    replies = driver._replies

    def note(calls: list[Call]) -> Any:
        # The first key is the ring's. Claims and the ledger go beside bitmaps, and take no memory.
        sent = [call for call in calls if any("0.0" in key for key in call.keys[1:])]
        for script in {call.script.name for call in sent}:
            most[script] = max(most[script], len(sent))
        return replies(calls)

    monkeypatch.setattr(driver, "_replies", note)
    bloom.open()
    bloom.delete()
    assert {name: most[name] for name in ("swap", "drop")} == {"swap": 2, "drop": 2}
