"""Reads the values of settings, which may be text: each kind says what it accepts."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from numbers import Real
from typing import Any, NamedTuple

from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model import spec
from scrapy_bloom.bloom.model.schedule import Span
from scrapy_bloom.bloom.model.spec import Range, are_seeds
from scrapy_bloom.rules import NEVER, Rule, parse_rule

#: Exceptions that a wrong value may raise.
FAILURES = (ValueError, TypeError, OverflowError, RecursionError)


class Kind(NamedTuple):
    """The kind of values that a setting accepts.

    Args:
        accepts: the kind in words.
        parse: returns the value. It raises a ConfigurationError with the reason, or another
            exception if ``accepts`` says it all.
    """

    accepts: str
    parse: Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise TypeError
    return float(value)


def one_of(*choices: str) -> Kind:
    """Accept some texts."""

    def parse(value: Any) -> str:
        return choices[choices.index(_text(value).lower())]

    return Kind("one of " + ", ".join(f'"{choice}"' for choice in choices), parse)


def _whole(value: Any) -> int:
    number = int(real := _real(value))
    if number != real:
        raise ValueError
    return number


def number(among: Range) -> Kind:
    """Accept the numbers of a range."""

    def parse(value: Any) -> float:
        found = _whole(value) if among.kind is int else _real(value)
        if not among.has(found):
            raise ValueError
        return found

    return Kind(str(among), parse)


def seconds(low: float, high: float) -> Kind:
    """Accept a number of seconds, or a length of time."""

    def parse(value: Any) -> float:
        try:
            seconds = value.total_seconds() if isinstance(value, timedelta) else _real(value)
        except (ValueError, TypeError):
            seconds = _duration(value)
        return float(number(Range(low, high, float)).parse(seconds))

    return Kind(f'seconds from {low:g} to {high:g}, for example 5 or "5 seconds"', parse)


def _duration(value: Any) -> int:
    try:
        span = Span.parse(value)
    except ConfigurationError:
        span = None
    if span is None or span.in_months:
        raise ValueError
    return span.count


def _window(value: Any) -> Span | str:
    is_never = isinstance(value, str) and value.strip().lower() == NEVER
    return NEVER if is_never else Span.parse(value)


def _seeds(value: Any) -> int | tuple[int, ...]:
    if isinstance(value, str) and re.search(r"[],[]", value):
        value = json.loads(f"[{value.strip('[] ')}]")
    found = tuple(map(_whole, value)) if isinstance(value, list | tuple) else _whole(value)
    if not are_seeds(found):
        raise ValueError
    return found


def _http_codes(value: Any) -> frozenset[int]:
    if isinstance(value, str):
        value = value.strip("[] ").split(",")
    found: set[int] = set()
    for part in value:
        low, _, high = str(part).replace(" ", "").partition("-")
        if not all(re.fullmatch("[1-9][0-9]{2}", one) for one in (low, high or low)):
            raise ValueError
        found.update(range(int(low), int(high or low) + 1))
    if not found:
        raise ValueError
    return frozenset(found)


def _arguments(value: Any) -> dict[str, Any]:
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return dict(value)


def _rules(value: Any) -> tuple[Rule, ...]:
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        raise TypeError
    found = []
    for place, rule in enumerate(value, 1):
        try:
            found.append(parse_rule(rule))
        except FAILURES as error:
            why = error if isinstance(error, ConfigurationError) else f"Use {RULES.accepts}"
            raise ConfigurationError(f"Rule {place} is {shown(rule)}. {why}") from None
    return tuple(found)


FLAG = Kind("True or False", lambda value: BaseSettings({"": value}).getbool(""))
TEXT = Kind("text", _text)
ARGUMENTS = Kind('a dict, or JSON, for example {"username": "crawler"}', _arguments)
WINDOW = Kind('"never", or a length of time, for example "2 months" or "36 hours"', _window)
SPAN = Kind('a length of time, for example "1 month" or "12 hours"', Span.parse)
DURATION = Kind(
    'a length of time in weeks or shorter units, for example "2 hours" or "2 days"', _duration
)
RULES = Kind(
    'pairs of a regular expression and a window, for example [(r"/list/", "1 day")]. On the '
    'command line, write JSON: [["/list/", "1 day"]]',
    _rules,
)
SEEDS = Kind(spec.SEEDS, _seeds)
HTTP_CODES = Kind('HTTP codes as text or a list, for example "200-399, 404"', _http_codes)


def shown(value: Any) -> str:
    """Return a value as errors show it."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # an int of more than 4,300 digits
        return f"({type(value).__name__})"
