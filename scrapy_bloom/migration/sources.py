"""Where a migration reads what was seen: batches, each with the position where the next begins."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import redis

from scrapy_bloom.crawl.windows import RUN
from scrapy_bloom.errors import ConfigurationError, explain, showable, shown
from scrapy_bloom.fingerprinter import bounded
from scrapy_bloom.migration.seen import Entries, Layout, read_entries

T = TypeVar("T")
#: Returns a URL's window and item, or raises ConfigurationError if it is none.
Identify = Callable[[str], tuple[str, bytes]]

#: Entries of a batch, about: SSCAN holds a server for about a millisecond then.
BATCH = 1_024
#: The position of a source that was read to its end; the beginning is "".
END = "end"
#: Bytes of a line with a URL at most.
MAX_LINE = 1 << 16
#: Bytes of a file of URLs that are read at once to count its lines.
_CHUNK = 1 << 20
_FINGERPRINT = re.compile(rb"[0-9A-Fa-f]{40}")
#: Any source's positions.
POSITION = re.compile(rf"(?:(?:text |binary )?[0-9]{{1,20}}|{END}|)")


@dataclass(slots=True)
class Batch:
    """Entries that were read together.

    Args:
        position: where the next batch begins; END after the last one.
        items: what is to be recorded, by window.
        read: entries read, those below included.
        rejected: those that are no fingerprint or URL.
        incomplete: those that were cut off when a crawl was killed.
        run_only: URLs of the window "run", which no filter remembers.
        example: one that was rejected; "" if none was.
    """

    position: str = END
    items: dict[str, list[bytes]] = field(default_factory=dict)
    read: int = 0
    rejected: int = 0
    incomplete: int = 0
    run_only: int = 0
    example: str = ""

    def take(self, window: str, item: bytes) -> None:
        """Add an item."""
        self.items.setdefault(window, []).append(bounded(item))
        self.read += 1

    def reject(self, entry: object) -> None:
        """Add an entry that is not what it should be."""
        self.read += 1
        self.rejected += 1
        self.example = self.example or shown(entry, 60)


class Source(Protocol):
    """What was seen.

    Attributes:
        name: what it is and where, without credentials.
        readable_again: whether it can be read more than once.
    """

    name: str
    readable_again: bool

    def identity(self) -> str:
        """Return what changes when positions in it lose their meaning; "" if they have none."""

    def total(self) -> int | None:
        """Return how many entries it has, about; None if that is not known."""

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:
        """Read it from a position on, in batches of about that size."""


class SetSource:
    """A SET of fingerprints in hexadecimal digits, as scrapy-redis keeps them.

    ``SSCAN`` returns whatever is in the SET from the first call to the last. The server holds
    nothing between the calls, so they may be hours apart; but its cursors are those of a hash table
    of this process, told by its ``run_id``.

    Args:
        client: a client of the server, or of its cluster.
        key: the SET's.
        label: the server's address, without credentials.
        window: the window that its fingerprints are recorded for.

    Raises:
        ConfigurationError: there is no SET under the key.
        StorageError: the server did not answer.
    """

    readable_again = True

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
                "and its server with --from-url"
            )

    def identity(self) -> str:
        """Return the process that has the SET; "" if it does not say."""
        run_id = self._ask(self._run_id)
        return f"{run_id} {self._key}" if run_id else ""

    def total(self) -> int:
        """Return how many members the SET has."""
        return int(self._ask(lambda: self._client.scard(self._key)))

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:
        """Read the SET. A member may be in two batches."""
        cursor = int(position or 0)
        while True:
            cursor, members = self._scan(cursor, size)
            batch = Batch(str(cursor) if cursor else END)
            for member in members:
                if _FINGERPRINT.fullmatch(member):
                    batch.take(self._window, bytes.fromhex(member.decode()))
                else:
                    batch.reject(member)
            yield batch
            if not cursor:
                return

    def _scan(self, cursor: int, size: int) -> tuple[int, list[bytes]]:
        found: tuple[int, list[bytes]] = self._ask(
            lambda: self._client.sscan(self._key, cursor, count=size)
        )
        return found

    def _run_id(self) -> str:
        client, options = self._client, {}
        if isinstance(client, redis.RedisCluster):
            options["target_nodes"] = self._client.get_node_from_key(self._key)
        try:
            return str(client.info("server", **options).get("run_id", ""))
        except redis.ResponseError:
            return ""  # managed services may refuse it

    def _ask(self, command: Callable[[], T]) -> T:
        try:
            return command()
        except (redis.RedisError, OSError) as error:
            raise explain(error, self._label) from showable(error)


class SeenSource:
    """Scrapy's ``requests.seen``.

    Args:
        path: the file, or the ``JOBDIR`` that it is in.
        window: the window that its fingerprints are recorded for.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """

    readable_again = True

    def __init__(self, path: Path, window: str) -> None:
        self._path = path / "requests.seen" if path.is_dir() else path
        self._window = window
        self.name = f"the file {str(self._path)!r}"
        with open_file(self._path, "--from-seen") as file:
            self._layout = Layout.of(file.read(64))
            self._size = os.fstat(file.fileno()).st_size

    def identity(self) -> str:
        """Return which file it is, and when it was written to last."""
        return _file_identity(self._path)

    def total(self) -> int:
        """Return how many fingerprints fit into the file."""
        return self._size // self._layout.entry_bytes

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:
        """Read the file."""
        form, _, digits = (position or f"{self._layout.form} 0").partition(" ")
        offset, piece = int(digits), size * self._layout.entry_bytes
        with open_file(self._path, "--from-seen") as file:
            file.seek(offset)
            data, is_last = b"", False
            while data or not is_last:
                more = b"" if is_last else file.read(piece)
                data, is_last = data + more, len(more) < piece
                entries = read_entries(data, form, self._layout.width, is_last=is_last)
                form, data, offset = entries.form, data[entries.used :], offset + entries.used
                if entries.used:
                    yield self._batch(entries, f"{form} {offset}")
        yield Batch()

    def _batch(self, entries: Entries, position: str) -> Batch:
        batch = Batch(position, incomplete=entries.incomplete)
        for fingerprint in entries.fingerprints:
            batch.take(self._window, fingerprint)
        for entry in entries.rejected:
            batch.reject(entry)
        return batch


class UrlSource:
    """A file of URLs, one a line.

    Args:
        path: the file.
        identify: returns a URL's window and item, or raises ConfigurationError if it is none.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """

    readable_again = True

    def __init__(self, path: Path, identify: Identify) -> None:
        self._path, self._identify = path, identify
        self.name = f"the file {str(path)!r}"
        open_file(path, "--from-urls").close()

    def identity(self) -> str:
        """Return which file it is, and when it was written to last."""
        return _file_identity(self._path)

    def total(self) -> int:
        """Return how many lines the file has."""
        with open_file(self._path, "--from-urls") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(_CHUNK), b""))

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:
        """Read the file."""
        with open_file(self._path, "--from-urls") as file:
            file.seek(int(position or 0))
            yield from _read_urls(file.readline, file.tell(), self._identify, size)


