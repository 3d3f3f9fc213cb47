"""Several processes at once: who gets "new", and what it costs."""

from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from redis import Redis
from support.calls import script_calls
from support.processes import clean
from support.saving import watched
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.protocol.membership import add
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS
from scrapy_bloom.bloom.protocol.scripts import Call

pytestmark = pytest.mark.each_server(others="slow")

PROCESSES = 8
URLS = [f"https://example.com/page/{i}" for i in range(500)]


#: Of this process, if it is one of several.
barriers: list[Barrier] = []


def inherit(barrier: Barrier) -> None:
    barriers.append(barrier)


def claim_in_lock_step(url: str) -> list[bool]:
    with Redis.from_url(url) as client:
        bloom = BloomFilter(client, "shared")
        bloom.open()
        verdicts = []
        for item in URLS:
            barriers[0].wait()
            verdicts.append(bloom.add(item))
        return verdicts


def test_eight_processes_in_lock_step_never_agree_on_new(server: Server, client: Redis) -> None:
    """Every URL is new exactly once, in one command a call."""
    bloom = BloomFilter(client, "shared", capacity=10_000, error_rate=1e-6)
    bloom.open()
    bloom.contains(["load the script"])
    bloom.add("load the script")
    before = script_calls(client)
    with clean.Pool(PROCESSES, inherit, [clean.Barrier(PROCESSES)]) as pool:
        verdicts = pool.map(claim_in_lock_step, [server.url] * PROCESSES, chunksize=1)
    assert [sum(column) for column in zip(*verdicts, strict=True)] == [1] * len(URLS)
    assert all(sum(row) > 0 for row in verdicts), "they were not in lock step"
    # At open: the header, the rights on 16 blocks, 16 rings, and the header again, to be kept. Then
    # one command per call.
    assert script_calls(client) - before == PROCESSES * (1 + 16 + 16 + 1 + len(URLS))


def test_a_claim_outlasts_changes_by_others_as_long_as_it_makes_progress(client: Redis) -> None:
    options: dict[str, Any] = {"capacity": 20, "growth": 1, "error_rate": 1e-9, "blocks": 1}
    bloom, other = (BloomFilter(client, "k", **options) for _ in range(2))
    bloom.open()
    rounds = 0

    def after_the_other(calls: list[Call]) -> None:
        nonlocal rounds
        if calls[0].script.name == "add":
            rounds += 1
            if rounds % 2:
                other.add_many([f"{rounds} {n}" for n in range(25)])  # more than fit in a layer

    items = [b"item %d" % n for n in range(320)]
    verdicts = bloom.run(lambda session: watched(add(session, items), after_the_other))
    assert verdicts == [Verdict.NEW] * len(items)
    assert rounds > 2 * MAX_ROUNDS
    assert other.add_many(items) == [False] * len(items)
