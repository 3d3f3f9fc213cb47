"""The URLs of ``scrapy bloom recrawl``: read, checked, and made into requests."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
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
from scrapy_bloom.cli.stored_claims import scan_claims, stored_claims, url_of, without_credentials
from scrapy_bloom.crawl.claims import request_codec, workers
from scrapy_bloom.crawl.claims.tracker import META, key_of, set_claims
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.migrate import open_file, parse_line
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
        callback: its method that gets the pages; None for the default.
        identifier: finds windows and fingerprints.
    """

    def __init__(self, spider: Spider, callback: Any, identifier: Identifier) -> None:
        self.spider, self._callback, self._identifier = spider, callback, identifier

    def read(self, url: str) -> RecrawlTarget:
        """Return a target.

        Raises:
            ConfigurationError: the URL cannot be crawled, or no claim can stand for it.
        """
        name = shown(without_credentials(url))
        if not _is_of_a_page(url):
            raise ConfigurationError(
                f"{name} is no URL of a page: give it in full, as https://example.com/page"
            )
        window, item = self._identifier.identify(url)
        if window == RUN:
            raise ConfigurationError(
                f"{name} has the window {RUN!r} by BLOOM_RECRAWL_RULES: each run crawls it when it "
                "is found, and none remembers it"
            )
        target = RecrawlTarget(url, (window, item), item)
        try:
            self.request(target)
        except request_codec.NotKeepableError as error:
            raise ConfigurationError(f"{name} cannot be stored: {error}") from None
        return target

    def request(self, target: RecrawlTarget) -> str:
        """Return the request of a target as it is stored.

        A redirect of it has ``dont_filter`` as well: else it would end at a page that is seen.
        """
        if target.pending is not None:
            request = target.pending.replace(
                callback=self._callback, errback=None, cb_kwargs={}, dont_filter=True
            )
        else:
            request = self._new_request(target.url)
            request.dont_filter = True
            set_claims(request, {target.key: 0})
        return request_codec.dump(request, self.spider)

    def _new_request(self, url: str) -> Request:
        """Return a request with the callback that is asked for, or that a link to it would have."""
        number = None if self._callback else self._rule_of(url)
        if number is None:
            return Request(url, callback=self._callback)
        spider: Any = self.spider
        request: Request = spider._build_request(number, Link(url))  # noqa: SLF001 - no other way
        return request

    def _rule_of(self, url: str) -> int | None:
        """Return the number of the first rule of a CrawlSpider that matches a URL; or None."""
        rules = self.spider.rules if isinstance(self.spider, CrawlSpider) else ()
        matches = (n for n, rule in enumerate(rules) if rule.link_extractor.matches(url))
        return next(matches, None)

    def warn_of_rules(self, targets: Iterable[RecrawlTarget]) -> None:
        """Say that pages of a CrawlSpider yield no items, if no callback gets them."""
        if self._callback is None and isinstance(self.spider, CrawlSpider):
            count = sum(self._rule_of(target.url) is None for target in targets)
            if count:
                complain(
                    f"no rule of spider {self.spider.name!r} matches {count:,} of the URLs: only "
                    "their links are followed, unless --callback says which method gets the pages"
                )

    def read_claim(
        self, window: str, name: str, stored: bytes | None, items: Collection[bytes] | None
    ) -> RecrawlTarget | None:
        """Return a claim's target; None if it is of none of the items, or cannot be crawled."""
        url = url_of(stored)
        if url is None or not (items is None or self._identifier.identify(url)[1] in items):
            return None
        try:
            text = (stored or b"").decode().split(" ", 4)[4]
            request = request_codec.load(text, self.spider)
            item = self._identifier.item(request)
            keys = map(key_of, request.meta[META])
            key = next(key for key in keys if key[0] == window and field_of(key[1]) == name)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            return None
        is_wanted = items is None or item in items
        return RecrawlTarget(url, key, item, request) if is_wanted else None


def _is_of_a_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def read_targets(
    reader: TargetReader, urls: Iterable[str], file: str | None
) -> tuple[list[RecrawlTarget], int]:
    """Return the targets, each once, and how many URLs are wrong; complain about these."""
    found, wrong = dict[Key, RecrawlTarget](), list[str]()
    given = (("", url.encode("utf-8", "surrogateescape")) for url in urls)
    for where, line in chain(given, _lines(file)):
        try:
            if url := parse_line(line):
                target = reader.read(url)
                found.setdefault(target.key, target)
        except ConfigurationError as error:
            wrong.append(f"{where}{error}")
    for text in wrong[:MAX_NAMED]:
        complain(text)
    return [*found.values()], len(wrong)


def _lines(file: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file, each after its number; ``-`` is the standard input."""
    if file is not None:
        is_stdin = file == "-"
        with (
            nullcontext(sys.stdin.buffer) if is_stdin else open_file(Path(file), "--file") as stream
        ):
            for number, line in enumerate(stream, 1):
                yield f"line {number:,}: ", line


def pending_targets(
    server: Server,
    filters: Mapping[str, BloomFilter],
    blocks: Mapping[str, int],
    reader: TargetReader,
    items: Collection[bytes],
    *,
    failed: bool,
) -> Iterator[RecrawlTarget]:
    """Yield the spider's claims of items under any key or version, or of all pages that failed."""
    without = 0
    for window, bloom in ((window, filters[window]) for window in blocks):
        for block, page in scan_claims(bloom, blocks[window]):
            own = [one for one in page.claims if workers.is_of(one.owner, reader.spider.name)]
            stored = stored_claims(server, bloom, block, [claim.field for claim in own])
            for claim, text in zip(own, stored, strict=True):
                is_any = failed and claim.was_tried
                target = reader.read_claim(window, claim.field, text, None if is_any else items)
                if target is not None:
                    yield target
                without += is_any and target is None
    if without:
        complain(
            f"{without:,} pages failed and have no request any more: they are crawled when they "
            "are linked again, or by their URLs"
        )
