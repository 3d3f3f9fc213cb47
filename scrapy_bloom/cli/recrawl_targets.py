"""The URLs of ``scrapy bloom recrawl``: read, checked, and made into requests."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from scrapy import Request, Spider

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.session import complain
from scrapy_bloom.cli.stored_claims import without_credentials
from scrapy_bloom.crawl.claims import request_codec
from scrapy_bloom.crawl.claims.tracker import set_claims
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.migrate.lines import parse_line
from scrapy_bloom.settings import RUN

#: Wrong lines that are shown.
MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class RecrawlTarget:
    """A URL to crawl again.

    Args:
        url: the URL.
        key: its window and fingerprint.
    """

    url: str
    key: Key


class TargetReader:
    """Reads URLs, and makes their requests.

    Args:
        spider: the spider, which is not initialized: only its class counts.
        callback: name of the method that gets the pages; None for the spider's default.
        identifier: finds windows and fingerprints.
    """

    def __init__(self, spider: Spider, callback: str | None, identifier: Identifier) -> None:
        self._spider, self._identifier = spider, identifier
        self._callback = None if callback is None else request_codec.method_of(spider, callback)

    def read(self, url: str) -> RecrawlTarget:
        """Return a target.

        Raises:
            ConfigurationError: the URL cannot be crawled, or no claim can stand for it.
        """
        try:
            parts = urlsplit(url)
            is_page = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
        except ValueError:
            is_page = False
        if not is_page:
            raise ConfigurationError(
                f"{shown(without_credentials(url))} is no URL of a page: give it in full, as "
                "https://example.com/page"
            )
        window, item = self._identifier.identify(url)
        if window == RUN:
            raise ConfigurationError(
                f"{shown(without_credentials(url))} has the window {RUN!r} by BLOOM_RECRAWL_RULES: "
                "each run crawls it when it is found, and none remembers it"
            )
        target = RecrawlTarget(url, (window, item))
        try:
            self.request(target)
        except request_codec.NotKeepableError as error:
            raise ConfigurationError(
                f"{shown(without_credentials(url))} cannot be stored: {error}"
            ) from None
        return target

    def request(self, target: RecrawlTarget) -> str:
        """Return the request of a target as it is stored.

        A redirect of it has ``dont_filter`` as well: else it would end at a page that is seen.
        """
        request = Request(target.url, callback=self._callback, dont_filter=True)
        set_claims(request, {target.key: 0})
        return request_codec.dump(request, self._spider)


def read_targets(
    reader: TargetReader, urls: Sequence[str], file: str | None
) -> tuple[list[RecrawlTarget], int]:
    """Return the targets, each once, and how many URLs are wrong; complain about these.

    Args:
        reader: makes the targets.
        urls: from the command line.
        file: path of a file with further URLs, one a line; ``-`` for the standard input.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    found, wrong = dict[Key, RecrawlTarget](), list[str]()
    given = (("", url.encode("utf-8", "surrogateescape")) for url in urls)
    for where, line in chain(given, _lines(file)):
        target = _read_line(line, reader)
        if isinstance(target, str):
            wrong.append(f"{where}{target}")
        elif target is not None:
            found.setdefault(target.key, target)
    for text in wrong[:MAX_NAMED]:
        complain(text)
    return [*found.values()], len(wrong)


def _read_line(line: bytes, reader: TargetReader) -> "RecrawlTarget | str | None":
    """Return the target of a line, what is wrong with it, or None for a blank line."""
    try:
        url = parse_line(line)
        return reader.read(url) if url else None
    except ConfigurationError as error:
        return str(error)


def _lines(file: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file, each after its number."""
    if file is None:
        return
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            for number, line in enumerate(stream, 1):
                yield f"line {number:,}: ", line
    except OSError as error:
        raise ConfigurationError(f"--file {file!r:.100} cannot be read: {error}") from None
