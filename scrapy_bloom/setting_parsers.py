"""Parsers of settings that only crawls have; as those of ``scrapy_bloom.bloom.validators``."""

import re
from collections.abc import Mapping
from typing import Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.model.keys import Keys

#: Of a primary, at most.
MAX_REPLICAS = 100
#: A key has names without braces, and no two names alike.
ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


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


def replicas(name: str, value: Any) -> int:
    """Parse a number of replicas."""
    meaning = (
        "the replicas of each primary that have the claims on a page's links before the page is "
        "recorded"
    )
    return validators.whole_number(name, value, 0, MAX_REPLICAS, meaning)


def key_prefix(template: str, names: Mapping[str, str]) -> str:
    """Return the prefix of the filter's keys, with names in the places of ``%(spider)s`` and so on.

    Raises:
        ConfigurationError: a place has no name, or the prefix is too long.
    """
    parts = re.split(r"%\((\w+)\)s", template)
    unknown = any(name not in names for name in parts[1::2])
    if unknown or any("%(" in text for text in parts[::2]):
        raise ConfigurationError(
            "BLOOM_KEY is a string in which %(spider)s stands for the spider's name and %(bot)s "
            "for BOT_NAME, and nothing else in parentheses after a percent sign does; got "
            f"{template!r:.100}"
        )
    parts[1::2] = [names[name].translate(ENCODED) for name in parts[1::2]]
    return Keys("".join(parts)).prefix
