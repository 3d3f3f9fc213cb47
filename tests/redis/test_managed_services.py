"""What managed services restrict, on local servers: see docs/managed-services.md."""

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from redis import Redis
from scrapy.utils.request import fingerprint
from support.loops import eventually, in_loop
from support.polling import until
from support.servers import Server
from support.workers import Worker, claimed, page, recorded

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.scripts import Call
from scrapy_bloom.crawl.jobs import Job, JobKind

REFUSED = (
    "acl bgrewriteaof bgsave client cluster command config debug failover hello lastsave migrate "
    "module monitor psync replicaof save script|load select shutdown slaveof sync wait"
)


@contextmanager
def restricted(server: Server, refused: str) -> Iterator[str]:
    """Yield the address for a user who may do all but some commands."""
    commands = ["+@all", *(f"-{name}" for name in refused.split())]
    with server.client() as client:
        client.acl_setuser("tenant", enabled=True, passwords=["+s"], keys="*", commands=commands)
        try:
            yield f"redis://tenant:s@127.0.0.1:{server.port}"
        finally:
            client.acl_deluser("tenant")


def crawl(worker: Worker, *numbers: int) -> None:
    """Claim pages and queue that they are crawled."""
    for number in numbers:
        assert not worker.sees(number)
        item, epoch = fingerprint(page(number)), worker.server.epoch
        worker.jobs.put(Job(JobKind.CONFIRM, "default", item, epoch=epoch))


async def crawl_all(worker: Worker, server: Server, *numbers: int) -> None:
    """Crawl pages until they are recorded."""
    before = recorded(server)
    crawl(worker, *numbers)
    await eventually(lambda: recorded(server) == before + len(numbers), "they are recorded")


