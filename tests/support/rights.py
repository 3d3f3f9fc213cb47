"""Users of a server who lack one command each, and what scripts do for them."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from scrapy_bloom.bloom.protocol.scripts import Call, commands_in
from support.servers import Server

USER = "crawler"
#: Of the filter's users. They are shown in no log.
PASSWORD = "s3cret-of-the-user"
#: How a key is read, by its type.
_READ: dict[bytes, tuple[str, ...]] = {
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", "0", "-1"),
    b"string": ("GET",),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
}


def set_user(admin: Any, *rules: str) -> None:
    """Make the user with these rules only."""
    admin.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rules)


def without(command: str) -> str:
    """Return the rule that takes a command from a user."""
    return f"-{command.lower().replace(' ', '|')}"


@contextmanager
def user_of(server: Server, *rules: str) -> Iterator[redis.Redis]:
    """Give a client of a user with these rules."""
    with server.client() as admin:
        set_user(admin, *rules)
        try:
            with server.client(username=USER, password=PASSWORD) as client:
                yield client
        finally:
            admin.acl_deluser(USER)


def denials(admin: Any) -> list[str]:
    """Return what was refused since the last call, but for what redis-py can do without."""
    found = [entry["object"] for entry in admin.acl_log()]
    admin.acl_log_reset()
    return [name for name in found if name != "client|setinfo"]


class Prober:
    """Tries calls as a user who lacks one command: refused, a call must have changed nothing.

    Args:
        server: the server.
        admin: a client with all rights.
        user: a client of the user.

    Attributes:
        tried: names of scripts -> commands without which they were called.
        refused: names of scripts -> commands without which they were refused.
    """

    def __init__(self, admin: redis.Redis, user: redis.Redis) -> None:
        self._admin, self._user = admin, user
        self.tried: dict[str, set[str]] = defaultdict(set)
        self.refused: dict[str, set[str]] = defaultdict(set)

    def probe(self, call: Call) -> None:
        """Make a call without each of its commands; the server is as before in the end."""
        commands = commands_in(call.script.text)
        tried, refused = self.tried[call.script.name], self.refused[call.script.name]
        state, dump = self._state(), self._dump()
        for command in (*commands.needed, *commands.optional):
            set_user(self._admin, "~*", "+@all", without(command))
            tried.add(command)
            is_as_before = True
            try:
                self._user.execute_command(*call.command(by_text=True))
                self._restore(dump)
            except redis.ResponseError:
                is_as_before = self._state() == state
                refused.add(command)
            assert is_as_before, f"{call.script.name} without {command} leaves a part of its writes"

    def _state(self) -> dict[bytes, object]:
        keys: Any = self._admin.keys("*")
        with self._admin.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.type(key)
            kinds = pipeline.execute()
            for key, kind in zip(keys, kinds, strict=True):
                name, *rest = _READ[kind]
                pipeline.execute_command(name, key, *rest)
                pipeline.pexpiretime(key)
            replies = pipeline.execute()
        return dict(zip(keys, zip(replies[::2], replies[1::2], strict=True), strict=True))

    def _dump(self) -> dict[Any, tuple[Any, int]]:
        admin: Any = self._admin
        return {key: (admin.dump(key), max(0, admin.pexpiretime(key))) for key in admin.keys("*")}

    def _restore(self, dump: dict[Any, tuple[Any, int]]) -> None:
        self._admin.flushall()
        for key, (value, expiry) in dump.items():
            self._admin.restore(key, expiry, value, absttl=True)
