"""Numbers as people write them: ``"10M"``, ``"2 GB"``, ``"0.1%"``, ``"30 seconds"``. Pure."""

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

#: Multiples of a count, in lower case.
COUNTS = MappingProxyType(
    {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "thousand": 10**3, "million": 10**6}
    | {"billion": 10**9}
)
#: Units of memory: GB is 1000 MB, GiB is 1024 MiB; "1G" is 1 GB, as in Redis's configuration.
BYTES = MappingProxyType(
    {"b": 1, "bytes": 1}
    | {f"{letter}{b}": 1000**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")}
    | {f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", 1)}
)
SHARES = MappingProxyType({"%": Fraction(1, 100), "percent": Fraction(1, 100)})
TIMES = MappingProxyType(
    dict.fromkeys(("ms", "millisecond", "milliseconds"), Fraction(1, 1000))
    | dict.fromkeys(("s", "sec", "second", "seconds"), Fraction(1))
    | dict.fromkeys(("min", "minute", "minutes"), Fraction(60))
    | dict.fromkeys(("h", "hour", "hours"), Fraction(3600))
)
#: Of 40 digits at most: Python reads no integers of more than 4,300.
_TEXT = re.compile(
    r"(\d{1,3}(?:[,_]\d{3}){1,12}|\d{1,40})(\.\d{1,40})?\s*([a-z]+|%)?", re.ASCII | re.IGNORECASE
)


def read(text: str, units: Mapping[str, int | Fraction]) -> int | float | None:
    """Return the number that a text stands for; an int if it is whole, None if it is no number.

    Example: ``read("1.5M", COUNTS)`` is 1500000.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return None
    whole, fraction, word = match.groups()
    unit = units.get(word.lower()) if word else 1
    if unit is None:
        return None
    value = Fraction(re.sub("[,_]", "", whole) + (fraction or "")) * unit
    return int(value) if value.denominator == 1 else float(value)


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its word: ``1 URL``, ``1,200 URLs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
