"""Counting filters on real servers: what is added can be discarded, and nothing else goes too."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.claims import claim_item

from scrapy_bloom import BloomFilter, ConfigurationError
from scrapy_bloom.bloom.model.hashing import Hasher, offsets
from scrapy_bloom.bloom.model.sizing import COUNTER_BITS
from scrapy_bloom.bloom.protocol import membership
from scrapy_bloom.bloom.protocol.cached_ring import Verdict

NEW, SEEN, UNCOUNTED, UNRECORDED = Verdict.NEW, Verdict.SEEN, Verdict.UNCOUNTED, Verdict.UNRECORDED

pytestmark = pytest.mark.each_server

A, B = b"a", b"b"
MANY = [f"item {number}".encode() for number in range(500)]
PRESENT, ABSENT = [True], [False]
#: What a counter stays at once it was reached: how many it stands for is not known any more.
SATURATED = (1 << COUNTER_BITS) - 1
SEEDS = (3, 1_415, 92_653, 589_793)


def connect(client: Redis, **options: Any) -> BloomFilter:
    """Connect to the filter "k", which counts, if it is created, unless otherwise said."""
    return BloomFilter(client, "k", **{"counting": True, "blocks": 2} | options)


def add(bloom: BloomFilter, *items: bytes, if_absent: bool = False) -> str:
    return "".join(bloom.run(lambda session: membership.add(session, items, if_absent=if_absent)))


claims = partial(add, if_absent=True)


def discard(bloom: BloomFilter, *items: bytes) -> list[bool]:
    return bloom.run(lambda session: membership.discard(session, items))


def places(bloom: BloomFilter, item: bytes) -> list[int]:
    """Return where the counters of an item are in the first layer of a filter of one block."""
    header, layer = bloom.open(), bloom.session.held[0].ring.layers[0]
    return offsets(Hasher(header.seeds, 1).hashes(item)[1], layer.num_bits)


def counters(client: Redis, block: int = 0, layer: str = "0.0") -> list[int]:
    """Return all counters of a layer."""
    data = client.get(f"{{k:{block}}}:{layer}") or b""
    assert isinstance(data, bytes)
    return [half for byte in data for half in (byte >> 4, byte & 15)]


# -- adding, claiming, discarding --


def test_a_false_positive_that_is_added_is_counted(client: Redis) -> None:
    """Else what is discarded for it would be others'."""
    bloom = connect(client, capacity=10, error_rate=0.5, blocks=1, growth=0)
    add(bloom, *MANY[:10])
    wrong = next(item for item in MANY[10:] if item in bloom)
    bloom = connect(client, blocks=1, growth=2)
    assert add(bloom, wrong) == SEEN
    assert len(bloom) == 11
    assert discard(bloom, wrong) == PRESENT
    assert bloom.contains(MANY[:10]) == [True] * 10


def test_a_saturated_counter_is_never_decremented(client: Redis) -> None:
    bloom = connect(client, blocks=1, seeds=SEEDS, capacity=1_000, error_rate=0.01)
    add(bloom, *[A] * (SATURATED + 5), *[B] * (SATURATED - 1))
    assert sorted(set(counters(client))) == [0, SATURATED - 1, SATURATED]
    assert discard(bloom, *[A] * 30) == PRESENT * 30
    assert discard(bloom, *[B] * 30) == PRESENT * (SATURATED - 1) + ABSENT * (31 - SATURATED)
    assert Counter(counters(client))[SATURATED] == len(SEEDS)
    assert bloom.contains([A, B]) == [True, False]
    # What is not discarded has its place, or the filter would be filled beyond its capacity.
    assert len(bloom) == SATURATED + 5


def test_an_item_with_one_offset_twice_counts_it_twice_and_back(client: Redis) -> None:
    bloom = connect(client, blocks=1, seeds=SEEDS, capacity=20, error_rate=0.1)
    item = next(item for item in MANY if len(set(places(bloom, item))) < len(SEEDS))
    expected = Counter(places(bloom, item))
    assert add(bloom, item, item) == NEW + SEEN
    assert +Counter(dict(enumerate(counters(client)))) == expected + expected
    assert discard(bloom, item, item, item) == PRESENT * 2 + ABSENT
    assert not any(counters(client))
    # None falls below zero: of an item that was never added, where others have counted once.
    for place in places(bloom, item):
        client.execute_command("BITFIELD", "{k:0}:0.0", "SET", "u4", f"#{place}", 1)
    assert discard(bloom, item) == PRESENT
    assert not any(counters(client))


