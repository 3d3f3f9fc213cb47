"""Imports the memory of another dupefilter, so that a change of filters crawls nothing again.

The source is only read. An entry that is recorded twice counts once, so a migration that was
interrupted can be started again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scrapy import Request
from w3lib.url import canonicalize_url

from scrapy_bloom.bloom.client.transport import FAILURES
from scrapy_bloom.bloom.errors import ConfigurationError, explain
from scrapy_bloom.bloom.filter import CHUNK, BloomFilter
from scrapy_bloom.bloom.protocol.rings import DEFAULT, parts
from scrapy_bloom.bloom.protocol.session import Key, Verdict

#: Bytes of the length before each binary entry of ``requests.seen``. Its first byte is less than
#: a line's first.
_LENGTH_BYTES, _LINE = 2, ord("\t")
_DIGITS = re.compile(rb"(?:[0-9A-Fa-f]{2})+")


class Source(NamedTuple):
    """The memory of another dupefilter.

    Args:
        name: what to call it.
        total: how many entries there are, about; 0 if that isn't known.
        entries: a window and a fingerprint each; as text, what is neither a fingerprint nor a URL.
    """

    name: str
    total: int
    entries: Iterable[Key | str]


class Migrated(NamedTuple):
    """The result of a migration.

    Args:
        read: entries that were read.
        new: those that the filter didn't have.
        skipped: those that are neither a fingerprint nor a URL.
        example: the first of these; "" if there is none.
    """

    read: int
    new: int
    skipped: int
    example: str


def migrate(
    bloom: BloomFilter, source: Source, show: Callable[[int], object] = lambda _: None
) -> Migrated:
    """Record all entries of a source.

    Args:
        bloom: the filter, which is created if it doesn't exist.
        source: the memory of another dupefilter.
        show: is called with the number of entries that are done.

    Raises:
        StorageError: a server can't be used. Entries that are recorded stay.
    """
    read = new = skipped = 0
    example = ""
    for chunk in parts(source.entries, CHUNK):
        keys = [one for one in chunk if not isinstance(one, str)]
        example = example or next((one for one in chunk if isinstance(one, str)), "")
        new += bloom.run(bloom.session.add(keys)).count(Verdict.NEW)
        read, skipped = read + len(chunk), skipped + len(chunk) - len(keys)
        show(read)
    return Migrated(read, new, skipped, example)


def from_set(client: Any, key: str, label: str = "the Redis server") -> Source:
    """Return the memory of scrapy-redis, a SET of fingerprints in hexadecimal digits.

    Args:
        client: one of redis-py's, for a server or a cluster.
        key: the SET's.
        label: the server's address for error messages.

    Raises:
        ConfigurationError: there is no such SET.
        StorageError: the server can't be used.
    """
    try:
        total = client.scard(key) if client.type(key) in (b"set", "set") else 0
    except FAILURES as error:
        raise explain(error, label) from error
    if not total:
        raise ConfigurationError(
            f"There is no SET {key!r} on {label}. Name the key that scrapy-redis uses, by default "
            '"<spider>:dupefilter"'
        )

    def entries() -> Iterator[Key | str]:
        try:
            yield from map(_parse, client.sscan_iter(key, count=CHUNK))
        except FAILURES as error:
            raise explain(error, label) from error

    return Source(f"the SET {key!r} on {label}", total, entries())


def from_seen(path: str | Path) -> Source:
    """Return the memory of a crawl with ``JOBDIR``.

    Args:
        path: the directory, or its file ``requests.seen``.

    Raises:
        OSError: the file can't be read.
    """
    file = Path(path)
    file = file / "requests.seen" if file.is_dir() else file
    # Scrapy keeps them all in memory, too.
    found = list(_seen(file.read_bytes()))
    return Source(f"the file {str(file)!r}", len(found), found)


def from_urls(
    name: str, lines: Iterable[bytes], total: int, parse: Callable[[str], Key | str]
) -> Source:
    """Return URLs, one per line.

    Args:
        name: what to call them.
        lines: the URLs. Empty lines are skipped.
        total: how many there are, about; 0 if that isn't known.
        parse: returns the window and the fingerprint of a URL, or the text if it's to be skipped.
    """
    texts = (line.decode("utf-8-sig", "replace").strip() for line in lines)
    return Source(name, total, (parse(text) for text in texts if text))


def _parse(text: bytes) -> Key | str:
    """Read a fingerprint in hexadecimal digits."""
    known = text.decode("latin-1")
    return (DEFAULT, bytes.fromhex(known)) if _DIGITS.fullmatch(text) else known


def _seen(data: bytes) -> Iterator[Key | str]:
    """Yield what ``requests.seen`` has: lines (up to Scrapy 2.18), or lengths and bytes.

    An entry that a killed crawl has left incomplete is skipped.
    """
    place = 0
    while place < len(data):
        if data[place] >= _LINE:
            end = data.find(b"\n", place) % (len(data) + 1)
            if text := data[place:end].strip():
                yield _parse(text)
            place = end + 1
        else:
            start = place + _LENGTH_BYTES
            place = start + int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
            item = data[start:place]
            yield (DEFAULT, item) if item and place <= len(data) else item.hex()


class ScrapyRedisFingerprinter:
    """Makes scrapy-redis's fingerprints, so that a filter finds what its SET had.

    Set ``REQUEST_FINGERPRINTER_CLASS = "scrapy_bloom.migrate.ScrapyRedisFingerprinter"`` for as
    long as you use a filter that such a SET was migrated to.
    """

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of a request."""
        fields = {
            "body": request.body.hex(),
            "method": request.method,
            "url": canonicalize_url(request.url),
        }
        # Of scrapy-redis 0.7.3 to 0.9.1.
        return hashlib.sha1(json.dumps(fields).encode()).digest()  # noqa: S324
