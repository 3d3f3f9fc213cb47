"""Reads the URLs that commands are about."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli.output import quoted

STDIN = "-"


def read_urls(urls: Sequence[str], file: str | None = None) -> list[str]:
    """Return the given URLs and those of a file, each once.

    Args:
        urls: URLs; ``-`` reads the standard input.
        file: its path, or ``-``.

    Raises:
        ConfigurationError: a text isn't the URL of a page, or the file can't be read.
    """
    found: dict[str, None] = {}
    for url in urls:
        found |= dict.fromkeys(_lines(STDIN)) if url == STDIN else {_checked(url, "URL"): None}
    if file is not None:
        found |= dict.fromkeys(_lines(file))
    return list(found)


def _lines(file: str) -> Iterator[str]:
    """Yield the URLs of a file, one per line; empty lines are skipped."""
    name = "stdin" if file == STDIN else file
    try:
        if file == STDIN:
            yield from _of_lines(sys.stdin.buffer, name)
            return
        with Path(file).open("rb") as stream:
            yield from _of_lines(stream, name)
    except OSError as error:
        raise ConfigurationError(
            f"--file {quoted(file)} can't be read ({error.strerror}). Check the path"
        ) from None


def _of_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        if text := line.decode("utf-8", "replace").strip("\ufeff \t\r\n"):
            yield _checked(text, f"line {number:,} of {name},")


def _checked(text: str, what: str) -> str:
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    except ValueError:
        is_url = False
    if not is_url or "\ufffd" in text or any(character.isspace() for character in text):
        raise ConfigurationError(
            f"{what} {quoted(text)} isn't the URL of a page. Write it in full, for example "
            "https://example.com/page"
        )
    return text
