"""The faults themselves: each is a context, inflicted at its beginning and mended at its end.

Those of servers that replace each other are in `failovers.py`.
"""

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from support.outages import full, killed, replica, stalled, struck
from support.proxy import Fault, Kind, Proxy
from support.servers import Server

from chaos.crew import Crew

#: What is acknowledged survives a kill -9 of the server. Under "everysec" it may not: while a sync
#: is under way, what is to be written waits in the server for up to two seconds.
AOF = ("--appendonly", "yes", "--appendfsync", "no")
#: Further options of the servers that faults need.
OPTIONS = {"server_kill_aof": AOF, "disk_full": AOF}


class Victims(Protocol):
    """What there is to be harmed, and how many keys were evicted so far."""

    evicted: int

    @property
    def server(self) -> Server: ...

    @property
    def proxy(self) -> Proxy | None: ...

    @property
    def crew(self) -> Crew: ...


Inflict = Callable[[Victims, float], AbstractContextManager[None]]


def write_launcher(binary: str, directory: Path) -> str:
    """Write a script that starts the server so that a file-size limit is an error, and no signal.

    Python resets the signal in its children; the shell's setting is inherited.
    """
    launcher = directory / "launcher"
    launcher.write_text(f'#!/bin/sh\ntrap "" XFSZ\nexec "{binary}" "$@"\n')
    launcher.chmod(0o755)
    return str(launcher)


def _of_server(harm: Callable[[Server], AbstractContextManager[None]]) -> Inflict:
    return lambda victims, level: harm(victims.server)


# -- the server --


def _command(*words: str) -> Inflict:
    """A command that does its harm in an instant."""

    @contextmanager
    def inflict(victims: Victims, level: float) -> Iterator[None]:
        tell(victims.server, *words)
        yield

    return inflict


@contextmanager
def _evicting(victims: Victims, level: float) -> Iterator[None]:
    """Take away memory until any part of the filter, or all of it, is evicted."""
    with victims.server.client() as client:
        before = int(client.info("stats")["evicted_keys"])
        used = int(client.info("memory")["used_memory"])
        filters = sum(client.memory_usage(key) or 0 for key in client.scan_iter())
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", int(used - level * filters))
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
        victims.evicted += int(client.info("stats")["evicted_keys"]) - before


@contextmanager
def _disk_full(victims: Victims, level: float) -> Iterator[None]:
    """Limit the size of files to what the append-only file has; needs AOF and the launcher."""
    logs = victims.server.directory.glob("appendonlydir/*.incr.aof")
    size = max(log.stat().st_size for log in logs)
    with _file_size_limit(victims.server.process.pid, size):
        yield


@contextmanager
def _file_size_limit(pid: int, size: int) -> Iterator[None]:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def tell(server: Server, *words: str) -> Any:
    """Send a command of the operator's, past the proxy."""
    with server.client() as client:
        return client.execute_command(*words)


# -- the network --

#: Seconds that a reply is late at most; the crawlers wait for less.
LONGEST_DELAY = 1.5


def network(victims: Victims, fault: Fault) -> AbstractContextManager[None]:
    """Set a fault of the proxy's."""
    assert victims.proxy
    return struck(victims.proxy, fault)


def _network(make_fault: Callable[[float], Fault]) -> Inflict:
    return lambda victims, level: network(victims, make_fault(level))


def _often(kind: Kind) -> Callable[[float], Fault]:
    """Strike every request, or, from a level of a half on, some of them."""
    return lambda level: Fault(kind, probability=1.0 if level < 0.5 else level - 0.3)


def _reset_kind(level: float) -> Kind:
    """Reset before the server has got the request, or instead of its reply."""
    return Kind.RESET_REQUEST if int(level * 1000) % 2 else Kind.RESET_REPLY


@contextmanager
def _refused(victims: Victims, level: float) -> Iterator[None]:
    """Refuse new connections when those that there are have been closed."""
    with network(victims, Fault(Kind.REFUSE)):
        tell(victims.server, "CLIENT", "KILL", "TYPE", "normal")
        yield


# -- the crawlers --


@contextmanager
def _crawler_killed(victims: Victims, level: float) -> Iterator[None]:
    number = int(level * len(victims.crew)) % len(victims.crew)
    killed = victims.crew.kill(number)
    yield
    if killed:
        victims.crew.start(number)


INFLICT: dict[str, Inflict] = {
    "drop_before": _network(_often(Kind.DROP_REQUEST)),
    "drop_after": _network(_often(Kind.DROP_REPLY)),
    "delay": _network(lambda level: Fault(Kind.DELAY, seconds=level * LONGEST_DELAY)),
    "dribble": _network(lambda level: Fault(Kind.DRIBBLE, seconds=level / 10)),
    "half_reply": _network(_often(Kind.HALF)),
    "reset": _network(lambda level: _often(_reset_kind(level))(level)),
    "hang": _network(_often(Kind.HANG)),
    "refuse": _refused,
    "server_kill": _of_server(killed),
    "server_kill_aof": _of_server(killed),
    "stall": _of_server(stalled),
    "flushall": _command("FLUSHALL"),
    "script_flush": _command("SCRIPT", "FLUSH"),
    "evict": _evicting,
    "out_of_memory": _of_server(full),
    "disk_full": _disk_full,
    "client_kill": _command("CLIENT", "KILL", "TYPE", "normal"),
    "read_only": _of_server(replica),
    "crawler_kill": _crawler_killed,
}
