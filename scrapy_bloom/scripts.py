"""The atomic operations: each Lua file as a script, and the calls made of it.

What the arguments and replies mean is documented at the top of each file in ``lua/``.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from scrapy_bloom.errors import StorageError

#: What a script is called with.
Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, known to the server by the SHA-1 of its text."""

    name: str
    text: str
    sha: str


class Call(NamedTuple):
    """One call of a script, with all keys of one block."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]


class Reply(NamedTuple):
    """What every script answers: a status, a ring, the server's clock, and the rest.

    Args:
        status: ``ok``, or why not.
        verdicts: one character per URL, of claim and contains.
        mark: what is worth noting beside the verdicts, "" if nothing is.
        v: nonce of the block's ring; "" if there is none.
        state: the ring as JSON; "" if there is none.
        now: Unix time in seconds on the server.
        fields: pairs of names and values.
    """

    status: str
    verdicts: str = ""
    mark: str = ""
    v: str = ""
    state: str = ""
    now: int = 0
    fields: Mapping[str, str] = {}

    @classmethod
    def parse(cls, raw: Any) -> "Reply":
        """Read a reply as redis-py returns it, with or without ``decode_responses``.

        Raises:
            StorageError: it is not one of our scripts' replies.
        """
        try:
            if type(raw) is list and len(raw) in (2, 3):
                status, verdicts, *marks = map(_text, raw)
                return cls(status, verdicts, marks[0] if marks else "")
            status, v, state, now, *pairs = [_text(value) for value in raw]
            fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
            return cls(status, "", "", v, state, int(now), fields)
        except (TypeError, ValueError):
            raise StorageError(
                f"a script answered {raw!r:.80}: is something in between that is no Redis?"
            ) from None


@cache
def load(name: str) -> Script:
    """Load ``lua/<name>.lua`` from the package."""
    text = resources.files("scrapy_bloom").joinpath("lua", f"{name}.lua").read_text("utf-8")
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324 - Redis names scripts so


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
