"""The atomic operations: each Lua file as a script, and the calls made of it.

What the arguments and replies mean is documented at the top of each file in ``lua/``. What scripts
share is in ``prelude_*.lua``: a script names those it needs, whose text is put before its own. What
tests the rights of a script that writes is put before it in any case.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model.header import check, in_range
from scrapy_bloom.bloom.model.schedule import MAX_TIME

#: Status of a reply that holds bytes.
BYTES = "bytes"
#: Status of a reply from another process of the server than the caller knows.
RESTARTED = "restarted"
#: Scripts that a server without memory carries out: they end claims, which gives memory back, or
#: write a few bytes that keep a worker alive.
_ON_FULL_SERVER = frozenset(
    (
        *("heartbeat", "reassign", "release", "touch"),
        # What the first writes, the end of a claim gives back.
        *("ledger_add", "ledger_pack", "ledger_drop", "ledger_rules"),
    )
)
_ALLOW_OOM = "#!lua flags=allow-oom\n"
#: Where a script names its preludes.
_NEEDS = re.compile(r"^-- Needs +(prelude_.+)$", re.MULTILINE)
#: What a script does if the filter has a ledger.
_IN_LEDGER = re.compile(r"--\[\[ with a ledger: (.+) \]\]")
#: Commands that write, of those that scripts may call.
WRITES = frozenset(
    (
        *("BITFIELD", "BITOP", "COPY", "DEL", "EXPIRE", "EXPIREAT", "PERSIST", "RENAME", "UNLINK"),
        *("GETDEL", "GETEX", "INCR", "INCRBY", "SET", "SETBIT", "SETRANGE"),
        *("HDEL", "HINCRBY", "HMSET", "HSET", "HSETNX", "LTRIM", "RPUSH"),
        *("SADD", "SREM", "ZADD", "ZINCRBY", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE"),
    )
)
#: How scripts test their rights, unless they name the other prelude for it.
_GUARD, _OWN_TESTS = "prelude_writes", "prelude_rights"
#: A call in a script: ``call('HSET', ...)``, or ``redis.pcall('MEMORY', 'USAGE', ...)``.
_CALL = re.compile(r"\b(p?call)\('([A-Z_]+)'(?:, '([A-Z]+)')?")
#: Commands whose first argument is a part of their names.
_WITH_SUBCOMMANDS = frozenset({"MEMORY"})
#: What a script is called with.
Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, known to the server by the SHA-1 of its text."""

    name: str
    text: str
    sha: str


class Call(NamedTuple):
    """One call of a script, with all keys of one block.

    Args:
        script: the script.
        keys: its keys.
        args: its arguments.
        binary: whether the reply holds bytes, which a client must not decode.
        uses_keys: whether the keys are sent; if not, they only say which node the call is for.
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    binary: bool = False
    uses_keys: bool = True

    def command(self, *, by_text: bool = False) -> tuple[Argument, ...]:
        """Return the command that makes the call, by the script's SHA-1 or its text."""
        head = ("EVAL", self.script.text) if by_text else ("EVALSHA", self.script.sha)
        keys = self.keys if self.uses_keys else ()
        return (*head, len(keys), *keys, *self.args)


class Wait(NamedTuple):
    """The command WAIT. It counts the writes of its own connection only: see ``session.touches``.

    Args:
        replicas: of each primary that have to acknowledge.
        milliseconds: the server answers after this time at the latest.
    """

    replicas: int
    milliseconds: int


class Acknowledged(NamedTuple):
    """What the primaries answered to WAIT.

    Args:
        replicas: replicas that have acknowledged, of the primary with the fewest.
        refusal: the error of a server that refuses the command; then there are 0.
    """

    replicas: int
    refusal: str = ""