@pytest.mark.parametrize("refused", [REFUSED, f"{REFUSED} info"], ids=["all", "INFO, too"])
@in_loop
async def test_what_services_refuse_is_not_needed(
    server: Server, client: Redis, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    with restricted(server, refused) as url:
        client.script_flush()
        async with Worker(url, BLOOM_REMEMBER="crawled") as worker:
            await crawl_all(worker, server, *range(20))
            client.script_flush()
            await crawl_all(worker, server, *range(20, 40))
            assert all(map(worker.sees, range(40)))
        async with Worker(url, BLOOM_REMEMBER="crawled") as worker:
            assert all(map(worker.sees, range(40)))
            assert worker.stat("outages") == worker.stat("unknown") == 0
    assert claimed(server) == 0
    assert "ERROR" not in [record.levelname for record in caplog.records]
    # A restart would not be noticed: each worker warns once.
    assert caplog.text.count("does not show its run_id") == 2 * refused.endswith("info")


def test_the_library_does_without_what_any_service_refuses(server: Server, client: Redis) -> None:
    """All of it at once."""
    with restricted(server, f"{REFUSED} info") as url:
        connection = connect(url, timeout=5, params={}, data_dir=None)  # type: ignore[arg-type]
        bloom = BloomFilter(connection.client, "k", window="2 months", period="1 month")
        assert bloom.add_many(["a", "b"]) == [True, True]
        client.script_flush()
        assert bloom.add_many(["a", "b", "c"]) == [False, False, True]
        file = io.BytesIO()
        bloom.save(file)
        bloom.rotate()
        assert len(bloom) == bloom.info().count == 3
        assert bloom.measure(100).probes == 100
        assert bloom.keys()
        assert bloom.delete()
        connection.close()
    assert not client.keys()


class Blocking(Redis):
    """A client without an asyncio client beside it."""


@in_loop
async def test_a_server_whose_process_is_another_one_at_each_look_is_used_without_the_check(
    server: Server,
    client: Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its scripts never run on the process that INFO names, and pages would never be recorded.

    INFO is of any of the servers behind a proxy.
    """
    numbers = itertools.count()
    monkeypatch.setattr(Driver, "server_id", lambda self: f"{next(numbers):040x}")
    params = {"redis_cls": Blocking}
    async with Worker(server.url, BLOOM_REMEMBER="crawled", BLOOM_REDIS_PARAMS=params) as worker:
        for first in range(0, 60, 10):
            crawl(worker, *range(first, first + 10))
            await eventually(lambda: not worker.jobs)
        assert recorded(server) >= 20
        assert worker.stat("repeated") <= 40
        assert worker.stat("outages") == 0
    assert caplog.text.count("names another process each time") == 1


@pytest.mark.filterwarnings("ignore:.*cluster_error_retry_attempts:DeprecationWarning")
@pytest.mark.parametrize("kind", ["plain", "cluster"])
@in_loop
async def test_a_cluster_of_one_shard(any_binary: str, kind: str) -> None:
    """As MemoryDB with one shard, and as ElastiCache Serverless shows itself."""
    with Server(any_binary, "--cluster-enabled", "yes") as node:
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
            until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "it has all slots")
        url = f"redis://127.0.0.1:{node.port}"
        params = {"redis_cls": "redis.RedisCluster"} if kind == "cluster" else {}
        settings = {"BLOOM_REMEMBER": "crawled", "BLOOM_REDIS_PARAMS": params}
        async with Worker(url, **settings) as worker:
            await crawl_all(worker, node, *range(40))
            assert worker.stat("outages") == 0
        async with Worker(url, **settings) as worker:
            assert all(map(worker.sees, range(40)))
        if kind == "plain":
            with pytest.raises(StorageError, match="has no database of that number"):
                Worker(f"{url}/1", **settings)


def test_a_cluster_of_many_shards_needs_a_client_for_clusters(nodes: list[Server]) -> None:
    connection = connect(nodes[0].url, timeout=5, params={}, data_dir=None)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="use a client for clusters"):
        BloomFilter(connection.client, "k").open()
    connection.close()


@in_loop
async def test_evicted_parts_are_counted_and_their_pages_are_new(
    any_binary: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As with volatile-lru, which is the default of several services, and a full server."""
    limit = ("--maxmemory", "8mb", "--maxmemory-policy", "volatile-lru", "--lazyfree-lazy-eviction")
    settings = {"BLOOM_REMEMBER": "crawled", "BLOOM_RECRAWL_AFTER": "1 year"}
    with Server(any_binary, *limit, "no") as server:
        async with Worker(server.url, **settings) as worker:
            await crawl_all(worker, server, *range(50))
        assert "maxmemory-policy is volatile-lru" in caplog.text
        async with Worker(server.url, **settings) as worker:
            with server.client() as client:
                numbers = itertools.count()

                def is_evicted() -> bool:
                    for number in itertools.islice(numbers, 500):
                        client.set(f"ballast:{number}", b"x" * 10_000, ex=10_000)
                    return not client.keys("*:ring")

                # Keys of the same second are evicted at random.
                until(is_evicted, "the server evicts the filter")
                client.delete(*client.keys("ballast:*"))
                crawl(worker, *range(50))
                await eventually(lambda: recorded(server) == 50, "they are recorded again")
                assert worker.stat("lost_blocks") > 0
                assert worker.stat("outages") == 0


def test_a_service_without_scripts_is_refused_with_the_reason(any_binary: str) -> None:
    """As OCI Cache with shards."""
    names = ("eval", "evalsha", "script")
    options = [part for name in names for part in ("--rename-command", name, "")]
    with Server(any_binary, *options) as server:
        connection = connect(server.url, timeout=5, params={}, data_dir=None)  # type: ignore[arg-type]
        with pytest.raises(StorageError, match=r"has no command EVALSHA: .* made of Lua scripts"):
            BloomFilter(connection.client, "k").open()
        connection.close()


@in_loop
async def test_idle_connections_that_the_server_closes_are_no_outage(any_binary: str) -> None:
    with Server(any_binary, "--timeout", "1") as server:
        settings = {"BLOOM_REMEMBER": "crawled", "BLOOM_HEARTBEAT": 3}
        async with Worker(server.url, **settings) as worker:
            await crawl_all(worker, server, 1, 2)
            with server.client() as client:
                idle = partial(client.info, "clients")
                await eventually(lambda: idle()["connected_clients"] == 1, "they are closed")
            await crawl_all(worker, server, 3, 4)
            with server.client() as client:
                (key,) = client.keys("*:heartbeats")
                beats = partial(client.zrange, key, 0, -1, withscores=True)
                before = beats()
                await eventually(lambda: beats() != before, "a heartbeat")
            await crawl_all(worker, server, 5, 6)
            assert worker.stat("outages") == worker.stat("unknown") == 0


def test_no_call_has_more_arguments_than_elasticache_serverless_takes(
    server: Server, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    bloom = BloomFilter(client, "k", blocks=1, capacity=20_000)
    driver, lengths = bloom._driver, list[int]()
    replies = driver._replies

    def note(calls: list[Call]) -> Any:
        lengths.extend(len(call.command()) for call in calls)
        return replies(calls)

    monkeypatch.setattr(driver, "_replies", note)
    items = [b"%020d" % number for number in range(8_192)]
    texts = ["{}"] * len(items)
    bloom.run(lambda s: claim_protocol.claim(s, items, texts, "w-me", "n", pages=texts))
    run_id = bloom.server_id()
    bloom.run(lambda s: claim_protocol.confirm(s, items[:4_000], ["w-me"], server=run_id))
    bloom.run(lambda s: claim_protocol.release(s, items[4_000:], "w-me"))
    bloom.add_many(items)
    assert 256 < max(lengths) < 3_999
