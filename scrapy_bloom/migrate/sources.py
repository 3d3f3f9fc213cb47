"""Where a migration reads what was seen: a SET, Scrapy's requests.seen, lists of URLs."""

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import redis

from scrapy_bloom.bloom.errors import ConfigurationError, explain, showable, shown
from scrapy_bloom.migrate.batches import BATCH, MemberBatch
from scrapy_bloom.migrate.lines import Line, read_lines
from scrapy_bloom.migrate.requests_seen import WIDTH, is_binary, read_seen
from scrapy_bloom.settings import RUN

T = TypeVar("T")
#: Returns a URL's window and item, or raises ConfigurationError if it is none.
Identify = Callable[[str], tuple[str, bytes]]

#: Bytes of a file of URLs that are read at once to count its lines.
_CHUNK = 1 << 20
_FINGERPRINT = re.compile(rb"[0-9A-Fa-f]{40}")
#: What errors of the SET's server name.
OF_SETS = {
    "credentials": "in --from-server (or REDIS_URL, REDIS_PARAMS)",
    "start": "start a server there or name the SET's with --from-server (or REDIS_URL)",
    "rights": "the SET's key and the commands SSCAN, SCARD and TYPE",
    "other_key": "the SET's key: name another one with --from-set KEY",
}


class SetSource:
    """A SET of fingerprints in hexadecimal digits, as scrapy-redis keeps them.

    ``SSCAN`` returns whatever is in the SET from the first call to the last.

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
        self._client, self._label, self._window = client, label, window
        self._key = key
        self.name = f"the SET {key!r} on {label}"
        kind = self._ask(lambda: client.type(key)).decode()
        if kind != "set":
            found = "nothing" if kind == "none" else f"a {kind}"
            raise ConfigurationError(
                f"the key {key!r} on {label} holds {found}, and scrapy-redis keeps fingerprints in "
                "a SET: name its key with --from-set KEY (SCHEDULER_DUPEFILTER_KEY of the project) "
                "and its server with --from-server"
            )

        self._members = self._count()

    def total(self) -> int:
        """Return how many members the SET had at first."""
        return self._members

    def batches(self, size: int = BATCH) -> Iterator[MemberBatch]:
        """Read the SET. A member may be in two batches."""
        cursor = None
        while cursor != 0:
            cursor, members = self._scan(cursor or 0, size)
            batch = MemberBatch()
            for member in members:
                if _FINGERPRINT.fullmatch(member):
                    batch.take(self._window, bytes.fromhex(member.decode()))
                else:
                    batch.skip(shown(member, 60))
            yield batch

    def problem(self, read: int) -> str:
        """Say if entries were lost: of a SET that is gone, SSCAN finds the end at once."""
        left = min(read, self._count())
        if left >= self._members:
            return ""
        return (
            f"{self.name} had {self._members:,} entries, of which {left:,} are left: it was "
            "deleted, made anew or flushed while it was read. Stop what does that (a scrapy-redis "
            "crawl that ends), restore it"
        )

    def _count(self) -> int:
        return int(self._ask(lambda: self._client.scard(self._key)))

    def _scan(self, cursor: int, size: int) -> tuple[int, list[bytes]]:
        found: tuple[int, list[bytes]] = self._ask(
            lambda: self._client.sscan(self._key, cursor, count=size)
        )
        return found

    def _ask(self, command: Callable[[], T]) -> T:
        try:
            return command()
        except (redis.RedisError, OSError) as error:
            raise explain(error, self._label, OF_SETS) from showable(error)


class _File:
    """A file that can be read more than once.

    Args:
        path: the file.
        option: the option that named it.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, option: str) -> None:
        self._path, self._option = path, option
        self.name = f"the file {str(path)!r}"
        self._open().close()
        self._version = self._look()

    def problem(self, read: int) -> str:  # noqa: ARG002 - its entries are not known before
        """Say if it was written to."""
        if self._look() == self._version:
            return ""
        return f"{self.name} has changed while it was read: stop what writes there"

    def _open(self) -> IO[bytes]:
        return open_file(self._path, self._option)

    def _look(self) -> tuple[int, ...]:
        """Return which file it is, and when it was written to last."""
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class SeenSource(_File):
    """Scrapy's ``requests.seen``.

    Args:
        path: the file, or the ``JOBDIR`` that it is in.
        window: the window that its fingerprints are recorded for.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, window: str) -> None:
        path = path / "requests.seen" if path.is_dir() else path
        if path.exists() and not path.is_file():
            raise ConfigurationError(
                f"--from-seen {str(path)!r:.200} is no file: it is read more than once, so copy "
                "what it gives to one"
            )
        super().__init__(path, "--from-seen")
        self._window = window

    def total(self) -> int:
        """Return how many usual fingerprints fit into the file."""
        with self._open() as file:
            entry = WIDTH + 2 if is_binary(file.read(1)) else 2 * WIDTH + 1
            return os.fstat(file.fileno()).st_size // entry

    def batches(self, size: int = BATCH) -> Iterator[MemberBatch]:
        """Read the file."""
        with self._open() as file:
            entries = enumerate(read_seen(file), 1)
            while part := list(islice(entries, size)):
                batch = MemberBatch()
                for number, fingerprint in part:
                    if fingerprint:
                        batch.take(self._window, fingerprint)
                    else:
                        batch.skip(f"entry {number:,}")
                yield batch


class UrlSource(_File):
    """A file of URLs, one a line.

    Args:
        path: the file.
        identify: returns a URL's window and item, or raises ConfigurationError if it is none.
        name: what to call it; None if it is named by its path.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, identify: Identify, name: str | None = None) -> None:
        super().__init__(path, "--from-urls")
        self._identify = identify
        self.name = name or self.name

    def total(self) -> int:
        """Return how many lines the file has."""
        with self._open() as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(_CHUNK), b""))

    def batches(self, size: int = BATCH) -> Iterator[MemberBatch]:
        """Read the file."""
        batch = MemberBatch()
        with self._open() as file:
            for number, line in enumerate(read_lines(file.readline), 1):
                self._take(batch, number, line)
                if batch.read >= size:
                    yield batch
                    batch = MemberBatch()
        yield batch

    def _take(self, batch: MemberBatch, number: int, line: Line) -> None:
        try:
            url = line.url()
            window, item = self._identify(url) if url else ("", b"")
        except ConfigurationError as error:
            batch.skip(f"line {number:,}: {error!s:.200}")
            return
        if window == RUN:
            batch.read += 1
            batch.run_only += 1
        elif url:
            batch.take(window, item)


def open_file(path: Path, option: str) -> IO[bytes]:
    """Open a file to read it.

    Raises:
        ConfigurationError: it is not there, or may not be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigurationError(
            f"{option} {str(path)!r:.200} cannot be read: {error.strerror}"
        ) from None
