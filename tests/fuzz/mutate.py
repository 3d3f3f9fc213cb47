"""Changes inputs so that they stay of their format: JSON, or lines of text.

A change of bytes in JSON mostly breaks it, and no code behind ``json.loads`` is reached.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.target import Mutate

#: Values that parsers may stumble over.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 63, 64, 65, 255, 256, 16_384, 16_385, 2**31, 2**32),
    *(2**37, 2**37 + 1, 2**53, 2**62, 2**62 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.0, 1e-15, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "0", "1", "-1", " 1", "1_0", "1.5", "\u0661", "9" * 15, "9" * 16, "9" * 5_000, "x"),
    *("null", "\0", "\n", "\ud800", "\udfff", "\U0001f600", "{}", "[]", "nan", "a" * 300),
    *([], {}, [[]], [None], {"": None}, [1, 1]),
)
_CHARACTERS = "0123456789 -+.eE_,:;/@?#%[]{}()\"'\\\0\n\r\tabzWw\u00e9\u0661\u2028\ud800\U0001f600"


def json_by(change: Callable[[Any, Random], Any]) -> Mutate:
    """Return what changes JSON by a function; bytes that are no JSON are changed as such."""

    def mutate(data: bytes, dice: Random) -> bytes:
        try:
            return json.dumps(change(json.loads(data), dice), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            return raw(data, dice)

    return mutate


def lines(line: Mutate) -> Mutate:
    """Return what drops, doubles or changes a line."""

    def mutate(data: bytes, dice: Random) -> bytes:
        parts = data.split(b"\n")
        place = dice.randrange(len(parts))
        old = parts[place]
        kind = dice.randrange(6)
        parts[place : place + 1] = [[], [old, old]][kind] if kind < 2 else [line(old, dice)]
        return b"\n".join(parts)

    return mutate


def raw(data: bytes, dice: Random) -> bytes:
    """Put something in the place of some bytes."""
    start = dice.randrange(len(data) + 1)
    end = start + dice.choice([0, 1, 1, 2, 8, 1_000])
    odd = str(dice.choice(ODD)).encode(errors="surrogatepass")
    character = dice.choice(_CHARACTERS).encode(errors="surrogatepass")
    noise = dice.randbytes(dice.randrange(1, 9))
    new = dice.choice([b"", data[start:end] * 2, character, odd[:40], noise])
    return data[:start] + new + data[end:]


def change(value: Any, dice: Random) -> Any:
    """Return JSON with one value changed."""
    places = _places(value)
    if not places:
        return _other(value, dice)
    holder, key = dice.choice(places)
    kind = dice.randrange(12)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 1:
        holder[_other(key, dice)] = holder[key]
    elif kind == 2:  # two values change places: one may become a part of itself, which is no JSON
        place, name = dice.choice(places)
        holder[key], place[name] = place[name], holder[key]
    else:
        holder[key] = _other(holder[key], dice)
    return value


json_text = json_by(change)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return the place of each value within a value: its holder, and its key there."""
    found: list[tuple[Any, Any]] = []
    holders = [value]
    for holder in holders:
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            holders += [holder[key] for key in keys]
    return found


def _other(old: Any, dice: Random) -> Any:
    """Return another value in place of one: of the same type, as a rule."""
    odd = dice.choice(ODD)
    if isinstance(old, str):
        return _other_text(old, dice)
    if dice.random() < 0.1:
        for _ in range(dice.choice([1, 5, 40, 400, 2_000])):
            old = [old]
        return old
    if isinstance(old, bool) or old is None or dice.random() < 0.1:
        return odd
    if isinstance(old, int | float):
        return dice.choice([old + 1, old - 1, -old, old * 2, old // 2, old % 1_000 / 3, str(old)])
    if isinstance(old, list):
        return dice.choice([old * 2, old[1:], old[:-1], old[::-1], [*old, odd]])
    return dice.choice([[old], [*old], {**old, "x": odd}])


def _other_text(old: str, dice: Random) -> str:
    if old[:1] in ("{", "[") and dice.random() < 0.8:  # JSON within JSON
        return json_text(old.encode(errors="surrogatepass"), dice).decode(errors="surrogateescape")
    changed = raw(old.encode(errors="surrogatepass"), dice)
    return changed.decode(errors="surrogateescape")
