"""Each outage costs a crawl one time-out; what it has seen by then is written when it ends."""

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.loops import eventually, in_loop
from support.outages import (
    forbidden_keys,
    full,
    killed,
    known_host,
    locked,
    nameless,
    replaced,
    replica,
    stalled,
    struck,
)
from support.proxy import Fault, Kind, Proxy
from support.servers import LASTING, Server
from support.workers import TIMEOUT, Worker, marked

pytestmark = pytest.mark.usefixtures("short_retries")
REMEMBER = ["scheduled", "crawled"]
#: A name that has to be looked up.
HOST = "redis.test"


async def outlive(
    cause: Callable[[], AbstractContextManager[object]],
    server: Server,
    *,
    url: str,
    remember: str,
    says: str,
    caplog: pytest.LogCaptureFixture,
    forgets: bool = False,
) -> None:
    """Go through an outage, and check what the crawl sees and logs, during and after it.

    Args:
        cause: begins the outage, and ends it.
        server: the server.
        url: address of it for the crawl.
        remember: BLOOM_REMEMBER.
        says: a regular expression of what the log says.
        caplog: the log.
        forgets: whether the server loses the page that was recorded before.
    """
    async with Worker(url, BLOOM_REMEMBER=remember) as worker:
        assert not worker.sees(0)
        with cause():
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
            assert other.sees(0) is not forgets
            assert not other.sees(12)
        assert marked(server, remember) == 13
    assert "Traceback" not in caplog.text


# -- servers --


Cause = Callable[[Server], AbstractContextManager[object]]
#: What happens to a server -> what the log says, and the server's options; without them, it loses
#: its data. What is said of others: redis/test_connection.py, redis/test_rights.py.
TROUBLES: list[tuple[Cause, str, tuple[str, ...]]] = [
    (killed, "is not there: start a server", ()),
    (killed, "is not there: start a server", LASTING),
    (stalled, "did not answer in time: see whether it is up", LASTING),
    (replica, "is a read-only replica: use the address of its primary", LASTING),
    (full, "is out of memory: raise its maxmemory", LASTING),
    (locked, "requires a password: give it in BLOOM_REDIS_URL", LASTING),
    (forbidden_keys, r"'default' may not read and write the keys '\{shop:bloom:\d", LASTING),
    (replaced, r"key '\{shop:bloom:\d+\}:ring' holds a string.* delete it", LASTING),
    (nameless, "host name that cannot be resolved: correct it", LASTING),
]


@pytest.mark.parametrize("number", range(len(TROUBLES)))
@in_loop
async def test_trouble_of_the_server_costs_one_time_out_and_is_made_up_for(
    number: int, any_binary: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cause, says, options = TROUBLES[number]
    host = HOST if cause is nameless else "127.0.0.1"
    with known_host(HOST), Server(any_binary, *options) as own:
        await outlive(
            functools.partial(cause, own),
            own,
            url=f"redis://{host}:{own.port}/0",
            remember=REMEMBER[number % 2],
            says=says,
            caplog=caplog,
            forgets=not options,
        )


# -- connections --

FAULTS = {
    "reply lost": (Fault(Kind.DROP_REPLY), "did not answer in time"),
    "late": (Fault(Kind.DELAY, 3 * TIMEOUT), "did not answer in time"),
    "reset by the reply": (Fault(Kind.RESET_REPLY), "closed the connection: see its log"),
    "a byte of a reply": (Fault(Kind.HALF, size=1), "did not answer in time"),
}


@pytest.mark.parametrize("name", FAULTS)
@in_loop
async def test_trouble_of_the_connection_costs_one_time_out_and_is_made_up_for(
    name: str, lasting_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fault, says = FAULTS[name]
    remember = REMEMBER[len(name) % 2]
    with Proxy(lasting_server.port) as proxy:
        cause = functools.partial(struck, proxy, fault)
        await outlive(
            cause, lasting_server, url=proxy.url, remember=remember, says=says, caplog=caplog
        )
