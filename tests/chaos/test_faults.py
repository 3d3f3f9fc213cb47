"""Each fault does what its name says, and is mended: else the suite would show nothing."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from support.polling import until, until_it_works
from support.servers import SERVERS, Server

from chaos.faults import AOF, INFLICT, write_launcher

KEYS = 100


@pytest.fixture
def victims(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A server, now of this kind and now of that: always the same for the same test."""
    binary = SERVERS[Random(request.node.name).choice(sorted(SERVERS))]
    with Server(write_launcher(binary, tmp_path), *AOF) as server:
        with server.client() as client:
            for number in range(KEYS):
                client.set(f"key:{number}", "x" * 10_000)
        yield SimpleNamespace(server=server, evicted=0)


def write(server: Server) -> None:
    with redis.Redis.from_url(server.url, socket_timeout=0.2) as client:
        client.set("written", "x" * 100)


def test_the_server_refuses_until_it_is_mended(victims: Any) -> None:
    refusing = {
        "server_kill": (redis.ConnectionError, "refused"),
        "stall": (redis.TimeoutError, "[Tt]imeout"),
        "out_of_memory": (redis.RedisError, "maxmemory"),
        "disk_full": (redis.RedisError, "MISCONF"),
        "read_only": (redis.RedisError, "read only replica"),
    }
    until_it_works(lambda: write(victims.server), redis.RedisError)
    for fault, (error, message) in refusing.items():
        with INFLICT[fault](victims, 0.5):
            if fault == "disk_full":
                write(victims.server)  # fills it, which is noticed by the next one
            with pytest.raises(error, match=message):
                write(victims.server)
        until_it_works(lambda: write(victims.server), redis.RedisError)


def test_what_is_lost_with_the_server_and_without(victims: Any) -> None:
    with victims.server.client(single_connection_client=True) as client:
        sha = client.script_load("return 1")
        assert client.script_exists(sha) == [True]
        with INFLICT["script_flush"](victims, 0.5):
            assert client.script_exists(sha) == [False]
        with INFLICT["client_kill"](victims, 0.5), pytest.raises(redis.ConnectionError):
            client.ping()
    with INFLICT["server_kill"](victims, 0.5):
        pass
    assert keys(victims.server) == KEYS  # it has an append-only file here
    with INFLICT["evict"](victims, 0.5):
        until(lambda: keys(victims.server) < KEYS * 0.8, "keys are evicted")
    assert victims.evicted == KEYS - keys(victims.server)
    write(victims.server)
    with INFLICT["flushall"](victims, 0.5):
        assert keys(victims.server) == 0


def keys(server: Server) -> int:
    with server.client() as client:
        return int(client.dbsize())
