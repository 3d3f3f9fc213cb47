"""``scrapy bloom list``: all filters on a server, whoever made them."""

import redis
from redis import Redis
from support.cli import URLS, Call, Own, Shop, everything, fingerprints, register
from support.servers import Server, contents

from scrapy_bloom import BloomFilter


def foreign(client: Redis) -> None:
    """Write what looks like parts of filters."""
    client.hset("{a:0}:header", "id", "x")
    client.set("{b:0}:header", "a string")
    client.hset("{c:0}:ring", "state", "[")
    client.zadd("{d:3}:ring", {"a zset": 1})
    client.hset(b"{\xff\xfe:0}:header", "id", "x")
    client.hset("{e{f:0}:header", "id", "x")
    client.hset("{g:0}:headers", "id", "x")
    client.set("header", "x")


def test_all_filters_are_listed_and_nothing_changes(call: Call, server: Server) -> None:
    with server.client() as client:
        client.flushall()
        first = BloomFilter(client, "shop:bloom", capacity=1000, window="3 months")
        first.extend(fingerprints(URLS))
        BloomFilter(client, "shop:bloom:news", window="2 runs", run="1").open()
        BloomFilter(client, "other project:ü", blocks=2).open()
        client.delete("{other project:ü:0}:header")
        before = everything(client)
        done = call("list", "--json", spiders=(Shop, Own), BLOOM_REDIS_URL=server.unix_url)
        text = call("list", BLOOM_REDIS_URL=server.unix_url)
        assert everything(client) == before
    assert (done.code, done.err, text.code) == (0, "", 0)
    filters = {found["key"]: found for found in done.json["filters"]}
    assert [*filters] == ["shop:bloom", "shop:bloom:news"]
    assert done.json["skipped"] == 1, "it has lost its header"
    assert filters["shop:bloom"]["count"] == 20
    assert filters["shop:bloom"]["closes"] == first.info().generations[0].closes
    assert filters["shop:bloom"]["workers"]["alive"] == 0
    lines = text.out.splitlines()
    assert lines[0].startswith("2 filters on unix://")
    assert lines[2].split() == [
        *("window", "generations", "capacity", "URLs", "fill", "memory", "rotates", "(UTC)"),
        *("last", "worker", "key"),
    ]
    assert lines[3].split()[:5] == ["3", "months", "1", "1,000", "20"]
    assert lines[3].endswith("  shop:bloom")
    assert "by runs" in lines[4]


def test_foreign_keys_are_skipped(shop: Call, client: Redis) -> None:
    foreign(client)
    BloomFilter(client, "k").open()
    before = contents(client)
    done = shop("list", "--json")
    assert contents(client) == before
    assert (done.code, done.err) == (0, "")
    assert [found["key"] for found in done.json["filters"]] == ["k"]
    assert done.json["skipped"] == 6
    assert "6 with keys like a filter's are none, or cannot be read: skipped" in shop("list").out


def test_workers(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, "k")
    bloom.open()
    register(bloom, 60)
    register(bloom, 60)
    (found,) = shop("list", "--json").json["filters"]
    assert found["workers"]["alive"] == 2
    assert found["workers"]["until"] > found["now"]
    assert found["workers"]["until_utc"].endswith("Z")
    assert "2 alive" in shop("list").out
    found = client.zrange("{k:0}:heartbeats", 0, -1)
    members = [member for member in found if isinstance(member, bytes)]
    client.zadd("{k:0}:heartbeats", dict(zip(members, (1_000_000_000, 0), strict=True)))
    assert "2001-09-09 01:46" in shop("list").out


def test_without_filters(shop: Call, client: Redis) -> None:
    client.set("x", "y")
    assert shop("list").out.startswith("0 filters on ")


def test_of_a_cluster_all_primaries_are_read(
    call: Call, cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    names = [f"f{number}" for number in range(8)]
    for name in names:
        BloomFilter(cluster, name, blocks=1).open()
    keys = [node.client().dbsize() for node in nodes]
    assert all(keys), "each node has some"
    url = f"redis+cluster://127.0.0.1:{nodes[1].port}"
    done = call("list", "--json", BLOOM_REDIS_URL=url)
    assert [found["key"] for found in done.json["filters"]] == names
