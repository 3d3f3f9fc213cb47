"""Lists of URLs, one a line, as all subcommands read them. Pure."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import ConfigurationError, shown

#: Bytes of a line with a URL at most.
MAX_LINE_BYTES = 1 << 16
#: What no URL has within; a carriage return tells that there may be many URLs in what is one line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Line:
    """A line.

    Args:
        data: its bytes, up to MAX_LINE_BYTES of them.
        size: how many bytes it has.
    """

    data: bytes
    size: int

    def url(self) -> str:
        """Return what may be a URL; "" if the line is blank.

        Raises:
            ConfigurationError: there can be none.
        """
        start = shown(self.data, 60)
        if self.size > len(self.data):
            raise ConfigurationError(f"{start} is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            text = self.data.decode().strip("\ufeff \t\r\n")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{start} is not UTF-8") from None
        if _CONTROL.search(text):
            raise ConfigurationError(f"{start} has control characters within")
        return text


def read_lines(readline: Callable[[int], bytes]) -> Iterator[Line]:
    """Read lines.

    Args:
        readline: returns the next line, or so many bytes of it; nothing at the end.
    """
    while data := readline(MAX_LINE_BYTES):
        rest, size = data, len(data)
        while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = readline(MAX_LINE_BYTES)
            size += len(rest)
        yield Line(data, size)
