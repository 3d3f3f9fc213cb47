"""``LoopWriter``: jobs are applied in the event loop while the server is up."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from support.loops import eventually, in_loop
from support.outages import killed, stalled
from support.servers import Server
from support.workers import Worker, claimed

from scrapy_bloom.crawl import loop_writer
from scrapy_bloom.crawl.jobs import Job, JobKind, Steps

KEEP = JobKind.KEEP


def keep(number: int) -> Job:
    return Job(KEEP, "default", b"kept:%d" % number, "{}")


@in_loop
async def test_jobs_are_applied_in_the_loop(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(own_server.url, BLOOM_REMEMBER="crawled") as worker:
        apply, threads = worker.thread._applier.apply, set[threading.Thread]()

        def note(jobs: Sequence[Job]) -> Steps[list[bytes]]:
            threads.add(threading.current_thread())
            return apply(jobs)

        monkeypatch.setattr(worker.thread._applier, "apply", note)
        await eventually(lambda: worker.thread._filters is not None)
        for number in range(20):
            worker.thread.put(keep(number))
        await eventually(lambda: not worker.thread.queue)
        assert claimed(own_server) == 20
        assert threading.current_thread() in threads
        assert worker.connections.async_round_trips > 0


@in_loop
async def test_jobs_wait_while_the_thread_applies_others(own_server: Server) -> None:
    with Worker(own_server.url, BLOOM_REMEMBER="crawled") as worker:
        with worker.thread._flushing.lock:
            worker.thread.put(keep(1))
            await asyncio.sleep(10 * loop_writer.FLUSH_SECONDS)
            assert claimed(own_server) == 0
        await eventually(lambda: claimed(own_server) == 1)


@in_loop
async def test_after_an_outage_the_thread_applies_what_is_left_and_then_the_loop(
    own_server: Server,
) -> None:
    with Worker(own_server.url, BLOOM_REMEMBER="crawled") as worker:
        with killed(own_server):
            for number in range(20):
                worker.thread.put(keep(number))
            await eventually(lambda: worker.stat("outages"))
            stopped = worker.thread.loop_writer
        await worker.back()
        await eventually(lambda: claimed(own_server) == 20)
        assert worker.thread.loop_writer is not stopped
        worker.thread.put(keep(20))
        await eventually(lambda: claimed(own_server) == 21)
        assert worker.stat("outages") == 1


@in_loop
async def test_a_round_that_fails_after_the_server_was_found_again_is_no_outage(
    own_server: Server,
) -> None:
    """It began with the old connection, and is applied with the new one."""
    with Worker(own_server.url, BLOOM_REMEMBER="crawled") as worker:
        worker.thread.put(keep(0))
        await eventually(lambda: claimed(own_server) == 1)
        old, filters = worker.thread.loop_writer, worker.connections.filters
        lookups = worker.connections.lookups
        assert old is not None
        assert filters is not None
        assert lookups is not None
        with stalled(own_server):
            worker.thread.put(keep(1))
            await eventually(lambda: old.is_busy)
            worker.thread.use(filters, lookups.driver, worker.dupefilter._crawl.fail)
            await eventually(lambda: not old.is_busy)  # its time is over
        await eventually(lambda: claimed(own_server) == 2)
        assert not worker.stat("outages")


@in_loop
async def test_the_end_of_a_crawl_waits_for_the_round_that_is_under_way(
    own_server: Server,
) -> None:
    worker = Worker(own_server.url, BLOOM_REMEMBER="crawled")
    worker.thread.put(keep(1))
    await eventually(lambda: not worker.thread.queue)
    writer = worker.thread.loop_writer
    assert writer is not None
    with stalled(own_server):
        worker.thread.put(keep(2))
        await eventually(lambda: writer.is_busy)
        closing = worker.dupefilter._close()
    assert closing is not None
    await closing
    assert claimed(own_server) == 2
    assert not writer.is_busy


@in_loop
async def test_a_worker_that_closes_at_once_leaves_jobs_to_the_thread(own_server: Server) -> None:
    with Worker(own_server.url, BLOOM_REMEMBER="crawled") as worker:
        for number in range(20):
            worker.thread.put(keep(number))
    assert claimed(own_server) == 20
    assert not worker.thread.queue
