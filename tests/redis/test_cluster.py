"""BloomFilter on a real cluster, and addresses of clusters, for clients of both kinds."""

import asyncio
import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis
from support.certificates import Authority, TLSServer
from support.polling import until
from support.servers import SLOTS, Server, free_port

from scrapy_bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.bloom.extras.file import ArchiveReader

URLS = [f"https://example.com/{i}" for i in range(1_000)]


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
    assert "another" not in bloom
    bloom.clear()
    assert len(bloom) == 0


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


SECRET = "S3CRET"
#: Seconds that are enough on a busy machine.
PATIENCE = 10.0


def use(url: str, **params: Any) -> list[bool]:
    """Add an item by a client of each kind, twice."""

    async def add(connection: Any) -> list[bool]:
        client = connection.open_async()
        try:
            bloom = AsyncBloomFilter(client, "k", timeout=PATIENCE)
            return [await bloom.add("b"), await bloom.add("a")]
        finally:
            await client.aclose()

    with closing(connect(url, timeout=PATIENCE, params=params)) as connection:
        bloom = BloomFilter(connection.client, "k")
        return [bloom.add("a"), *asyncio.run(add(connection)), bloom.add("b")]


NEW = [True, True, False, False]


def test_any_node_that_answers_is_enough(cluster: redis.RedisCluster, nodes: list[Server]) -> None:
    first, second, third = (node.port for node in nodes)
    assert use(f"redis+cluster://127.0.0.1:{first},127.0.0.1:{second}") == NEW
    assert not any(use(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{third}/0"))


def test_no_node_can_be_reached() -> None:
    with pytest.raises(StorageError, match=r"^redis\+cluster://127.0.0.1:\d+ .*start"):
        connect(f"redis+cluster://u:{SECRET}@127.0.0.1:{free_port()}")


def test_a_server_that_is_no_cluster(server: Server) -> None:
    with pytest.raises(StorageError, match=r"single server.*use redis://"):
        connect(f"redis+cluster://127.0.0.1:{server.port}")


def test_labels_and_databases(cluster: redis.RedisCluster, nodes: list[Server]) -> None:
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    with closing(connect(f"{url}/0?client_name=mine")) as connection:
        assert connection.label == url
        assert not connection.resolves
        BloomFilter(connection.client, "k").open()
        with nodes[0].client() as client:
            assert "mine" in [one["name"] for one in client.client_list()]
    for wrong, params in [(f"{url}/1", {}), (f"{url}?db=2", {}), (url, {"db": 3})]:
        with pytest.raises(ConfigurationError, match="database"):
            connect(wrong, params=params)
    for name in ("host", "redis_cls", "startup_nodes"):
        with pytest.raises(ConfigurationError, match=name):
            connect(url, params={name: "x"})


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSServer]:
    """A cluster of one node, whose clients use TLS."""
    options = ("--cluster-enabled", "yes", "--tls-cluster", "yes")
    node = TLSServer(tmp_path_factory.mktemp("tls"), *options)
    with node.server, node.server.client() as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")
        yield node


def url_of(node: TLSServer, **options: object) -> str:
    return node.url(**options).replace("rediss", "rediss+cluster")  # type: ignore[arg-type]


def test_tls(secure: TLSServer) -> None:
    with secure.server.client() as client:
        client.flushall()
    assert use(url_of(secure)) == NEW
    own = secure.client
    with secure.requiring():
        use(url_of(secure, ssl_certfile=own.certificate, ssl_keyfile=own.key))
        with pytest.raises(StorageError, match="set ssl_certfile and ssl_keyfile"):
            use(url_of(secure))


def test_the_certificate_is_checked(secure: TLSServer, tmp_path: Any) -> None:
    other = Authority(tmp_path).file
    with pytest.raises(StorageError, match="set ssl_ca_certs to"):
        use(url_of(secure, trusting=False, ssl_ca_certs=other))
    with secure.presenting(secure.authority.issue("elsewhere", address="192.0.2.1")):
        with pytest.raises(StorageError, match="for another host name"):
            use(url_of(secure))
        use(url_of(secure, ssl_check_hostname="false"))


def test_options_that_redis_pys_clients_for_clusters_drop(secure: TLSServer) -> None:
    """A server that has no cipher in common refuses the client."""
    with secure.server.client() as client:
        client.execute_command("CONFIG SET", "tls-protocols", "TLSv1.2")
        client.execute_command("CONFIG SET", "tls-ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384")
        try:
            ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256"
            with pytest.raises(StorageError, match="TLS"):
                use(url_of(secure, ssl_ciphers=ciphers))
            use(url_of(secure, ssl_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384"))
        finally:
            client.execute_command("CONFIG SET", "tls-ciphers", "DEFAULT")
            client.execute_command("CONFIG SET", "tls-protocols", "")