class Reply(NamedTuple):
    """What every script answers: a status, a ring, the server's clock, and the rest.

    Args:
        status: ``ok``, or why not.
        verdicts: one character per URL, from scripts that test or record.
        mark: FILLING, or "".
        version: nonce of the block's ring; "" if there is none.
        state: the ring as JSON; "" if there is none.
        now: Unix time in seconds on the server.
        fields: pairs of names and values.
        data: bytes, with the status BYTES.
    """

    status: str
    verdicts: str = ""
    mark: str = ""
    version: str = ""
    state: str = ""
    now: int = 0
    fields: Mapping[str, str] = {}
    data: bytes = b""

    @classmethod
    def parse(cls, raw: Any) -> "Reply":
        """Read a reply as redis-py returns it, with or without ``decode_responses``.

        Raises:
            StorageError: it is not one of our scripts' replies.
        """
        try:
            if type(raw) is list and len(raw) in (2, 3):
                if raw[0] == b"bytes" and type(raw[1]) is bytes:
                    return cls(BYTES, data=raw[1])
                status, verdicts, *marks = map(_text, raw)
                return cls(status, verdicts, marks[0] if marks else "")
            status, version, state, time, *pairs = [_text(value) for value in raw]
            fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
            now = int(time)
            check(in_range(now, 0, MAX_TIME), "time", now)
            return cls(status, "", "", version, state, now, fields)
        except (TypeError, ValueError):
            raise StorageError(
                f"a script answered {raw!r:.80}: is there a proxy that is not Redis?"
            ) from None


class Commands(NamedTuple):
    """Names of commands, sorted, as ``HSET`` or ``MEMORY USAGE``.

    Args:
        needed: what is refused without them.
        optional: called by ``pcall``: without them, there are other ways.
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...]


def commands_in(text: str) -> Commands:
    """Return the commands that a script's text calls."""
    found: dict[str, set[str]] = {"call": set(), "pcall": set()}
    for how, command, word in _CALL.findall(re.sub(r"--.*", "", text)):
        found[how].add(f"{command} {word}" if command in _WITH_SUBCOMMANDS else command)
    needed = found["call"]
    return Commands(tuple(sorted(needed)), tuple(sorted(found["pcall"] - needed)))


@cache
def load(name: str) -> Script:
    """Load ``lua/<name>.lua`` from the package, behind the preludes that it needs, if any."""
    text = _read(name)
    needed = _NEEDS.search(text)
    preludes = re.findall(r"(prelude_\w+)\.lua", needed[1]) if needed else []
    text = "".join([*map(_read, preludes), text])
    if _OWN_TESTS not in preludes:
        text = _guard(text) + text
    return on_full_server(_script(name, text)) if name in _ON_FULL_SERVER else _script(name, text)


@cache
def with_ledger(script: Script) -> Script:
    """Return a variant of a script that confirms pages, which keeps their requests."""
    own = _read(script.name)
    text = script.text.removesuffix(own) + _read("prelude_ledger") + _IN_LEDGER.sub(r"\1", own)
    return _script(script.name, text)


@cache
def on_full_server(script: Script) -> Script:
    """Return a variant of a script that runs on a server that is out of memory.

    A read-only replica refuses it, even if it writes nothing.
    """
    return _script(script.name, f"{_ALLOW_OOM}{script.text}")


@cache
def on_known_server(script: Script) -> Script:
    """Return a variant of a script whose last argument is the id of the server's process."""
    flags = _ALLOW_OOM if script.text.startswith(_ALLOW_OOM) else ""
    own = script.text.removeprefix(flags)
    return _script(script.name, f"{flags}{_read('prelude_server')}{own}")


def _guard(text: str) -> str:
    """Return what tests the rights of a script before it writes; nothing if it does not write."""
    commands = commands_in(text).needed
    writes = ", ".join(f"{command} = true" for command in commands if command in WRITES)
    if not writes:
        return ""
    names = ", ".join(f"'{command}'" for command in commands)
    guard = _read(_GUARD).replace("--[[ writes ]]", writes)
    return guard.replace("--[[ commands ]]", names)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


def _script(name: str, text: str) -> Script:
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324 - Redis names scripts so


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
