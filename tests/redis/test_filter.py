"""BloomFilter on real servers: the set it is, what is stored, and what it refuses."""

import copy
import pickle
import random
import re
import secrets
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.calls import send
from support.servers import Server, contents

from scrapy_bloom import (
    BloomFilter,
    ConfigurationError,
    FilterMismatchError,
    StorageError,
)
from scrapy_bloom.bloom.errors import ServerFullError
from scrapy_bloom.bloom.model.sizing import plan
from scrapy_bloom.bloom.protocol.membership import find
from scrapy_bloom.bloom.protocol.ring_store import FILLING, FULL, GROWN, LOST, ROTATED

pytestmark = pytest.mark.each_server

URLS = [f"https://example.com/{i}" for i in range(1000)]


def small(client: redis.Redis, **options: Any) -> BloomFilter:
    options = {"capacity": 10_000, "error_rate": 1e-6, **options}
    return BloomFilter(client, "shop:bloom", **options)


def finds(bloom: BloomFilter, items: list[str]) -> list[bool]:
    return [bloom.find(item).seen for item in items]


def test_filters_under_different_keys_know_nothing_of_each_other(client: redis.Redis) -> None:
    first, second = BloomFilter(client, "one"), BloomFilter(client, "two")
    assert first.add("a")
    assert second.add("a")


def test_contains_records_nothing(client: redis.Redis) -> None:
    bloom = small(client)
    assert "a" not in bloom
    assert bloom.contains(["a", "b"]) == [False, False]
    assert len(bloom) == 0
    bloom.add("a")
    assert bloom.contains(["a", "b"]) == [True, False]


