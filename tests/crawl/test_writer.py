"""``Writer``, ``Pages``, ``Recovery`` without a crawl: what is written, on a real server."""

import asyncio
import logging
from unittest import mock

import pytest
from scrapy import Request
from scrapy.http import Response
from support.loops import eventually, in_loop
from support.outages import killed
from support.servers import Server
from support.workers import Worker, claimed, confirm, keep, page, put, recorded
from twisted.python.failure import Failure

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol.claims import NewClaim
from scrapy_bloom.crawl import writer
from scrapy_bloom.crawl.ops import Op, OpKind

pytestmark = pytest.mark.usefixtures("short_retries")


def hand_out(worker: Worker, request: Request) -> None:
    """Let a request go through the queue."""
    worker.offers.offered(request)
    assert request.dont_filter or not worker.dupefilter.request_seen(request)
    worker.offers.accepted(request)
    worker.offers.handed_out(request)


def owners(server: Server) -> set[str]:
    """Return who has pending requests."""
    with server.client() as client:
        claims = [text for key in client.keys("*:claims:*") for text in client.hvals(key)]
    return {claim.decode().partition(" ")[0] for claim in claims}


@in_loop
async def test_what_a_cancelled_task_leaves_is_written_at_the_end(own_server: Server) -> None:
    async with Worker(own_server.url) as worker:
        assert not any(worker.sees(number) for number in range(3))
        confirm(worker, 0, 1)
        for task in asyncio.all_tasks():
            if "scrapy_bloom" in task.get_coro().cr_code.co_filename:
                task.cancel()
        await asyncio.sleep(0)
        keep(worker, 7)
    assert (recorded(own_server), claimed(own_server)) == (2, 2)


@in_loop
async def test_what_is_queued_is_written_at_the_end_however_much_it_is(own_server: Server) -> None:
    async with Worker(own_server.url, BLOOM_TIMEOUT=30) as worker:
        for number in range(3 * writer.MAX_BATCH):
            keep(worker, number)
    assert claimed(own_server) == 3 * writer.MAX_BATCH


@in_loop
async def test_ops_of_one_url_keep_their_order(own_server: Server) -> None:
    """Claimed, released, claimed again and recorded: it is remembered, and nothing is pending."""
    async with Worker(own_server.url) as worker:
        for kind in (OpKind.CLAIM, OpKind.RELEASE, OpKind.CLAIM, OpKind.CONFIRM, OpKind.RELEASE):
            put(worker, kind, 0)
        keep(worker, 1)
    assert (recorded(own_server), claimed(own_server)) == (1, 1)


@in_loop
async def test_flushing_waits_for_what_is_queued_by_then_only(own_server: Server) -> None:
    """A busy crawl queues something all the time, and its heartbeats come after the flush."""
    async with Worker(own_server.url) as worker:
        is_flushed = asyncio.ensure_future(worker.crawl._writer.flush())
        for number in range(10_000):
            keep(worker, number)
            await asyncio.sleep(0)
            if is_flushed.done():
                break
        assert is_flushed.done()
        keep(worker, 10_001)
        await worker.crawl._writer.flush()
        assert not worker.ops


