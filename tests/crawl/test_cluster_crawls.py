"""Workers on a cluster find the same links, while slots move or a node fails."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from support.loops import eventually, in_loop
from support.outages import killed, stalled
from support.servers import LASTING, Server, start_cluster, wait_for_cluster
from support.slots import SlotMove
from support.workers import Worker, look_up

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
