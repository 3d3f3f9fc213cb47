"""What managed services restrict, on local servers: see docs/managed-services.md."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from redis import Redis
from scrapy.utils.request import fingerprint
from support.loops import eventually, in_loop
from support.polling import until
from support.rights import PASSWORD, USER, user_of
from support.saving import watched
from support.servers import Server
from support.workers import Worker, claimed, page, recorded

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.protocol import claim_protocol, membership
from scrapy_bloom.crawl.jobs import Job, JobKind

REFUSED = (
    "acl bgrewriteaof bgsave client cluster command config debug failover hello lastsave migrate "
    "module monitor psync replicaof save script|load select shutdown slaveof sync wait"
)


@contextmanager
def restricted(server: Server, refused: str) -> Iterator[str]:
    """Yield the address for a user who may do all but some commands."""
    rules = ["~*", "+@all", *(f"-{name}" for name in refused.split())]
    with user_of(server, *rules):
        yield f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"


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


@in_loop
async def test_what_services_refuse_is_not_needed(
    server: Server, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it, and INFO. What the library needs: test_rights.py."""
    with restricted(server, f"{REFUSED} info") as url:
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
    assert caplog.text.count("does not show its run_id") == 2


@pytest.mark.filterwarnings("ignore:.*cluster_error_retry_attempts:DeprecationWarning")
@in_loop
async def test_a_cluster_of_one_shard(any_binary: str) -> None:
    """As MemoryDB with one shard, and as ElastiCache Serverless shows itself."""
    with Server(any_binary, "--cluster-enabled", "yes") as node, node.client() as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "it has all slots")
        url = f"127.0.0.1:{node.port}"
        async with Worker(f"redis://{url}", BLOOM_REMEMBER="crawled") as worker:
            await crawl_all(worker, node, *range(40))
            assert worker.stat("outages") == 0
        params = {"redis_cls": "redis.RedisCluster"}
        settings = {"BLOOM_REMEMBER": "crawled", "BLOOM_REDIS_PARAMS": params}
        async with Worker(f"redis://{url}", **settings) as worker:
            assert all(map(worker.sees, range(40)))
        with pytest.raises(StorageError, match="has no database of that number"):
            Worker(f"redis://{url}/1", BLOOM_REMEMBER="crawled")


def test_a_service_without_scripts_is_refused_with_the_reason(any_binary: str) -> None:
    """As OCI Cache with shards."""
    names = ("eval", "evalsha", "script")
    options = [part for name in names for part in ("--rename-command", name, "")]
    reason = r"has no command EVALSHA: .* made of Lua scripts"
    with Server(any_binary, *options) as server, server.client() as client:  # noqa: SIM117
        with pytest.raises(StorageError, match=reason):
            BloomFilter(client, "k").open()


class Blocking(Redis):
    """A client without an asyncio client beside it."""


@in_loop
async def test_a_server_whose_process_is_another_one_at_each_look_is_used_without_the_check(
    server: Server, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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


def test_no_call_has_more_arguments_than_elasticache_serverless_takes(client: Redis) -> None:
    bloom = BloomFilter(client, "k", blocks=1, capacity=20_000)
    lengths = list[int]()
    items = [b"%020d" % number for number in range(5_000)]
    texts, run_id = ["{}"] * len(items), bloom.server_id()
    for operation in (
        partial(claim_protocol.claim, requests=texts, owner="w-me", nonce="n", pages=texts),
        partial(claim_protocol.confirm, owners=["w-me"], server=run_id),
        partial(claim_protocol.release, owner="w-me"),
        membership.add,
    ):
        steps = operation(bloom.session, items=items)
        bloom._driver.run(
            watched(steps, lambda calls: lengths.extend(len(c.command()) for c in calls))
        )
    assert 256 < max(lengths) < 3_999
