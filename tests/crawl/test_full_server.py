"""Claims on a server that is out of memory: no others are made, and those that are there end."""

import pytest
from support.loops import in_loop
from support.outages import full
from support.servers import Server
from support.workers import Worker, claimed, page, recorded

from scrapy_bloom.crawl.writer import Op, OpKind

pytestmark = pytest.mark.usefixtures("short_retries")


def end(worker: Worker, kind: OpKind, *numbers: int) -> None:
    for number in numbers:
        key = worker.crawl._context.identity.key(page(number))
        worker.crawl._writer.put(Op(kind, key))


@in_loop
async def test_pages_that_end_are_noted_once_there_is_memory_again(own_server: Server) -> None:
    async with Worker(own_server.url) as worker:
        assert not any(worker.sees(number) for number in range(10))
        with full(own_server):
            assert not worker.sees(10)
            end(worker, OpKind.CONFIRM, *range(5), 10)
            end(worker, OpKind.RELEASE, *range(5, 8))
            assert worker.stat("outages") == 1
        await worker.found_again()
    assert (recorded(own_server), claimed(own_server)) == (6, 2)


@in_loop
async def test_claims_end_on_a_full_server(own_server: Server) -> None:
    """Else it would stay full."""
    async with Worker(own_server.url) as worker:
        assert not any(worker.sees(number) for number in range(10))
        with full(own_server):
            end(worker, OpKind.RELEASE, *range(9))
            await worker.crawl._writer.flush()
            assert worker.stat("outages") == 0
            assert claimed(own_server) == 1
