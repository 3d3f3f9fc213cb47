"""BloomFilter on a real cluster, and addresses of clusters, for clients of both kinds."""

import io
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from support.answering import SECRET
from support.both import use
from support.certificates import TLSServer
from support.polling import until
from support.servers import SLOTS, Server, free_port

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError

URLS = [f"https://example.com/{i}" for i in range(1_000)]


def test_it_grows_rotates_and_forgets(cluster: redis.RedisCluster) -> None:
    bloom = BloomFilter(cluster, "shop", window="2 runs", run="a", capacity=500, error_rate=1e-9)
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


def test_a_filter_moves_between_a_server_and_a_cluster(
    cluster: redis.RedisCluster, client: redis.Redis
) -> None:
    """Bit for bit: test_save.py."""

    def move(source: Any, target: Any) -> BloomFilter:
        file = io.BytesIO()
        BloomFilter(source, "shop").save(file)
        file.seek(0)
        return BloomFilter.load(target, "shop", file)

    bloom = BloomFilter(client, "shop", capacity=500, window="3 days", period="1 day", blocks=20)
    bloom.extend(URLS)
    bloom.rotate()
    bloom.extend(f"new/{i}" for i in range(500))
    there = move(client, cluster)
    assert there.contains(URLS) == [True] * 1_000
    assert there.seeds == bloom.seeds
    assert there.info().generations == bloom.info().generations
    client.flushall()
    back = move(cluster, client)
    assert back.contains(URLS) == [True] * 1_000
    assert back.info().generations == there.info().generations


def test_any_node_that_answers_is_enough(
    cluster: redis.RedisCluster, nodes: list[Server], server: Server
) -> None:
    first, second, third = (node.port for node in nodes)
    use(f"redis+cluster://127.0.0.1:{first},127.0.0.1:{second}")
    use(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{third}/0")
    with pytest.raises(StorageError, match=r"^redis\+cluster://127.0.0.1:\d+ .*start"):
        connect(f"redis+cluster://u:{SECRET}@127.0.0.1:{free_port()}")
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
    """What is wrong with certificates: test_tls.py."""
    use(url_of(secure))
    own = secure.client
    with secure.requiring():
        use(url_of(secure, ssl_certfile=own.certificate, ssl_keyfile=own.key))
        with pytest.raises(StorageError, match="set ssl_certfile and ssl_keyfile"):
            use(url_of(secure))
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
