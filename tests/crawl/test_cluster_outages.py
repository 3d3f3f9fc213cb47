"""A node of a cluster fails: the crawl continues without the cluster, until it's whole again."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from support.lockstep import look_up, worker_on
from support.loops import eventually, in_loop
from support.outages import killed, stalled
from support.servers import LASTING, Server, start_cluster, wait_for_cluster

pytestmark = pytest.mark.usefixtures("short_retries")
#: A busy machine is no node that has failed.
TIMEOUT = 3.0
#: Numbers of pages.
FIRST, SECOND, THIRD, FOURTH = range(100), range(100, 300), range(300, 500), range(500, 700)
PROBE = range(700, 800)


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
    settings = {"BLOOM_TIMEOUT": TIMEOUT, "BLOOM_REMEMBER": remember}
    async with (
        worker_on(nodes[0].port, **settings) as one,
        worker_on(nodes[0].port, **settings) as two,
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
