"""A crawl waits at its start for a server that is slow or loads its data."""

from contextlib import ExitStack

import pytest
from support.loops import in_loop
from support.outages import stalled
from support.servers import Server
from support.workers import Worker

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.crawl.context import Opening

pytestmark = pytest.mark.usefixtures("short_retries")


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
@in_loop
async def test_a_crawl_waits_at_its_start_for_a_server_that_is_slow(
    remember: str,
    own_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    open_filter, failed = BloomFilter.open, list[BloomFilter]()

    def open_and_count(bloom: BloomFilter) -> Header:
        try:
            return open_filter(bloom)
        except NotReadyError:
            failed.append(bloom)
            if len(failed) == 4:
                stall.close()
            raise

    monkeypatch.setattr(BloomFilter, "open", open_and_count)
    with ExitStack() as stall:
        stall.enter_context(stalled(own_server))
        async with Worker(own_server.url, BLOOM_REMEMBER=remember) as worker:
            assert not worker.sees(0)
            assert worker.stat("outages") == 0
    assert len(failed) >= 4
    assert caplog.text.count("Waiting for it, up to 30 s") == 1


def test_waiting_for_a_slow_server_has_an_end() -> None:
    calls: list[None] = []

    def time_out() -> None:
        calls.append(None)
        raise NotReadyError("too late")

    with pytest.raises(NotReadyError):
        Opening(patience=0.5).run(time_out)
    assert len(calls) > 1
