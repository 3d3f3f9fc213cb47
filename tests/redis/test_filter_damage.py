"""What others do to a filter's keys, and servers that refuse: what is named, and what is hidden."""

import secrets
from collections.abc import Callable

import pytest
from redis import Redis
from support.filters import URLS, small
from support.outages import full, replica
from support.saving import at_round, watched
from support.servers import Server

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.errors import ServerFullError
from scrapy_bloom.bloom.model.sizing import plan
from scrapy_bloom.bloom.protocol.membership import add

pytestmark = pytest.mark.each_server


@pytest.mark.parametrize("blocks", [4, 32])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (len, 500),
        (lambda bloom: sum(bloom.contains(URLS)), 500),
        (lambda bloom: bloom.add(URLS[0]), False),
        (lambda bloom: sum(bloom.add_many(URLS)), 500),
        (lambda bloom: bloom.clear() or len(bloom), 0),
        # Its rings under the old filter's seeds would record each item in the wrong places.
        (lambda bloom: bloom.look() and sum(bloom.add_many(URLS)), 500),
    ],
)
def test_every_call_follows_a_filter_created_anew(
    client: Redis, blocks: int, call: Callable[[BloomFilter], object], expected: object
) -> None:
    bloom = small(client)
    bloom.extend(URLS)
    client.flushall()
    other = BloomFilter(client, "shop:bloom", capacity=5_000, error_rate=1e-9, blocks=blocks)
    other.extend(URLS[:500])
    assert call(bloom) == expected
    assert bloom.header == other.header


def test_opening_while_others_create_the_filter_anew_does_not_wipe_theirs(client: Redis) -> None:
    """Between the header and the rings, all was deleted, created anew and filled."""
    small(client).open()
    late, other = small(client), small(client)
    create_anew = at_round(1, lambda: (client.flushall(), other.extend(URLS)))
    late.run(lambda session: watched(session.open(), create_anew))
    assert other.add_many(URLS) == [False] * 1000
    assert late.header == other.header
    assert other.lost_blocks == 0


def test_leftover_rings_and_bitmaps_of_another_filter_are_replaced(client: Redis) -> None:
    """A restored backup of one block must not make its URLs look seen."""
    size = plan(10_000, 1e-6).memory // 16
    for block in range(16):
        client.set(f"{{shop:bloom:{block}}}:0.0", b"\xff" * size)
    bloom = small(client)
    assert bloom.add_many(URLS) == [True] * 1000
    saved = {key: client.dump(key) or b"" for key in client.keys("{shop:bloom:3}:*")}
    client.flushall()
    fresh = small(client)
    fresh.open()
    for key, value in saved.items():
        client.restore(key, 0, value, replace=True)
    assert fresh.add_many(URLS) == [True] * 1000
    assert small(client).add_many(URLS) == [False] * 1000


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("{shop:bloom:0}:header", "hash"),
        ("{shop:bloom:0}:ring", "hash"),
        ("{shop:bloom:5}:ring", "hash"),
        ("{shop:bloom:5}:0.0", "string"),
    ],
)
def test_a_key_of_another_type_is_named(client: Redis, key: str, kind: str) -> None:
    small(client).open()
    client.delete(key)
    client.lpush(key, "x")
    with pytest.raises(StorageError, match=f"{key}.* holds a list, and the filter keeps a {kind}"):
        small(client).add_many(URLS)
    assert client.lrange(key, 0, -1) == [b"x"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("format", "9", "its format is '9', and this version reads 3"), ("seeds", "[]", "damaged")],
)
def test_a_header_that_cannot_be_read_is_named(
    client: Redis, field: str, value: str, message: str
) -> None:
    small(client).open()
    client.hset("{shop:bloom:0}:header", field, value)
    with pytest.raises(StorageError, match=f"{{shop:bloom:0}}:header.*{message}"):
        small(client).open()


@pytest.mark.parametrize(
    ("field", "value"),
    [("blocks", "1024"), ("blocks", "8"), ("seeds", "[1, 2, 3]"), ("counting", "1")],
)
@pytest.mark.parametrize("lost", [[], ["{shop:bloom:0}:ring"]])
def test_a_header_and_rings_that_disagree_are_named_before_anything_is_created(
    client: Redis, field: str, value: str, lost: list[str]
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


def test_a_ring_that_changes_all_the_time_is_an_error_and_not_a_hang(client: Redis) -> None:
    bloom = small(client, blocks=1)
    bloom.open()

    def meddle(_: object) -> None:
        client.hset("{shop:bloom:0}:ring", "v", secrets.token_hex(8))

    with pytest.raises(StorageError, match="does something else write"):
        bloom.run(lambda session: watched(add(session, [b"a"]), meddle))


# -- servers that refuse --


def test_out_of_memory_says_so_and_marks_nothing(server: Server, client: Redis) -> None:
    bloom = small(client)
    bloom.open()
    with full(server):
        bloom.open()  # takes no memory: there may be claims to be ended, which gives some back
        with pytest.raises(ServerFullError, match="out of memory"):
            bloom.add("a")
    assert bloom.add("a") is True


def test_a_filter_that_does_not_fit_is_refused_before_the_server_is_full(
    server: Server, client: Redis
) -> None:
    """Else the queue on the same server could not push any more."""
    limit = client.info("memory")["used_memory"] + (20 << 20)
    with full(server, limit), pytest.raises(StorageError, match="out of memory"):
        BloomFilter(client, "k", capacity=100_000_000).open()
    assert client.info("memory")["used_memory"] < limit + (10 << 20)


def test_readonly_replica_is_refused_at_open(server: Server, client: Redis) -> None:
    small(client).open()
    with replica(server):
        with pytest.raises(StorageError, match="read-only replica"):
            small(client).open()
        assert "a" not in small(client)  # reading is fine


def test_a_full_filter_whose_count_is_lost_is_not_filled_again(client: Redis) -> None:
    """Its error rate would be anything."""
    bloom = BloomFilter(client, "k", capacity=100, error_rate=1e-9, blocks=1, growth=0)
    bloom.add_many(map(str, range(200)))
    client.hdel("{k:0}:ring", "n:0.0")
    assert bloom.add_many(map(str, range(100))) == [True] * 100
    assert bloom.lost_blocks == 1
    assert len(bloom) == 100
