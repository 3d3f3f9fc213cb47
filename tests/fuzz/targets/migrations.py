"""What migrations read: lists of URLs."""

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from scrapy.crawler import Crawler
from scrapy.spiders import Spider

from fuzz.mutate import lines, raw
from fuzz.target import Target
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.migrate import UrlSource
from scrapy_bloom.settings import DEFAULT, BloomSettings


def _identifier(fingerprinter: str) -> Identifier:
    session = SimpleNamespace(
        crawler=Crawler(Spider, {"REQUEST_FINGERPRINTER_CLASS": fingerprinter}),
        settings=BloomSettings(),
        window=DEFAULT,
        is_chosen=False,
    )
    return Identifier(cast("Any", session))


def run_urls(data: bytes) -> None:
    """Read a list of URLs."""
    for identifier in _IDENTIFIERS:
        source = UrlSource(io.BytesIO(data), "the file", identifier.identify)
        entries = [*source.entries()]
        assert len(entries) <= source.total
        assert all(entry if isinstance(entry, str) else entry[1] for entry in entries)


def _url_seeds() -> Iterator[bytes]:
    yield b"https://example.com/a?b=2&a=1#c\r\n\nhttp://[::1]:80/%zz\nftp://\xc3\xa4.de/\n"
    yield b"\xef\xbb\xbfhttps://a\nhttps://b c/\tx\nmailto:a@b\nhttps://user:pw@h:99999/\n\xff\n"
    yield b"data:,a\nhttp://" + b"a" * 20_000 + b"/?" + b"&a=1" * 5_000


_IDENTIFIERS = [
    _identifier("scrapy.utils.request.RequestFingerprinter"),
    _identifier("scrapy_bloom.ScrapyRedisFingerprinter"),
]
URLS = Target(
    run_urls, _url_seeds, lines(raw), ("http://", "[", "]", "%", "#", "?"), max_length=2_000
)
