"""How settings are declared, and parsers that only crawls have: see ``bloom.validators``."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.model.keys import Keys

#: A key has names without braces, and no two names alike.
ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


@dataclass(frozen=True, slots=True)
class Setting:
    """How a setting is declared.

    Args:
        parse: its parser, called with the name and the value that is set.
        help: what it is, in a line.
        about: what else to know, in Markdown.
        default: the default in Markdown, where its value does not say it.
        value: the default.
        option: the option of filters that it is; "" for the crawl's own.
    """

    parse: Callable[[str, Any], Any]
    help: str
    about: str
    default: str
    value: Any = None
    option: str = ""


def declare(
    value: Any,
    parse: Callable[[str, Any], Any],
    text: str,
    about: str = "",
    *,
    default: str = "",
    secret: bool = False,
) -> Any:
    """Declare a setting, whose name and type are the field's: see ``Setting``."""
    factory = (lambda: dict(value)) if isinstance(value, dict) else (lambda: value)
    metadata = {"setting": Setting(parse, text, about, default, value)}
    return field(default_factory=factory, repr=not secret, metadata=metadata)


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
