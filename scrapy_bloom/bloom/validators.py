"""Parsers of settings and parameters: from user input to a checked value.

Every function takes the name of the setting or parameter and returns the value, or raises a
ConfigurationError that names it, shows the value and says what would be right. Text is parsed,
because ``scrapy crawl -s NAME=VALUE`` gives text.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from ipaddress import IPv6Address
from itertools import islice
from types import MappingProxyType
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.model.hashing import MAX_SEED
from scrapy_bloom.bloom.model.header import is_text
from scrapy_bloom.bloom.model.ring_codec import MAX_GROWTH
from scrapy_bloom.bloom.model.schedule import NEVER, SECONDS, Span, parse_span, plain
from scrapy_bloom.bloom.model.sizing import MAX_HASHES, MIN_ERROR_RATE

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


def read_number(text: str, units: Mapping[str, int | Fraction]) -> int | float | None:
    """Return the number that a text stands for; an int if it is whole, None if it is no number.

    Example: ``read_number("1.5M", COUNTS)`` is 1500000.
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


#: URLs at most; more than any 512 MiB bitmaps in 16,384 blocks hold.
MAX_CAPACITY = 10**13
#: Bytes at most: a pebibyte.
MAX_MEMORY_BYTES = 1 << 50
#: Where a port listens unless another address is named.
LOCAL_HOST = "127.0.0.1"
MAX_PORT, MAX_HOST = 65_535, 253
#: An IPv6 address in brackets, or an IPv4 address or a name of labels; and a port.
_ADDRESS = re.compile(
    r"(?:(?:\[(.+)\]|([A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*)):)?([0-9]{1,5})"
)
#: Characters of a run's id at most.
MAX_RUN_ID = 100


def is_unset(value: Any) -> bool:
    """Whether a value means "not set": None, or its spellings on the command line."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "None"))


def whole_number(
    name: str, value: Any, low: int, high: int, meaning: str, *, words: Mapping[str, int] = COUNTS
) -> int:
    """Parse an integer; ``1_000_000``, ``"1,000,000"``, ``"1M"`` and ``1e6`` are one."""
    number = _number(value, words)
    if number is None or not low <= number <= high or number != int(number):
        raise ConfigurationError(
            f"{name} is {meaning}, a whole number from {low:,} to {high:,}; got {shown(value)}"
        )
    return int(number)


def whole(
    low: int, high: int, meaning: str, *, words: Mapping[str, int] = COUNTS
) -> Callable[[str, Any], int]:
    """Return the parser of an integer: see ``whole_number``."""
    return lambda name, value: whole_number(name, value, low, high, meaning, words=words)


capacity = whole(1, MAX_CAPACITY, 'the number of URLs to remember (say 1_000_000 or "1M")')
#: A number of bytes; 0 is no limit.
memory = whole(
    0,
    MAX_MEMORY_BYTES,
    'the memory to use at most, in bytes or as "2 GB" or "512 MiB", 0 for any',
    words=BYTES,
)


def error_rate(name: str, value: Any) -> float:
    """Parse a false-positive rate, 1e-15 <= p < 1."""
    number = _number(value, SHARES)
    if number is None or not MIN_ERROR_RATE <= number < 1:
        raise ConfigurationError(
            f"{name} is the share of new URLs that may be taken for seen, at least "
            f'{MIN_ERROR_RATE:g} and less than 1 (say 1e-5, or "0.001%"); got {shown(value)}'
        )
    return float(number)


def window(name: str, value: Any) -> Span | str:
    """Parse how long URLs are remembered: a span of time or of runs, or NEVER to forget nothing."""
    if value is False or (isinstance(value, str) and value.strip().lower() == NEVER):
        return NEVER
    return parse_span(name, value)


def flag(name: str, value: Any) -> bool:
    """Parse a yes or no, as Scrapy does."""
    text = _text(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"{name} is True or False; got {shown(value)}")
    return text in ("true", "1")


def growth(name: str, value: Any) -> float:
    """Parse the size of the next layer in sizes of the last one; 0 never grows."""
    number = _number(value)
    if number is None or not (number == 0 or 1 <= number <= MAX_GROWTH):
        raise ConfigurationError(
            f"{name} is the size of the next layer in sizes of the last one, from 1 to "
            f"{MAX_GROWTH}, or 0 to never grow (say 2); got {shown(value)}"
        )
    return number


def run(name: str, value: Any) -> str:
    """Parse the id of a run."""
    value = plain(value)
    text = _text(value) if isinstance(value, str | int) else ""
    if isinstance(value, bool) or not 1 <= len(text) <= MAX_RUN_ID:
        raise ConfigurationError(
            f"{name} is an id that all workers of a run share, a text of 1 to {MAX_RUN_ID} "
            f"characters or a number (say a date); got {shown(value)}"
        )
    return text


def seconds(name: str, value: Any, low: float, high: float) -> float:
    """Parse a length of time: seconds, text as ``"30 seconds"`` or ``"500 ms"``, a timedelta."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    number = _number(given, TIMES)
    if number is None or not low <= number <= high:
        raise ConfigurationError(
            f'{name} is a time from {low:g} to {high:g} seconds, a number or as "30 seconds"; got '
            f"{shown(value)}"
        )
    return float(number)