def test_contains_takes_one_or_many(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.add("a")
    assert bloom.contains("a") is bloom.contains(b"a") is True
    assert bloom.contains("b") is False
    assert bloom.contains(["a"]) == bloom.contains(iter("a")) == [True]
    assert bloom.contains([]) == []


def test_text_and_its_utf8_are_the_same_item(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.add("é")
    assert "é".encode() in bloom
    assert "\ud800" not in bloom
    assert bloom.add("") is True
    assert bloom.add(b"") is False


@pytest.mark.parametrize("item", [1, None, 1.5, ["x"], bytearray(b"x"), ("a",)])
def test_items_are_str_or_bytes(client: redis.Redis, item: object) -> None:
    bloom = small(client)
    for call in (bloom.add, bloom.__contains__):
        with pytest.raises(TypeError, match="str or bytes"):
            call(item)
    for batch_call in (bloom.add_many, bloom.extend, bloom.contains):
        with pytest.raises(TypeError, match="str or bytes"):
            batch_call(["fine", item])
    assert len(bloom) == 0


@pytest.mark.parametrize("text", ["https://example.com/", b"bytes"])
def test_one_item_where_several_are_expected_is_a_type_error(
    client: redis.Redis, text: str | bytes
) -> None:
    """Else its characters would be taken for items."""
    bloom = small(client)
    for call in (bloom.add_many, bloom.extend, bloom.find_all):
        with pytest.raises(TypeError, match="several items"):
            call(text)


def test_extend_streams_and_counts_the_new(client: redis.Redis) -> None:
    bloom = small(client, capacity=50_000)
    assert bloom.extend(str(i) for i in range(10_000)) == 10_000
    assert bloom.extend(str(i) for i in range(9_990, 10_010)) == 10
    assert len(bloom) == 10_010


def test_extend_says_how_far_it_is(client: redis.Redis) -> None:
    told: list[int] = []
    assert small(client, capacity=50_000).extend(map(str, range(20_000)), told.append) == 20_000
    assert sum(told) == 20_000
    assert len(told) == 3


@pytest.mark.each_server(others="slow")
def test_what_streams_is_not_kept(client: redis.Redis) -> None:
    bloom = small(client, capacity=50_000)
    tracemalloc.start()
    bloom.extend(map(str, range(25_000)))
    assert sum(bloom.contains(map(str, range(25_000)))) == 25_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6  # most of it the answers' list and what one round takes


def test_a_large_claim_keeps_its_order(client: redis.Redis) -> None:
    bloom = small(client, capacity=50_000)
    known = random.Random(1).sample(range(20_000), 5_000)
    bloom.extend(map(str, known))
    verdicts = bloom.add_many(map(str, range(20_000)))
    assert [i for i, new in enumerate(verdicts) if not new] == sorted(known)


def test_one_round_trip_per_call(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.open()
    for call in (
        lambda: bloom.add("new"),
        lambda: bloom.add_many(URLS),
        lambda: bloom.contains(URLS),
        lambda: "x" in bloom,
    ):
        call()  # the server may not know the script yet
        before = bloom.round_trips
        call()
        assert bloom.round_trips == before + 1


def test_clear_forgets_for_every_client(client: redis.Redis) -> None:
    mine, other = small(client), small(client)
    other.extend(URLS)
    assert "x" not in mine
    other.clear()
    assert len(mine) == 0
    assert mine.add_many(URLS) == [True] * len(URLS)
    assert other.add_many(URLS) == [False] * len(URLS)


def test_another_size_counts_from_the_next_bitmaps_on_and_leaves_no_key_behind(
    client: redis.Redis,
) -> None:
    small(client).extend(URLS)
    keys = len(client.keys())
    larger = small(client, capacity=100_000, error_rate=1e-4)
    before = larger.info()
    assert (before.capacity, before.error_rate, before.count) == (100_000, 1e-4, 1_000)
    assert before.memory == plan(10_000, 1e-6).memory
    larger.clear()
    after = larger.info()
    assert (after.capacity, after.error_rate, after.count) == (100_000, 1e-4, 0)
    assert after.memory == plan(100_000, 1e-4, blocks=16, num_hashes=21).memory
    assert after.num_hashes == 21  # seeds are for the filter's whole life
    assert len(client.keys()) == keys


def test_bitmaps_are_allocated_once_at_their_final_size(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.open()
    sizes = {key: client.strlen(key) for key in client.keys("*:0.0")}
    assert len(sizes) == 16
    bloom.extend(URLS)
    assert {key: client.strlen(key) for key in sizes} == sizes


def test_stored_keys_are_those_of_the_design(client: redis.Redis) -> None:
    small(client, blocks=2).open()
    assert sorted(client.keys()) == [
        b"{shop:bloom:0}:0.0",
        b"{shop:bloom:0}:header",
        b"{shop:bloom:0}:ring",
        b"{shop:bloom:1}:0.0",
        b"{shop:bloom:1}:ring",
    ]
    assert all(client.ttl(key) == -1 for key in client.keys())


def test_all_keys_of_a_block_are_in_one_hash_slot(client: redis.Redis) -> None:
    from redis.crc import key_slot  # noqa: PLC0415

    small(client).open()
    slots: dict[bytes, set[int]] = {}
    for key in client.keys():
        slots.setdefault(key[: key.index(b"}")], set()).add(key_slot(key))
    assert len(slots) == 16
    assert all(len(found) == 1 for found in slots.values())
    assert len(set.union(*slots.values())) > 10


class Whole:
    """An integer of another type."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("whole", [Whole, np.int64, np.uint32])
def test_integers_of_other_types_are_integers(
    client: redis.Redis, whole: Callable[[int], Any]
) -> None:
    bloom = BloomFilter(
        client,
        "k",
        capacity=whole(1_000),
        blocks=whole(3),
        seeds=[whole(1), whole(2), whole(2**32 - 1)],
        error_rate=0.1,
        window=whole(7_200),
        period=whole(3_600),
        growth=whole(3),
        max_memory=whole(1 << 30),
        run=whole(5),
        timeout=whole(60),
    )
    info = bloom.info(whole(2))
    assert (info.capacity, info.blocks, info.growth) == (1_000, 3, 3)
    assert (info.max_memory, info.window, info.period) == (1 << 30, "2 hours", "1 hour")
    assert bloom.seeds == (1, 2, 2**32 - 1)
    assert BloomFilter(client, "k", seeds=whole(3)).open().seeds == bloom.seeds
    with pytest.raises(ConfigurationError, match="capacity"):
        BloomFilter(client, "k", capacity=np.True_)


def test_a_filter_is_true_without_a_round_trip(client: redis.Redis) -> None:
    bloom = small(client)
    assert bloom
    assert bloom.round_trips == 0
    assert len(bloom) == 0


def test_a_with_block_opens_the_filter_and_closes_nothing(client: redis.Redis) -> None:
    with small(client) as bloom:
        assert isinstance(bloom, BloomFilter)
        assert bloom.header is not None
    assert bloom.add("a")
    assert client.ping()


@pytest.mark.parametrize("copy_it", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_filter_cannot_be_pickled(
    client: redis.Redis, copy_it: Callable[[BloomFilter], object]
) -> None:
    with pytest.raises(TypeError, match="cannot be pickled.*the same key"):
        copy_it(small(client))


@pytest.mark.parametrize("notify", [5, "print", True])
def test_notify_is_a_function(client: redis.Redis, notify: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"notify is a function; got {notify!r}"):
        BloomFilter(client, "k", notify=notify)


@pytest.mark.parametrize("decode", [False, True])
def test_clients_that_decode_replies_work(
    client: redis.Redis, server: Server, decode: bool
) -> None:
    with server.client(decode_responses=decode) as other:
        bloom = small(other)
        assert bloom.add_many(URLS) == [True] * 1000
        assert bloom.add_many(URLS) == [False] * 1000
        assert bloom.info().count == 1000
        assert "a" not in bloom


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_redis_protocols_work(client: redis.Redis, server: Server, protocol: int) -> None:
    with server.client(protocol=protocol) as other:
        bloom = small(other)
        assert bloom.add_many(["a", "a"]) == [True, False]
        assert len(bloom) == 1


def test_scripts_are_loaded_again_after_a_script_flush(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.add("a")
    client.script_flush()
    before = bloom.round_trips
    assert bloom.add_many([*URLS, "a"]) == [True] * 1000 + [False]
    assert bloom.round_trips == before + 2  # refused, and again with the script
    client.script_flush()
    assert bloom.add("a") is False


# -- full --


def test_a_full_filter_hides_nothing(client: redis.Redis) -> None:
    bloom = BloomFilter(client, "k", capacity=100, error_rate=1e-9, blocks=1, growth=0)
    items = [str(i) for i in range(1000)]
    assert bloom.add_many(items) == [True] * 1000
    assert bloom.unrecorded == 900
    assert len(bloom) == 100
    assert bloom.info().estimated_error_rate <= 1e-9
    # What is recorded stays seen; what is not stays new.
    assert bloom.add_many(items) == [False] * 100 + [True] * 900
    assert bloom.contains(items) == [True] * 100 + [False] * 900


def test_a_full_filter_whose_count_is_lost_is_not_filled_again(client: redis.Redis) -> None:
    """Its error rate would be anything."""
    bloom = BloomFilter(client, "k", capacity=100, error_rate=1e-9, blocks=1, growth=0)
    bloom.add_many(map(str, range(200)))
    client.hdel("{k:0}:ring", "n:0.0")
    assert bloom.add_many(map(str, range(100))) == [True] * 100
    assert bloom.lost_blocks == 1
    assert len(bloom) == 100


def test_a_full_filter_grows_and_every_item_is_new_once(client: redis.Redis) -> None:
    """Two clients take turns; neither is told anything wrong while the layers change."""
    filters = [BloomFilter(client, "k", capacity=100, error_rate=1e-9, blocks=2) for _ in "ab"]
    taken = [filters[turn % 2].add_many(URLS[: 10 * turn + 10]) for turn in range(100)]
    assert taken == [[False] * 10 * turn + [True] * 10 for turn in range(100)]
    for bloom in filters:
        assert bloom.add_many(URLS) == [False] * 1000
        assert (len(bloom), bloom.unrecorded) == (1000, 0)
    info = filters[0].info()
    assert info.generations[0].layers >= 3
    assert info.count <= info.generations[0].capacity
    assert info.estimated_error_rate <= info.error_bound <= 1e-9


def test_a_filter_grows_under_single_items_too(client: redis.Redis) -> None:
    bloom = BloomFilter(client, "k", capacity=10, error_rate=1e-9, blocks=1)
    assert [bloom.add(str(i)) for i in range(200)] == [True] * 200
    assert [bloom.add(str(i)) for i in range(200)] == [False] * 200
    assert (len(bloom), bloom.unrecorded) == (200, 0)


# -- what is told --


def watched(client: redis.Redis, told: list[tuple[str, int]], **options: Any) -> BloomFilter:
    return BloomFilter(
        client, "k", notify=lambda what, ring: told.append((what, ring.block)), **options
    )


@pytest.mark.parametrize("singly", [False, True])
def test_filling_growth_and_fullness_are_told_once(client: redis.Redis, singly: bool) -> None:
    def claim(items: range) -> list[bool]:
        texts = list(map(str, items))
        return [bloom.add(text) for text in texts] if singly else bloom.add_many(texts)

    told: list[tuple[str, int]] = []
    options = {"capacity": 100, "error_rate": 1e-9, "blocks": 1}
    bloom = watched(client, told, **options)
    assert claim(range(79)) == [True] * 79
    assert not told
    assert claim(range(79, 100)) == [True] * 21
    assert told == [(FILLING, 0)]
    assert claim(range(100, 200)) == [True] * 100
    assert told == [(FILLING, 0), (GROWN, 0)]
    told.clear()
    client.flushall()
    bloom = watched(client, told, **options, growth=0)
    assert claim(range(200)) == [True] * 200
    assert claim(range(100, 200)) == [True] * 100
    assert told == [(FILLING, 0), (FULL, 0)]
    assert bloom.unrecorded == 200


def test_rotations_are_told_for_each_block_by_who_does_them(client: redis.Redis) -> None:
    mine: list[tuple[str, int]] = []
    others: list[tuple[str, int]] = []
    first = watched(client, mine, window="2 runs", run="a")
    first.add_many(URLS)
    second = watched(client, others, run="b")
    second.add_many(URLS)
    first.add_many(URLS)
    assert mine == []
    assert sorted(others) == [(ROTATED, block) for block in range(16)]
    first.rotate()
    assert sorted(mine) == sorted(others)


def test_losses_are_told_once_by_who_finds_them(client: redis.Redis) -> None:
    told: list[tuple[str, int]] = []
    bloom = watched(client, told)
    bloom.add_many(URLS)
    client.delete("{k:3}:0.0", "{k:5}:ring")
    bloom.add_many(URLS)
    bloom.add_many(URLS)
    assert sorted(told) == [(LOST, 3), (LOST, 5)]
    assert bloom.lost_blocks == 2


def test_clearing_is_no_news(client: redis.Redis) -> None:
    told: list[tuple[str, int]] = []
    bloom = watched(client, told, window="2 runs", run="a")
    bloom.add_many(URLS)
    bloom.clear()
    assert not told


# -- windows --


def test_explicit_settings_are_applied_once_by_the_last_to_open(client: redis.Redis) -> None:
    first = small(client, window="2 runs", run="0")
    first.add_many(URLS)
    stored = first.config
    second = small(
        client, capacity=20_000, error_rate=1e-5, window="6 days", period="1 day", growth=1
    )
    second.open()
    assert second.replaced_config == stored != second.config
    assert first.add_many(URLS) == [False] * 1000
    for bloom in (first, second, BloomFilter(client, "shop:bloom")):
        info = bloom.info()
        assert (info.capacity, info.error_rate, info.growth) == (20_000, 1e-5, 1)
        assert (info.window, info.period) == ("6 days", "1 day")
    assert first.replaced_config is None
    third = small(client, capacity=20_000, error_rate=1e-5, window="6 days")
    third.open()
    assert third.replaced_config is None


def test_opening_a_filter_as_it_is_changes_no_ring(client: redis.Redis) -> None:
    small(client, window="2 runs", run="a").open()
    before = contents(client, "*:ring")
    small(client, window="2 runs", period="1 run", run="a", growth=2).open()
    assert contents(client, "*:ring") == before


def generations(bloom: BloomFilter) -> list[int]:
    """Return the runs in which the generations of all blocks were opened."""
    return [generation.run for generation in bloom.info().generations]


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_find_says_which_generation_has_an_item(client: redis.Redis, ring: str) -> None:
    for run in "abc":
        # One block: others may be opened a second later.
        bloom = small(client, window="3 runs", ring=ring, run=run, blocks=1)
        bloom.add_many(["of all runs", f"of run {run}"])
    finds = [bloom.find(f"of run {run}") for run in "abc"]
    assert all(found.seen and found.window == "3 runs" for found in finds)
    opened = [generation.opened for generation in bloom.info().generations]
    assert [found.recorded_after for found in finds] == sorted(opened)
    assert bloom.find("of all runs") == finds[0]
    assert bloom.find_all(["of run c", "of run a"]) == [finds[2], finds[0]]
    missing = bloom.find("never seen")
    assert (missing.seen, missing.recorded_after, missing.until) == (False, 0, 0)
    assert len(bloom) == 4


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_find_tells_generations_apart(client: redis.Redis, ring: str) -> None:
    """By number, as runs of one second have the same time."""
    for run in "abc":
        bloom = small(client, window="3 runs", ring=ring, run=run)
        bloom.add_many([f"of run {run}"])
    items = [f"of run {run}".encode() for run in "abc"]
    found = bloom._driver.run(find(bloom.session, items))
    assert [generation.number for _, generation in found if generation] == [0, 1, 2]


def stored(client: redis.Redis) -> dict[bytes, tuple[bytes, int]]:
    return {key: (value, client.expiretime(key)) for key, value in contents(client).items()}


def test_looking_changes_nothing(client: redis.Redis) -> None:
    looking = small(client, capacity=1, window="9 runs", run="z")
    assert looking.look() is None
    assert not client.keys()
    small(client, window="2 runs", run="a").add_many(URLS)
    before = stored(client)
    for _ in range(2):
        snapshot = looking.look()
        assert snapshot is not None
        assert sum(ring.count(snapshot.counts[b]) for b, ring in snapshot.rings.items()) == 1000
        assert snapshot.rings[0].config.capacity == 10_000
    assert stored(client) == before


def test_looking_at_a_damaged_filter_repairs_nothing(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.add_many(URLS)
    client.delete("{shop:bloom:3}:ring", "{shop:bloom:5}:0.0")
    before = stored(client)
    snapshot = bloom.look()
    assert snapshot is not None
    assert sorted(snapshot.rings) == [b for b in range(16) if b != 3]
    assert stored(client) == before
    assert bloom.lost_blocks == 0


def test_looking_at_a_filter_created_anew_leaves_the_next_claim_right(client: redis.Redis) -> None:
    """Its rings under the old filter's seeds would record each item in the wrong places."""
    bloom, other = small(client), small(client)
    bloom.add_many(URLS)
    client.flushall()
    other.add_many(URLS[:500])
    assert bloom.look() is not None
    assert bloom.add_many(URLS) == [False] * 500 + [True] * 500
    assert other.add_many(URLS) == [False] * 1000


def test_a_filter_without_a_window_has_nothing_to_rotate(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.add_many(URLS)
    with pytest.raises(ConfigurationError, match="`window`.*nothing to rotate"):
        bloom.rotate()
    assert bloom.add_many(URLS) == [False] * 1000


# -- when keys expire --


WINDOWS = [
    ({"window": "3 runs", "run": "0"}, 0),
    ({"window": "3 days", "period": "1 day"}, 2 * 86_400),
    ({"window": "3 days", "period": "1 day", "stagger": True}, 2 * 86_400),
    ({"window": "2 months", "ring": "write-all"}, 28 * 86_400),
]


# -- losses of older generations --


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
@pytest.mark.parametrize("layer", ["0.0", "0.1"])
def test_any_lost_layer_of_the_only_generation_is_survived(
    client: redis.Redis, ring: str, layer: str
) -> None:
    bloom = BloomFilter(client, "k", capacity=100, error_rate=1e-9, blocks=1, ring=ring)
    bloom.add_many(URLS[:300])
    assert client.delete(f"{{k:0}}:{layer}")
    forgotten = sum(bloom.add_many(URLS[:300]))
    assert 0 < forgotten < 300
    assert bloom.add_many(URLS) == [False] * 300 + [True] * 700
    assert (len(bloom), bloom.lost_blocks) == (1000, 1)


def test_a_bitmap_of_another_size_in_the_place_of_a_lost_one_goes(client: redis.Redis) -> None:
    """It would stay for ever: nothing else knows its name."""
    bloom = BloomFilter(
        client, "k", capacity=100, error_rate=1e-9, blocks=1, window="2 runs", run="0"
    )
    bloom.add_many(URLS[:50])
    client.set("{k:0}:0.0", b"mine")
    assert bloom.add_many(URLS[:50]) == [True] * 50
    bloom.rotate()
    bloom.rotate()
    assert client.keys("{k:0}:0.0") == []


# -- what others do to the keys --


def test_a_lost_header_is_restored_from_any_ring(client: redis.Redis) -> None:
    bloom = small(client)
    header = bloom.open()
    bloom.extend(URLS)
    client.delete("{shop:bloom:0}:header", *(f"{{shop:bloom:{b}}}:ring" for b in range(11)))
    with pytest.raises(FilterMismatchError, match="stored with `blocks` = 16"):
        small(client, blocks=1).open()
    other = small(client)
    assert other.open() == header
    assert 200 < sum(other.contains(URLS)) < 450


def test_a_filter_deleted_and_created_anew_by_others_is_followed(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.extend(URLS)
    client.flushall()
    other = BloomFilter(client, "shop:bloom", capacity=1_000, blocks=4)
    other.extend(URLS[:500])
    assert bloom.add_many(URLS) == [False] * 500 + [True] * 500
    assert bloom.header == other.header


@pytest.mark.parametrize("blocks", [4, 16, 32])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (len, 500),
        (lambda bloom: bloom.info().count, 500),
        (lambda bloom: sum(bloom.contains(URLS)), 500),
        (lambda bloom: bloom.add(URLS[0]), False),
        (lambda bloom: bloom.clear() or len(bloom), 0),
    ],
)
def test_every_call_follows_a_filter_created_anew(
    client: redis.Redis, blocks: int, call: Callable[[BloomFilter], object], expected: object
) -> None:
    bloom = small(client)
    bloom.extend(URLS)
    client.flushall()
    other = BloomFilter(client, "shop:bloom", capacity=5_000, error_rate=1e-9, blocks=blocks)
    other.extend(URLS[:500])
    assert call(bloom) == expected
    assert bloom.header == other.header


def test_opening_while_others_create_the_filter_anew_does_not_wipe_theirs(
    client: redis.Redis,
) -> None:
    """Between the header and the rings, all was deleted, created anew and filled."""
    small(client).open()
    late = small(client)
    steps = late.session.open()
    (call,) = next(steps)
    (header,) = send(late._driver, [call])
    client.flushall()
    other = small(client)
    other.extend(URLS)

    calls = steps.send([header])
    while calls:
        try:
            calls = steps.send(send(late._driver, calls))
        except StopIteration:
            break
    assert other.add_many(URLS) == [False] * 1000
    assert late.header == other.header
    assert other.lost_blocks == 0


def test_leftover_rings_of_another_filter_are_replaced(client: redis.Redis) -> None:
    """A restored backup of one block must not make its URLs look seen."""
    bloom = small(client)
    bloom.extend(URLS)
    saved = {key: client.dump(key) for key in client.keys("{shop:bloom:3}:*")}
    client.flushall()
    fresh = small(client)
    fresh.open()
    for key, value in saved.items():
        client.restore(key, 0, value, replace=True)
    assert fresh.add_many(URLS) == [True] * 1000
    assert small(client).add_many(URLS) == [False] * 1000


def test_stray_bitmaps_are_not_taken_for_ours(client: redis.Redis) -> None:
    size = plan(10_000, 1e-6).memory // 16
    for block in range(16):
        client.set(f"{{shop:bloom:{block}}}:0.0", b"\xff" * size)
    assert small(client).add_many(URLS) == [True] * 1000


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("{shop:bloom:0}:header", "hash"),
        ("{shop:bloom:0}:ring", "hash"),
        ("{shop:bloom:5}:ring", "hash"),
        ("{shop:bloom:5}:0.0", "string"),
    ],
)
def test_a_key_of_another_type_is_named(client: redis.Redis, key: str, kind: str) -> None:
    small(client).open()
    client.delete(key)
    client.lpush(key, "x")
    with pytest.raises(StorageError, match=f"{key}.* holds a list, and the filter keeps a {kind}"):
        small(client).add_many(URLS)
    assert client.lrange(key, 0, -1) == [b"x"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "9", "its format is '9', and this version reads 3"),
        ("seeds", "[]", "damaged"),
    ],
)
def test_a_header_that_cannot_be_read_is_named(
    client: redis.Redis, field: str, value: str, message: str
) -> None:
    small(client).open()
    client.hset("{shop:bloom:0}:header", field, value)
    with pytest.raises(StorageError, match=f"{{shop:bloom:0}}:header.*{message}"):
        small(client).open()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blocks", "16384"),
        ("blocks", "8"),
        ("seeds", "[1, 2, 3]"),
        ("seeds", str(list(range(64)))),
        ("fingerprinter", "another.Class"),
        ("order", "write-all"),
        ("stagger", "1"),
        ("counting", "1"),
    ],
)
@pytest.mark.parametrize("lost", [[], ["{shop:bloom:0}:ring"]])
def test_a_header_and_rings_that_disagree_are_named_before_anything_is_created(
    client: redis.Redis, field: str, value: str, lost: list[str]
) -> None:
    bloom = small(client)
    bloom.add_many(URLS)
    client.hset("{shop:bloom:0}:header", field, value)
    if lost:
        client.delete(*lost)
    before = sorted(client.keys())
    for use in (BloomFilter.open, BloomFilter.look, lambda b: b.add("a"), lambda b: b.info()):
        message = rf"'{{shop:bloom:0}}:header' and .*:ring' differ in {field}:.*Delete"
        with pytest.raises(StorageError, match=message):
            use(BloomFilter(client, "shop:bloom"))
    assert sorted(client.keys()) == before
    # The remedy.
    client.delete("{shop:bloom:0}:header")
    assert sum(BloomFilter(client, "shop:bloom").contains(URLS)) >= 900 - 100 * len(lost)


