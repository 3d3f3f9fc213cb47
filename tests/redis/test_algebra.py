"""Filters as sets, on real servers: estimates against the truth, and filters made of others."""

from threading import Thread
from typing import Any, TypeVar

import pytest
import redis
import redis.asyncio
from support.saving import blocking
from support.servers import Server

from scrapy_bloom import BloomFilter, ConfigurationError, FilterMismatchError, StorageError
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.errors import SaturatedError
from scrapy_bloom.bloom.extras.algebra import Overlap, Part, overlap, union
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation

pytestmark = pytest.mark.each_server(others="slow")

T = TypeVar("T")
#: Fixed, so that a failing example fails again.
SEEDS = (31_337, 2_718_281, 828_459, 45_235, 3_602_874, 71, 352_662, 49_775, 72_470, 93_699_959)
#: Where a test has absent items: with random seeds, one of thousands may seem to be there.
NO_CHANCE = list(range(1, 18))


def items(*numbers: range) -> list[str]:
    return [f"https://example.com/{number}" for each in numbers for number in each]


def twin(bloom: BloomFilter, key: str, client: redis.Redis | None = None) -> BloomFilter:
    """Return another filter that is like one."""
    return BloomFilter(client or bloom._driver.client, key, like=bloom)


def measure(one: BloomFilter, two: BloomFilter) -> Overlap:
    return complete(overlap(*one._parts([two])))


@pytest.fixture
def pair(client: redis.Redis) -> tuple[BloomFilter, BloomFilter]:
    """Two filters with room, and 300 items in common."""
    one = BloomFilter(client, "one", capacity=2_000, blocks=4, seeds=NO_CHANCE)
    two = twin(one, "two")
    one.extend(items(range(1_000)))
    two.extend(items(range(700, 1_500)))
    return one, two


# -- how many --


def test_filters_that_count_can_be_estimated_and_compared(client: redis.Redis) -> None:
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


def saturate(client: redis.Redis, bloom: BloomFilter, *, but: int = 0) -> None:
    """Set all bits of block 0 but the first few."""
    (layer,) = bloom.session.held[0].ring.layers
    bits = (1 << layer.num_bits - but) - 1 << 8 * layer.memory - layer.num_bits
    client.set(bloom.session.keys.layer(0, layer.name), bits.to_bytes(layer.memory, "big"))


def test_a_saturated_filter_says_so(client: redis.Redis) -> None:
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
    client: redis.Redis, options: dict[str, Any]
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


def test_a_copy_is_the_same_under_another_id(client: redis.Redis) -> None:
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


def test_nothing_that_is_claimed_during_an_update_is_lost(server: Server) -> None:
    """The bits are set atomically."""
    with server.client() as client:
        client.flushall()
        one = BloomFilter(client, "one", capacity=12_000, blocks=2)
        two = twin(one, "two")
        two.extend(items(range(2_500)))
        lost: list[str] = []

        def claim(worker: int) -> None:
            with server.client() as mine:
                bloom = BloomFilter(mine, "one")
                for start in range(10_000 * worker, 10_000 * worker + 3_000, 50):
                    some = items(range(start, start + 50))
                    bloom.add_many(some)
                    lost.extend(
                        item
                        for item, seen in zip(some, bloom.contains(some), strict=True)
                        if not seen
                    )

        threads = [Thread(target=claim, args=(worker,)) for worker in (1, 2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            one.update(two)
        for thread in threads:
            thread.join()
        one.update(two)
        assert not lost
        everything = items(range(2_500), range(10_000, 13_000), range(20_000, 23_000))
        assert all(one.contains(everything))
        assert one.approx_len() == pytest.approx(8_500, rel=0.03)


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
def test_filters_that_differ_say_in_what(
    client: redis.Redis, options: dict[str, Any], text: str
) -> None:
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
    client: redis.Redis, pair: tuple[BloomFilter, BloomFilter]
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
    client: redis.Redis, any_binary: str, pair: tuple[BloomFilter, BloomFilter]
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
