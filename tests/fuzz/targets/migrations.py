"""What migrations read: requests.seen, lists of URLs, members of a Redis SET."""

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from scrapy.crawler import Crawler
from scrapy.spiders import Spider

from fuzz.mutate import lines, raw
from fuzz.target import Target
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.fingerprinter import MAX_FINGERPRINT, bounded
from scrapy_bloom.migrate import MAX_WIDTH, WIDTH, SetSource, UrlSource, read_seen
from scrapy_bloom.settings import DEFAULT, BloomSettings

FINGERPRINTS = [bytes([n]) * WIDTH for n in (0, 9, 10, 48, 255)]


def run_seen(data: bytes) -> None:
    """Read requests.seen; what it has is in a file of either form again."""
    found = [*read_seen(data)]
    good = [fingerprint for fingerprint in found if fingerprint]
    assert all(len(fingerprint) <= MAX_WIDTH for fingerprint in good)
    assert all(len(bounded(fingerprint)) <= MAX_FINGERPRINT + 7 for fingerprint in good)
    if len({len(fingerprint) for fingerprint in good}) == 1:
        assert [*read_seen(as_lines(good))] == good
        assert [*read_seen(as_entries(good))] == good


def as_lines(fingerprints: list[bytes]) -> bytes:
    """Return requests.seen as Scrapy wrote it until 2.18."""
    return "".join(f"{fingerprint.hex()}\n" for fingerprint in fingerprints).encode()


def as_entries(fingerprints: list[bytes]) -> bytes:
    """Return requests.seen as Scrapy writes it from 2.19 on."""
    return b"".join(len(each).to_bytes(2, "big") + each for each in fingerprints)


def _seen_seeds() -> Iterator[bytes]:
    yield as_lines(FINGERPRINTS)
    yield as_entries(FINGERPRINTS)
    yield as_lines(FINGERPRINTS) + as_entries(FINGERPRINTS)
    yield as_lines(FINGERPRINTS)[:-7] + as_lines(FINGERPRINTS)
    yield as_entries(FINGERPRINTS)[:-7] + as_entries(FINGERPRINTS)
    yield as_entries([b"x" * 32, b"y" * MAX_WIDTH])
    yield b"\0" * 50_000
    yield b"\n" * 50_000
    yield b"zz" * 25_000


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


class _Client:
    """A client whose SET has these members, five in each page."""

    def __init__(self, members: list[bytes]) -> None:
        self._members = members

    def scard(self, _: str) -> int:
        return len(self._members)

    def sscan(self, _: str, cursor: int, count: int) -> tuple[int, list[bytes]]:
        end = cursor + 5
        return end if end < len(self._members) else 0, self._members[cursor:end]


def run_members(data: bytes) -> None:
    """Read the members of a SET, one a line."""
    members = data.split(b"\n")
    entries = [*SetSource(_Client(members), "key", "Redis", DEFAULT).entries()]
    assert len(entries) == len(members)
    assert all(len(entry[1]) == WIDTH for entry in entries if not isinstance(entry, str))


def _member_seeds() -> Iterator[bytes]:
    yield b"\n".join(fingerprint.hex().encode() for fingerprint in FINGERPRINTS * 3)
    yield b"0" * 39 + b"\n" + b"A" * 40 + b"\n" + b"\xff" * 40 + b"\n" + b"0" * 40 + b"\r"


_IDENTIFIERS = [
    _identifier("scrapy.utils.request.RequestFingerprinter"),
    _identifier("scrapy_bloom.ScrapyRedisFingerprinter"),
]
SEEN = Target(run_seen, _seen_seeds, raw, max_length=2_000)
URLS = Target(run_urls, _url_seeds, lines(raw), max_length=2_000)
MEMBERS = Target(run_members, _member_seeds, lines(raw), max_length=2_000)
