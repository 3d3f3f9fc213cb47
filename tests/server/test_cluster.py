"""Filters on a real cluster, and addresses of clusters, for clients of both kinds."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis
from support.answering import SECRET, refused
from support.both import use
from support.certificates import TLSServer
from support.polling import until
from support.servers import SLOTS, Server, free_port

from scrapy_bloom.bloom import BloomFilter
from scrapy_bloom.bloom.client.connect import connect

URLS = [f"https://example.com/{i}" for i in range(1_000)]


def test_it_grows_and_is_deleted(cluster: redis.RedisCluster) -> None:
    bloom = BloomFilter(cluster, "shop", capacity=500, error_rate=1e-9)
    assert bloom.add_many(URLS) == [True] * 1_000
    assert BloomFilter(cluster, "shop").add_many(URLS) == [False] * 1_000
    assert len(bloom) == 1_000
    bloom.delete()
    assert not [*cluster.scan_iter("*")]


def test_any_node_that_answers_is_enough(
    cluster: redis.RedisCluster, nodes: list[Server], server: Server
) -> None:
    first, second, third = (node.port for node in nodes)
    use(f"redis+cluster://127.0.0.1:{first},127.0.0.1:{second}")
    use(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{third}/0")
    with refused("can't be reached. Start it, or correct `url`"):
        connect(f"redis+cluster://u:{SECRET}@127.0.0.1:{free_port()}")
    with refused("isn't a cluster. Use redis://host:port"):
        connect(f"redis+cluster://127.0.0.1:{server.port}")


def test_its_blocks_are_on_all_nodes_and_its_name_is_given_to_them(
    cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    with closing(connect(f"{url}?client_name=mine")) as connection:
        assert connection.label == url
        BloomFilter(connection.client, "k", blocks=16).add_many(URLS)
        for node in nodes:
            with node.client() as client:
                assert client.keys("{k:*}:ring")
                assert "mine" in [one["name"] for one in client.client_list()]


def test_its_process_is_that_of_all_primaries(cluster: redis.RedisCluster) -> None:
    bloom = BloomFilter(cluster, "k")
    run_ids = {one["run_id"] for one in bloom.transport.infos("server")}
    assert len(run_ids) == 3
    assert run_ids < {*bloom.transport.server_id().split(",")}
    assert bloom.transport.eviction_policies() == ["noeviction"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSServer]:
    """A cluster of one node, whose clients use TLS."""
    options = ("--cluster-enabled", "yes", "--tls-cluster", "yes")
    node = TLSServer(tmp_path_factory.mktemp("tls"), *options)
    with node.server, node.server.client() as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")
        yield node


def test_a_cluster_of_one_node_may_be_used_as_one_server(secure: TLSServer) -> None:
    """As ElastiCache Serverless shows itself, and MemoryDB with one shard."""
    use(secure.server.url)
    with refused("has no database of that number"):
        use(f"redis://127.0.0.1:{secure.server.port}/1")


def url_of(node: TLSServer, **options: object) -> str:
    return node.url(**options).replace("rediss", "rediss+cluster")  # type: ignore[arg-type]


def test_tls(secure: TLSServer) -> None:
    """What is wrong with certificates: test_tls.py."""
    use(url_of(secure))
    own = secure.client
    with secure.requiring():
        use(url_of(secure, ssl_certfile=own.certificate, ssl_keyfile=own.key))
        with refused(f"rediss+cluster://127.0.0.1:{secure.port}"):
            use(url_of(secure))
    with secure.presenting(secure.authority.issue("elsewhere", address="192.0.2.1")):
        with refused(f"rediss+cluster://127.0.0.1:{secure.port}"):
            use(url_of(secure))
        use(url_of(secure, ssl_check_hostname="false"))
