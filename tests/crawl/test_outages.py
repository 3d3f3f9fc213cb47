"""Each outage costs a crawl one time-out; what it has seen by then is written when it ends."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.loops import eventually, in_loop
from support.outages import full, killed, known_host, nameless, replaced, stalled
from support.servers import LASTING, Server
from support.workers import Worker, marked

pytestmark = pytest.mark.usefixtures("short_retries")
#: A name that has to be looked up.
HOST = "redis.test"
Cause = Callable[[Server], AbstractContextManager[object]]
#: What happens to a server, BLOOM_REMEMBER, what the log says, and the server's options; without
#: them, it loses its data. What is said of others: redis/test_connection.py, redis/test_rights.py.
TROUBLES: list[tuple[Cause, str, str, tuple[str, ...]]] = [
    (killed, "scheduled", "is not there: check host and port", ()),
    (killed, "crawled", "is not there: check host and port", LASTING),
    (stalled, "scheduled", "did not answer in time: see whether it is up", LASTING),
    (full, "crawled", "is out of memory: raise its maxmemory", LASTING),
    (replaced, "scheduled", r"'\{shop:bloom:\d+\}:ring' holds a string.* delete it", LASTING),
    (nameless, "crawled", "host name that cannot be resolved: correct it", LASTING),
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
    with known_host(HOST), Server(any_binary, *options) as own:
        url = f"redis://{HOST if cause is nameless else '127.0.0.1'}:{own.port}/0"
        async with Worker(url, BLOOM_REMEMBER=remember) as worker:
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
            assert "reconnected" in caplog.text
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
