"""What happens to servers and connections: each of these ends with its ``with`` block."""

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import redis

from support.proxy import PASS, Fault, Proxy
from support.servers import Server
from support.workers import IN_TIME

#: Given to servers that require one, and to their clients.
PASSWORD = "s3cret"
SLOTS = 16_384

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
def loading(server: Server) -> Iterator[None]:
    """Restart a server that loads its data slowly."""
    with server.client() as client, client.pipeline() as pipeline:
        for number in range(1_000):
            pipeline.set(f"ballast:{number}", "x" * 100)
        pipeline.execute()
        client.save()
    server.kill()
    slowly = ("--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024")
    server.options += slowly
    start = threading.Thread(target=server.start)
    start.start()
    try:
        yield
    finally:
        start.join()


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
def full(server: Server) -> Iterator[None]:
    with admin(server, "CONFIG", "SET", "maxmemory", "0") as client:
        client.config_set("maxmemory", 1)
        yield


@contextmanager
def unplugged(server: Server) -> Iterator[None]:
    """A node of a cluster loses its slots; with none at all, it would be slow to recover."""
    with admin(server, "CLUSTER", "ADDSLOTSRANGE", "1", str(SLOTS - 1)) as client:
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 1, SLOTS - 1)
        yield


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """The server requires a password, and closes the connections that gave none."""
    with admin(server, "CONFIG", "SET", "requirepass", "") as client:
        client.config_set("requirepass", "0ther")
        kick(client)
        yield


@contextmanager
def other_password(server: Server) -> Iterator[None]:
    undo = ("CONFIG", "SET", "requirepass", PASSWORD)
    with admin(server, *undo, url=f"unix://:{PASSWORD}@{server.socket}") as client:
        client.config_set("requirepass", "0ther")
        kick(client)
        yield


@contextmanager
def forbidden(server: Server) -> Iterator[None]:
    with admin(server, "ACL", "SETUSER", "default", "+@all") as client:
        client.acl_setuser("default", enabled=True, commands=["-evalsha", "-eval"])
        yield


@contextmanager
def forbidden_keys(server: Server) -> Iterator[None]:
    with admin(server, "ACL", "SETUSER", "default", "~*") as client:
        client.acl_setuser("default", enabled=True, reset_keys=True, keys=["other:*"])
        yield


@contextmanager
def forbidden_writes(server: Server) -> Iterator[None]:
    with admin(server, "ACL", "SETUSER", "default", "+@all") as client:
        client.acl_setuser("default", enabled=True, commands=["-hset", "-hdel"])
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
def crowded(server: Server) -> Iterator[None]:
    with admin(server, "CONFIG", "SET", "maxclients", "100") as client:
        client.config_set("maxclients", 1)
        kick(client)
        yield


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


class Liar:
    """Passes everything on to a server, unless it has an answer of its own to every command."""

    def __init__(self, server_port: int) -> None:
        self.answer = b""
        self._server_port = server_port
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.url = f"redis://127.0.0.1:{self._sockets[0].getsockname()[1]}/0"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, function: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=function, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._sockets[0].accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += client, server
                self._start(self._ask, client, server)
                self._start(self._reply, client, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if self.answer:
                    commands = len(re.findall(rb"(?:^|\r\n)\*\d+\r\n\$", data))
                    client.sendall(self.answer * commands)
                else:
                    server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _reply(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()


@contextmanager
def lying(liar: Liar, answer: bytes) -> Iterator[None]:
    liar.answer = answer
    yield
    liar.answer = b""
