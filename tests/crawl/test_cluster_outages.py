"""A node of a cluster fails: the blocks on the others are used as before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
from support.lockstep import look_up as together
from support.lockstep import slots_of_pages, worker_on
from support.loops import eventually, in_loop
from support.outages import killed, stalled
from support.servers import LASTING, Server, start_cluster, wait_for_cluster
from support.slots import slots_on
from support.workers import Worker, page

pytestmark = pytest.mark.usefixtures("short_retries")
#: A busy machine is no node that has failed.
TIMEOUT = 3.0
#: Numbers of pages.
FIRST, SECOND, THIRD, FOURTH = range(100), range(100, 300), range(300, 500), range(500, 700)


@pytest.fixture
def lasting_nodes(any_binary: str) -> Iterator[list[Server]]:
    """Primaries that lose nothing when they are killed."""
    # The others would answer CLUSTERDOWN after that time, on a machine that is slow.
    with start_cluster(any_binary, *LASTING, "--cluster-node-timeout", "60000") as nodes:
        yield nodes


async def one_by_one(worker: Worker, numbers: Sequence[int]) -> set[int]:
    """Offer pages to the scheduler; return those that are seen."""
    return {number for number in numbers if worker.dupefilter.request_seen(page(number))}


def is_written(worker: Worker, count: int) -> bool:
    """Whether so many pages were recorded after an outage."""
    return worker.stat("recorded_late") == count


def pages_on(node: Server, worker: Worker, numbers: Sequence[int]) -> set[int]:
    """Return the pages whose blocks are on a node."""
    own = slots_on(node)
    return {number for number, slot in slots_of_pages(worker, numbers).items() if slot in own}


@pytest.mark.parametrize(
    ("remember", "cause", "look_up"),
    [
        ("scheduled", killed, one_by_one),
        ("crawled", stalled, together),
    ],
)
@in_loop
async def test_the_other_nodes_are_used_without_one(
    lasting_nodes: list[Server],
    remember: str,
    cause: Callable[[Server], AbstractContextManager[object]],
    look_up: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    nodes = lasting_nodes
    async with (
        worker_on(nodes[0].port, BLOOM_TIMEOUT=TIMEOUT, BLOOM_REMEMBER=remember) as one,
        worker_on(nodes[0].port, BLOOM_TIMEOUT=TIMEOUT, BLOOM_REMEMBER=remember) as two,
    ):
        gone = pages_on(nodes[1], one, range(FOURTH.stop))
        assert not await look_up(one, FIRST)
        assert await look_up(two, FIRST) == {*FIRST}
        with cause(nodes[1]):
            # The first lookups without it are unknown, and no more than its share.
            assert not await look_up(one, SECOND)
            assert await look_up(two, SECOND) == {*SECOND} - gone
            # Then it is not waited for.
            round_trips = one.round_trips
            assert not await look_up(one, THIRD)
            after = one.round_trips
            assert after - round_trips <= len(THIRD) - len(gone & {*THIRD})
            assert await look_up(two, THIRD) == {*THIRD} - gone
            assert await look_up(one, [*FIRST, *SECOND, *THIRD]) == {*FIRST, *SECOND, *THIRD}
            for worker in (one, two):
                assert worker.stat("unknown") + worker.stat("offline") == len(
                    gone & {*SECOND, *THIRD}
                )
        wait_for_cluster(nodes)
        for worker in (one, two):
            await worker.found_again()
            await eventually(
                partial(is_written, worker, len(gone & {*SECOND, *THIRD})),
                "what was seen without it is written",
            )
            assert worker.stat("outages") == 1
        known = [*FIRST, *SECOND, *THIRD]
        assert await look_up(one, known) == await look_up(two, known) == {*known}
        assert not await look_up(one, FOURTH)
        assert await look_up(two, FOURTH) == {*FOURTH}
    assert caplog.text.count(f"the node 127.0.0.1:{nodes[1].port} of ") >= 2
    assert caplog.text.count("reconnected") == 2
    assert "Traceback" not in caplog.text