@in_loop
async def test_each_outage_is_counted_from_its_own_beginning(
    lasting_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Worker(lasting_server.url) as worker:
        for outage in (1, 2):
            with killed(lasting_server):
                for number in range(3):
                    keep(worker, 3 * outage + number)
                await eventually(lambda: not worker.server.outage.is_up)
            await worker.found_again()
            assert (worker.server.outage.restarted, worker.server.outage.epoch) == (outage, outage)
            assert caplog.text.count("made 3 writes that had waited") == outage


@in_loop
async def test_the_second_failed_attempt_of_one_outage_closes_the_spider(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Worker(own_server.url, BLOOM_ON_REDIS_ERROR="close") as worker:
        server, fails, error = worker.server, list[bool](), StorageError("away")
        reopen = server.reopen

        async def try_again() -> None:
            if fails and fails.pop():
                raise error
            await reopen()

        monkeypatch.setattr(server, "reopen", try_again)
        for attempts in (1, 1, 2):
            assert worker.engine.calls == []
            fails += [True] * attempts
            server.outage.fail(error)
            await eventually(lambda: server.outage.is_up)
    assert worker.engine.calls == [writer.CLOSED_WITHOUT_SERVER]


@in_loop
async def test_workers_that_were_cut_off_have_time_to_show_that_they_live(
    lasting_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Worker(lasting_server.url) as one, Worker(lasting_server.url) as two:
        recovery, reopen, may_reopen = one.crawl._recovery, two.server.reopen, asyncio.Event()
        assert recovery is not None
        keep(two, 0)
        await two.crawl._writer.flush()
        await recovery._roster.beat()

        async def reopen_later() -> None:
            await may_reopen.wait()
            await reopen()

        monkeypatch.setattr(two.server, "reopen", reopen_later)
        for worker in (one, two):
            worker.server.outage.fail(StorageError("cut off"))
        with lasting_server.client() as client:
            client.zadd("{shop:bloom:0}:workers:shop", {two.crawl._context.me.member: 1})
        await one.found_again()
        await recovery._step()
        may_reopen.set()
        await two.found_again()
        assert owners(lasting_server) == {two.crawl._context.me.id}


@in_loop
async def test_an_error_that_is_a_bug_loses_nothing_and_is_logged_once(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(own_server.url) as worker:
        claims, attempts = worker.crawl._context.claims, list[None]()

        def fail(*_: object) -> None:
            attempts.append(None)
            raise RuntimeError("a bug")

        with mock.patch.object(claims, "keep", fail):
            keep(worker, 0)
            await eventually(lambda: len(attempts) > 5)
        await worker.found_again()
        assert claimed(own_server) == 1
    assert caplog.text.count("[bloom-unexpected]") == 1
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 2


@in_loop
async def test_a_second_restart_in_one_outage_is_noticed(
    lasting_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process between them has got claims on a page's links, and has lost them."""
    monkeypatch.setattr(writer, "MAX_BATCH", 1)
    attempts = list[None]()

    def fail(*_: object) -> None:
        attempts.append(None)
        raise StorageError("a lost reply")

    async with Worker(lasting_server.url) as worker:
        assert not worker.sees(0)
        key = worker.crawl._context.identity.key(page(0))
        with mock.patch.object(worker.crawl._context.claims, "confirm", fail):
            with killed(lasting_server):
                assert not worker.sees(1)
                op = Op(OpKind.CONFIRM, NewClaim(key), epoch=worker.server.outage.epoch)
                worker.crawl._writer.put(op)
            await eventually(lambda: attempts)
            with killed(lasting_server):
                pass
        await worker.found_again()
        await eventually(lambda: not worker.ops)
    assert recorded(lasting_server) == 0


@in_loop
async def test_a_request_that_its_callback_yields_again_ends_with_its_second_page(
    own_server: Server,
) -> None:
    async with Worker(own_server.url) as worker:
        pages, request, recorded_at = worker.offers.pages, page(0), list[tuple[int, int]]()
        for _ in range(2):
            hand_out(worker, request)
            request.dont_filter = True
        for _ in range(2):
            pages.finished(request, Response(request.url))
            await worker.crawl._writer.flush()
            recorded_at.append((recorded(own_server), claimed(own_server)))
    assert recorded_at == [(0, 2), (1, 0)]


@in_loop
async def test_equal_requests_that_are_not_looked_up_have_a_claim_each(own_server: Server) -> None:
    async with Worker(own_server.url) as worker:
        first, second = (page(0).replace(dont_filter=True) for _ in range(2))
        hand_out(worker, first)
        hand_out(worker, second)
        await worker.crawl._writer.flush()
        assert claimed(own_server) == 2
        worker.offers.pages.finished(first, Response(first.url))
        await worker.crawl._writer.flush()
        assert claimed(own_server) == 1


@in_loop
async def test_a_page_fails_whose_link_the_queue_does_not_take(own_server: Server) -> None:
    """The link is not stored, so only the page can yield it again."""
    async with Worker(own_server.url) as worker:
        pages, first = worker.offers.pages, page(0)
        child = page(1).replace(callback=lambda response: None)
        hand_out(worker, first)
        parent = pages.page_of(first)
        assert parent is not None
        pages.yields(parent, child)
        worker.offers.offered(child)
        assert not worker.dupefilter.request_seen(child)
        worker.offers.lost(child, OSError("the disk is full"))
        pages.finished(first, Response(first.url))
        await worker.crawl._writer.flush()
        assert (recorded(own_server), owners(own_server)) == (0, {"-."})


@in_loop
async def test_a_page_that_is_cancelled_is_left_to_the_next_run(own_server: Server) -> None:
    """It has not failed, so it doesn't wait."""
    async with Worker(own_server.url) as worker:
        pages, request = worker.offers.pages, page(0)
        hand_out(worker, request)
        pages.raised(request, asyncio.CancelledError())
        pages.finished(request, Failure(asyncio.CancelledError()))
        await worker.crawl._writer.flush()
        assert owners(own_server) == {worker.crawl._context.me.id}
        assert worker.stat("failed") == 0
