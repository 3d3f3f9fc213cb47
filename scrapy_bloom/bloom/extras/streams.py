"""Where filters are saved to and loaded from: paths, and files that are open."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from scrapy_bloom.bloom.errors import ArchiveError, ConfigurationError, shown

#: A path, or a file that is open in binary mode.
Place = str | os.PathLike[str] | IO[bytes]


@contextmanager
def writing(place: Place) -> Iterator[IO[bytes]]:
    """Open a file to save to. It gets its name when it is whole; only its owner may read it.

    An open file is written to as it is, and so is a path of what is no regular file, as a pipe.

    Raises:
        ConfigurationError: it is neither a path nor a file.
        ArchiveError: it cannot be written.
    """
    if not isinstance(place, str | os.PathLike):
        yield _file(place, "write")
        return
    with _explained("write", place):
        path = Path(place).resolve()  # of a link, what it points to is replaced
        is_regular = path.is_file() or not path.exists()
        opened = _open_beside(path) if is_regular else path.open("wb")
    try:
        with opened as file:
            yield file
            with _explained("write", place):
                file.flush()
                if is_regular:
                    os.fsync(file.fileno())
                    Path(file.name).replace(path)
                    _sync_directory(path.parent)
    except BaseException:
        if is_regular:
            Path(opened.name).unlink(missing_ok=True)
        raise


@contextmanager
def reading(place: Place) -> Iterator[IO[bytes]]:
    """Open a file to load from.

    Raises:
        ConfigurationError: it is neither a path nor a file.
        ArchiveError: it cannot be read.
    """
    if not isinstance(place, str | os.PathLike):
        yield _file(place, "read")
        return
    with ExitStack() as stack:
        with _explained("read", place):
            file = stack.enter_context(Path(place).open("rb"))
        yield file


def _file(place: IO[bytes], method: str) -> IO[bytes]:
    if not hasattr(place, method):
        raise ConfigurationError(f"expected a path or a binary file; got {shown(place)}")
    return place


def _open_beside(path: Path) -> IO[bytes]:
    number, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    os.close(number)
    return Path(name).open("wb")


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _explained(verb: str, place: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise ArchiveError(f"cannot {verb} {os.fspath(place)!r}: {error}") from error
