"""What concerns all blocks of a filter, or many of them, takes few round trips."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.rotation import assert_keys, assert_ttls, at, connect, stored_rings

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol import swaps
from scrapy_bloom.bloom.protocol.ring_store import ROTATED

pytestmark = pytest.mark.each_server(others="slow")

#: Links enough that each of 16 blocks has some, and those of a page.
LINKS = [f"https://example.com/{number}" for number in range(400)]
PAGE = LINKS[:64]


#: Calls of a wave; and blocks for three waves, of which two are full.
MOST, BLOCKS, PARTS = 32, 72, 3


@pytest.fixture
def many(moved: MovedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    monkeypatch.setattr(swaps, "MAX_CALLS", MOST)
    with moved.client() as client:
        yield client
        assert_keys(client)
        assert_ttls(client)


def waves(bloom: BloomFilter, action: Callable[[], object]) -> int:
    before = bloom.round_trips
    action()
    return bloom.round_trips - before


def some(client: Redis, **options: Any) -> BloomFilter:
    return connect(client, **{"blocks": BLOCKS, "window": "5 months"} | options)


def windows(client: Redis) -> set[str | None]:
    return {ring.config.window for ring in stored_rings(client).values()}


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
