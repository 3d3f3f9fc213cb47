"""Lists of URLs, one a line."""

import re

from scrapy_bloom.bloom.errors import ConfigurationError, shown

#: No URL has these; a carriage return within a line tells that it may be many lines.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def parse_line(line: bytes) -> str:
    """Return what may be a URL; "" if the line is blank.

    Raises:
        ConfigurationError: the line cannot be a URL.
    """
    try:
        text = line.decode().strip("\ufeff \t\r\n")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{shown(line, 60)} is not UTF-8") from None
    if _CONTROL.search(text):
        raise ConfigurationError(f"{shown(line, 60)} has control characters")
    return text
