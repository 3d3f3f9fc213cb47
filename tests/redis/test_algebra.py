"""Filters as sets, on real servers: estimates, filters made of others, and blocks that change."""

import asyncio
import io
from dataclasses import replace
from operator import and_, or_
from typing import Any, cast

import pytest
import redis.asyncio
from redis import Redis
from support.saving import at_round, watched
from support.servers import Server

from scrapy_bloom import (
    ArchiveError,
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    FilterMismatchError,
    StorageError,
)
from scrapy_bloom.bloom.errors import SaturatedError
from scrapy_bloom.bloom.extras.algebra import merge_bits, read_block, try_block
from scrapy_bloom.bloom.extras.save import RefusedError

pytestmark = pytest.mark.each_server(others="slow")

#: Where a test has absent items: with random seeds, one of thousands may seem to be there.
NO_CHANCE = list(range(1, 18))


def items(*numbers: range) -> list[str]:
    return [f"https://example.com/{number}" for each in numbers for number in each]


@pytest.fixture
def pair(client: Redis) -> tuple[BloomFilter, BloomFilter]:
    """Two filters with room, and 300 items in common."""
    one = BloomFilter(client, "one", capacity=2_000, blocks=4, seeds=NO_CHANCE)
    two = BloomFilter(client, "two", like=one)
    one.extend(items(range(1_000)))
    two.extend(items(range(700, 1_500)))
    return one, two


# -- how many --


def test_filters_that_count_can_be_estimated_and_compared(client: Redis) -> None:
    one = BloomFilter(client, "one", capacity=2_000, counting=True)
    two = BloomFilter(client, "two", like=one)
    one.extend(items(range(1_000)))
    two.extend(items(range(500, 1_500)))
    assert one.approx_len() == pytest.approx(1_000, rel=0.03)
    assert one.approx_intersection_len(two) == pytest.approx(500, rel=0.05)
    made = one.copy("copy")
    assert made.open().counting
    assert all(made.contains(items(range(1_000))))


def test_a_saturated_filter_says_so(client: Redis) -> None:
    one = BloomFilter(client, "one", capacity=1_000, blocks=2)
    two = BloomFilter(client, "two", like=one)
    one.open()
    (layer,) = one.session.held[0].ring.layers
    bits = (1 << layer.num_bits) - 1 << 8 * layer.memory - layer.num_bits
    client.set(one.session.keys.layer(0, layer.name), bits.to_bytes(layer.memory, "big"))
    for count in (
        one.approx_len,
        lambda: one.approx_union_len(two),
        lambda: two.approx_union_len(one),
    ):
        with pytest.raises(SaturatedError, match=r"'one' is saturated: all bits of block 0"):
            count()


# -- filters made of others --


def test_a_filter_that_is_like_another_one_has_its_seeds_and_settings(client: Redis) -> None:
    options: dict[str, Any] = {"window": "6 weeks", "period": "2 weeks", "stagger": True}
    options |= {"growth": 4, "max_memory": 10_000_000}
    one = BloomFilter(client, "one", capacity=5_000, error_rate=1e-4, blocks=3, **options)
    two = BloomFilter(client, "two", like=one)
    assert two.open() == replace(one.open(), id=two.open().id)
    assert two.open().id != one.open().id
    assert two.config == one.config
    # What is given beside it counts.
    three = BloomFilter(client, "three", like=one, capacity=100, window="never")
    assert (three.info().capacity, three.info().window) == (100, None)
    assert three.seeds == one.seeds


def test_a_union_has_what_either_has(pair: tuple[BloomFilter, BloomFilter]) -> None:
    one, two = pair
    made = one.union(two, key="made")
    assert all(made.contains(items(range(1_500))))
    assert not any(made.contains(items(range(1_500, 3_000))))
    assert len(made) == pytest.approx(1_500, rel=0.02)
    # It goes on as any other.
    assert made.add_many(items(range(1_499, 1_501))) == [False, True]
    # Operators make filters under keys of both.
    assert (one | two).key == "one|two"
    common = (one & two).contains(items(range(1_500)))
    assert all(common[700:1_000])
    assert sum(common) < 305
    before = one
    one |= two
    assert one is before
    assert all(before.contains(items(range(1_500))))


@pytest.mark.parametrize(
    "options",
    [
        {"ring": "write-all", "window": "2 days"},
        {"window": "2 runs", "run": "r1"},
        {"counting": True},
    ],
)
def test_what_is_not_united_can_be_copied(client: Redis, options: dict[str, Any]) -> None:
    """Generations may have no time of their own."""
    one = BloomFilter(client, "one", capacity=100, **options)
    two = BloomFilter(client, "two", like=one)
    one.extend(items(range(50)))
    for combine in (
        lambda: one.union(two, key="made"),
        lambda: one.intersection(two, key="made"),
        lambda: one.update(two),
    ):
        with pytest.raises(ConfigurationError, match=r"'one' (writes|counts|has) .*not united or"):
            combine()
    assert one.copy("copy").approx_len() == pytest.approx(50, rel=0.2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"blocks": 2}, r"the number of blocks \(4 and 2\)"),
        ({"seeds": [seed + 1 for seed in NO_CHANCE]}, "the seeds"),
        ({"window": "2 days"}, r"the window \(never and 2 days\), the period"),
        ({"ring": "write-all"}, r"the ring order \(write-newest and write-all\)"),
    ],
)
def test_filters_that_differ_say_in_what(client: Redis, options: dict[str, Any], text: str) -> None:
    one = BloomFilter(client, "one", capacity=2_000, blocks=4, seeds=NO_CHANCE)
    two = BloomFilter(client, "two", like=one, **options)
    for combine in (one.union, one.intersection):
        with pytest.raises(FilterMismatchError, match=f"'one' and 'two' do not go .*{text}"):
            combine(two, key="made")
    with pytest.raises(FilterMismatchError, match=text):
        one.update(two)
    assert BloomFilter(client, "made").look() is None
    if "window" in options or "ring" in options:
        assert one.approx_union_len(two) == 0  # items have the same places
    else:
        with pytest.raises(FilterMismatchError, match=text):
            one.approx_union_len(two)