def test_a_ring_that_cannot_be_read_is_named(client: redis.Redis) -> None:
    small(client).open()
    client.hset("{shop:bloom:2}:ring", "state", "nonsense")
    with pytest.raises(StorageError, match="{shop:bloom:2}:ring"):
        small(client).open()


def test_any_count_that_can_be_is_shown(client: redis.Redis) -> None:
    bloom = small(client, counting=True)
    bloom.open()
    client.hset("{shop:bloom:3}:ring", "n:0.0", "9" * 15)
    assert len(bloom) == 999_999_999_999_999
    assert bloom.info().estimated_error_rate <= 1


@pytest.mark.parametrize("count", ["nonsense", "-5", "1e3", "9" * 30, "٣"])
def test_a_count_that_cannot_be_is_named(client: redis.Redis, count: str) -> None:
    bloom = small(client, counting=True)
    bloom.open()
    client.hset("{shop:bloom:3}:ring", "n:0.0", count)
    with pytest.raises(StorageError, match=r"shop:bloom:3.*damaged"):
        bloom.info()


def test_a_ring_that_changes_all_the_time_is_an_error_and_not_a_hang(client: redis.Redis) -> None:
    bloom = small(client, blocks=1)
    bloom.open()
    driver = bloom._driver
    exchange, send_all = driver.exchange, driver._exchange

    def meddle() -> None:
        client.hset("{shop:bloom:0}:ring", "v", secrets.token_hex(8))

    driver.exchange = lambda frame: (meddle(), exchange(frame))[1]
    driver._exchange = lambda wave: (meddle(), send_all(wave))[1]
    with pytest.raises(StorageError, match="does something else write"):
        bloom.add("a")


