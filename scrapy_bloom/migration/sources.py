"""Where a migration reads what was seen: a SET, Scrapy's requests.seen, lists of URLs."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import redis

from scrapy_bloom.crawl.windows import RUN
from scrapy_bloom.errors import ConfigurationError, explain, showable, shown
from scrapy_bloom.migration.batches import BATCH, END, Batch
from scrapy_bloom.migration.lines import Line, read_lines
from scrapy_bloom.migration.seen import HEAD_BYTES, Entries, Layout, read_entries

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
    "rights": "the SET's key and the commands SSCAN, SCARD, TYPE and INFO",
    "key": "the SET's key: name another one with --from-set KEY",
}
#: Bytes of a fingerprint at most, in a file that does not say by its form that it is Scrapy's.
_LONG = 1 << 12


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
                "and its server with --from-server"
            )

    def identity(self) -> str:
        """Return the process that has the SET; "" if it does not say."""
        run_id = self._ask(self._run_id)
        return f"{run_id} {self._key}" if run_id else ""

    def total(self) -> int:
        """Return how many members the SET has."""
        return int(self._ask(lambda: self._client.scard(self._key)))

    def size(self) -> int:
        """Return the same: a SET may be deleted, or made anew, by whoever writes to it."""
        return self.total()

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
                    batch.reject(shown(member, 60))
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
            raise explain(error, self._label, OF_SETS) from showable(error)


class SeenSource:
    """Scrapy's ``requests.seen``.

    Args:
        path: the file, or the ``JOBDIR`` that it is in.
        window: the window that its fingerprints are recorded for.

    Raises:
        ConfigurationError: there is no such file, it cannot be read, or holds something else.
    """

    readable_again = True

    def __init__(self, path: Path, window: str) -> None:
        self._path = path / "requests.seen" if path.is_dir() else path
        self._window = window
        self.name = f"the file {str(self._path)!r}"
        if self._path.exists() and not self._path.is_file():
            raise ConfigurationError(
                f"--from-seen {str(self._path)!r:.200} is no file: it is read more than once, so "
                "copy what it gives to one"
            )
        with open_file(self._path, "--from-seen") as file:
            self._layout = Layout.of(file.read(HEAD_BYTES))
            self._bytes = os.fstat(file.fileno()).st_size
        if self._bytes and not self._layout.width and not self._is_like_scrapys():
            raise ConfigurationError(
                f"--from-seen {str(self._path)!r:.200} is no requests.seen: what is in it does not "
                "read as fingerprints from its beginning to its end"
            )

    def _is_like_scrapys(self) -> bool:
        """Whether what may be fingerprints of any length are some: any bytes can be read as few."""
        whole = cut = rejected = covered = 0
        lengths: set[int] = set()
        for entries, _ in self._read("", BATCH):
            whole += len(entries.fingerprints)
            cut += entries.incomplete
            rejected += len(entries.rejected)
            lengths.update(map(len, entries.fingerprints))
            covered += sum(map(len, entries.fingerprints))
        if not whole or max(lengths) > _LONG or 10 * rejected > whole or 4 * covered < self._bytes:
            return False
        return cut <= 1 or len(lengths) == 1

    def identity(self) -> str:
        """Return which file it is, and when it was written to last."""
        return _file_identity(self._path)

    def total(self) -> int:
        """Return how many fingerprints fit into the file."""
        return self._bytes // self._layout.entry_bytes

    def size(self) -> int:
        """Return 0: any change of the file is told by its identity."""
        return 0

    def batches(self, position: str, size: int = BATCH) -> Iterator[Batch]:
        """Read the file."""
        for entries, following in self._read(position, size):
            yield self._batch(entries, following)
        yield Batch()

    def _read(self, position: str, size: int) -> Iterator[tuple[Entries, str]]:
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
                    yield entries, f"{form} {offset}"

    def _batch(self, entries: Entries, position: str) -> Batch:
        batch = Batch(position, incomplete=entries.incomplete)
        for fingerprint in entries.fingerprints:
            batch.take(self._window, fingerprint)
        for entry in entries.rejected:
            batch.reject(shown(entry, 60))
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

    def size(self) -> int:
        """Return 0: any change of the file is told by its identity."""
        return 0

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

    def size(self) -> int:
        """Return 0: the second pass reads a copy."""
        return 0

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
    for line in read_lines(readline):
        offset += line.size
        _take_url(batch, line, identify)
        if batch.read >= size:
            batch.position = str(offset)
            yield batch
            batch = Batch()
    yield batch


def _take_url(batch: Batch, line: Line, identify: Identify) -> None:
    try:
        url = line.url()
        window, item = identify(url) if url else ("", b"")
    except ConfigurationError as error:
        batch.reject(f"{error!s:.200}")
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
