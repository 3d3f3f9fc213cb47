"""Each outage costs a crawl one time-out; what it has seen by then is written when it ends."""

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.loops import eventually, in_loop
from support.outages import full, killed, replaced, stalled
from support.servers import LASTING, Server
from support.workers import Worker, marked, page

from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.bloom.model.spec import Spec
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.crawl import writer

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
                assert not worker.sees(10)
                assert worker.sees(10), "although the server was looked for"
            await worker.found_again()
            await eventually(lambda: worker.stat("recorded_late") == 10)
            assert caplog.text.count("the crawl continues without the server") == 1, "its begin"
            assert caplog.text.count("reconnected to ") == 1, "and its end"
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


@pytest.mark.parametrize("trouble", ["", "it loads its data at first", "it hides its id"])
@in_loop
async def test_a_server_that_was_restarted_empty_knows_nothing(
    trouble: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else links that only the cache knows would be dropped, though their claims are lost."""
    async with Worker(own_server.url, BLOOM_REMEMBER="scheduled") as worker:
        bloom, opened = worker.server.bloom, worker.server.bloom.session.open
        if "hides" in trouble:
            worker.server.id = ""
            monkeypatch.setattr(bloom.transport, "server_id", str)
        assert not any(worker.sees(number) for number in range(5))
        with killed(own_server):
            assert all(worker.sees(number) for number in range(5))
            assert not worker.sees(5)
            if "loads" in trouble:
                answers = iter([NotReadyError(trouble)] * 2)

                def open_later() -> Operation[Spec]:
                    for error in answers:
                        raise error
                    return opened()

                monkeypatch.setattr(bloom.session, "open", open_later)
        await worker.found_again()
        assert not any(worker.sees(number) for number in range(5))
        assert worker.sees(5), "it was written since"


@in_loop
async def test_the_crawl_pauses_while_too_many_writes_wait(
    lasting_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING", 20)
    async with Worker(lasting_server.url, BLOOM_REMEMBER="scheduled") as worker:
        with killed(lasting_server):
            assert not any(worker.sees(number) for number in range(19))
            assert not worker.engine.calls
            assert not any(worker.sees(number) for number in range(19, 40))
            assert worker.engine.calls == ["pause"]
        await worker.found_again()
        await eventually(lambda: worker.engine.calls == ["pause", "unpause"])
    assert marked(lasting_server, "scheduled") == 40
    assert caplog.text.count("[bloom-paused]") == 1


@in_loop
async def test_the_crawl_goes_on_after_too_many_writes_without_an_outage(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING", 20)
    async with Worker(own_server.url, BLOOM_REMEMBER="crawled") as worker:
        for number in range(30):
            worker.dupefilter.request_seen(page(number))
            worker.crawl._pages.keep(page(number))
        assert worker.engine.calls == ["pause"]
        await eventually(lambda: worker.engine.calls == ["pause", "unpause"])
        assert not worker.stat("outages")


@in_loop
async def test_the_spider_is_closed_if_the_settings_say_so(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"BLOOM_REMEMBER": "scheduled", "BLOOM_ON_REDIS_ERROR": "close"}
    async with Worker(own_server.url, **settings) as worker:
        with killed(own_server):
            assert not worker.sees(0)
            await eventually(lambda: worker.engine.calls == [writer.CLOSED_WITHOUT_SERVER])
            await asyncio.sleep(10 * writer.LAST_RETRY)
            assert len(worker.engine.calls) == 1, "once"
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the spider closes unless the server is back soon. " in warnings[0].getMessage()
