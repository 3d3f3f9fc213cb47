"""Where a migration reads what was seen: a SET, Scrapy's requests.seen, lists of URLs."""

import binascii
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import redis

from scrapy_bloom.bloom.client.driver import reading
from scrapy_bloom.bloom.errors import (
    ConfigurationError,
    StorageError,
    explain,
    showable,
    shown,
)
from scrapy_bloom.fingerprinter import bounded

#: Members that one call of SSCAN returns, about: it takes the server about a millisecond.
SCANNED = 1_024
#: An entry of a source: the window and the item to record, or what is no fingerprint or URL.
Entry = tuple[str, bytes] | str
#: Returns a URL's window and item; raises ConfigurationError for a text that is no URL.
Identify = Callable[[str], tuple[str, bytes]]

#: No URL has these; a carriage return within a line tells that it may be many lines.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FINGERPRINT = re.compile(rb"[0-9A-Fa-f]{40}")
#: What errors of the SET's server name.
OF_SETS = {
    "credentials": "in --from-server (or REDIS_URL, REDIS_PARAMS)",
    "start": "start a server there or name the SET's with --from-server (or REDIS_URL)",
    "rights": "the SET's key and the commands SSCAN and SCARD",
    "other_key": "the SET's key: name another one with --from-set KEY",
}
#: Bytes of a SHA-1. If the first fingerprint is one, all others have to be.
WIDTH = 20
#: Bytes of a fingerprint at most: binary entries begin with a byte less than a tab, lines do not.
MAX_WIDTH = (ord("\t") << 8) - 1
#: Bytes of the length of a binary entry.
_LENGTH_BYTES = 2
_HEAD = WIDTH.to_bytes(_LENGTH_BYTES, "big")


class SetSource:
    """A SET of fingerprints in hexadecimal digits, as scrapy-redis keeps them.

    Args:
        client: a client of the server, or of its cluster.
        key: the SET's.
        label: the server's address, without credentials.
        window: the window that its fingerprints are recorded for.

    Raises:
        ConfigurationError: there is no SET under the key.
        StorageError: the server did not answer.
    """

    def __init__(self, client: Any, key: str, label: str, window: str) -> None:
        self._client, self._key, self._label, self._window = client, key, label, window
        self.name = f"the SET {key!r} on {label}"
        self.total: int = self._call(client.scard)
        if not self.total:
            raise ConfigurationError(
                f"there is no SET {key!r} on {label}: name its key with --from-set KEY "
                "(SCHEDULER_DUPEFILTER_KEY of the project) and its server with --from-server"
            )

    def entries(self) -> Iterator[Entry]:
        """Read the SET: every member that is in it all the time, some of them twice."""
        cursor, read = None, 0
        while cursor != 0:
            cursor, members = self._call(self._client.sscan, cursor or 0, count=SCANNED)
            read += len(members)
            for member in members:
                if _FINGERPRINT.fullmatch(member):
                    yield self._window, bytes.fromhex(member.decode())
                else:
                    yield shown(member, 60)
        # SSCAN of a SET that is gone ends at once, without an error.
        left = min(read, self._call(self._client.scard))
        if left < self.total:
            raise StorageError(
                f"{self.name} had {self.total:,} entries, of which {left:,} are left: it was "
                "deleted, replaced or flushed while it was read. Stop what does that (a "
                "scrapy-redis crawl that ends), restore it, and run the same command again"
            )

    def _call(self, command: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            with reading():
                return command(self._key, *args, **kwargs)
        except (redis.RedisError, OSError) as error:
            raise explain(error, self._label, OF_SETS) from showable(error)


class SeenSource:
    """Scrapy's ``requests.seen``, as it is when this object is made.

    Args:
        path: the file, or the ``JOBDIR`` that it is in.
        window: the window that its fingerprints are recorded for.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, window: str) -> None:
        path, self._window = path / "requests.seen" if path.is_dir() else path, window
        self.name = f"the file {str(path)!r}"
        with open_file(path, "--from-seen") as file:
            # Scrapy keeps all of it in memory, too, as a set of several times the size.
            self._data = file.read()
        self.total = sum(1 for _ in read_seen(self._data))

    def entries(self) -> Iterator[Entry]:
        """Read the file."""
        for number, fingerprint in enumerate(read_seen(self._data), 1):
            yield (self._window, bounded(fingerprint)) if fingerprint else f"entry {number:,}"


def read_seen(data: bytes) -> Iterator[bytes]:
    """Read all entries of ``requests.seen``; b"" stands for one that is no fingerprint.

    Until 2.18, Scrapy writes a line of hexadecimal digits for each fingerprint, from 2.19 on the
    length of each (two bytes, big-endian) and then its bytes, also behind the lines of an older
    version. A crawl that was killed leaves an incomplete entry, and the next crawl appends to it:
    such entries are skipped. Blank lines are left out.
    """
    position, first = 0, b""
    while position < len(data):
        is_binary = data[position] < ord("\t")
        fingerprint, end = _binary_entry(data, position) if is_binary else _line(data, position)
        if fingerprint is None:
            position = end
            continue
        if 0 < len(fingerprint) <= MAX_WIDTH and (len(first) != WIDTH or len(fingerprint) == WIDTH):
            first = first or fingerprint
        else:
            # Go on where the next usual entry begins.
            fingerprint, limit = b"", len(data) if is_binary else end
            found = data.find(_HEAD, position + 1, limit)
            end = limit if found < 0 else found
        yield fingerprint
        position = end


def _binary_entry(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the fingerprint that a binary entry has, b"" if it is cut off; and the entry's end."""
    start += _LENGTH_BYTES
    end = start + int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
    return data[start:end] if end <= len(data) else b"", end


def _line(data: bytes, start: int) -> tuple[bytes | None, int]:
    """Return the fingerprint that a line has, b"" for another text; and the line's end."""
    end = data.find(b"\n", start) + 1 or len(data)
    text = data[start:end].strip()
    try:
        return binascii.unhexlify(text) if text else None, end
    except binascii.Error:
        return b"", end


class UrlSource:
    """A file of URLs, one a line.

    Args:
        file: the file, which is read from its start more than once.
        name: what to call it.
        identify: returns a URL's window and item.
    """

    def __init__(self, file: IO[bytes], name: str, identify: Identify) -> None:
        self._file, self.name, self._identify = file, name, identify
        self.total = sum(1 for _ in self._file)

    def entries(self) -> Iterator[Entry]:
        """Read the file."""
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            try:
                if url := parse_line(line):
                    yield self._identify(url)
            except ConfigurationError as error:
                yield f"line {number:,}: {error!s:.200}"


#: Has a name without credentials, about how many entries there are in total, and the entries.
Source = SetSource | SeenSource | UrlSource


def open_file(path: Path, option: str) -> IO[bytes]:
    """Open a file to read it.

    Raises:
        ConfigurationError: it does not exist, or cannot be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigurationError(
            f"{option} {str(path)!r:.200} cannot be read: {error.strerror}"
        ) from None


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
