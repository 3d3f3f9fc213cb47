"""A crawl ends during an outage or right after it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.loops import in_loop
from support.outages import killed, stalled
from support.servers import Server
from support.workers import TIMEOUT, Worker, marked

from scrapy_bloom.crawl import writer

pytestmark = pytest.mark.usefixtures("short_retries")


GAUGES = ["fill_ratio", "estimated_error_rate", "generations", "layers"]


@pytest.mark.parametrize(
    ("outage", "remember", "pages"),
    [(killed, "scheduled", 3), (stalled, "crawled", 3), (stalled, "crawled", 0)],
)
@in_loop
async def test_a_crawl_that_ends_without_the_server_ends_in_time_and_says_what_is_not_known(
    outage: Callable[[Server], AbstractContextManager[None]],
    remember: str,
    pages: int,
    own_server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with Worker(own_server.url, BLOOM_REMEMBER=remember) as worker:
        assert not worker.sees(0)
        with outage(own_server):
            assert not any(worker.sees(number + 1) for number in range(pages))
            begin = time.monotonic()
            await worker.close()
            assert time.monotonic() - begin < 60 * TIMEOUT
        new = f"1 new, {pages} decided without the server" if pages else "1 new"
        assert f"{new}, 0 seen, 0 failed in this process; what it holds is not known" in caplog.text
        assert ("3 writes are lost" in caplog.text) is (pages > 0)
        assert [worker.stats.get_value(f"bloom/{name}", 0) for name in GAUGES] == [None] * 4
        assert not worker.sees(4)


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
@in_loop
async def test_what_is_left_is_written_at_the_end_if_the_server_is_up(
    remember: str,
    own_server: Server,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the next attempt would be late."""
    async with Worker(own_server.url, BLOOM_REMEMBER=remember, BLOOM_TIMEOUT=5) as worker:
        with killed(own_server):
            monkeypatch.setattr(writer, "FIRST_RETRY", 1_000)
            assert not any(worker.sees(number) for number in range(3))
    assert marked(own_server, remember) == 3
    assert "writes are lost" not in caplog.text
