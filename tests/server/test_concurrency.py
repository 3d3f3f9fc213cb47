"""Several processes at once: each item is new to exactly one of them."""

import multiprocessing
from multiprocessing.synchronize import Barrier

import pytest
from redis import Redis
from support.filters import small
from support.servers import Server

pytestmark = pytest.mark.each_server(others="slow")

#: Processes are forked from one without connections, which a child would share.
clean = multiprocessing.get_context("forkserver")
clean.set_forkserver_preload(["scrapy_bloom"])
PROCESSES = 8
URLS = [f"https://example.com/page/{i}" for i in range(200)]
#: Of this process, if it is one of several.
barriers: list[Barrier] = []


def inherit(barrier: Barrier) -> None:
    barriers.append(barrier)


def add_in_lock_step(url: str) -> list[bool]:
    with Redis.from_url(url) as client:
        bloom = small(client, "shared", blocks=2, capacity=4)
        barriers[0].wait()  # they create it at the same moment, too
        verdicts = []
        for item in URLS:
            verdicts.append(bloom.add(item))
            barriers[0].wait()
        return verdicts


def test_eight_processes_in_lock_step_never_agree_on_new(server: Server, client: Redis) -> None:
    """While it's made, and grows from one bitmap to many."""
    with clean.Pool(PROCESSES, inherit, [clean.Barrier(PROCESSES)]) as pool:
        verdicts = pool.map(add_in_lock_step, [server.url] * PROCESSES, chunksize=1)
    assert [sum(column) for column in zip(*verdicts, strict=True)] == [1] * len(URLS)
    assert sum(1 for row in verdicts if any(row)) > 1, "they were not in lock step"
    assert len(small(client, "shared")) == len(URLS)
