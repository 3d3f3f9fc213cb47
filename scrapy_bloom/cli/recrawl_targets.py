"""The URLs of ``scrapy bloom recrawl``: read, checked, and made into requests."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.link import Link
from scrapy.spiders import CrawlSpider

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.session import Server, complain
from scrapy_bloom.cli.stored_claims import (
    scan_block,
    stored_claims,
    url_of,
    without_credentials,
)
from scrapy_bloom.crawl.claims import request_codec, workers
from scrapy_bloom.crawl.claims.tracker import META, key_of, set_claims
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.migrate.sources import parse_line
from scrapy_bloom.settings import RUN

#: Wrong lines that are shown.
MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class RecrawlTarget:
    """A URL to crawl again.

    Args:
        url: the URL.
        key: its window and fingerprint.
        item: its fingerprint; not that of its version, or of a key of its own.
        pending: its request, if it has a claim.
    """

    url: str
    key: Key
    item: bytes
    pending: Request | None = field(default=None, compare=False)


class TargetReader:
    """Reads URLs, and makes their requests.

    Args:
        spider: the spider, which is not initialized: only its class counts.
        callback: name of the method that gets the pages; None for the spider's default.
        identifier: finds windows and fingerprints.
    """

    def __init__(self, spider: Spider, callback: str | None, identifier: Identifier) -> None:
        self._spider, self._identifier = spider, identifier
        self.callback = None if callback is None else request_codec.method_of(spider, callback)

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
        target = RecrawlTarget(url, (window, item), item)
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
        if target.pending is not None:
            request = target.pending.replace(
                callback=self.callback, errback=None, cb_kwargs={}, dont_filter=True
            )
        else:
            request = self._new_request(target.url)
            request.dont_filter = True
            set_claims(request, {target.key: 0})
        return request_codec.dump(request, self._spider)

    def _new_request(self, url: str) -> Request:
        """Return a request with the callback that is asked for, or that a link to it would have."""
        number = None if self.callback else self.rule_of(url)
        if number is None:
            return Request(url, callback=self.callback)
        spider: Any = self._spider
        request: Request = spider._build_request(number, Link(url))  # noqa: SLF001 - no other way
        return request

    def rule_of(self, url: str) -> int | None:
        """Return the number of the first rule of a CrawlSpider that matches a URL; or None."""
        rules = self._spider.rules if isinstance(self._spider, CrawlSpider) else ()
        for number, rule in enumerate(rules):
            if rule.link_extractor.matches(url):
                return number
        return None

    def pending(
        self,
        server: Server,
        filters: Mapping[str, BloomFilter],
        blocks: Mapping[str, int],
        targets: Iterable[RecrawlTarget],
        *,
        failed: bool,
    ) -> Iterator[RecrawlTarget]:
        """Yield the spider's claims of targets, under whichever window, key or version.

        Args:
            server: the server.
            filters: window -> filter.
            blocks: window -> the filter's blocks.
            targets: the URLs.
            failed: whether all pages that failed are targets.
        """
        items, without = {target.item for target in targets}, 0
        every = ((window, block) for window, count in blocks.items() for block in range(count))
        for window, block in every:
            bloom = filters[window]
            for page in scan_block(bloom, block):
                own = [one for one in page.claims if workers.is_of(one.owner, self._spider.name)]
                stored = stored_claims(server, bloom, block, [claim.field for claim in own])
                for claim, text in zip(own, stored, strict=True):
                    is_wanted = failed and claim.was_tried
                    target = self._read_claim(window, claim.field, text, items, is_wanted)
                    if target is not None:
                        yield target
                    without += is_wanted and target is None
        if without:
            complain(
                f"{without:,} pages failed and have no request any more: they are crawled when "
                "they are linked again, or by their URLs"
            )

    def _read_claim(
        self, window: str, name: str, stored: bytes | None, items: Collection[bytes], any_url: bool
    ) -> RecrawlTarget | None:
        """Return the target of a claim; None if it is not among some, or cannot be crawled."""
        url = url_of(stored)
        if url is None or not (any_url or self._identifier.identify(url)[1] in items):
            return None
        try:
            text = (stored or b"").decode().split(" ", 4)[4]
            request = request_codec.load(text, self._spider)
            item = self._identifier.item(request)
            keys = map(key_of, request.meta[META])
            key = next(key for key in keys if key[0] == window and field_of(key[1]) == name)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            return None
        return RecrawlTarget(url, key, item, request) if any_url or item in items else None


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
