"""Workers on a cluster find the same links, while slots move or a node fails."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from redis import RedisCluster
from support.loops import eventually, in_loop
from support.odd_site import Lab, page, serve
from support.outages import killed, stalled
from support.polling import until
from support.servers import LASTING, Server, start_cluster, wait_for_cluster
from support.slots import SlotMove
from support.workers import Worker, look_up

from scrapy_bloom import BloomFilter

pytestmark = pytest.mark.usefixtures("short_retries")
#: A busy machine is no node that has failed.
TIMEOUT = 3.0
#: Numbers of pages.
FIRST, SECOND, THIRD, FOURTH = range(100), range(100, 300), range(300, 500), range(500, 700)
PROBE = range(700, 800)


def worker_on(port: int, **settings: object) -> Worker:
    return Worker(f"redis+cluster://127.0.0.1:{port}", BLOOM_TIMEOUT=TIMEOUT, **settings)


@pytest.mark.usefixtures("cluster")
@in_loop
async def test_slots_that_move_cost_nothing(nodes: list[Server]) -> None:
    """Each link is new to one of two workers, which find it at the same time."""
    settings = {"BLOOM_REMEMBER": "scheduled", "BLOOM_BLOCKS": 16}
    async with (
        worker_on(nodes[0].port, **settings) as one,
        worker_on(nodes[0].port, **settings) as two,
    ):
        for block in range(16):
            move = SlotMove(nodes, f"{{shop:bloom:{block}}}")
            moving = asyncio.create_task(asyncio.to_thread(move.finish))
            number = 1_000 * block
            while not moving.done():
                links = {*range(number, number + 64)}
                seen, too = await asyncio.gather(look_up(one, links), look_up(two, links))
                assert (seen | too, seen & too) == (links, set())
                number += 64
            await moving
        assert one.stat("outages") == two.stat("outages") == 0


@pytest.fixture
def lasting_nodes(any_binary: str) -> Iterator[list[Server]]:
    """Primaries that lose nothing when they are killed."""
    # The others would answer CLUSTERDOWN after that time, on a machine that is slow.
    with start_cluster(any_binary, *LASTING, "--cluster-node-timeout", "60000") as nodes:
        yield nodes


@pytest.mark.parametrize(("remember", "cause"), [("scheduled", killed), ("crawled", stalled)])
@in_loop
async def test_nothing_is_hidden_and_what_was_missed_is_written_later(
    lasting_nodes: list[Server],
    remember: str,
    cause: Callable[[Server], AbstractContextManager[object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = lasting_nodes
    async with (
        worker_on(nodes[0].port, BLOOM_REMEMBER=remember) as one,
        worker_on(nodes[0].port, BLOOM_REMEMBER=remember) as two,
    ):
        assert not await look_up(one, FIRST)
        assert await look_up(two, FIRST) == {*FIRST}
        with cause(nodes[1]):
            assert not await look_up(one, SECOND)
            assert one.stat("outages") == 1
            assert await look_up(one, SECOND) == {*SECOND}, "it knows what it has seen"
            assert not await look_up(one, THIRD)
        wait_for_cluster(nodes)
        await one.found_again()
        await look_up(two, PROBE)  # it may find that a node has closed its connection
        await two.found_again()
        await eventually(lambda: not one.ops, "what was seen without the cluster is written")
        known = [*FIRST, *SECOND, *THIRD]
        assert await look_up(one, known) == await look_up(two, known) == {*known}
        assert not await look_up(one, FOURTH)
        assert await look_up(two, FOURTH) == {*FOURTH}
    assert "Traceback" not in caplog.text


def test_links_that_only_a_node_forgets_are_pending_again(any_binary: str, tmp_path: Path) -> None:
    """Other nodes remember the pages that led to them, so no later run would find them."""
    hubs = {f"/hub{one}": [f"/{one}/{two}" for two in range(9)] for one in range(9)}
    links = [link for own in hubs.values() for link in own]
    pages = {"/": page(*hubs), **{hub: page(*own) for hub, own in hubs.items()}}
    with (
        start_cluster(any_binary, "--cluster-node-timeout", "60000") as nodes,
        serve(pages | dict.fromkeys(links, page())) as site,
        Lab(site, nodes[0].url, tmp_path) as lab,
        closing(RedisCluster("127.0.0.1", nodes[0].port)) as client,
    ):
        lab.redis_url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        site.hold(*links)
        # All hubs are fetched at once, and then some of the links.
        names = "CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS_PER_DOMAIN"
        settings: dict[str, Any] = {**dict.fromkeys(names, 20), "BLOOM_HEARTBEAT": 1}
        with lab.start(**settings) as crawl:
            crawl.until(lambda: site.held == 20, "the hubs are crawled")
            bloom = BloomFilter(client, "odd:bloom")
            crawl.until(lambda: len(bloom) == len(hubs), "the hubs are remembered")
            # Heartbeats go to this one.
            beaten = client.get_node_from_key("{odd:bloom:0}").port
            with killed(next(node for node in nodes if node.port == beaten)):
                pass
            until(lambda: pending(client) == len(links), "all links are pending", 60)
            crawl.kill()
        with lab.start() as crawl:
            crawl.wait()
        assert not lab.missing()


def pending(client: RedisCluster) -> int:
    """Return how many requests are pending."""
    return sum(client.hlen(key) for key in client.scan_iter("*:claims:*"))