class UrlPipe:
    """URLs that can be read once, one a line.

    Args:
        stream: where they come from.
        name: what to call it.
        identify: as for ``UrlSource``.
        copy: a file to keep them in while they are read, for a second pass; None for no such.
    """

    def __init__(
        self, stream: IO[bytes], name: str, identify: Identify, copy: IO[bytes] | None
    ) -> None:
        self._stream, self._identify, self._copy = stream, identify, copy
        self._is_read = False
        self.name, self.readable_again = name, copy is not None

    def identity(self) -> str:
        """Return that there are no positions in it."""
        return ""

    def total(self) -> None:
        """Return that nobody knows."""
        return

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:  # noqa: ARG002
        """Read the stream; after that, the copy."""
        readline: Callable[[int], bytes] = self._stream.readline
        if self._is_read and self._copy is not None:
            self._copy.seek(0)
            readline = self._copy.readline
        elif self._copy is not None:
            readline = self._read_and_copy
        self._is_read = True
        return _read_urls(readline, 0, self._identify, size)

    def _read_and_copy(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        if self._copy is not None:
            self._copy.write(line)
        return line


def _read_urls(
    readline: Callable[[int], bytes], offset: int, identify: Identify, size: int
) -> Iterator[Batch]:
    batch = Batch()
    while line := readline(MAX_LINE):
        offset += len(line)
        is_whole = line.endswith(b"\n") or len(line) < MAX_LINE
        if is_whole:
            _take_url(batch, line, identify)
        else:
            batch.reject(line)
        while not is_whole:
            rest = readline(MAX_LINE)
            offset += len(rest)
            is_whole = not rest or rest.endswith(b"\n")
        if batch.read >= size:
            batch.position = str(offset)
            yield batch
            batch = Batch()
    yield batch


def _take_url(batch: Batch, line: bytes, identify: Identify) -> None:
    try:
        url = line.decode().strip("\ufeff \t\r\n")
        window, item = identify(url) if url else ("", b"")
    except (UnicodeDecodeError, ConfigurationError):
        batch.reject(line)
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


def _file_identity(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "gone"
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
