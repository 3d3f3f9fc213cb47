"""What happens to servers and connections: each of these ends with its ``with`` block."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import redis

from support.proxy import PASS, Fault, Proxy
from support.servers import Server
from support.workers import IN_TIME

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
def admin(server: Server, *undo: str, url: str | None = None) -> Iterator[redis.Redis]:
    """Give a client, and send a command at the end."""
    with redis.Redis.from_url(url or server.unix_url) as client:
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


@contextmanager
def nameless(server: Server) -> Iterator[None]:
    """After a long search, the name of the host is not found."""

    def fail(*args: object, **kwargs: object) -> None:
        time.sleep(IN_TIME)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with mock.patch("socket.getaddrinfo", fail), server.client() as client:
        client.ping()
        kick(client)
        yield


@contextmanager
def known_host(host: str) -> Iterator[None]:
    """Resolve a name to this machine."""
    getaddrinfo = socket.getaddrinfo

    def find(name: bytes | str | None, *args: Any, **kwargs: Any) -> object:
        return getaddrinfo("127.0.0.1" if name == host else name, *args, **kwargs)

    with mock.patch("socket.getaddrinfo", find):
        yield


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
