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
    *(
        "",
        "0",
        "1",
        "-1",
        " 1",
        "1_0",
        "1.5",
        "\u0661",
        "9" * 15,
        "9" * 16,
        "9" * 5_000,
        "x",
        "null",
    ),
    *("\0", "\n", "\ud800", "\udfff", "\U0001f600", "{}", "[]", "nan", "a" * 300),
    *([], {}, [[]], [None], {"": None}, [1, 1]),
)
_CHARACTERS = "0123456789 -+.eE_,:;/@?#%[]{}()\"'\\\0\n\r\tabzWw\u00e9\u0661\u2028\ud800\U0001f600"
#: Containers within containers that a change adds.
_DEPTHS = (1, 5, 40, 400, 2_000)


def json_text(data: bytes, dice: Random) -> bytes:
    """Change a value in JSON; bytes that are no JSON are changed as such."""
    try:
        value = json.loads(data)
        changed = change(value, dice)
        return json.dumps(changed, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return raw(data, dice)


def lines(line: Mutate) -> Mutate:
    """Return what changes lines: one of them, or their order."""

    def mutate(data: bytes, dice: Random) -> bytes:
        parts = data.split(b"\n")
        place = dice.randrange(len(parts))
        kind = dice.randrange(6)
        if kind == 0:
            del parts[place]
        elif kind == 1:
            parts.insert(place, dice.choice(parts))
        else:
            parts[place] = line(parts[place], dice)
        return b"\n".join(parts)

    return mutate


def raw(data: bytes, dice: Random) -> bytes:
    """Change bytes."""
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    end = min(end, start + dice.choice([0, 1, 2, 8, 1_000]))
    part = data[start:end]
    new = dice.choice(
        [
            b"",
            part * 2,
            bytes([dice.randrange(256)]),
            dice.randbytes(dice.randrange(9)),
            str(dice.randrange(2**33)).encode(),
        ]
    )
    return data[:start] + new + data[end:]


def change(value: Any, dice: Random) -> Any:
    """Return JSON with one value changed."""
    slots = _slots(value)
    if not slots:
        return _other(value, value, dice)
    holder, key = dice.choice(slots)
    kind = dice.randrange(12)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 1:
        holder[_near_text(key, dice)] = holder[key]
        return _untied(value)
    elif kind == 2:
        place, name = dice.choice(slots)
        holder[key], place[name] = place[name], holder[key]
        return _untied(value)
    else:
        holder[key] = _other(holder[key], value, dice)
    return value


def _untied(value: Any) -> Any:
    """Return a copy whose parts are all different objects; refuse one that is a part of itself."""
    return json.loads(json.dumps(value))


def _other(old: Any, root: Any, dice: Random) -> Any:
    """Return another value in place of one."""
    kind = dice.randrange(10)
    if kind == 0:
        return dice.choice(ODD)
    if kind == 1:
        return _deep(old, dice)
    if kind == 2:
        slots = _slots(root)
        if slots:
            holder, key = dice.choice(slots)
            return _untied(holder[key])
    return _near(old, dice)


def _deep(value: Any, dice: Random) -> Any:
    for _ in range(dice.choice(_DEPTHS)):
        value = [value] if dice.random() < 0.9 else {"a": value}
    return value


def _near(old: Any, dice: Random) -> Any:
    """Return a value of the same type, as a rule."""
    if isinstance(old, str):
        return _near_text(old, dice)
    if isinstance(old, bool) or old is None:
        return dice.choice(ODD)
    if isinstance(old, int):
        return dice.choice(
            [old + 1, old - 1, -old, old * 2, old // 2, float(old % 2**60), str(old)]
        )
    if isinstance(old, float):
        return dice.choice([old * 2, old / 3, -old, 1 / old if old else 1.0, str(old)])
    if isinstance(old, list):
        return dice.choice([old * 2, old[1:], old[:-1], old[::-1], [*old, dice.choice(ODD)]])
    return dice.choice([[old], [*old], {**old, "x": dice.choice(ODD)}])


def _near_text(old: str, dice: Random) -> str:
    if old[:1] in ("{", "[") and dice.random() < 0.8:
        try:
            return json.dumps(change(json.loads(old), dice), separators=(",", ":"))
        except (ValueError, RecursionError):
            pass
    start, end = sorted(dice.randrange(len(old) + 1) for _ in range(2))
    new = dice.choice(["", dice.choice(_CHARACTERS), old[start:end] * 2, _odd_text(dice)])
    return old[:start] + new + old[dice.choice([start, min(start + 1, len(old)), end]) :]


def _odd_text(dice: Random) -> str:
    odd = dice.choice(ODD)
    return odd if isinstance(odd, str) else str(odd)[:40]


def _slots(value: Any) -> list[tuple[Any, Any]]:
    """Return the place of each value within a value: its holder, and its key there."""
    found: list[tuple[Any, Any]] = []
    holders = [value]
    while holders:
        holder = holders.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            holders += [holder[key] for key in keys]
    return found


def within(
    unpack: Callable[[bytes], bytes], mutate: Mutate, pack: Callable[[bytes], bytes]
) -> Mutate:
    """Return what changes inputs that are packed; damaged ones are changed as they are."""

    def change_inside(data: bytes, dice: Random) -> bytes:
        try:
            inside = unpack(data)
        except Exception:  # of whatever unpacks
            return raw(data, dice)
        return pack(mutate(inside, dice))

    return change_inside