def test_filters_may_be_on_different_servers(
    client: Redis, any_binary: str, pair: tuple[BloomFilter, BloomFilter]
) -> None:
    one, two = pair
    with Server(any_binary) as second, second.client() as elsewhere:
        far = two.copy("two", client=elsewhere)
        assert len(far) == len(two)
        assert one.approx_union_len(far) == one.approx_union_len(two)
        made = far.union(one, key="made")
        assert all(made.contains(items(range(1_500))))
        assert not client.keys("*made*")
        one.update(far)
        assert all(one.contains(items(range(1_500))))


def test_what_is_no_filter_is_refused(client: Redis) -> None:
    bloom, other = BloomFilter(client, "one"), cast("Any", "two")
    with pytest.raises(ConfigurationError, match="must be a BloomFilter"):
        bloom.update(other)
    for operator in (or_, and_):
        with pytest.raises(TypeError, match="unsupported operand"):
            operator(bloom, other)


# -- asyncio --


def test_all_of_it_with_asyncio(server: Server, client: Redis) -> None:
    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            one = AsyncBloomFilter(own, "one", capacity=3_000)
            with pytest.raises(ConfigurationError, match="not open yet"):
                AsyncBloomFilter(own, "two", like=one)
            await one.extend(items(range(600)))
            two = AsyncBloomFilter(own, "two", like=one)
            await two.extend(items(range(400, 1_000)))
            assert abs(await one.approx_len() - 600) < 30
            assert abs(await one.approx_union_len(two) - 1_000) < 50
            assert abs(await one.approx_intersection_len(two) - 200) < 50
            both = await one.union(two, key="both")
            assert all(await both.contains(items(range(1_000))))
            common = await one.intersection(two, key="common")
            assert all(await common.contains(items(range(400, 600))))
            copy = await one.copy("copy")
            await copy.update(two)
            assert all(await copy.contains(items(range(1_000))))
            file = io.BytesIO()
            saved = await copy.save(file)
            assert saved.count == (await copy.info()).count
            file.seek(0)
            loaded = await AsyncBloomFilter.load(own, "loaded", file)
            assert all(await loaded.contains(items(range(1_000))))
            file.seek(0)
            file.truncate(1_000)
            with pytest.raises(ArchiveError):
                await AsyncBloomFilter.load(own, "broken", file)
            # Tasks may use the same filters: nobody waits for another one for ever.
            calls = [one.approx_union_len(two), two.approx_union_len(one), two.update(one)]
            await asyncio.wait_for(asyncio.gather(*calls, one.union(two, key="made")), 20)
            assert all(await two.contains(items(range(1_000))))

    asyncio.run(scenario())
    assert not client.keys("{broken:*")


# -- blocks that change --


def large(client: Redis) -> BloomFilter:
    """A filter whose bitmaps are read in several chunks."""
    return BloomFilter(client, "k", capacity=400_000, blocks=1)


@pytest.mark.parametrize("turn", range(3))  # its ring, and two rounds of chunks
def test_a_block_that_changes_while_it_is_read_is_read_again(client: Redis, turn: int) -> None:
    bloom, other = large(client), large(client)
    header = bloom.open()
    bloom.extend(items(range(500)))
    reading = try_block(bloom.session, header, 0, read_block)
    change = at_round(turn, lambda: (other.clear(), other.extend(items(range(100)))))
    found = bloom.run(lambda _: watched(reading, change))
    assert found.counts == {"1.0": 100}
    stored = client.get(bloom.session.keys.layer(0, "1.0"))
    assert isinstance(stored, bytes)
    assert found.bits == {"1.0": int.from_bytes(stored, "big")}
    # Another filter is no change of this one.
    reading = try_block(bloom.session, header, 0, read_block)
    change = at_round(turn, lambda: (other.delete(), large(client).open()))
    with pytest.raises(StorageError, match="created again"):
        bloom.run(lambda _: watched(reading, change))


def test_bits_are_merged_into_a_filter_in_use(client: Redis) -> None:
    bloom, other = large(client), large(client)
    header = bloom.open()
    bloom.extend(items(range(100)))
    before = bloom.run(lambda session: try_block(session, header, 0, read_block))
    (layer,) = before.ring.layers
    missing = (1 << 8 * layer.memory - 1) | 1 << layer.memory * 4 | 1  # the ends, and between
    merging = merge_bits(bloom.session.held[0], "token", layer, missing, 7)
    change = at_round(0, lambda: other.extend(items(range(100, 200))))
    bloom.run(lambda _: watched(merging, change))
    after = bloom.run(lambda session: try_block(session, header, 0, read_block))
    assert after.counts == {"0.0": 207}
    assert after.bits["0.0"] & missing == missing
    assert all(other.contains(items(range(200))))
    assert not client.keys("*token*")
    # Nothing is merged into a bitmap that is gone.
    client.delete(bloom.session.keys.layer(0, "0.0"))
    with pytest.raises(RefusedError) as caught:
        bloom.run(lambda session: merge_bits(session.held[0], "token", layer, 1, 1))
    assert caught.value.reply.fields == {"layers": "0.0"}
    assert not client.exists(bloom.session.keys.layer(0, "0.0"))