# -- servers that refuse --


def test_out_of_memory_says_so_and_marks_nothing(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.open()
    client.config_set("maxmemory", "1")
    try:
        bloom.open()  # takes no memory: there may be claims to be ended, which gives some back
        with pytest.raises(ServerFullError, match="out of memory"):
            bloom.add("a")
    finally:
        client.config_set("maxmemory", "0")
    assert bloom.add("a") is True


def test_a_filter_that_does_not_fit_is_refused_before_the_server_is_full(
    client: redis.Redis,
) -> None:
    """Else the queue on the same server could not push any more."""
    limit = client.info("memory")["used_memory"] + (20 << 20)
    client.config_set("maxmemory", str(limit))
    try:
        with pytest.raises(StorageError, match="out of memory"):
            BloomFilter(client, "k", capacity=100_000_000).open()
        assert client.info("memory")["used_memory"] < limit + (10 << 20)
    finally:
        client.config_set("maxmemory", "0")


def test_readonly_replica_is_refused_at_open(client: redis.Redis) -> None:
    small(client).open()
    client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StorageError, match="read-only replica"):
            small(client).open()
        assert "a" not in small(client)  # reading is fine
    finally:
        client.replicaof("NO", "ONE")


def test_no_server_names_the_address_and_the_remedy() -> None:
    client = redis.Redis(port=1, retry=Retry(NoBackoff(), 0))
    bloom = BloomFilter(client, "k", label="redis://localhost:1/0")
    with pytest.raises(StorageError, match=r"redis://localhost:1/0 is not there: start a server"):
        bloom.open()


