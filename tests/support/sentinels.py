"""Real sentinels that watch a primary and its replica, and replace it when it is gone."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from support.proxy import Proxy
from support.replicas import FAILED_AFTER_MS, Group, Node, Shard
from support.servers import Server

SERVICE = "mymaster"
SENTINELS, QUORUM = 3, 2
#: Milliseconds until a failover is tried again.
FAILOVER_MS = 5_000


class Sentinel(Server):
    """A sentinel: it rewrites its file of settings, so it has one of its own.

    Args:
        binary: of the server.
        watched: the primary.
        options: further ones.
        password: of the sentinel; None for none.
        auth_pass: the primary's password.
    """

    def __init__(
        self,
        binary: str,
        watched: Server | Node,
        *options: str,
        password: str | None = None,
        auth_pass: str | None = None,
    ) -> None:
        self._watched, self._password, self._auth_pass = watched, password, auth_pass
        super().__init__(binary, *options, *(("--requirepass", password) if password else ()))

    def start(self) -> None:
        path = self.directory / "sentinel.conf"
        if not path.exists():
            name = SERVICE
            lines = [
                f"monitor {name} 127.0.0.1 {self._watched.port} {QUORUM}",
                f"down-after-milliseconds {name} {FAILED_AFTER_MS}",
                f"failover-timeout {name} {FAILOVER_MS}",
                f"myid {secrets.token_hex(20)}",
            ]
            if self._auth_pass:
                lines.append(f"auth-pass {name} {self._auth_pass}")
            path.write_text("".join(f"sentinel {line}\n" for line in lines))
        super().start()

    def command(self) -> list[str]:
        binary, *options = super().command()
        return [binary, str(self.directory / "sentinel.conf"), "--sentinel", *options]

    def state(self) -> dict[str, str]:
        """Return what it says of the service; nothing if it does not answer."""
        try:
            with self.client(password=self._password) as client:
                found: Any = client.execute_command("SENTINEL", "MASTER", SERVICE)
        except redis.RedisError:
            return {}
        is_map = isinstance(found, dict)
        pairs = found.items() if is_map else zip(found[::2], found[1::2], strict=True)
        return {name.decode(): value.decode() for name, value in pairs}

    def agrees(self, port: int) -> bool:
        """Whether it knows all others, and takes the server at a port for the primary."""
        state = self.state()
        expected = {"port": port, "num-slaves": 1, "num-other-sentinels": SENTINELS - 1}
        known = all(state.get(name) == str(value) for name, value in expected.items())
        return known and state["flags"] == "master"


class Watched(Group):
    """A primary, a replica, and the sentinels that watch them.

    Attributes:
        servers: the primary first, as it was in the beginning.
    """

    def __init__(self, shard: Shard, sentinels: list[Sentinel]) -> None:
        super().__init__([shard])
        self.sentinels = sentinels
        self.servers = [node.server for node in shard.nodes]

    def url(self, *, scheme: str = "redis", who: str = "", query: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"{scheme}+sentinel://{who}{hosts}/{SERVICE}/0{query and '?'}{query}"

    def is_whole(self) -> bool:
        (shard,) = self.shards
        primary = shard.find_primary()
        is_linked = any(node.is_linked for node in shard.nodes)
        return bool(primary and is_linked and all(s.agrees(primary.port) for s in self.sentinels))


@contextmanager
def start_sentinels(
    binary: str,
    *options: str,
    password: str | None = None,
    sentinel_password: str | None = None,
    proxied: bool = False,
) -> Iterator[Watched]:
    """Run a primary, a replica, and three sentinels that know each other.

    Args:
        binary: of the servers and the sentinels.
        options: of the primary and the replica.
        password: of the servers.
        sentinel_password: of the sentinels.
        proxied: whether clients, sentinels and the replica go through proxies.
    """
    options = ("--repl-diskless-sync-delay", "0", "--repl-backlog-size", "10mb", *options)
    if password:
        options += ("--requirepass", password, "--masterauth", password)
    with ExitStack() as stack:
        nodes = []
        for _ in range(2):
            node = Node(stack.enter_context(Server(binary, *options)), password=password)
            if proxied:
                node.proxy = stack.enter_context(Proxy(node.server.port))
                node.configure("replica-announce-port", node.port)
            nodes.append(node)
        with nodes[1].client() as client:
            client.replicaof("127.0.0.1", str(nodes[0].port))
        sentinels = []
        for _ in range(SENTINELS):
            own = Sentinel(binary, nodes[0], password=sentinel_password, auth_pass=password)
            sentinels.append(stack.enter_context(own))
        watched = Watched(Shard(nodes), sentinels)
        watched.await_whole()
        yield watched
