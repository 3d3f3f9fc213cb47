"""Several processes at once: each item is new to exactly one of them, whatever else happens."""

import multiprocessing
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.filters import small
from support.servers import Server

pytestmark = pytest.mark.each_server(others="slow")

#: Processes are forked from one without connections, which a child would share.
clean = multiprocessing.get_context("forkserver")
clean.set_forkserver_preload(["scrapy_bloom"])
PROCESSES = 8
URLS = [f"https://example.com/page/{i}" for i in range(200)]
DAY = 86_400

#: Of this process, if it is one of several.
barriers: list[Barrier] = []


def inherit(barrier: Barrier) -> None:
    barriers.append(barrier)


def add_in_lock_step(url: str, options: dict[str, Any]) -> list[bool]:
    with Redis.from_url(url) as client:
        bloom = small(client, "shared", **options)
        barriers[0].wait()  # they create it at the same moment, too
        verdicts = []
        for item in URLS:
            verdicts.append(bloom.add(item))
            barriers[0].wait()
        return verdicts


def assert_new_once(verdicts: list[list[bool]]) -> None:
    assert [sum(column) for column in zip(*verdicts, strict=True)] == [1] * len(URLS)
    assert sum(1 for row in verdicts if any(row)) > 1, "they were not in lock step"


def test_eight_processes_in_lock_step_never_agree_on_new(server: Server, client: Redis) -> None:
    """While it's made, and grows from one bitmap to many."""
    calls = [(server.url, {"blocks": 2, "capacity": 4})] * PROCESSES
    with clean.Pool(PROCESSES, inherit, [clean.Barrier(PROCESSES)]) as pool:
        assert_new_once(pool.starmap(add_in_lock_step, calls, chunksize=1))
    assert len(small(client, "shared")) == len(URLS)


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_they_do_not_while_generations_are_opened_and_forgotten(
    moved: MovedServer, ring: str
) -> None:
    """While all add a URL, the clock goes on by a part of a day."""
    barrier, told = clean.Barrier(PROCESSES + 1), list[str]()
    options = {"window": "3 days", "period": "1 day", "ring": ring, "capacity": 20, "blocks": 2}
    with clean.Pool(PROCESSES, inherit, [barrier]) as pool:
        calls = [(moved.url, options)] * PROCESSES
        running = pool.starmap_async(add_in_lock_step, calls, chunksize=1)
        for number in range(len(URLS) + 1):
            barrier.wait()
            if number % 5 == 0:
                moved.move(DAY * 0.4)
        verdicts = running.get()
    assert_new_once(verdicts)
    with moved.client() as client:
        bloom = small(client, "shared", **options, notify=lambda what, *_: told.append(what))
        seen = bloom.contains(URLS)
    assert not any(seen[:100])
    assert all(seen[175:])
    assert "lost" not in told