@pytest.mark.parametrize("seeds", [1, 3, 5, 30])
def test_an_item_is_absent_if_any_of_its_counters_is_zero(client: Redis, seeds: int) -> None:
    """They are read by four at first."""
    rate = 1e-6 if seeds > 20 else 0.3
    for number in range(seeds):
        client.flushall()
        bloom = connect(client, blocks=1, seeds=seeds, capacity=1_000, error_rate=rate)
        assert add(bloom, A, A) == NEW + SEEN
        zero = "SET", "u4", f"#{places(bloom, A)[number]}", 0
        client.execute_command("BITFIELD", "{k:0}:0.0", *zero)
        assert discard(bloom, A) == ABSENT
        assert A not in bloom
        assert claim_item(bloom, A) == NEW
        assert claims(bloom, A) == NEW
        assert claims(bloom, A) == SEEN
        assert A in bloom
        assert discard(bloom, A) == PRESENT
        assert A not in bloom
        assert add(bloom, A) == NEW


# -- generations and layers --


def test_a_full_layer_that_cannot_grow_counts_nothing_and_hides_nothing(client: Redis) -> None:
    bloom = connect(client, blocks=1, capacity=10, growth=0)
    assert add(bloom, *MANY[:10]) == NEW * 10
    assert add(bloom, MANY[0], MANY[10], MANY[10]) == UNCOUNTED + UNRECORDED * 2
    assert claims(bloom, MANY[0], MANY[10]) == SEEN + UNRECORDED
    assert len(bloom) == 10
    # There is room again once something is discarded.
    assert discard(bloom, MANY[3]) == PRESENT
    assert add(bloom, MANY[10], MANY[0]) == NEW + UNCOUNTED
    assert bloom.contains([MANY[0], MANY[3], MANY[10]]) == [True, False, True]


def test_what_is_seen_and_has_no_room_grows_the_filter(client: Redis) -> None:
    bloom = connect(client, blocks=1, capacity=5)
    assert add(bloom, *[A] * 5, B) == NEW + SEEN * 4 + NEW
    assert add(bloom, *[A] * 12) == SEEN * 12
    assert len(bloom.session.held[0].ring.layers) == 3
    assert discard(bloom, *[A] * 20) == PRESENT * 17 + ABSENT * 3
    assert len(bloom) == 1


def test_clients_that_others_have_overtaken_count_in_all_generations(client: Redis) -> None:
    """Each call is by a client whose rings are old; the last ones find a generation lost."""
    clients = [
        connect(client, window="3 runs", run="a", capacity=20, error_rate=1e-9) for _ in range(3)
    ]
    one, two, three = clients
    for bloom in clients:
        bloom.open()
    assert add(one, A, A, B) == NEW + SEEN + NEW
    two.rotate()
    assert add(one, A, *MANY[:30]) == SEEN + NEW * 30
    client.script_flush()
    assert discard(three, *[A] * 4, MANY[0]) == PRESENT * 3 + ABSENT + PRESENT
    assert {len(bloom) for bloom in clients} == {1 + 29}
    one.rotate()
    assert discard(two, MANY[1], MANY[1]) == PRESENT + ABSENT
    three.rotate()  # the third generation after the one that has B
    assert discard(one, B) == ABSENT
    assert claims(two, B, MANY[2]) == NEW + SEEN
    client.delete(*client.keys("{k:*}:1.*"))
    assert claims(three, B, MANY[2]) == SEEN + NEW
    two.clear()
    assert [len(bloom) for bloom in clients] == [0] * 3
    assert add(one, B) == NEW


# -- other filters --


def test_nothing_is_discarded_from_a_filter_that_does_not_count(client: Redis) -> None:
    plain = connect(client, counting=None)
    assert add(plain, A, A) == NEW + SEEN
    with pytest.raises(ConfigurationError, match=r"filter 'k', which does not count .*`counting`"):
        discard(plain, A)
    assert A in plain
