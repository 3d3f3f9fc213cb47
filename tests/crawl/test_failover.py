"""What counts as an outage, how it ends, and whether the spider is paused or closed."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request
from support.loops import eventually, in_loop
from support.outages import kick, killed, stalled
from support.proxy import PASS, Fault, Kind, Proxy
from support.servers import Server
from support.workers import Worker, marked

from scrapy_bloom.crawl import writer as writing
from scrapy_bloom.crawl.writer import CLOSED_WITHOUT_SERVER

pytestmark = pytest.mark.usefixtures("short_retries")
REMEMBER = ["scheduled", "crawled"]


@in_loop
async def test_the_window_of_a_run_needs_no_server(own_server: Server) -> None:
    hub = Request("https://example.com/", meta={"bloom_recrawl_after": "run"})
    async with Worker(own_server.url, BLOOM_REMEMBER="scheduled") as worker:
        with killed(own_server):
            assert not worker.dupefilter.request_seen(hub)
            assert worker.dupefilter.request_seen(hub)
            assert worker.stat("outages") == 0


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_a_bad_connection_hides_nothing_and_repeats_nothing(
    remember: str, lasting_server: Server
) -> None:
    with Proxy(lasting_server.port) as proxy:
        async with Worker(proxy.url, BLOOM_REMEMBER=remember) as worker:
            proxy.fault = Fault(Kind.RESET_REPLY, probability=0.05)
            count = 0

            def is_bad_enough() -> bool:
                nonlocal count
                assert not worker.sees(count)
                assert worker.sees(count // 2)
                count += 1
                return worker.stat("outages") >= 3

            await eventually(is_bad_enough, "the connection is reset")
            proxy.fault = PASS
            await worker.found_again()
            await eventually(lambda: not worker.ops)
            assert all(worker.sees(number) for number in range(count))
            assert marked(lasting_server, remember) == count


@in_loop
async def test_a_server_that_answers_just_in_time_holds_up_a_request_once(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """All round trips of a lookup have one time-out: here each block's ring is read before."""
    with Proxy(own_server.port) as proxy:
        settings = {"BLOOM_REMEMBER": "scheduled", "BLOOM_TIMEOUT": 0.5}
        async with Worker(proxy.url, **settings) as worker:
            worker.server.bloom.session.views.clear()
            proxy.fault = Fault(Kind.DELAY, seconds=0.4)
            before, _ = worker.server.round_trips
            assert not worker.sees(0)
            after, _ = worker.server.round_trips
            assert after - before <= 2
            assert worker.stat("unknown") == 1
            assert "didn't answer in time" in caplog.text
            proxy.fault = PASS
            await worker.found_again()


@in_loop
async def test_an_outage_says_that_the_server_has_stopped_answering(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(own_server.url) as worker:
        with killed(own_server):
            assert not worker.sees(0)
            assert "has stopped answering. See whether it runs" in caplog.text
            assert "correct BLOOM_REDIS_URL" not in caplog.text
        await worker.found_again()
    assert caplog.text.count("reconnected") <= 1


@in_loop
async def test_a_server_that_hangs_is_an_outage(own_server: Server) -> None:
    async with Worker(own_server.url, BLOOM_TIMEOUT=0.5) as worker:
        assert not worker.sees(0)
        with stalled(own_server):
            assert not worker.sees(1)
            assert worker.sees(0)
        await worker.found_again()
        await eventually(lambda: not worker.ops)
        assert all(map(worker.sees, range(2)))


@pytest.mark.parametrize(("policy", "count"), [("volatile-lru", 1), ("noeviction", 0)])
@in_loop
async def test_a_server_that_may_evict_the_filter_is_warned_about(
    own_server: Server, policy: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with own_server.client() as client:
        client.config_set("maxmemory-policy", policy)
    async with Worker(own_server.url, BLOOM_RECRAWL_AFTER="2 days"):
        assert caplog.text.count("[bloom-eviction]") == count
        assert (policy in caplog.text) == bool(count)


# -- the policy --


@in_loop
async def test_the_spider_is_closed_once_if_that_is_wanted(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"BLOOM_REMEMBER": "scheduled", "BLOOM_ON_REDIS_ERROR": "close"}
    async with Worker(own_server.url, **settings) as worker:
        with killed(own_server):
            assert not worker.sees(0)
            assert "the spider closes unless" in caplog.text
            await eventually(lambda: worker.engine.calls)
            assert not worker.sees(1), "requests go on until it is closed"
            assert worker.sees(1)
            await eventually(lambda: worker.crawl._writer._failures > 2)
        await worker.found_again()
        assert worker.engine.calls == [CLOSED_WITHOUT_SERVER]
        await eventually(lambda: not worker.ops)
    assert marked(own_server, "scheduled") == 2


@in_loop
async def test_the_spider_is_not_closed_because_a_connection_was(own_server: Server) -> None:
    """The crawl replaces an idle connection."""
    # With "scheduled", the thread has nothing to do: it does not notice a restart.
    settings = {"BLOOM_ON_REDIS_ERROR": "close", "BLOOM_REMEMBER": "scheduled"}
    async with Worker(own_server.url, **settings) as worker:
        with own_server.client() as client:
            client.ping()
            kick(client)
        assert not worker.sees(0)
        assert worker.sees(0)
        with killed(own_server):
            pass
        assert not worker.sees(1)
        assert worker.sees(1)
        assert worker.stat("outages") == 0
        assert worker.engine.calls == []


@pytest.mark.parametrize("remember", REMEMBER)
@in_loop
async def test_the_crawl_waits_when_there_is_room_for_no_more(
    remember: str,
    own_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(writing, "MAX_WAITING", 5)
    async with Worker(own_server.url, BLOOM_REMEMBER=remember) as worker:
        for outages in (1, 2):
            with killed(own_server):
                assert not any(worker.sees(outages * 100 + number) for number in range(4))
                assert worker.engine.calls == ["pause", "unpause"] * (outages - 1)
                # Requests in flight at the pause are looked up, too.
                assert not any(worker.sees(outages * 100 + number) for number in range(4, 9))
                assert worker.engine.calls == ["pause", "unpause"] * (outages - 1) + ["pause"]
            await worker.found_again()
            await eventually(lambda: not worker.ops)
            assert worker.engine.calls == ["pause", "unpause"] * outages
    assert caplog.text.count("[bloom-paused]") == 1
    assert marked(own_server, remember) == 9, "those of the second outage"


@in_loop
async def test_an_embedded_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with Worker(f"embedded:{tmp_path / 'data'}", BLOOM_TIMEOUT=3) as worker:
        assert not worker.sees(0)
        connection: Any = worker.server._connection
        with redis.Redis(unix_socket_path=str(connection.server.socket_path)) as client:
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        assert not worker.sees(1)
        await worker.found_again()
        await eventually(lambda: not worker.ops)
        assert all(worker.sees(number) for number in range(2))
        assert worker.stat("outages") == 1
