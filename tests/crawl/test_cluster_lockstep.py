"""Workers find the same links at the same time, while slots move or a primary is killed."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.lockstep import PAGE, Lockstep, slots_of_pages, worker_on
from support.polling import until
from support.replicas import is_primary, with_replicas
from support.servers import Server, start_cluster
from support.slots import SlotMove, slots_on

PROCESSES, PAGES = 2, 100
SETTINGS = {"BLOOM_TIMEOUT": 5.0, "BLOOM_REMEMBER": "scheduled"}


@contextmanager
def lockstep(node: Server) -> Iterator[Lockstep]:
    processes = Lockstep(node.port, PROCESSES, PAGES, **SETTINGS)
    try:
        yield processes
    finally:
        processes.end()


async def find_slots(node: Server) -> dict[int, int]:
    """Create the filter; return the slots of pages."""
    async with worker_on(node.port, **SETTINGS) as worker:
        return slots_of_pages(worker, range(PAGES * PAGE))


def test_slots_that_move_cost_nothing(nodes: list[Server], cluster: object) -> None:
    with lockstep(nodes[0]) as processes:
        moved = 0
        while processes.is_running:
            block = moved % 16
            SlotMove(nodes, f"{{shop:bloom:{block}}}").finish()
            moved += 1
        outcome = processes.outcome()
    assert moved > 16
    assert [number for number, count in outcome.new.items() if not count] == []
    assert outcome.duplicates == set()
    assert outcome.outages == [0] * PROCESSES


def test_a_primary_that_is_killed_costs_its_slots_only(any_binary: str) -> None:
    # Else all nodes refuse all calls until a replica has taken over.
    options = ("--cluster-node-timeout", "3000", "--cluster-require-full-coverage", "no")
    with start_cluster(any_binary, *options) as nodes, with_replicas(nodes, *options) as replicas:
        own = slots_on(nodes[1])
        slots = asyncio.run(find_slots(nodes[0]))
        with lockstep(nodes[0]) as processes:
            time.sleep(1)
            nodes[1].kill()
            until(lambda: is_primary(replicas[1]), "its replica takes over")
            outcome = processes.outcome()
        assert [number for number, count in outcome.new.items() if not count] == []
        assert {slots[number] for number in outcome.duplicates} <= own
        assert outcome.outages == [1] * PROCESSES
