"""Real sentinels that watch a primary and its replicas, and replace it when it is gone."""

import secrets
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, Self

import redis

from support.polling import until
from support.servers import Server

SERVICE = "mymaster"
SENTINELS, QUORUM = 3, 2
#: Milliseconds until a server that does not answer is down, and until a failover is tried again.
DOWN_AFTER_MS, FAILOVER_MS = 500, 5_000


class Listener(Protocol):
    """What listens on a port: a server, or a proxy before it."""

    @property
    def port(self) -> int: ...


class Sentinel(Server):
    """A sentinel: it rewrites its file of settings, so it has one of its own."""

    def __init__(self, binary: str, watched: Listener, *options: str, lines: str = "") -> None:
        self._watched, self._lines = watched, lines
        super().__init__(binary, *options)

    def start(self) -> None:
        path = self.directory / "sentinel.conf"
        if not path.exists():
            name, port = SERVICE, self._watched.port
            path.write_text(
                f"sentinel monitor {name} 127.0.0.1 {port} {QUORUM}\n"
                f"sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {name} {FAILOVER_MS}\n"
                f"sentinel myid {secrets.token_hex(20)}\n{self._lines}"
            )
        super().start()

    def command(self) -> list[str]:
        binary, *options = super().command()
        return [binary, str(self.directory / "sentinel.conf"), "--sentinel", *options]


class Watched:
    """A primary, a replica, and the sentinels that watch them.

    Attributes:
        servers: the primary first.
    """

    def __init__(self, servers: list[Server], sentinels: list[Sentinel]) -> None:
        self.servers, self.sentinels = servers, sentinels

    def url(self, *, scheme: str = "redis", who: str = "", query: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"{scheme}+sentinel://{who}{hosts}/{SERVICE}/0{query and '?'}{query}"

    def primary(self) -> int:
        """Return the port of the primary, as all sentinels know it; 0 if they disagree."""
        ports = set[int]()
        for sentinel in self.sentinels:
            if sentinel.process.poll() is None:
                with redis.Redis(port=sentinel.port) as client:
                    # redis-py 6.4 fails on the replies to its own methods for SENTINEL.
                    words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                    ports.add(int(client.execute_command(*words)[1]))
        return ports.pop() if len(ports) == 1 else 0


@contextmanager
def start_sentinels(
    binary: str, *, password: str = "", sentinel_password: str = ""
) -> Iterator[Watched]:
    """Run a primary, a replica, and three sentinels that know each other.

    Args:
        binary: of the servers and the sentinels.
        password: of the servers.
        sentinel_password: of the sentinels.
    """
    options: tuple[str, ...] = ("--repl-diskless-sync-delay", "0")
    own: tuple[str, ...] = ()
    lines = ""
    if password:
        options += ("--requirepass", password, "--masterauth", password)
        lines = f"sentinel auth-pass {SERVICE} {password}\n"
    if sentinel_password:
        own = ("--requirepass", sentinel_password)
    with ExitStack() as stack:
        primary = stack.enter_context(Server(binary, *options))
        follow = ("--replicaof", f"127.0.0.1 {primary.port}")
        replica = stack.enter_context(Server(binary, *options, *follow))
        with replica.client(password=password or None) as client:
            until(lambda: client.info("replication")["master_link_status"] == "up", "it follows")
        sentinels = []
        for _ in range(SENTINELS):
            sentinels.append(Sentinel(binary, primary, *own, lines=lines))
            stack.callback(sentinels[-1].stop)
        for sentinel in sentinels:
            with redis.Redis(port=sentinel.port, password=sentinel_password or None) as client:
                until(partial(_knows_all, client), "the sentinels know each other and the replica")
        yield Watched([primary, replica], sentinels)


def state_of(client: redis.Redis) -> dict[str, str]:
    """Return what a sentinel says of the service."""
    found: Any = client.execute_command("SENTINEL", "MASTER", SERVICE)
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


def _knows_all(client: redis.Redis) -> bool:
    state = state_of(client)
    return (state["num-other-sentinels"], state["num-slaves"]) == (str(SENTINELS - 1), "1")


class ScriptedSentinel:
    """Names the server that a test says: for what sentinels do for moments only.

    Attributes:
        names: the port that it names as the primary's; 0 for none.
        received: the commands.
    """

    def __init__(self, names: int) -> None:
        self.names = names
        self.received: list[list[bytes]] = []
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    def _make_handler(self) -> type[socketserver.StreamRequestHandler]:
        sentinel = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while header := self.rfile.readline():
                    words = [
                        self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2]
                        for _ in range(int(header[1:]))
                    ]
                    sentinel.received.append(words)
                    self.wfile.write(sentinel.reply(words[0]))

        return Handler

    def reply(self, command: bytes) -> bytes:
        if command != b"SENTINEL":
            return b"+OK\r\n"
        port = str(self.names)
        return (
            f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode()
            if self.names
            else b"*-1\r\n"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
