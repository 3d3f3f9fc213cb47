"""Blocks read from real servers, and changed there, while others change them."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import redis

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.extras.algebra import merge_bits, read_block, try_block
from scrapy_bloom.bloom.extras.bitmaps import Contents
from scrapy_bloom.bloom.extras.save import RefusedError
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import BYTES, Call, Reply

T = TypeVar("T")
ITEMS = [f"https://example.com/{i}" for i in range(500)]


def small(client: redis.Redis, key: str = "k", **kwargs: Any) -> BloomFilter:
    return BloomFilter(client, key, **{"capacity": 10_000, "blocks": 2, **kwargs})


def large(client: redis.Redis, key: str = "k") -> BloomFilter:
    """A filter whose bitmaps are read in several chunks."""
    return BloomFilter(client, key, capacity=400_000, blocks=1)


def read(bloom: BloomFilter, block: int = 0) -> Contents:
    header = bloom.open()
    return bloom.run(lambda session: try_block(session, header, block, read_block))


def bitmap(client: redis.Redis, bloom: BloomFilter, block: int, layer: Layer) -> int:
    found = client.get(bloom.session.keys.layer(block, layer.name)) or b""
    assert isinstance(found, bytes)
    return int.from_bytes(found, "big")


def between(steps: Operation[T], number: int, what: Callable[[], object]) -> Operation[T]:
    """Let something happen before the calls of a round are sent."""
    calls: list[Call] = next(steps)
    for turn in range(1_000):
        if turn == number:
            what()
        replies = yield calls
        try:
            calls = steps.send(replies)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it does not end")


@pytest.mark.parametrize("turn", range(3))  # its ring, and two rounds of chunks
def test_a_block_that_changes_while_it_is_read_is_read_again(
    client: redis.Redis, turn: int
) -> None:
    bloom, other = large(client), large(client)
    header = bloom.open()
    bloom.extend(ITEMS)
    found = bloom.run(
        lambda session: between(
            try_block(session, header, 0, read_block),
            turn,
            lambda: (other.clear(), other.extend(ITEMS[:100])),
        )
    )
    assert found.counts == {"1.0": 100}
    assert found.bits == {"1.0": bitmap(client, bloom, 0, found.ring.layers[-1])}


def test_a_bitmap_that_is_gone_is_allocated_anew(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.extend(ITEMS)
    client.delete(bloom.session.keys.layer(0, "0.0"))
    contents = read(bloom, 0)
    assert contents.bits == {"0.0": 0}
    assert bloom.lost_blocks == 1


def test_a_block_that_never_keeps_still_is_an_error(client: redis.Redis) -> None:
    bloom, other = small(client), small(client)
    header = bloom.open()

    def attempt(held: CachedRing) -> Operation[Contents]:
        other.clear()
        return (yield from read_block(held))

    with pytest.raises(StorageError, match="different each of 20 times"):
        bloom.run(lambda session: try_block(session, header, 0, attempt))


def test_a_server_that_answers_with_too_few_bytes_is_an_error(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.open()
    steps = read_block(bloom.session.held[0])
    next(steps)
    steps.send([Reply("ok", version=bloom.session.held[0].version)])
    with pytest.raises(StorageError, match="answered 3 bytes where there are"):
        steps.send([Reply(BYTES, data=b"abc")])


def test_bits_are_merged_into_a_filter_in_use(client: redis.Redis) -> None:
    bloom, other = large(client), large(client)
    bloom.extend(ITEMS[:100])
    before = read(bloom)
    (layer,) = before.ring.layers
    missing = (1 << 8 * layer.memory - 1) | 1 << layer.memory * 4 | 1  # the ends, and between
    bloom.run(
        lambda session: between(
            merge_bits(session.held[0], "token", layer, missing, 7),
            0,
            lambda: other.extend(ITEMS[100:200]),
        )
    )
    after = read(bloom)
    assert after.counts == {"0.0": 207}
    assert after.bits["0.0"] & missing == missing
    assert after.bits["0.0"] & ~missing == after.bits["0.0"] ^ missing
    assert all(other.contains(ITEMS[:200]))
    assert not client.keys("*token*")


def test_nothing_is_merged_into_a_bitmap_that_is_gone(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.open()
    client.delete(bloom.session.keys.layer(0, "0.0"))
    held = bloom.session.held[0]
    with pytest.raises(RefusedError) as caught:
        bloom.run(lambda _: merge_bits(held, "token", held.ring.layers[0], 1, 1))
    assert caught.value.reply.fields == {"layers": "0.0"}
    assert not client.exists(bloom.session.keys.layer(0, "0.0"))
