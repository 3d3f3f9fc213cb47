"""A crawl ends during an outage or right after it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.loops import in_loop
from support.outages import killed, stalled
from support.servers import Server
from support.workers import TIMEOUT, Worker, marked

pytestmark = pytest.mark.usefixtures("short_retries")
REMEMBER = ["scheduled", "crawled"]


@pytest.mark.parametrize(("outage", "remember"), [(killed, "scheduled"), (stalled, "crawled")])
@in_loop
async def test_a_crawl_ends_in_time_without_the_server_and_says_what_is_not_recorded(
    remember: str,
    outage: Callable[[Server], AbstractContextManager[None]],
    own_server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Worker(own_server.url, BLOOM_REMEMBER=remember) as worker:
        with outage(own_server):
            assert not any(worker.sees(number) for number in range(3))
            begin = time.monotonic()
            await worker.close()
            assert time.monotonic() - begin < 2 * TIMEOUT + 2
        assert "3 records could not be written" in caplog.text
        assert not worker.sees(3)
    assert marked(own_server, remember) <= 3


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_what_is_left_is_written_at_the_end_if_the_server_is_up(
    remember: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(own_server.url, BLOOM_REMEMBER=remember, BLOOM_TIMEOUT=5) as worker:
        with killed(own_server):
            worker.server._failures = 1_000  # the next attempt would be late
            assert not any(worker.sees(number) for number in range(3))
    assert marked(own_server, remember) == 3
    assert "could not be written" not in caplog.text


GAUGES = ["fill_ratio", "estimated_error_rate", "generations", "layers"]


@pytest.mark.parametrize(("outage", "is_noticed"), [(killed, True), (stalled, False)])
@in_loop
async def test_a_crawl_that_ends_without_the_server_says_what_it_did_and_what_is_not_known(
    outage: Callable[[Server], AbstractContextManager[None]],
    is_noticed: bool,
    own_server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with Worker(own_server.url) as worker:
        assert not worker.sees(0)
        with outage(own_server):
            assert not (is_noticed and worker.sees(1))
            await worker.close()
        new = "1 new, 1 crawled without the server's answer" if is_noticed else "1 new"
        assert f"{new}, 0 seen, 0 failed in this process; how many URLs are" in caplog.text
        assert "what it holds at the end is not known: " in caplog.text
        stats = worker.dupefilter.crawler.stats
        assert stats is not None
        assert [stats.get_value(f"bloom/{name}", 0) for name in GAUGES] == [None] * 4
