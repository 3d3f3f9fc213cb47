"""BLOOM_WAIT_REPLICAS: the claims on a page's links are on replicas before the page is recorded."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.loops import eventually, in_loop
from support.odd_site import Lab, page, serve
from support.outages import stalled
from support.polling import until
from support.replicas import take_over, with_replica, with_replicas
from support.servers import Server
from support.workers import Worker, claimed, confirm, recorded

from scrapy_bloom import BloomFilter

CHILDREN = [f"/child-{number}" for number in range(30)]
PAGES = {"/": page("/parent"), "/parent": page(*CHILDREN), **dict.fromkeys(CHILDREN, page())}
#: Seconds: half of it is as long as a page waits for replicas.
TIMEOUT = 60
SETTINGS: dict[str, Any] = {"BLOOM_HEARTBEAT": 1}


def address(node: Server) -> str:
    return f"redis+cluster://127.0.0.1:{node.port}"


def node_of(client: redis.RedisCluster, url: str, primaries: list[Server]) -> Server:
    """Return the primary that has the block of a page."""
    bloom = BloomFilter(client, "odd:bloom")
    bloom.open()
    block = bloom.session.known.hasher.block(fingerprint(Request(url)))
    slot = key_slot(bloom.session.keys.ring(block).encode())
    return primaries[slot * len(primaries) // 16_384]


def test_a_primary_that_fails_with_the_crawler_hides_no_page(
    own_nodes: list[Server], tmp_path: Path
) -> None:
    """A primary fails whose replica is behind: claims on links of a page on another primary.

    Without waiting, that page would be recorded, and the links on the primary that failed lost.
    """
    with ExitStack() as stack:
        primaries, replicas = own_nodes, stack.enter_context(with_replicas(own_nodes))
        site = stack.enter_context(serve(PAGES))
        lab = stack.enter_context(Lab(site, primaries[0].url, tmp_path))
        lab.client.close()
        lab.redis_url = address(primaries[0])
        client = redis.RedisCluster(host="127.0.0.1", port=primaries[0].port)
        lab.client = stack.enter_context(client)
        steady = node_of(client, f"{site.url}/parent", primaries)
        number = next(n for n, node in enumerate(primaries) if node is not steady)
        failing, behind = primaries[number], replicas[number]
        site.hold_after(1)
        with lab.start(**SETTINGS, BLOOM_TIMEOUT=TIMEOUT, BLOOM_WAIT_REPLICAS=1) as crawl:
            until(lambda: site.held or crawl.is_over, "/parent is under way")
            assert not crawl.is_over, crawl.log
            with behind.client() as replica:
                replica.save()
            behind.kill()
            site.hold_after(0)
            until(lambda: {*CHILDREN} <= lab.claims().keys() or crawl.is_over, "links are claimed")
            assert not crawl.is_over, crawl.log
            assert "/parent" not in lab.recorded()
            crawl.kill()
            failing.kill()
        behind.start()
        take_over(behind, [node for node in primaries if node is not failing])
        lab.redis_url = address(steady)
        client.nodes_manager.initialize()
        for _ in range(2):
            lab.crawl(**SETTINGS)
        assert not lab.missing()
        failing.start()


# -- one primary --

TEXT = "marked as crawled before BLOOM_WAIT_REPLICAS replicas had their links"


@pytest.fixture
def pair(any_binary: str) -> Iterator[tuple[Server, Server]]:
    """A server and its replica."""
    with with_replica(any_binary) as pair:
        yield pair


def waiting(server: Server, **settings: object) -> Worker:
    return Worker(server.url, BLOOM_WAIT_REPLICAS=1, **settings)


def crawl(worker: Worker, *numbers: int) -> None:
    """Claim pages and queue that they are crawled."""
    assert not any(worker.sees(number) for number in numbers)
    confirm(worker, *numbers)


@in_loop
async def test_a_replica_that_is_late_is_counted_and_does_not_hold_up_the_crawl(
    pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
) -> None:
    primary, replica = pair
    async with waiting(primary, BLOOM_TIMEOUT=2) as worker:
        with stalled(replica):
            crawl(worker, *range(3))
            assert worker.sees(0)  # while pages wait
            await eventually(lambda: recorded(primary) == 3)
            crawl(worker, *range(3, 6))
            await eventually(lambda: worker.stat("unreplicated") == 6)
        await eventually(lambda: recorded(primary) == 6)
        assert claimed(primary) == 0
        assert caplog.text.count(TEXT) == 1
        assert "a primary had 0 replicas in time" in caplog.text
        assert worker.stat("outages") == 0

        async def is_noticed(number: int) -> bool:
            before = worker.stat("unreplicated")
            crawl(worker, number)
            await eventually(lambda: recorded(primary) == number + 1)
            await eventually(lambda: not worker.ops)
            return worker.stat("unreplicated") == before

        noticed = [await is_noticed(number) for number in range(6, 30)]
        assert noticed[-1]  # that it is back


@in_loop
async def test_a_user_who_may_not_wait_is_told_so(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with own_server.client() as client:
        client.execute_command(*["ACL", "SETUSER", "hasty", "on", ">s", "~*", "+@all", "-wait"])
    params = {"username": "hasty", "password": "s"}
    async with waiting(own_server, BLOOM_REDIS_PARAMS=params) as worker:
        crawl(worker, 1, 2)
        await eventually(lambda: worker.stat("unreplicated") == 2)
        assert worker.stat("outages") == 0
    assert caplog.text.count(TEXT) == 1
    assert "has no permissions to run the 'wait' command" in caplog.text
    assert recorded(own_server) == 2