def test_repr_names_key_and_server(client: redis.Redis) -> None:
    path = client.connection_pool.connection_kwargs["path"]
    assert repr(small(client)) == f"<BloomFilter 'shop:bloom' on unix://{path}>"


def test_every_public_call_opens_the_filter(client: redis.Redis) -> None:
    calls: list[Callable[[BloomFilter], object]] = [
        lambda bloom: bloom.add_many(["a"]),
        lambda bloom: bloom.contains(["a"]),
        lambda bloom: bloom.add("a"),
        lambda bloom: bloom.extend(["a"]),
        lambda bloom: "a" in bloom,
        len,
        lambda bloom: bloom.clear(),
        lambda bloom: bloom.info(),
        lambda bloom: bloom.open(),
    ]
    for call in calls:
        client.flushall()
        call(small(client))
        assert client.exists("{shop:bloom:0}:header")


def test_a_wrong_type_behind_an_unknown_script_is_named_too(client: redis.Redis) -> None:
    bloom = small(client)
    bloom.open()
    for block in range(16):
        client.delete(f"{{shop:bloom:{block}}}:0.0")
        client.lpush(f"{{shop:bloom:{block}}}:0.0", "x")
    client.script_flush()
    with pytest.raises(StorageError, match="holds a list, and the filter keeps a string"):
        bloom.add("a")


