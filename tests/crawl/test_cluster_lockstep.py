"""Workers find the same links at the same time, while slots move or a primary is killed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.lockstep import PAGE, Lockstep
from support.polling import until
from support.replicas import is_primary, with_replicas
from support.servers import Server, start_cluster
from support.slots import SlotMove

PROCESSES, PAGES = 2, 100
SETTINGS = {"BLOOM_TIMEOUT": 5.0, "BLOOM_REMEMBER": "scheduled"}


@contextmanager
def lockstep(node: Server) -> Iterator[Lockstep]:
    processes = Lockstep(node.port, PROCESSES, PAGES, **SETTINGS)
    try:
        yield processes
    finally:
        processes.end()


def test_slots_that_move_cost_nothing(nodes: list[Server], cluster: object) -> None:
    with lockstep(nodes[0]) as processes:
        moved = 0
        while processes.is_running:
            block = moved % 16
            SlotMove(nodes, f"{{shop:bloom:{block}}}").finish()
            moved += 1
        outcome = processes.outcome()
    assert moved > 16
    assert [number for number, count in outcome.new.items() if count != 1] == []
    assert outcome.outages == [0] * PROCESSES


def test_a_primary_that_is_killed_hides_nothing_and_is_replaced(any_binary: str) -> None:
    options = ("--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0")
    with start_cluster(any_binary, *options) as nodes, with_replicas(nodes, *options) as replicas:
        with lockstep(nodes[0]) as processes:
            time.sleep(0.5)
            nodes[1].kill()
            until(lambda: is_primary(replicas[1]), "its replica takes over")
            outcome = processes.outcome()
        assert len(outcome.new) == PAGES * PAGE
        assert [number for number, count in outcome.new.items() if not count] == []
        assert all(outcome.outages)
        assert all(outcome.back)