def seeds(name: str, value: Any) -> tuple[int, ...] | int:
    """Parse a list of seeds, or how many to draw."""
    if isinstance(value, str):
        value = _literal(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _seed_list(name, value)
    meaning = "how many seeds to draw, or a list of seeds"
    if _number(value) is None:
        # It may be a list that is not written as one.
        kind = type(value).__name__
        raise ConfigurationError(f"{name} is {meaning}; got something of type {kind}")
    return whole_number(name, value, 1, MAX_HASHES, meaning)


def _seed_list(name: str, value: Sequence[Any]) -> tuple[int, ...]:
    found = tuple(plain(seed) for seed in islice(value, MAX_HASHES + 1))
    are_seeds = all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in found)
    if not are_seeds or not 1 <= len(found) <= MAX_HASHES or len(set(found)) < len(found):
        # Seeds are secret: none of them is shown.
        raise ConfigurationError(
            f"{name} as a list has 1 to {MAX_HASHES} different integers from 0 to {MAX_SEED}; got "
            f"a list of {len(found)}"
        )
    return found


def text(name: str, value: Any) -> str:
    """Parse a text."""
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{name} is a string; write it in quotes (got {type(value).__name__})"
        )
    return value.strip()


def unicode(name: str, value: Any) -> str:
    """Parse a text as it is."""
    if not is_text(value):
        raise ConfigurationError(f"{name} is a str in valid Unicode; got {shown(value)}")
    return str(value)


def one_of(*choices: str) -> Callable[[str, Any], str]:
    """Return the parser of one of a few words."""

    def parse(name: str, value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word is None or word not in choices:
            words = ", ".join(repr(word) for word in choices)
            raise ConfigurationError(f"{name} is one of {words}; got {shown(value)}")
        return word

    return parse


def whole_seconds(name: str, value: Any) -> int:
    """Parse a length of time of any size, in whole seconds."""
    expected = f'{name} is a length of time such as "1 day", "6 hours" or a number of seconds'
    try:
        span = parse_span(name, value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{expected}; got {str(error).partition('; got ')[2]}") from None
    if span.unit != SECONDS:
        raise ConfigurationError(f"{expected}; got {shown(value, 60)}")
    return span.count


def listen_address(name: str, value: Any) -> tuple[str, int]:
    """Parse where to listen: a port on this machine alone, or ``"host:port"``."""
    given = _text(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    match = _ADDRESS.fullmatch(given)
    ipv6, host, port = match.groups() if match else ("", "", "")
    is_host = _is_ipv6(ipv6) if ipv6 else len(host or "") <= MAX_HOST
    if not match or not is_host or int(port) > MAX_PORT:
        raise ConfigurationError(
            f"{name} is a port from 0 to {MAX_PORT} (0 for any free one), or an address with one, "
            f'as "0.0.0.0:9410" or "[::1]:9410"; got {shown(value, 60)}'
        )
    return ipv6 or host or LOCAL_HOST, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        return bool(IPv6Address(text))
    except ValueError:
        return False


def statuses(name: str, value: Any) -> frozenset[int]:
    """Parse HTTP statuses and ranges of them."""
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = [parts]
    try:
        found = frozenset(status for part in parts for status in _status_range(str(part).strip()))
    except Exception:  # any __str__ may fail
        found = frozenset()
    if not found:
        raise ConfigurationError(
            f'{name} is a list of HTTP statuses and ranges of them, as "200-399, 404" or '
            f"[200, 301, 404], each from 100 to 599; got {shown(value, 60)}"
        )
    return found


def _status_range(text: str) -> range:
    match = re.fullmatch(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(text)
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Parse a dict, or its JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        # The value is not shown: it may hold a password.
        raise ConfigurationError(f"{name} is a dict with str keys, or its JSON; got something else")
    return dict(value)


def _number(
    value: Any, words: Mapping[str, int | Fraction] = MappingProxyType({})
) -> int | float | None:
    if isinstance(value, str):
        number = read_number(value, words)
        value = _literal(value) if number is None else number
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an int beyond all floats
        return None


def _literal(text: str) -> Any:
    """Read a Python number or list of numbers from text; the text itself if it is none."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _text(value: Any) -> str:
    """Return a value as text; "" if it has none, as an int beyond 4,300 digits."""
    try:
        return str(value).strip()
    except Exception:  # any __str__ may fail
        return ""
