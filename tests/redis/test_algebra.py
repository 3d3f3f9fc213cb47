"""Filters as sets, on real servers: estimates, filters made of others, and blocks that change."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from redis import Redis
from support.saving import blocking
from support.servers import Server

from scrapy_bloom import BloomFilter, ConfigurationError, FilterMismatchError, StorageError
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.errors import SaturatedError
from scrapy_bloom.bloom.extras.algebra import (
    Overlap,
    Part,
    merge_bits,
    overlap,
    read_block,
    try_block,
    union,
)
from scrapy_bloom.bloom.extras.bitmaps import Contents
from scrapy_bloom.bloom.extras.save import RefusedError
from scrapy_bloom.bloom.model.generations import Layer
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import BYTES, Call, Reply

pytestmark = pytest.mark.each_server(others="slow")

T = TypeVar("T")
#: Fixed, so that a failing example fails again.
SEEDS = (31_337, 2_718_281, 828_459, 45_235, 3_602_874, 71, 352_662, 49_775, 72_470, 93_699_959)
#: Where a test has absent items: with random seeds, one of thousands may seem to be there.
NO_CHANCE = list(range(1, 18))


def items(*numbers: range) -> list[str]:
    return [f"https://example.com/{number}" for each in numbers for number in each]


def twin(bloom: BloomFilter, key: str, client: Redis | None = None) -> BloomFilter:
    """Return another filter that is like one."""
    return BloomFilter(client or bloom._driver.client, key, like=bloom)


def measure(one: BloomFilter, two: BloomFilter) -> Overlap:
    return complete(overlap(*one._parts([two])))


@pytest.fixture
def pair(client: Redis) -> tuple[BloomFilter, BloomFilter]:
    """Two filters with room, and 300 items in common."""
    one = BloomFilter(client, "one", capacity=2_000, blocks=4, seeds=NO_CHANCE)
    two = twin(one, "two")
    one.extend(items(range(1_000)))
    two.extend(items(range(700, 1_500)))
    return one, two


# -- how many --


def test_filters_that_count_can_be_estimated_and_compared(client: Redis) -> None:
    one = BloomFilter(client, "one", capacity=2_000, counting=True)
    two = twin(one, "two")
    assert two.open().counting
    one.extend(items(range(1_000)))
    two.extend(items(range(500, 1_500)))
    assert one.approx_len() == pytest.approx(1_000, rel=0.03)
    assert measure(one, two).intersection == pytest.approx(500, rel=0.05)
    made = one.copy("copy")
    assert made.open().counting
    assert all(made.contains(items(range(1_000))))
    for combine in (one.union, one.intersection):
        with pytest.raises(ConfigurationError, match="not united or intersected"):
            combine(two, key="made")
    with pytest.raises(ConfigurationError, match="not united or intersected"):
        one.update(two)


def saturate(client: Redis, bloom: BloomFilter, *, but: int = 0) -> None:
    """Set all bits of block 0 but the first few."""
    (layer,) = bloom.session.held[0].ring.layers
    bits = (1 << layer.num_bits - but) - 1 << 8 * layer.memory - layer.num_bits
    client.set(bloom.session.keys.layer(0, layer.name), bits.to_bytes(layer.memory, "big"))


def test_a_saturated_filter_says_so(client: Redis) -> None:
    one = BloomFilter(client, "one", capacity=1_000, blocks=2)
    two = twin(one, "two")
    one.open()
    saturate(client, one)
    with pytest.raises(SaturatedError, match=r"'one' is saturated: all bits of block 0"):
        one.approx_len()
    for first, second in ((one, two), (two, one)):
        with pytest.raises(SaturatedError, match="'one' is saturated"):
            measure(first, second)
    # One bit at 0 is enough to tell, if not much.
    saturate(client, one, but=1)
    assert 5_000 < one.approx_len() < 20_000


# -- filters made of others --


def test_a_union_has_what_either_has(pair: tuple[BloomFilter, BloomFilter]) -> None:
    made = pair[0].union(pair[1], key="made")
    assert all(made.contains(items(range(1_500))))
    assert not any(made.contains(items(range(1_500, 3_000))))
    assert len(made) == pytest.approx(1_500, rel=0.02)
    assert made.open().seeds == pair[0].open().seeds
    assert made.open().id not in {each.open().id for each in pair}
    assert made.info().generations[0].layers == 1
    # It goes on as any other.
    assert made.add_many(items(range(1_499, 1_501))) == [False, True]


@pytest.mark.parametrize(
    "options", [{"ring": "write-all", "window": "2 days"}, {"window": "2 runs", "run": "r1"}]
)
def test_filters_whose_generations_have_no_time_of_their_own_are_copied_only(
    client: Redis, options: dict[str, Any]
) -> None:
    one = BloomFilter(client, "one", capacity=100, **options)
    two = BloomFilter(client, "two", like=one)
    one.extend(items(range(50)))
    for combine in (
        lambda: one.union(two, key="made"),
        lambda: one.intersection(two, key="made"),
        lambda: one.update(two),
    ):
        with pytest.raises(ConfigurationError, match=r"'one' (writes|counts) .*not united or"):
            combine()
    assert one.copy("copy").approx_len() == pytest.approx(50, rel=0.2)


def test_a_copy_is_the_same_under_another_id(client: Redis) -> None:
    one = BloomFilter(client, "one", capacity=300, window="3 days", period="1 day")
    for number in range(3):
        one.extend(items(range(500 * number, 500 * number + 500)))
        one.rotate()
    made = one.copy("copy")
    assert made.open().id != one.open().id
    assert len(made) == len(one)
    assert made.info().generations == one.info().generations
    for block in range(one.blocks):
        for layer in one.session.held[block].ring.layers:
            keys = [each.session.keys.layer(block, layer.name) for each in (one, made)]
            assert client.get(keys[0]) == client.get(keys[1])
            assert client.ttl(keys[0]) == pytest.approx(client.ttl(keys[1]), abs=2)
    made.add("only here")
    assert "only here" not in one


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"blocks": 2}, r"the number of blocks \(4 and 2\)"),
        ({"seeds": list(SEEDS)}, "the number of seeds|the seeds"),
        ({"window": "2 days"}, r"the window \(never and 2 days\), the period"),
        ({"ring": "write-all"}, r"the ring order \(write-newest and write-all\)"),
        ({"fingerprinter": "b"}, r"the fingerprinter \(a and b\)"),
    ],
)
def test_filters_that_differ_say_in_what(client: Redis, options: dict[str, Any], text: str) -> None:
    one = BloomFilter(client, "one", capacity=2_000, blocks=4, fingerprinter="a")
    two = BloomFilter(client, "two", like=one, **options)
    for combine in (one.union, one.intersection):
        with pytest.raises(FilterMismatchError, match=f"'one' and 'two' do not go .*{text}"):
            combine(two, key="made")
    with pytest.raises(FilterMismatchError, match=text):
        one.update(two)
    assert BloomFilter(client, "made").look() is None
    if "window" in options or "ring" in options:
        assert measure(one, two) == Overlap(0, 0)  # items have the same places
    else:
        with pytest.raises(FilterMismatchError, match=text) as caught:
            measure(one, two)
        assert str(SEEDS[0]) not in str(caught.value)


def test_a_source_that_is_created_anew_meanwhile_leaves_nothing(
    client: Redis, pair: tuple[BloomFilter, BloomFilter]
) -> None:
    one, two = pair[0], BloomFilter(client, "two")
    calls = 0

    def run(steps: Operation[T]) -> T:
        nonlocal calls
        calls += 1
        if calls == 8:
            BloomFilter(client, "two").delete()
            BloomFilter(client, "two", blocks=4).open()
        return one.run(lambda _: steps)

    watched = blocking(run)
    parts = [Part(one.session, watched), Part(two.session, watched)]
    with pytest.raises(StorageError, match="created again"):
        complete(union(parts, watched, Keys("made")))
    assert not client.keys("*made*")


def test_filters_may_be_on_different_servers(
    client: Redis, any_binary: str, pair: tuple[BloomFilter, BloomFilter]
) -> None:
    with Server(any_binary) as second, second.client() as elsewhere:
        far = pair[1].copy("two", client=elsewhere)
        assert len(far) == len(pair[1])
        assert measure(pair[0], far) == measure(*pair)
        made = far.union(pair[0], key="made")
        assert all(made.contains(items(range(1_500))))
        assert not client.keys("*made*")
        pair[0].update(far)
        assert all(pair[0].contains(items(range(1_500))))


ITEMS = [f"https://example.com/{i}" for i in range(500)]


def small(client: Redis, key: str = "k", **kwargs: Any) -> BloomFilter:
    return BloomFilter(client, key, **{"capacity": 10_000, "blocks": 2, **kwargs})


def large(client: Redis, key: str = "k") -> BloomFilter:
    """A filter whose bitmaps are read in several chunks."""
    return BloomFilter(client, key, capacity=400_000, blocks=1)


def read(bloom: BloomFilter, block: int = 0) -> Contents:
    header = bloom.open()
    return bloom.run(lambda session: try_block(session, header, block, read_block))


def bitmap(client: Redis, bloom: BloomFilter, block: int, layer: Layer) -> int:
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
def test_a_block_that_changes_while_it_is_read_is_read_again(client: Redis, turn: int) -> None:
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


def test_a_bitmap_that_is_gone_is_allocated_anew(client: Redis) -> None:
    bloom = small(client)
    bloom.extend(ITEMS)
    client.delete(bloom.session.keys.layer(0, "0.0"))
    contents = read(bloom, 0)
    assert contents.bits == {"0.0": 0}
    assert bloom.lost_blocks == 1


def test_a_block_that_never_keeps_still_is_an_error(client: Redis) -> None:
    bloom, other = small(client), small(client)
    header = bloom.open()

    def attempt(held: CachedRing) -> Operation[Contents]:
        other.clear()
        return (yield from read_block(held))

    with pytest.raises(StorageError, match="different each of 20 times"):
        bloom.run(lambda session: try_block(session, header, 0, attempt))


def test_a_server_that_answers_with_too_few_bytes_is_an_error(client: Redis) -> None:
    bloom = small(client)
    bloom.open()
    steps = read_block(bloom.session.held[0])
    next(steps)
    steps.send([Reply("ok", version=bloom.session.held[0].version)])
    with pytest.raises(StorageError, match="answered 3 bytes where there are"):
        steps.send([Reply(BYTES, data=b"abc")])


def test_bits_are_merged_into_a_filter_in_use(client: Redis) -> None:
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


def test_nothing_is_merged_into_a_bitmap_that_is_gone(client: Redis) -> None:
    bloom = small(client)
    bloom.open()
    client.delete(bloom.session.keys.layer(0, "0.0"))
    held = bloom.session.held[0]
    with pytest.raises(RefusedError) as caught:
        bloom.run(lambda _: merge_bits(held, "token", held.ring.layers[0], 1, 1))
    assert caught.value.reply.fields == {"layers": "0.0"}
    assert not client.exists(bloom.session.keys.layer(0, "0.0"))
