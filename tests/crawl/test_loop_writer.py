"""``LoopWriter``: jobs are applied in the event loop while the server is up."""

import asyncio

from support.loops import eventually, in_loop
from support.outages import killed, stalled
from support.servers import Server
from support.workers import Worker, claimed

from scrapy_bloom.crawl import loop_writer
from scrapy_bloom.crawl.jobs import Job, JobKind

KEEP = JobKind.KEEP


def keep(number: int) -> Job:
    return Job(KEEP, "default", b"kept:%d" % number, "{}")


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
