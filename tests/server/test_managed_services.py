"""What managed services restrict, on local servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from redis import Redis
from support.loops import eventually, in_loop
from support.polling import until
from support.servers import Server
from support.workers import Worker, claimed, page, recorded

from scrapy_bloom.bloom import BloomFilter
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.crawl.writer import Op, OpKind

REFUSED = (
    "acl bgrewriteaof bgsave client cluster command config debug failover hello lastsave migrate "
    "module monitor psync replicaof save script|load select shutdown slaveof sync wait"
)
USER, PASSWORD = "restricted", "s"


@contextmanager
def restricted(server: Server, refused: str) -> Iterator[str]:
    """Yield the address for a user who may do all but some commands."""
    rules = ["on", f">{PASSWORD}", "~*", "+@all", *(f"-{name}" for name in refused.split())]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", USER, *rules)
        yield f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"
        client.execute_command("ACL", "DELUSER", USER)


async def crawl_all(worker: Worker, server: Server, *numbers: int) -> None:
    """Crawl pages until they are recorded."""
    before = recorded(server)
    for number in numbers:
        assert not worker.sees(number)
        key = worker.crawl._context.identity.key(page(number))
        worker.crawl._writer.put(Op(OpKind.CONFIRM, key, epoch=worker.server.epoch))
    await eventually(lambda: recorded(server) == before + len(numbers), "they are recorded")


@in_loop
async def test_what_services_refuse_is_not_needed(
    server: Server, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it, and INFO."""
    with restricted(server, f"{REFUSED} info") as url:
        client.script_flush()
        async with Worker(url) as worker:
            await crawl_all(worker, server, *range(20))
            client.script_flush()
            await crawl_all(worker, server, *range(20, 40))
            assert all(map(worker.sees, range(40)))
        async with Worker(url) as worker:
            assert all(map(worker.sees, range(40)))
            assert worker.stat("outages") == worker.stat("unknown") == 0
    assert claimed(server) == 0
    assert "ERROR" not in [record.levelname for record in caplog.records]


@in_loop
async def test_a_cluster_of_one_shard(any_binary: str) -> None:
    """As MemoryDB with one shard, and as ElastiCache Serverless shows itself."""
    with Server(any_binary, "--cluster-enabled", "yes") as node, node.client() as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "it has all slots")
        async with Worker(f"redis://127.0.0.1:{node.port}") as worker:
            await crawl_all(worker, node, *range(40))
            assert worker.stat("outages") == 0
        async with Worker(f"redis+cluster://127.0.0.1:{node.port}") as worker:
            assert all(map(worker.sees, range(40)))
        with pytest.raises(StorageError, match="has no database of that number"):
            Worker(f"redis://127.0.0.1:{node.port}/1")


def test_a_service_without_scripts_is_refused_with_the_reason(any_binary: str) -> None:
    """As OCI Cache with shards."""
    names = ("eval", "evalsha", "script")
    options = [part for name in names for part in ("--rename-command", name, "")]
    with Server(any_binary, *options) as server, server.client() as client:  # noqa: SIM117
        with pytest.raises(StorageError, match="forbids Lua scripts. Use Redis"):
            BloomFilter(client, "k").open()


@in_loop
async def test_idle_connections_that_the_server_closes_are_no_outage(any_binary: str) -> None:
    with Server(any_binary, "--timeout", "1") as server:
        async with Worker(server.url, BLOOM_HEARTBEAT=3, BLOOM_SHARE_WORK=False) as worker:
            await crawl_all(worker, server, 1, 2)
            with server.client() as client:
                idle = partial(client.info, "clients")
                await eventually(lambda: idle()["connected_clients"] == 1, "they are closed")
            await crawl_all(worker, server, 3, 4)
            with server.client() as client:
                (key,) = client.keys("*:workers:*")
                beats = partial(client.zrange, key, 0, -1, withscores=True)
                before = beats()
                await eventually(lambda: beats() != before, "a heartbeat")
            await crawl_all(worker, server, 5, 6)
            assert worker.stat("outages") == worker.stat("unknown") == 0
