"""Each outage costs a crawl one time-out; what it has seen by then is written when it ends."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request
from support.loops import eventually, in_loop
from support.odd_site import Lab, serve, tree
from support.outages import full, killed, replaced, stalled
from support.proxy import PASS, Fault, Kind, Proxy
from support.servers import LASTING, Server
from support.workers import TIMEOUT, Worker, claimed, confirm, marked, page, recorded

from scrapy_bloom.crawl import outage, writer
from scrapy_bloom.crawl.writer import CLOSED_WITHOUT_SERVER

pytestmark = pytest.mark.usefixtures("short_retries")
Cause = Callable[[Server], AbstractContextManager[object]]
#: What happens to a server, BLOOM_REMEMBER, what the log says, and the server's options; without
#: them, it loses its data.
TROUBLES: list[tuple[Cause, str, str, tuple[str, ...]]] = [
    (killed, "scheduled", "stopped answering|can't be reached", ()),
    (killed, "crawled", "stopped answering|can't be reached", LASTING),
    (stalled, "scheduled", "in time", LASTING),
    (full, "crawled", "maxmemory", LASTING),
    (replaced, "scheduled", "holds something else|WRONGTYPE", LASTING),
]


@pytest.mark.parametrize(("cause", "remember", "says", "options"), TROUBLES)
@in_loop
async def test_trouble_of_the_server_costs_one_time_out_and_is_made_up_for(
    cause: Cause,
    remember: str,
    says: str,
    options: tuple[str, ...],
    *,
    any_binary: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    with Server(any_binary, *options) as own:
        url = f"redis://127.0.0.1:{own.port}/0"
        async with Worker(url, BLOOM_REMEMBER=remember, BLOOM_BLOCKS=1) as worker:
            assert not worker.sees(0)
            with cause(own):
                caplog.clear()
                assert not worker.sees(1), "an unknown outcome is new"
                assert worker.sees(1), "and final"
                round_trips = worker.round_trips
                assert not any(worker.sees(number) for number in range(2, 10))
                assert all(worker.sees(number) for number in range(10)), "before and since"
                assert worker.round_trips == round_trips, "no look-up reaches the server"
                assert (worker.stat("unknown"), worker.stat("offline")) == (1, 8)
                await eventually(lambda: re.search(says, caplog.text), f"{says} in {caplog.text}")
                assert "correct BLOOM_REDIS_URL" not in caplog.text, "it was right before"
                assert not worker.sees(10)
                assert worker.sees(10), "although the server was looked for"
            await worker.found_again()
            await eventually(lambda: worker.stat("remembered_late") == 10)
            assert caplog.text.count("the crawl continues without the server") == 1, "its begin"
            assert caplog.text.count("reconnected to ") == 1, "and its end"
            assert "made 10 writes that had waited" in caplog.text
            assert worker.stat("outages") == worker.stat("unknown") == 1
            assert all(worker.sees(number) for number in range(1, 11))
            assert not worker.sees(11)
            assert worker.stat("unknown") == 1
            async with Worker(url, BLOOM_REMEMBER=remember) as other:
                assert all(other.sees(number) for number in range(1, 12))
                assert other.sees(0) is bool(options)
                assert not other.sees(12)
            assert marked(own, remember) == 13
        assert "Traceback" not in caplog.text


@in_loop
async def test_a_server_that_lost_its_last_writes_in_a_restart_knows_nothing(
    lasting_server: Server,
) -> None:
    """Else links that only the cache knows would be dropped, though their claims are lost."""
    async with Worker(lasting_server.url, BLOOM_REMEMBER="scheduled") as worker:
        assert not any(worker.sees(number) for number in range(5))
        with lasting_server.client() as client:
            for bitmap in client.scan_iter("*.0"):
                client.setrange(bitmap, 0, bytes(client.strlen(bitmap)))
        with killed(lasting_server):
            assert all(worker.sees(number) for number in range(5))
            assert not worker.sees(5)
        await worker.found_again()
        assert not any(worker.sees(number) for number in range(5))
        assert worker.sees(5), "it was written since"


@in_loop
async def test_a_page_that_ends_in_an_outage_is_ready_to_be_crawled_again(
    lasting_server: Server,
) -> None:
    """A server that was restarted may have lost the claims on its links."""
    async with Worker(lasting_server.url) as worker:
        assert not worker.sees(0)
        with killed(lasting_server):
            assert not worker.sees(1)
            confirm(worker, 0)
        await worker.found_again()
        await eventually(lambda: not worker.ops)
        assert recorded(lasting_server) == 0
        async with Worker(lasting_server.url) as other:
            assert not other.sees(0)


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
async def test_the_window_of_a_run_needs_no_server(own_server: Server) -> None:
    hub = Request("https://example.com/", meta={"bloom_recrawl_after": "run"})
    async with Worker(own_server.url, BLOOM_REMEMBER="scheduled") as worker:
        with killed(own_server):
            assert not worker.dupefilter.request_seen(hub)
            assert worker.dupefilter.request_seen(hub)
            assert worker.stat("outages") == 0


@in_loop
async def test_an_embedded_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with Worker(f"embedded:{tmp_path / 'data'}", BLOOM_TIMEOUT=3) as worker:
        assert not worker.sees(0)
        connection: Any = worker.server._connection
        with redis.Redis(unix_socket_path=str(connection.server.socket_path)) as client:
            client.set("last", "")
            client.execute_command("WAITAOF", 1, 0, 0)  # a busy disk may be two seconds late
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        assert not worker.sees(1)
        await worker.found_again()
        await eventually(lambda: not worker.ops)
        assert all(worker.sees(number) for number in range(2))
        assert worker.stat("outages") == 1


# -- the spider is closed, or paused --


@in_loop
async def test_the_crawl_waits_when_there_is_room_for_no_more(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING", 5)
    async with Worker(own_server.url) as worker:
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
    assert claimed(own_server) == 9, "those of the second outage"


@in_loop
async def test_the_crawl_goes_on_after_too_many_writes_without_an_outage(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING", 20)
    async with Worker(own_server.url) as worker:
        for number in range(30):
            worker.dupefilter.request_seen(page(number))
            worker.offers.keep(page(number))
        assert worker.engine.calls == ["pause"]
        await eventually(lambda: worker.engine.calls == ["pause", "unpause"])
        assert not worker.stat("outages")


# -- a server that is out of memory: no claims are made, and those that are there end --


# -- the crawl ends during an outage, or right after it --

GAUGES = ["pending", "fill_ratio", "estimated_error_rate", "generations", "bitmaps"]


@pytest.mark.parametrize(
    ("outage", "remember", "pages"),
    [(killed, "scheduled", 3), (stalled, "crawled", 3), (stalled, "crawled", 0)],
)
@in_loop
async def test_a_crawl_that_ends_without_the_server_ends_in_time_and_says_what_is_not_known(
    outage: Cause, remember: str, pages: int, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Worker(own_server.url, BLOOM_REMEMBER=remember) as worker:
        assert not worker.sees(0)
        with outage(own_server):
            assert not any(worker.sees(number + 1) for number in range(pages))
            begin = time.monotonic()
            await worker.close()
            assert time.monotonic() - begin < 60 * TIMEOUT
        new = f"1 new, {pages} counted as new without the server" if pages else "1 new"
        assert f"{new}, 0 duplicates, 0 failed in this process; an unknown number of" in caplog.text
        assert ("3 writes are lost" in caplog.text) is (pages > 0)
        assert [worker.stats.get_value(f"bloom/{name}", 0) for name in GAUGES] == [None] * 5
        assert not worker.sees(4)


@in_loop
async def test_what_is_left_is_written_at_the_end_if_the_server_is_up(
    own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the next attempt would be late."""
    async with Worker(own_server.url, BLOOM_TIMEOUT=5) as worker:
        with killed(own_server):
            monkeypatch.setattr(outage, "FIRST_RETRY", 1_000)
            assert not any(worker.sees(number) for number in range(3))
    assert claimed(own_server) == 3
    assert "writes are lost" not in caplog.text


# -- crawls, each in a process of its own, whose server fails midway --


def test_a_crawl_that_is_closed_leaves_nothing_marked_that_was_not_crawled(
    lasting_server: Server, tmp_path: Path
) -> None:
    with serve(tree(100)) as site, Lab(site, lasting_server.url, tmp_path) as lab:
        with lab.midway(25, BLOOM_ON_REDIS_ERROR="close") as crawl:
            crawl.until(lab.recorded, "a page is recorded")
            with killed(lasting_server):
                site.hold_after(1)
                crawl.until(lambda: f"({CLOSED_WITHOUT_SERVER})" in crawl.log, "it closes")
                site.release()
                stats = crawl.wait()
        assert stats["finish_reason"] == CLOSED_WITHOUT_SERVER
        assert stats["bloom/fill_ratio"] is None, "it is not known"
        assert lab.missing()
        recorded = lab.recorded()
        assert recorded
        assert recorded <= site.hits().keys()
        lab.crawl()
        assert not lab.missing(), "and the next crawl goes on"
