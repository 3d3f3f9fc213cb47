"""Several processes at once: who gets "new", and what it costs."""

import multiprocessing
from multiprocessing.synchronize import Barrier

import redis
from servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.scripts import Reply

PROCESSES = 8
URLS = [f"https://example.com/page/{i}" for i in range(2_000)]
#: Processes are spawned: a forked one would share the parent's connections.
spawn = multiprocessing.get_context("spawn")


def claim_in_lock_step(url: str, barrier: Barrier) -> list[bool]:
    with redis.Redis.from_url(url) as client:
        bloom = BloomFilter(client, "shared")
        bloom.open()
        verdicts = []
        for item in URLS:
            barrier.wait()
            verdicts.append(bloom.add(item))
        return verdicts


def open_and_claim(url: str, barrier: Barrier) -> tuple[str, int]:
    with redis.Redis.from_url(url) as client:
        barrier.wait()
        bloom = BloomFilter(client, "fresh", blocks=64)
        new = sum(bloom.claim(URLS))
        return bloom.open().id, new


def clear_and_claim(url: str, barrier: Barrier) -> int:
    with redis.Redis.from_url(url) as client:
        bloom = BloomFilter(client, "cleared", blocks=4)
        new = 0
        barrier.wait()
        for _ in range(50):
            bloom.clear()
            new += sum(bloom.claim(URLS[:100]))
        return new


def run(function: object, url: str, processes: int = PROCESSES) -> list:
    with spawn.Manager() as manager, spawn.Pool(processes) as pool:
        barrier = manager.Barrier(processes)
        return pool.starmap(function, [(url, barrier)] * processes)


def commands(client: redis.Redis) -> int:
    """Return the commands that clients have sent to run a script."""
    counts = client.info("commandstats")
    return sum(
        counts[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in counts
    )


def test_eight_processes_in_lock_step_never_agree_on_new(
    server: Server, client: redis.Redis
) -> None:
    """Every URL is new exactly once, in one command a call."""
    bloom = BloomFilter(client, "shared", capacity=10_000, error_rate=1e-6)
    bloom.open()
    bloom.contains(["load the script"])
    bloom.add("load the script")
    client.config_resetstat()
    verdicts = run(claim_in_lock_step, server.url)
    assert [sum(column) for column in zip(*verdicts, strict=True)] == [1] * len(URLS)
    assert all(sum(row) > 0 for row in verdicts), "they were not in lock step"
    # At open: the header and 16 rings. Then one command per call.
    assert commands(client) == PROCESSES * (1 + 16 + len(URLS))


def test_processes_that_create_a_filter_together_create_one(
    server: Server, client: redis.Redis
) -> None:
    results = run(open_and_claim, server.url)
    assert len({header_id for header_id, _ in results}) == 1
    assert sum(new for _, new in results) == len(URLS)
    assert len(client.keys("*:0.0")) == 64


def test_clearing_by_many_at_once_ends_with_one_ring_per_block(
    server: Server, client: redis.Redis
) -> None:
    results = run(clear_and_claim, server.url, 4)
    assert sum(results) >= 100
    assert len(client.keys()) == 1 + 4 * 2
    bloom = BloomFilter(client, "cleared")
    assert sum(bloom.contains(URLS[:100])) == len(bloom)


def test_a_process_killed_while_it_creates_the_filter_leaves_nothing_half_done(
    server: Server, client: redis.Redis
) -> None:
    """Stopped between any two script calls, as kill -9 would, the next one carries on."""
    for calls in range(1, 22):
        client.flushall()
        killed = BloomFilter(client, "k", capacity=1_000, seeds=3)
        steps = killed._view.open()
        pending = next(steps)
        for _ in range(calls):
            replies = [Reply.parse(raw) for raw in killed._driver._send(pending)]
            try:
                pending = steps.send(replies)
            except StopIteration:
                break
        steps.close()
        survivor = BloomFilter(client, "k")
        assert survivor.claim(URLS[:100]) == [True] * 100
        assert survivor.claim(URLS[:100]) == [False] * 100
        assert survivor.info().blocks == 16
