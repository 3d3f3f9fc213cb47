"""What happens to servers and connections: each of these ends with its ``with`` block."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from support.proxy import PASS, Fault, Proxy
from support.servers import Server

# -- servers --


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def stalled(server: Server) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextmanager
def admin(server: Server, *undo: str) -> Iterator[redis.Redis]:
    """Give a client, and send a command at the end."""
    with server.client() as client:
        client.ping()
        try:
            yield client
        finally:
            client.execute_command(*undo)


@contextmanager
def replica(server: Server) -> Iterator[None]:
    with admin(server, "REPLICAOF", "NO", "ONE") as client:
        client.replicaof("127.0.0.1", "1")
        yield


@contextmanager
def full(server: Server, maxmemory: int = 1) -> Iterator[None]:
    with admin(server, "CONFIG", "SET", "maxmemory", "0") as client:
        client.config_set("maxmemory", maxmemory)
        yield


@contextmanager
def replaced(server: Server) -> Iterator[None]:
    """Another program uses the filter's keys for values of its own."""
    with server.client() as client:
        rings = client.keys("*:ring")
        for key in rings:
            client.rename(key, b"saved:" + key)
            client.set(key, "mine")
        yield
        for key in rings:
            client.rename(b"saved:" + key, key)


def kick(client: redis.Redis) -> None:
    """Close the connections of all other clients."""
    client.client_kill_filter(_type="normal", skipme=True)


# -- connections --


@contextmanager
def struck(proxy: Proxy, fault: Fault) -> Iterator[None]:
    proxy.fault = fault
    try:
        yield
    finally:
        proxy.fault = PASS
