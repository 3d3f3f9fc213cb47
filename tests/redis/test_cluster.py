"""BloomFilter on a real cluster: blocks are spread over its nodes, each block is on one."""

import io
from dataclasses import replace
from typing import Any

import pytest
import redis
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.extras.file import ArchiveReader

URLS = [f"https://example.com/{i}" for i in range(1_000)]


def test_it_is_the_same_set(cluster: redis.RedisCluster) -> None:
    bloom = BloomFilter(cluster, "shop", capacity=10_000)
    assert bloom.add_many(URLS) == [True] * 1_000
    assert bloom.add_many(URLS) == [False] * 1_000
    assert bloom.add("another")
    assert not bloom.add("another")
    assert "another" in bloom
    assert len(bloom) == 1_001
    assert BloomFilter(cluster, "shop").contains(URLS) == [True] * 1_000
    bloom.clear()
    assert len(bloom) == 0
    assert bloom.info().blocks == 16


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_it_grows_rotates_and_forgets(cluster: redis.RedisCluster, ring: str) -> None:
    options: dict[str, Any] = {"capacity": 500, "error_rate": 1e-9, "ring": ring}
    bloom = BloomFilter(cluster, "shop", window="2 runs", run="a", **options)
    assert bloom.add_many(URLS) == [True] * 1_000
    assert bloom.info().generations[0].layers >= 2
    assert BloomFilter(cluster, "shop", run="b").add_many(URLS) == [False] * 1_000
    assert BloomFilter(cluster, "shop", run="c").add_many(URLS) == [True] * 1_000
    assert bloom.add_many(URLS) == [False] * 1_000
    snapshot = bloom.look()
    assert snapshot is not None
    assert len(snapshot.rings) == 16
    assert bloom.find(URLS[0]).seen


def test_a_node_that_forgot_everything_costs_its_blocks_only(
    cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    bloom = BloomFilter(cluster, "shop", capacity=10_000)
    header = bloom.open()
    bloom.add_many(URLS)
    with nodes[1].client() as client:
        blocks = len(client.keys("*:ring"))
        client.flushall()
        client.script_flush()
    forgotten = sum(bloom.add_many(URLS))
    assert 0 < forgotten < 1_000
    assert forgotten == pytest.approx(1_000 * blocks / 16, rel=0.4)
    assert bloom.add_many(URLS) == [False] * 1_000
    assert BloomFilter(cluster, "shop").open() == header


def parts(data: bytes) -> list[object]:
    """Return what is in a file, without the filter's id."""
    reader = ArchiveReader(io.BytesIO(data))
    header = replace(reader.header, id="")
    return [(replace(ring, header=header), counts, [*chunks]) for ring, counts, chunks in reader]


def test_a_filter_moves_between_a_server_and_a_cluster(
    cluster: redis.RedisCluster, client: redis.Redis
) -> None:
    def move(source: Any, target: Any, key: str) -> bytes:
        file = io.BytesIO()
        BloomFilter(source, "shop").save(file)
        file.seek(0)
        BloomFilter.load(target, key, file)
        return file.getvalue()

    bloom = BloomFilter(client, "shop", capacity=500, window="3 days", period="1 day", blocks=20)
    bloom.extend(URLS)
    bloom.rotate()
    bloom.extend(f"new/{i}" for i in range(500))
    first = move(client, cluster, "shop")
    there = BloomFilter(cluster, "shop")
    assert there.contains(URLS) == [True] * 1_000
    assert there.seeds == bloom.seeds
    assert there.info().generations == bloom.info().generations
    client.flushall()
    second = move(cluster, client, "shop")
    assert BloomFilter(client, "shop").contains(URLS) == [True] * 1_000
    # Bit for bit: only the filter's id differs, and the time at which it was saved.
    assert parts(first) == parts(second)
    assert BloomFilter(client, "shop").info().generations == there.info().generations


def test_filters_are_united_and_compared(cluster: redis.RedisCluster) -> None:
    one = BloomFilter(cluster, "one", capacity=1_000)
    two = BloomFilter(cluster, "two", like=one)
    one.extend(URLS[:600])
    two.extend(URLS[400:])
    assert one.approx_intersection_len(two) == pytest.approx(200, rel=0.1)
    assert all(one.union(two, key="both").contains(URLS))
    one |= two
    assert all(one.contains(URLS))