def test_a_user_who_may_not_ask_for_the_eviction_policy_is_told_nothing(
    client: redis.Redis, server: Server
) -> None:
    client.acl_setuser(
        "crawler", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"]
    )
    try:
        with server.client(username="crawler", password="any") as limited:
            assert small(limited).eviction_policy() == ""
            assert small(client).eviction_policy() == "noeviction"
    finally:
        client.acl_deluser("crawler")


def test_seeds_are_in_no_repr(client: redis.Redis) -> None:
    seeds = [1234567891, 1234567892, 1234567893]
    bloom = small(client, seeds=seeds, error_rate=0.1)
    bloom.open()
    session = bloom.session
    for value in (bloom, session.wanted, session.hasher, session.held, bloom.look(), bloom.info()):
        assert "12345678" not in repr(value)


def test_stored_seeds_are_not_in_errors(client: redis.Redis) -> None:
    BloomFilter(client, "k", error_rate=0.1, seeds=[123456789, 5]).open()
    client.hset("{k:0}:header", "seeds", "[123456789, 123456789]")
    with pytest.raises(StorageError, match="number of different seeds = 1") as caught:
        BloomFilter(client, "k").open()
    assert "123456789" not in str(caught.value)
    client.delete("{k:0}:header")
    with pytest.raises(FilterMismatchError) as mismatch:
        BloomFilter(client, "k", error_rate=0.1, seeds=[987654321]).open()
    assert not {"123456789", "987654321"} & set(re.findall(r"\d+", str(mismatch.value)))


def test_an_asyncio_client_is_refused(client: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="which is for asyncio: use AsyncBloomFilter"):
        BloomFilter(redis.asyncio.Redis(), "k")


@pytest.mark.parametrize(
    "reply", [None, "ok", [], [b"ok"], [b"ok", b""], [b"ok", b"11"], [b"stale", b"", b"", b"x"]]
)
def test_a_reply_that_is_none_of_ours_is_a_storage_error(
    client: redis.Redis, reply: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    bloom = small(client)
    bloom.open()
    monkeypatch.setattr(
        bloom._driver,
        "_exchange",
        lambda wave: {node: [reply] * len(commands) for node, commands in wave.batches.items()},
    )
    monkeypatch.setattr(bloom._driver._exchanger, "exchange", lambda frame: reply)
    for call in (lambda: bloom.add("a"), lambda: bloom.add_many(["a"])):
        with pytest.raises(StorageError, match="a script answered"):
            call()


def test_a_key_with_a_lone_surrogate_is_refused(client: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="valid Unicode"):
        BloomFilter(client, "\ud800")
