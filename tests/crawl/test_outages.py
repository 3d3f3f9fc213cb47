"""Each outage costs a crawl one time-out; what it has seen by then is written when it ends."""

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import pytest
from support.loops import eventually, in_loop
from support.outages import (
    PASSWORD,
    SLOTS,
    Liar,
    crowded,
    forbidden,
    forbidden_keys,
    forbidden_writes,
    full,
    killed,
    known_host,
    loading,
    locked,
    lying,
    nameless,
    other_password,
    replaced,
    replica,
    stalled,
    struck,
    unplugged,
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
    assert PASSWORD not in caplog.text
    assert "Traceback" not in caplog.text


# -- servers --


@dataclass(frozen=True)
class Trouble:
    """What happens to a server.

    Attributes:
        cause: begins the outage, and ends it.
        says: a regular expression of what the log says.
        options: of the server.
        host: under which the crawl knows it.
        forgets: whether the server loses its data.
        is_slow: whether one value of BLOOM_REMEMBER is enough.
    """

    cause: Callable[[Server], AbstractContextManager[object]]
    says: str
    options: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    forgets: bool = False
    is_slow: bool = False

    def __str__(self) -> str:
        return self.cause.__name__ + " and lasting" * (self.options == LASTING)


CLUSTER = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
TROUBLES = [
    Trouble(killed, "is not there: start a server", forgets=True),
    Trouble(killed, "is not there: start a server", LASTING),
    Trouble(stalled, "did not answer in time: see whether it is up"),
    Trouble(loading, "is still loading its data: wait", is_slow=True),
    Trouble(replica, "is a read-only replica: use the address of its primary"),
    Trouble(full, "is out of memory: raise its maxmemory"),
    Trouble(unplugged, "node of a cluster that is down", CLUSTER, is_slow=True),
    Trouble(locked, "requires a password: give it in BLOOM_REDIS_URL"),
    Trouble(
        other_password,
        "refuses the user name or the password: correct them in BLOOM_REDIS_URL",
        ("--requirepass", PASSWORD),
        f":{PASSWORD}@127.0.0.1",
    ),
    Trouble(forbidden, r"does not let this user do that \(.*'evalsha' command\): grant the fil"),
    Trouble(forbidden_keys, r"the user 'default' may not read and write the keys '\{shop:bloom:\d"),
    Trouble(forbidden_writes, "the user 'default' may not run HDEL, HSET on redis://"),
    Trouble(replaced, r"key '\{shop:bloom:\d+\}:ring' holds a string.* delete it"),
    Trouble(crowded, "has no connection left: raise its maxclients|closed the connection: see"),
    Trouble(nameless, "host name that cannot be resolved: correct it", (), HOST),
]


@pytest.mark.parametrize(
    ("trouble", "remember"),
    [
        pytest.param(trouble, remember, id=f"{trouble}-{remember}")
        for trouble in TROUBLES
        for remember in (REMEMBER[1:] if trouble.is_slow else REMEMBER)
    ],
)
@in_loop
async def test_trouble_of_the_server_costs_one_time_out_and_is_made_up_for(
    trouble: Trouble, remember: str, any_binary: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with known_host(HOST), Server(any_binary, *trouble.options) as own:
        if trouble.options == CLUSTER:
            await make_cluster(own)
        url = f"redis://{trouble.host}:{own.port}/0"
        cause = functools.partial(trouble.cause, own)
        # With the password, the test looks at the server later.
        own.unix_url = f"unix://:{PASSWORD}@{own.socket}" if "@" in url else own.unix_url
        await outlive(
            cause,
            own,
            url=url,
            remember=remember,
            says=trouble.says,
            caplog=caplog,
            forgets=trouble.forgets,
        )


async def make_cluster(server: Server) -> None:
    """Make a server a cluster of one node."""
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        await eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok")


# -- connections --

FAULTS = {
    "half-open": (Fault(Kind.HANG), "did not answer in time"),
    "swallowed": (Fault(Kind.DROP_REQUEST), "did not answer in time"),
    "reply lost": (Fault(Kind.DROP_REPLY), "did not answer in time"),
    "late": (Fault(Kind.DELAY, 3 * TIMEOUT), "did not answer in time"),
    "reset": (Fault(Kind.RESET_REQUEST), "closed the connection: see its log"),
    "reset by the reply": (Fault(Kind.RESET_REPLY), "closed the connection: see its log"),
    "half a reply": (Fault(Kind.HALF), "did not answer in time"),
    "a byte of a reply": (Fault(Kind.HALF, size=1), "did not answer in time"),
}


@pytest.mark.parametrize("remember", REMEMBER)
@pytest.mark.parametrize("name", FAULTS)
@in_loop
async def test_trouble_of_the_connection_costs_one_time_out_and_is_made_up_for(
    name: str, remember: str, lasting_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fault, says = FAULTS[name]
    with Proxy(lasting_server.port) as proxy:
        cause = functools.partial(struck, proxy, fault)
        await outlive(
            cause, lasting_server, url=proxy.url, remember=remember, says=says, caplog=caplog
        )


# -- answers --

NO_REDIS = "is not a Redis server|a script (answered|returned)"
ANSWERS = {
    "moved": (b"-MOVED 7 127.0.0.1:1\r\n", "node of a cluster that cannot serve this"),
    "ask": (b"-ASK 7 127.0.0.1:1\r\n", "node of a cluster that cannot serve this"),
    "loading": (b"-LOADING Redis is loading the dataset in memory\r\n", "is still loading"),
    "busy": (b"-BUSY Redis is busy running a script\r\n", "is busy with a long script"),
    "misconf": (b"-MISCONF Redis is configured to save RDB\r\n", "cannot save to its disk"),
    "noreplicas": (b"-NOREPLICAS Not enough good replicas\r\n", "too few of its replicas"),
    "masterdown": (b"-MASTERDOWN Link with MASTER is down\r\n", "has lost its primary"),
    "unknown error": (b"-WHATEVER it is\r\n", "WHATEVER it is"),
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n", NO_REDIS),
    "bytes": (bytes(range(256)) + b"\r\n", NO_REDIS),
    "ok": (b"+OK\r\n", NO_REDIS),
    "number": (b":5\r\n", NO_REDIS),
    "nil": (b"$-1\r\n", NO_REDIS),
    "empty list": (b"*0\r\n", NO_REDIS),
    "a list": (b"*2\r\n+ok\r\n+x\r\n", NO_REDIS),
    "nested": (b"*1\r\n*1\r\n*0\r\n", NO_REDIS),
    "a lot": (b"$9999999999\r\nmuch", "did not answer in time|" + NO_REDIS),
    "no text": (b"*2\r\n$2\r\n\xff\xfe\r\n$1\r\n\x80\r\n", "does something else write"),
}


@pytest.mark.parametrize("name", ANSWERS)
@in_loop
async def test_an_odd_answer_costs_one_time_out_and_is_made_up_for(
    name: str, lasting_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    answer, says = ANSWERS[name]
    remember = REMEMBER[len(name) % 2]
    with closing(Liar(lasting_server.port)) as liar:
        cause = functools.partial(lying, liar, answer)
        await outlive(
            cause, lasting_server, url=liar.url, remember=remember, says=says, caplog=caplog
        )
